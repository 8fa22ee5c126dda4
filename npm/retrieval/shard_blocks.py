"""The blocks of one vector shard: what the encoder reads, batch by batch, and which of their tokens have a vector.

Shapes: T tokens and n kept tokens of the shard, B blocks of a batch, L padded length, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.corpus.blocks import concatenated_ranges
from npm.retrieval.batches import encode_padded, length_sorted_batches
from npm.retrieval.pruning import PruningRule, kept_tokens

if TYPE_CHECKING:
    from npm.corpus.store import BlockStore
    from npm.models.encoder import Encoder


class ShardBlocks:
    """The blocks of one vector shard; its batches are a function of the shard alone."""

    def __init__(self, store: BlockStore, encoder: Encoder, settings: Mapping[str, Any]) -> None:
        """`settings` are those in the manifest of the shard."""
        first = settings["first_block"]
        sequences = store.sequences(np.arange(first, first + settings["block_count"]))
        rule, dropped = PruningRule(settings["pruning"]), np.array(settings["frequent_token_ids"], dtype=np.int64)
        self.kept = kept_tokens(sequences.flags, rule, sequences.token_ids, dropped)  # bool [T]
        self._dtype = np.dtype(settings["dtype"])
        self._encoder = encoder
        self._token_ids = sequences.token_ids  # i32 [T]
        self._offsets = sequences.offsets  # i64 [blocks + 1]
        self._positions = np.flatnonzero(self.kept)  # i64 [n]
        self._row_bounds = np.searchsorted(self._positions, self._offsets)  # i64 [blocks + 1]
        around = ([], []) if store.special_tokens_in_blocks else (encoder.prefix_ids, encoder.suffix_ids)
        self._prefix, self._suffix = (np.array(ids, dtype=np.int64) for ids in around)
        lengths = np.diff(self._offsets) + len(self._prefix) + len(self._suffix)  # i64 [blocks]
        self.batches = length_sorted_batches(lengths, tokens_per_batch=settings["tokens_per_batch"])

    def vectors(self, progress: Callable[[int, int], None] | None = None) -> np.ndarray:
        """The vectors [n, d] of all kept tokens, in corpus order and in the dtype of the settings.

        `progress(tokens done, tokens of the shard)` is called after each batch.
        """
        vectors = np.empty((len(self._positions), self._encoder.dimensions), dtype=self._dtype)  # [n, d]
        tokens_done = 0
        for batch in self.batches:
            vectors[self.rows_of(batch)] = self.encoded(batch)
            tokens_done += int((self._offsets[batch + 1] - self._offsets[batch]).sum())
            if progress is not None:
                progress(tokens_done, len(self._token_ids))
        return vectors

    def rows_of(self, batch: np.ndarray) -> np.ndarray:
        """The rows i64 [kept of the batch] within the shard, block after block of `batch` i64 [B]."""
        return concatenated_ranges(self._row_bounds[batch], self._row_bounds[batch + 1])

    def sequences_of(self, batch: np.ndarray) -> list[np.ndarray]:
        """What the encoder reads for each block of `batch` i64 [B]: token ids with the special ones around them."""
        blocks = [self._token_ids[self._offsets[block] : self._offsets[block + 1]] for block in batch]
        return [np.concatenate([self._prefix, block, self._suffix]) for block in blocks]

    def encoded(self, batch: np.ndarray) -> np.ndarray:
        """The vectors f32 [kept of the batch, d] of the rows `rows_of(batch)`."""
        import torch

        states = encode_padded(self._encoder, self.sequences_of(batch))  # f32 [B, L, d]
        counts = np.diff(self._row_bounds)[batch]  # i64 [B]
        in_block = self._positions[self.rows_of(batch)] - np.repeat(self._offsets[batch], counts)  # i64 [kept]
        places = np.repeat(np.arange(len(batch)), counts)  # i64 [kept of the batch]
        slots = torch.from_numpy(places * states.shape[1] + in_block + len(self._prefix)).to(states.device)
        kept = states.reshape(-1, states.shape[2]).index_select(0, slots)  # f32 [kept of the batch, d]
        vectors: np.ndarray = kept.cpu().numpy()  # f32 [kept of the batch, d]
        return vectors
