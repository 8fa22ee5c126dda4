"""Which token position a stored vector (a row) belongs to, and back.

Shapes: n rows or positions asked for, R rows, T tokens of the corpus, m blocks.
"""

from __future__ import annotations

import numpy as np

from index.store import ShardedArray
from npm.corpus.ranges import concatenated_ranges


def gather(array: ShardedArray, indices: np.ndarray) -> np.ndarray:
    """`array.take(indices)`, twice as fast where there is one shard; raises IndexError outside of the array."""
    return array.arrays[0].take(indices) if len(array.arrays) == 1 else array.take(indices)


class RowMap:
    """Row number ↔ token position; rows are in corpus order.

    Holds one 4-byte number a token and a row in memory (8 bytes from 2^31 tokens on).
    """

    def __init__(self, positions: np.ndarray, *, token_count: int) -> None:
        """`positions` [R], strictly increasing in [0, T): the token that each row is the vector of."""
        if len(positions) and (positions[0] < 0 or positions[-1] >= token_count or (np.diff(positions) <= 0).any()):
            raise ValueError(f"positions of rows must increase within [0, {token_count})")
        dtype = np.int32 if token_count < 2**31 else np.int64
        self._positions = positions.astype(dtype)  # [R]
        self._rows = np.full(token_count, -1, dtype=dtype)  # [T], -1 without a vector
        self._rows[self._positions] = np.arange(len(positions), dtype=dtype)

    def __len__(self) -> int:
        return len(self._positions)

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Token positions i64 [n] of rows [n]."""
        return self._positions.take(rows).astype(np.int64)  # i64 [n]

    def rows_at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows [n] of token positions [n], and bool [n] whether there is one; without one the row means nothing."""
        rows: np.ndarray = self._rows.take(positions)  # [n]
        return rows, np.greater_equal(rows, 0)

    def rows_within(self, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        """The rows of the tokens in the disjoint ranges [starts[i], stops[i]) i64 [m], sorted, i64 [n]."""
        order = np.argsort(starts)
        first = np.searchsorted(self._positions, starts[order])  # i64 [m]
        last = np.searchsorted(self._positions, stops[order])  # i64 [m]
        return concatenated_ranges(first, last)
