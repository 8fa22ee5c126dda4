"""The views of a batch as objectives read them: each is encoded once, and all objectives share its vectors.

A contrastive loss compares all rows of a batch, so its batch cannot be cut into micro-batches. With `rows_per_pass`
the encoder works on a few rows at a time and keeps their outputs only; when the gradient of the outputs is known, each
piece is computed again, with the same dropout, and sent backwards (gradient caching, Gao et al. 2021,
arXiv 2101.06983). The gradient is the one of the whole batch; the price is a second forward pass.

Shapes: B rows or clean copies, Q masked copies, L, Lq and Lk padded lengths, n spans, T tokens of the clean copies,
R rows of sentences or texts, d dimensions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from npm.core.types import DenoisingBatch, LabelledBatch, MaskedBatch, QuestionBatch, SentenceBatch, View
from npm.models.masked_lm import TokenVectors


class EncodedBatch:
    """Vectors of a `MaskedBatch`; the encoder runs when they are first asked for."""

    LONG_COPY_FACTOR = 1.15
    """A masked copy longer than this many clean copies reads a context and has an encoder pass of its own."""

    def __init__(
        self,
        token_vectors: TokenVectors,
        batch: MaskedBatch,
        *,
        with_clean_copies: bool = True,
    ) -> None:
        """Without `with_clean_copies` there are no keys, and the encoder does not run for them."""
        self.token_vectors, self.batch = token_vectors, batch
        self._with_clean_copies = with_clean_copies

    @cached_property
    def _both(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Vectors of masked and clean copies, [Q, Lq, d] and [B, Lk, d].

        One encoder pass for both: the weights are cast and their gradients summed once, which is a quarter of a
        small encoder's step. Masked copies that read a context are longer and go in a pass of their own.
        """
        assert self._with_clean_copies, "keys of a batch that was encoded without its clean copies"
        batch = self.batch
        query_length, key_length = batch.query_input_ids.shape[1], batch.key_input_ids.shape[1]
        lengths = batch.query_attention_mask.sum(1)  # i64 [Q]
        is_long = lengths > self.LONG_COPY_FACTOR * key_length  # bool [Q]
        if not bool(is_long.any()):
            return self._one_pass(batch.query_input_ids, batch.query_attention_mask)
        short_length = int(lengths[~is_long].max()) if bool((~is_long).any()) else 0
        short_queries, keys = self._one_pass(
            batch.query_input_ids[~is_long, :short_length], batch.query_attention_mask[~is_long, :short_length]
        )
        long_queries = self.token_vectors(
            batch.query_input_ids[is_long], batch.query_attention_mask[is_long]
        ).float()  # f32 [long, Lq, d]
        order = torch.argsort(torch.cat([(~is_long).nonzero()[:, 0], is_long.nonzero()[:, 0]]))  # i64 [Q]
        queries = torch.cat([pad_positions(short_queries, query_length), long_queries])[order]  # f32 [Q, Lq, d]
        return queries, keys

    def _one_pass(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Vectors of some masked copies i64 [b, l], and of all clean copies: f32 [b, l, d] and [B, Lk, d]."""
        batch = self.batch
        query_length, key_length = input_ids.shape[1], batch.key_input_ids.shape[1]
        length = max(query_length, key_length)
        ids = [pad_columns(rows, length, value=batch.pad_id) for rows in (input_ids, batch.key_input_ids)]
        masks = [pad_columns(rows, length) for rows in (attention_mask, batch.key_attention_mask)]
        vectors = self.token_vectors(torch.cat(ids), torch.cat(masks)).float()  # f32 [b + B, length, d]
        return vectors[: len(input_ids), :query_length], vectors[len(input_ids) :, :key_length]

    @property
    def query_vectors(self) -> torch.Tensor:
        """Vectors f32 [Q, Lq, d] of the masked copies."""
        return self._both[0] if self._with_clean_copies else self._queries_alone

    @cached_property
    def _queries_alone(self) -> torch.Tensor:
        batch = self.batch
        return self.token_vectors(batch.query_input_ids, batch.query_attention_mask).float()  # f32 [Q, Lq, d]

    @property
    def start_queries(self) -> torch.Tensor:
        """Vectors f32 [n, d] at the first mask of each span."""
        return self.query_vectors[self.batch.span_sequences, self.batch.start_slots]

    @property
    def end_queries(self) -> torch.Tensor:
        """Vectors f32 [n, d] at the last mask of each span."""
        return self.query_vectors[self.batch.span_sequences, self.batch.end_slots]

    def masked_keys(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What is not masked of the masked copies, one a sequence: f32 [T, d], ids i64 [T], sequences i64 [T]."""
        is_key, known = masked_copy_keys(self.batch)  # bool and i64 [Q, Lq]
        return self.query_vectors[is_key], known[is_key], is_key.nonzero()[:, 0]

    @cached_property
    def _clean_keys(self) -> tuple[torch.Tensor, torch.Tensor]:
        return clean_copy_keys(self.batch)

    @property
    def clean_vectors(self) -> torch.Tensor:
        """Vectors f32 [B, Lk, d] of the clean copies; under padding they mean nothing."""
        return self._both[1]

    @cached_property
    def key_vectors(self) -> torch.Tensor:
        """Vectors f32 [T, d] of every token of the clean copies, special tokens included, padding and titles not."""
        return self.clean_vectors[self._clean_keys[0]]

    @cached_property
    def key_token_ids(self) -> torch.Tensor:
        """What the keys are known as, i64 [T]: token ids, with the ends of words where whole words count."""
        is_key, known = self._clean_keys  # bool and i64 [B, Lk]
        return known[is_key]

    @cached_property
    def key_sequences(self) -> torch.Tensor:
        """Which of the B sequences each key stands in, i64 [T], ascending."""
        return self._clean_keys[0].nonzero()[:, 0]


def clean_copy_keys(batch: MaskedBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Which tokens of the clean copies are keys, bool [B, Lk]: no padding, no titles; what they are known as, i64."""
    is_key = batch.key_attention_mask.bool()
    if batch.key_titles is not None:
        is_key = is_key & ~batch.key_titles
    return is_key, batch.key_input_ids if batch.key_identities is None else batch.key_identities


def masked_copy_keys(batch: MaskedBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of the masked copies, bool and i64 [Q, Lq]: no masks, no padding, no titles."""
    ids = batch.query_input_ids  # i64 [Q, Lq]
    is_key = batch.query_attention_mask.bool()
    if len(batch.span_sequences):
        is_key = is_key & (ids != ids[batch.span_sequences[0], batch.start_slots[0]])  # all masks have one id
    if batch.key_titles is not None:  # a title stands first, and nothing of it is masked
        titles = pad_columns(batch.key_titles[:, : ids.shape[1]], ids.shape[1])  # bool [Q, Lq]
        is_key = is_key & ~titles
    return is_key, ids if batch.query_identities is None else batch.query_identities


def pad_columns(rows: torch.Tensor, length: int, *, value: int = 0) -> torch.Tensor:
    """Rows [B, L] lengthened on the right to [B, length].

    >>> pad_columns(torch.tensor([[1, 2]]), 3, value=9).tolist()
    [[1, 2, 9]]
    """
    return torch.nn.functional.pad(rows, (0, length - rows.shape[1]), value=value)


def pad_positions(vectors: torch.Tensor, length: int) -> torch.Tensor:
    """Vectors [B, L, d] lengthened with zeros to [B, length, d]."""
    return torch.nn.functional.pad(vectors, (0, 0, 0, length - vectors.shape[1]))


class Passes:
    """What objectives may ask of the encoder that is trained."""

    def __init__(self, model: nn.Module, *, rows_per_pass: int | None = None) -> None:
        self.model = model
        self.rows_per_pass = rows_per_pass

    def token_vectors(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Last hidden states [B, L, d] of token ids i64 [B, L]; positions i64 [B, L], if not 0, 1, 2, …"""
        given = (input_ids, attention_mask) if position_ids is None else (input_ids, attention_mask, position_ids)

        def last_states(ids: torch.Tensor, mask: torch.Tensor, *positions: torch.Tensor) -> torch.Tensor:
            further = {"position_ids": positions[0]} if positions else {}
            vectors: torch.Tensor = self.model(input_ids=ids, attention_mask=mask, **further).last_hidden_state
            return vectors  # [b, L, d]

        vectors: torch.Tensor = self.piecewise(last_states, *given)
        return vectors  # [B, L, d]

    def piecewise(self, function: Callable[..., Any], *rows: torch.Tensor) -> Any:
        """`function` of tensors of B rows each; it returns a tensor of as many rows."""
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

    def by_length(self, function: Callable[..., Any], attention_mask: torch.Tensor, *rows: torch.Tensor) -> Any:
        """`piecewise` of a mask and tensors i64 [B, L], group by group of like lengths; it returns states [b, l, d]."""
        given = (attention_mask, *rows)
        groups = groups_by_length(attention_mask)  # i64 [b] each
        if not groups:
            return self.piecewise(function, *given)
        states = []
        for numbers in groups:
            longest = int(attention_mask[numbers].sum(1).max())
            own = self.piecewise(function, *(tensor[numbers, :longest] for tensor in given))  # [b, l, d]
            states.append(pad_positions(own, attention_mask.shape[1]))
        return torch.cat(states)[torch.cat(groups).argsort()]  # [B, L, d]


class EncodedSentences:
    """Hidden states of the rows of a `SentenceBatch`."""

    def __init__(self, passes: Passes, batch: SentenceBatch) -> None:
        self.passes, self.batch = passes, batch

    @property
    def attention_mask(self) -> torch.Tensor:
        """Which positions hold tokens, i64 [R, L]."""
        return self.batch.attention_mask

    @cached_property
    def token_vectors(self) -> torch.Tensor:
        """Last hidden states [R, L, d]; all rows in one pass."""
        return self.passes.token_vectors(self.batch.input_ids, self.batch.attention_mask)


class EncodedDenoising:
    """What an encoder-decoder expects at every position of the targets of a `DenoisingBatch`."""

    def __init__(self, passes: Passes, batch: DenoisingBatch) -> None:
        self.passes, self.batch = passes, batch

    @cached_property
    def logits(self) -> torch.Tensor:
        """Logits [R, L, V] of the target tokens, each from those before it."""

        def run(ids: torch.Tensor, mask: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            model: Any = self.passes.model
            # not `labels`: transformers would compute a loss of its own, for nothing
            shifted = model.prepare_decoder_input_ids_from_labels(labels=targets)  # i64 [r, L]
            output = model(input_ids=ids, attention_mask=mask, decoder_input_ids=shifted, use_cache=False)
            logits: torch.Tensor = output.logits
            return logits  # [r, L, V]

        batch = self.batch
        logits: torch.Tensor = self.passes.piecewise(run, batch.input_ids, batch.attention_mask, batch.target_ids)
        return logits


class EncodedLabelled:
    """States of the rows of a `LabelledBatch`."""

    def __init__(self, passes: Passes, batch: LabelledBatch) -> None:
        self.passes, self.batch = passes, batch
        self._states: dict[int | None, torch.Tensor] = {}

    def states(self, layer: int | None = None) -> torch.Tensor:
        """The states [B, L, d] behind a layer, 0 being the embeddings; None: behind the last one."""

        def run(mask: torch.Tensor, ids: torch.Tensor, *types: torch.Tensor) -> torch.Tensor:
            further = {"token_type_ids": types[0]} if types else {}
            output = self.passes.model(
                input_ids=ids, attention_mask=mask, output_hidden_states=layer is not None, **further
            )
            states: torch.Tensor = output.last_hidden_state if layer is None else output.hidden_states[layer]
            return states  # [b, L, d]

        if layer not in self._states:
            batch = self.batch
            types = () if batch.token_type_ids is None else (batch.token_type_ids,)
            self._states[layer] = self.passes.by_length(run, batch.attention_mask, batch.input_ids, *types)
        return self._states[layer]  # [B, L, d]


class EncodedQuestions:
    """States of the rows of a `QuestionBatch`."""

    def __init__(self, passes: Passes, batch: QuestionBatch) -> None:
        self.passes, self.batch = passes, batch

    @cached_property
    def states(self) -> torch.Tensor:
        """The states f32 [R, L, d] after the last layer."""

        def run(mask: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            states: torch.Tensor = self.passes.model(input_ids=ids, attention_mask=mask).last_hidden_state
            return states  # [b, L, d]

        states: torch.Tensor = self.passes.by_length(run, self.batch.attention_mask, self.batch.input_ids)
        return states.float()  # f32 [R, L, d]


LENGTH_GROUPS, GROUP_ROWS, MOST_OF_POSITIONS = 3, 18, 0.75
"""At least so many groups, and one for each so many rows, are made if that leaves at most such a share of positions."""


def groups_by_length(attention_mask: torch.Tensor) -> list[torch.Tensor]:
    """Which rows of a mask i64 [B, L], padded on the right, the encoder takes at once: i64 [b] each; none: all of them.

    On a CPU, whose time goes by the positions and not by the passes, rows of like lengths are taken together where that
    saves padding enough.

    >>> [rows.tolist() for rows in groups_by_length(torch.tensor([[1, 0, 0], [1, 1, 1], [1, 0, 0], [1, 0, 0]]))]
    [[1, 0], [2, 3]]
    """
    if not attention_mask.is_cpu:
        return []
    lengths = attention_mask.sum(1)  # i64 [B]
    groups = lengths.argsort(descending=True, stable=True).chunk(max(LENGTH_GROUPS, len(lengths) // GROUP_ROWS))
    positions = sum(len(rows) * int(lengths[rows[0]]) for rows in groups)
    return list(groups) if positions <= MOST_OF_POSITIONS * attention_mask.numel() else []


Encoded = EncodedBatch | EncodedSentences | EncodedDenoising | EncodedLabelled | EncodedQuestions


def encode_views(views: Mapping[str, View], passes: Passes, *, with_clean_copies: Iterable[str]) -> dict[str, Any]:
    """Every view, ready to be asked for its vectors; `with_clean_copies` names the views whose keys are needed."""
    needed = set(with_clean_copies)
    return {name: _encode(view, passes, with_clean_copies=name in needed) for name, view in views.items()}


def _encode(view: View, passes: Passes, *, with_clean_copies: bool) -> Encoded:
    if isinstance(view, MaskedBatch):
        return EncodedBatch(passes.token_vectors, view, with_clean_copies=with_clean_copies)
    if isinstance(view, SentenceBatch):
        return EncodedSentences(passes, view)
    if isinstance(view, LabelledBatch):
        return EncodedLabelled(passes, view)
    if isinstance(view, QuestionBatch):
        return EncodedQuestions(passes, view)
    assert isinstance(view, DenoisingBatch), f"no encoding of a {type(view).__name__}"
    return EncodedDenoising(passes, view)
