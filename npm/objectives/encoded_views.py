"""What an objective gets to see of its view: the encoder's output on it, computed when it is first asked for.

Shapes: R rows, L padded length, d dimensions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import torch

from npm.objectives.encoded import EncodedBatch
from npm.objectives.passes import Passes
from npm.types import DenoisingBatch, MaskedBatch, SentenceBatch, View


class EncodedSentences:
    """Hidden states of the rows of a `SentenceBatch`."""

    def __init__(self, passes: Passes, batch: SentenceBatch) -> None:
        self.passes, self.batch = passes, batch

    @property
    def attention_mask(self) -> torch.Tensor:
        """Which positions hold tokens, i64 [R, L]."""
        return self.batch.attention_mask

    @cached_property
    def hidden_states(self) -> tuple[torch.Tensor, ...]:
        """The embeddings and the states behind each layer, [R, L, d] each; all rows in one pass."""
        return self.passes.hidden_states(self.batch.input_ids, self.batch.attention_mask)


class EncodedDenoising:
    """What an encoder-decoder expects at every position of the targets of a `DenoisingBatch`."""

    def __init__(self, passes: Passes, batch: DenoisingBatch) -> None:
        self.passes, self.batch = passes, batch

    @cached_property
    def logits(self) -> torch.Tensor:
        """Logits [R, L, V] of the target tokens, each from those before it."""

        def run(ids: torch.Tensor, mask: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            model: Any = self.passes.model
            # not `labels`: transformers would compute a loss that nobody reads
            shifted = model.prepare_decoder_input_ids_from_labels(labels=targets)  # i64 [r, L]
            output = model(input_ids=ids, attention_mask=mask, decoder_input_ids=shifted, use_cache=False)
            logits: torch.Tensor = output.logits
            return logits  # [r, L, V]

        batch = self.batch
        logits: torch.Tensor = self.passes.piecewise(run, batch.input_ids, batch.attention_mask, batch.target_ids)
        return logits


Encoded = EncodedBatch | EncodedSentences | EncodedDenoising


def encode_views(views: Mapping[str, View], passes: Passes, *, with_clean_copies: Iterable[str]) -> dict[str, Any]:
    """Every view, ready to be asked for its vectors; `with_clean_copies` names the views whose keys are needed."""
    needed = set(with_clean_copies)
    return {name: _encode(view, passes, with_clean_copies=name in needed) for name, view in views.items()}


def _encode(view: View, passes: Passes, *, with_clean_copies: bool) -> Encoded:
    if isinstance(view, MaskedBatch):
        return EncodedBatch(passes.token_vectors, view, with_clean_copies=with_clean_copies)
    if isinstance(view, SentenceBatch):
        return EncodedSentences(passes, view)
    assert isinstance(view, DenoisingBatch), f"no encoding of a {type(view).__name__}"
    return EncodedDenoising(passes, view)
