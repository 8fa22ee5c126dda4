"""The vectors of one masked batch, computed once and shared by every objective that asks.

Shapes: B sequences, Lq and Lk padded lengths of masked and clean copies, n spans, T tokens of the clean copies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch

from npm.types import MaskedBatch

TokenVectors = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps token ids i64 [B, L] and attention mask i64 [B, L] to vectors [B, L, d]."""


class EncodedBatch:
    """Vectors of a `MaskedBatch`; the encoder runs when they are first asked for."""

    def __init__(self, token_vectors: TokenVectors, batch: MaskedBatch) -> None:
        self.batch = batch
        self._token_vectors = token_vectors

    @cached_property
    def _both(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Vectors of masked and clean copies, [B, Lq, d] and [B, Lk, d].

        One encoder pass for both: the weights are cast and their gradients summed once, which is a quarter of a
        small encoder's step. The shorter of the two is padded to the longer.
        """
        batch = self.batch
        query_length, key_length = batch.query_input_ids.shape[1], batch.key_input_ids.shape[1]
        length = max(query_length, key_length)
        input_ids = torch.cat(
            [
                pad_columns(batch.query_input_ids, length, value=batch.pad_id),
                pad_columns(batch.key_input_ids, length, value=batch.pad_id),
            ]
        )  # i64 [2B, L]
        attention_mask = torch.cat(
            [pad_columns(batch.query_attention_mask, length), pad_columns(batch.key_attention_mask, length)]
        )  # i64 [2B, L]
        vectors = self._token_vectors(input_ids, attention_mask)  # [2B, L, d]
        queries, keys = vectors.chunk(2)  # [B, L, d] each
        return queries[:, :query_length].float(), keys[:, :key_length].float()

    @property
    def query_vectors(self) -> torch.Tensor:
        """Vectors f32 [B, Lq, d] of the masked copies."""
        return self._both[0]

    @property
    def start_queries(self) -> torch.Tensor:
        """Vectors f32 [n, d] at the first mask of each span."""
        return self.query_vectors[self.batch.span_sequences, self.batch.start_slots]

    @property
    def end_queries(self) -> torch.Tensor:
        """Vectors f32 [n, d] at the last mask of each span."""
        return self.query_vectors[self.batch.span_sequences, self.batch.end_slots]

    @cached_property
    def _is_key(self) -> torch.Tensor:
        return self.batch.key_attention_mask.bool()  # bool [B, Lk]

    @cached_property
    def key_vectors(self) -> torch.Tensor:
        """Vectors f32 [T, d] of every token of the clean copies, special tokens included, padding left out."""
        return self._both[1][self._is_key]

    @cached_property
    def key_token_ids(self) -> torch.Tensor:
        """Token ids i64 [T] of the keys."""
        return self.batch.key_input_ids[self._is_key]

    @cached_property
    def key_sequences(self) -> torch.Tensor:
        """Which of the B sequences each key stands in, i64 [T], ascending."""
        return self._is_key.nonzero()[:, 0]


def pad_columns(rows: torch.Tensor, length: int, *, value: int = 0) -> torch.Tensor:
    """Rows [B, L] lengthened on the right to [B, length].

    >>> pad_columns(torch.tensor([[1, 2]]), 3, value=9).tolist()
    [[1, 2, 9]]
    """
    return torch.nn.functional.pad(rows, (0, length - rows.shape[1]), value=value)
