"""The vectors of one masked batch, computed once and shared by every objective that asks.

Shapes: B clean copies, Q masked copies, Lq and Lk their padded lengths, n spans, T tokens of the clean copies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch

from npm.types import MaskedBatch

LONG_COPY_FACTOR = 1.15
"""A masked copy longer than this many clean copies reads a context."""


TokenVectors = Callable[..., torch.Tensor]
"""Maps token ids i64 [B, L], attention mask i64 [B, L] and perhaps positions i64 [B, L] to vectors [B, L, d]."""


class EncodedBatch:
    """Vectors of a `MaskedBatch`; the encoder runs when they are first asked for."""

    def __init__(
        self,
        token_vectors: TokenVectors,
        batch: MaskedBatch,
        *,
        with_clean_copies: bool = True,
        long_copy_factor: float = LONG_COPY_FACTOR,
    ) -> None:
        """Masked copies longer than `long_copy_factor` clean copies have an encoder pass of their own.

        Without `with_clean_copies` there are no keys, and the encoder does not run for them.
        """
        self.token_vectors, self.batch = token_vectors, batch
        self._with_clean_copies = with_clean_copies
        self._long_copy_factor = long_copy_factor

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
        is_long = lengths > self._long_copy_factor * key_length  # bool [Q]
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


def pad_positions(vectors: torch.Tensor, length: int) -> torch.Tensor:
    """Vectors [B, L, d] lengthened with zeros to [B, length, d]."""
    return torch.nn.functional.pad(vectors, (0, 0, 0, length - vectors.shape[1]))
