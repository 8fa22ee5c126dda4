"""The views of a batch as objectives read them: each is encoded once, and all objectives share its vectors.

A contrastive loss compares all rows of a batch, so its batch cannot be cut into micro-batches. With `rows_per_pass`
the encoder works on a few rows at a time and keeps their outputs only; when the gradient of the outputs is known, each
piece is computed again, with the same dropout, for its backward pass (gradient caching, Gao et al. 2021,
arXiv 2101.06983). The gradient is the one of the entire batch; the price is a second forward pass.

Shapes: B rows or clean copies, Q masked copies, L, Lq and Lk padded lengths, n spans, T tokens of the clean copies,
d dimensions, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from npm.masking.batches import (
    DenoisingBatch,
    LabeledBatch,
    MaskedBatch,
    PassageBatch,
    QuestionBatch,
    SentenceBatch,
    View,
)
from npm.models.bert import is_plain_bert, packed_states
from npm.models.masked_lm import TokenVectors


@dataclass
class Passes:
    """The encoder that is trained, as objectives may use it."""

    model: nn.Module
    rows_per_pass: int | None = None

    def states(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        *,
        layer: int | None = None,
        **further: torch.Tensor | None,
    ) -> torch.Tensor:
        """States [B, L, d] of token ids i64 [B, L] after a layer, 0 being the embeddings; None: after the last one.

        Positions, if not 0, 1, 2, …, and `further` are i64 [B, L].
        Rows of similar lengths are encoded together; under padding the states mean nothing.
        """
        named = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids, **further}
        given = {name: tensor for name, tensor in named.items() if tensor is not None}

        def run(*tensors: torch.Tensor) -> torch.Tensor:
            asked = {} if layer is None else {"output_hidden_states": True}
            output = self.model(**dict(zip(given, tensors, strict=True)), **asked)
            states: torch.Tensor = output.last_hidden_state if layer is None else output.hidden_states[layer]
            return states  # [b, l, d]

        groups, length = groups_by_length(attention_mask), input_ids.shape[1]
        if len(groups) == 1:
            whole: torch.Tensor = self.piecewise(run, *given.values())
            return whole  # [B, L, d]
        parts = []
        for rows in groups:
            longest = int(attention_mask[rows].sum(1).max())
            part = self.piecewise(run, *(tensor[rows, :longest] for tensor in given.values()))  # [b, l, d]
            parts.append(pad(part, (0, 0, 0, length - longest)))  # [b, L, d]
        return torch.cat(parts)[torch.cat(groups).argsort()]  # [B, L, d]

    def packed_states(self, input_ids: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Last hidden states [N, d] of concatenated rows, token ids i64 [N]; plain BERT does not pad them."""
        config: Any = self.model.config
        has_dropout = self.model.training and any(getattr(config, name, 0) for name in DROPOUTS)
        if is_plain_bert(config.to_dict()) and not has_dropout:
            return packed_states(self.model, input_ids, lengths)
        rows = pad_sequence(list(input_ids.split(list(lengths))), batch_first=True)  # i64 [B, L]
        sizes = torch.tensor(lengths, device=rows.device)  # i64 [B]
        mask = torch.arange(rows.shape[1], device=rows.device) < sizes[:, None]  # bool [B, L]
        return self.states(rows, mask.long())[mask]  # [N, d]

    def piecewise(self, function: Callable[..., Any], *rows: torch.Tensor) -> Any:
        """`function` of tensors of B rows each; it returns a tensor of B rows."""
        count, size = len(rows[0]), self.rows_per_pass
        if size is None or count <= size or not torch.is_grad_enabled():
            return function(*rows)
        # A checkpoint keeps a piece's inputs and random state, not its activations: the loss still sees all outputs at
        # once, and only the backward pass, which runs each piece again, is spread over time.
        pieces = [
            checkpoint(function, *(tensor[start : start + size] for tensor in rows), use_reentrant=False)
            for start in range(0, count, size)
        ]
        return torch.cat(pieces)


class FrozenModel:
    """A frozen copy of a model in its current state, in evaluation mode; the original may continue training.

    It is held outside of `torch.nn.Module`: neither the optimizer nor a checkpoint of the objective contains
    it, and a resumed run makes it again from the encoder that it started from.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def token_vectors(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Last hidden states [B, L, d] of token ids i64 [B, L], on their device, all rows in one pass."""
        model = self.model.to(input_ids.device)
        vectors: torch.Tensor = model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return vectors  # [B, L, d]

    @torch.no_grad()
    def packed_states(self, input_ids: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Last hidden states [N, d] of concatenated rows, token ids i64 [N], on their device."""
        return Passes(self.model.to(input_ids.device)).packed_states(input_ids, lengths)


DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
"""Probabilities in the config of a BERT whose packed form, which has no dropout, then would not be its own."""
MIN_SAVED_FRACTION, MIN_SAVED_CPU, MIN_SAVED_GPU = 0.15, 64, 8192
"""Positions that a further pass has to save: a fraction of those of its rows, and enough that it costs less."""


def groups_by_length(attention_mask: torch.Tensor) -> list[torch.Tensor]:
    """Rows of a mask i64 [B, L], padded on the right, that the encoder takes at once: i64 [b] each.

    Rows are sorted by length, and split in two where that saves the most positions, as long as it saves enough.

    >>> lengths = torch.tensor([20, 90, 20, 100])
    >>> [rows.tolist() for rows in groups_by_length(torch.arange(100) < lengths[:, None])]
    [[3, 1], [0, 2]]
    """
    lengths, order = attention_mask.sum(1).sort(descending=True, stable=True)  # i64 [B] each
    return _split(lengths, order, MIN_SAVED_CPU if attention_mask.is_cpu else MIN_SAVED_GPU)


def _split(lengths: torch.Tensor, rows: torch.Tensor, min_saved: int) -> list[torch.Tensor]:
    if lengths.numel() < 2:
        return [rows]
    saved = torch.arange(len(lengths), device=lengths.device).flip(0) + 1  # i64 [b], rows from each one on
    saved = saved * (lengths[0] - lengths)  # positions
    at = int(saved.argmax())
    if int(saved[at]) < max(min_saved, MIN_SAVED_FRACTION * len(lengths) * int(lengths[0])):
        return [rows]
    return _split(lengths[:at], rows[:at], min_saved) + _split(lengths[at:], rows[at:], min_saved)


@dataclass
class EncodedBatch:
    """Vectors of a `MaskedBatch`; the encoder runs when they are first needed."""

    token_vectors: TokenVectors
    batch: MaskedBatch
    with_clean_copies: bool = True
    """Without them there are no keys, and the encoder does not run for them."""

    @cached_property
    def _vectors(self) -> torch.Tensor:
        """Vectors f32 [Q (+ B), L, d] of masked copies and, after them, of clean ones.

        One call for both: weights are cast and gradients summed once, a quarter of a small encoder's step.
        """
        batch = self.batch
        ids, masks = [batch.query_input_ids], [batch.query_attention_mask]
        if self.with_clean_copies:
            ids, masks = [*ids, batch.key_input_ids], [*masks, batch.key_attention_mask]
        length = max(part.shape[1] for part in ids)
        input_ids = torch.cat(
            [pad(part, (0, length - part.shape[1]), value=batch.pad_id) for part in ids]
        )  # i64 [Q (+ B), L]
        attention_mask = torch.cat([pad(part, (0, length - part.shape[1])) for part in masks])  # i64 [Q (+ B), L]
        return self.token_vectors(input_ids, attention_mask).float()

    @property
    def query_vectors(self) -> torch.Tensor:
        """Vectors f32 [Q, Lq, d] of the masked copies."""
        count, length = self.batch.query_input_ids.shape
        return self._vectors[:count, :length]

    @property
    def start_queries(self) -> torch.Tensor:
        """Vectors f32 [n, d] at the first mask of each span."""
        return self.query_vectors[self.batch.span_sequences, self.batch.start_slots]

    @property
    def end_queries(self) -> torch.Tensor:
        """Vectors f32 [n, d] at the last mask of each span."""
        return self.query_vectors[self.batch.span_sequences, self.batch.end_slots]

    @property
    def clean_vectors(self) -> torch.Tensor:
        """Vectors f32 [B, Lk, d] of the clean copies; under padding they mean nothing."""
        assert self.with_clean_copies, "keys of a batch that was encoded without its clean copies"
        return self._vectors[len(self.batch.query_input_ids) :, : self.batch.key_input_ids.shape[1]]


def clean_copy_keys(batch: MaskedBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens of the clean copies that are keys, bool [B, Lk]: special tokens included, padding and titles not.

    With the identity of each, i64 [T] (its token id, with word-end flags if only full words count), and its sequence,
    of B, i64 [T], ascending.
    """
    is_key = batch.key_attention_mask.bool()  # bool [B, Lk]
    if batch.key_titles is not None:
        is_key = is_key & ~batch.key_titles
    identities = batch.key_input_ids if batch.key_identities is None else batch.key_identities  # i64 [B, Lk]
    return is_key, identities[is_key], is_key.nonzero()[:, 0]


Rows = TypeVar("Rows", SentenceBatch, LabeledBatch, QuestionBatch, PassageBatch, DenoisingBatch)


class EncodedRows(Generic[Rows]):
    """States of the rows of a batch; those of passages are packed (`Passes.packed_states`)."""

    def __init__(self, passes: Passes, batch: Rows) -> None:
        self.passes = passes
        self.batch: Rows = batch
        self._states: dict[int | None, torch.Tensor] = {}

    def states(self, layer: int | None = None) -> torch.Tensor:
        """States [B, L, d] after a layer, 0 being the embeddings; None: after the last one."""
        if layer not in self._states:
            batch: Any = self.batch
            types = getattr(batch, "token_type_ids", None)  # i64 [B, L]
            self._states[layer] = self.passes.states(
                batch.input_ids, batch.attention_mask, layer=layer, token_type_ids=types
            )
        return self._states[layer]  # [B, L, d]


class EncodedDenoising(EncodedRows[DenoisingBatch]):
    """Predictions of an encoder-decoder at every target position."""

    @cached_property
    def logits(self) -> torch.Tensor:
        """Logits [B, L, V] of the target tokens, each from those before it."""

        def run(ids: torch.Tensor, mask: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            model: Any = self.passes.model
            # not `labels`: transformers would compute another loss, for nothing
            shifted = model.prepare_decoder_input_ids_from_labels(labels=targets)  # i64 [b, L]
            output = model(input_ids=ids, attention_mask=mask, decoder_input_ids=shifted, use_cache=False)
            logits: torch.Tensor = output.logits
            return logits  # [b, L, V]

        batch = self.batch
        logits: torch.Tensor = self.passes.piecewise(run, batch.input_ids, batch.attention_mask, batch.target_ids)
        return logits


def encode_views(views: Mapping[str, View], passes: Passes, *, with_clean_copies: Iterable[str]) -> dict[str, Any]:
    """Every view, ready to compute its vectors; `with_clean_copies` names the views whose keys are needed."""
    encoded: dict[str, Any] = {}
    for name, view in views.items():
        if isinstance(view, MaskedBatch):
            encoded[name] = EncodedBatch(passes.states, view, with_clean_copies=name in with_clean_copies)
        else:
            encode: Any = EncodedDenoising if isinstance(view, DenoisingBatch) else EncodedRows
            encoded[name] = encode(passes, view)
    return encoded
