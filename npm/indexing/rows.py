"""Map between stored vectors (rows) and token positions.

Shapes: n requested rows or positions, R rows, T tokens of the corpus, W words of 64 tokens, m ranges of tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from index.arrays import ShardedArray
from npm.corpus.blocks import concatenated_ranges


def gather(array: ShardedArray, indices: np.ndarray) -> np.ndarray:
    """`array.take(indices)`, twice as fast where there is one shard; raises IndexError outside of the array."""
    return array.arrays[0].take(indices) if len(array.arrays) == 1 else array.take(indices)


def pack_kept(kept: np.ndarray) -> np.ndarray:
    """Pack the mask of a shard's tokens with a vector, bool [T], for `RowMap` and vector shards: u8 [ceil(T / 8)].

    >>> import numpy as np
    >>> pack_kept(np.array([1, 0, 0, 1, 0, 0, 0, 0, 1], dtype=bool)).tolist()
    [9, 1]
    """
    return np.packbits(kept, bitorder="little")


class RowMap:
    """Row number ↔ token position; rows are in corpus order.

    One bit per token is set if it has a row, and the rows before each word of 64 tokens are counted once: at most 1.5
    bits of memory a token (from 2^32 rows on half a bit more).
    """

    def __init__(self, kept: Sequence[np.ndarray], token_counts: Sequence[int]) -> None:
        """`kept` of each shard, u8 [ceil(tokens / 8)] as `pack_kept` makes it, and the shard's number of tokens.

        Raises ValueError if a shard's bits do not fit its number of tokens.
        """
        self.token_count = int(sum(token_counts))
        self._words = _aligned_words(kept, token_counts)  # u64 [W], at least one more bit than tokens
        counts = np.bitwise_count(self._words)  # u8 [W]
        self._row_count = int(counts.sum(dtype=np.int64))
        dtype = np.uint32 if self._row_count < 2**32 else np.int64
        self._rows_before_words = np.empty(len(counts), dtype=dtype)  # [W]
        self._rows_before_words[0] = 0
        np.cumsum(counts[:-1], dtype=dtype, out=self._rows_before_words[1:])

    @classmethod
    def of_mask(cls, kept: np.ndarray) -> RowMap:
        """The rows of one run of tokens: a row for each token that bool [T] names."""
        return cls([pack_kept(kept)], [len(kept)])

    def __len__(self) -> int:
        return self._row_count

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Token positions i64 [n] of rows [n]. Raises IndexError for a row that does not exist."""
        rows = np.asarray(rows)
        if len(rows) == 0:
            return np.zeros(0, dtype=np.int64)
        if rows.min() < 0 or rows.max() >= self._row_count:
            raise IndexError(f"rows {rows.min()}..{rows.max()} of {self._row_count}")
        rows = rows.astype(self._rows_before_words.dtype)  # of another type, searchsorted would copy all counts
        word_numbers = np.searchsorted(self._rows_before_words, rows, side="right") - 1  # i64 [n]
        words = self._words.take(word_numbers)  # u64 [n]
        ranks = rows - self._rows_before_words.take(word_numbers)  # [n], set bits before the one looked for
        positions = word_numbers << 6  # i64 [n], of the part of the word that is left
        for width in (32, 16, 8, 4, 2, 1):
            lower = np.bitwise_count(words & np.uint64((1 << width) - 1))  # u8 [n]
            is_passed = ranks >= lower  # bool [n]
            ranks -= lower * is_passed
            words >>= is_passed * np.uint64(width)
            positions += is_passed * np.int64(width)
        return positions

    def rows_at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows i64 [n] of token positions [n], and bool [n] whether there is one; without one the row means nothing.

        Raises IndexError for a position outside of the corpus.
        """
        self._check_positions(positions, self.token_count)
        word_numbers, words, places = self._looked_up(positions)
        has_row = (words >> places) & np.uint64(1)  # u64 [n]
        return self._counted(word_numbers, words, places), has_row.astype(bool)

    def rows_before(self, positions: np.ndarray) -> np.ndarray:
        """Number of rows, i64 [n], with a smaller position than each of `positions` i64 [n] in [0, T]."""
        self._check_positions(positions, self.token_count + 1)
        return self._counted(*self._looked_up(positions))

    def rows_within(self, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        """The rows of the tokens in the disjoint ranges [starts[i], stops[i]) i64 [m], sorted, i64 [n]."""
        order = np.argsort(starts)
        return concatenated_ranges(self.rows_before(starts[order]), self.rows_before(stops[order]))

    def _check_positions(self, positions: np.ndarray, stop: int) -> None:
        if len(positions) and (positions.min() < 0 or positions.max() >= stop):
            raise IndexError(f"positions {positions.min()}..{positions.max()} of {self.token_count} tokens")

    def _looked_up(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The number i64 [n] and the bits u64 [n] of the word of each position, and its place u64 [n] in there."""
        word_numbers = positions >> 6
        return word_numbers, self._words.take(word_numbers), (positions & 63).astype(np.uint64)

    def _counted(self, word_numbers: np.ndarray, words: np.ndarray, places: np.ndarray) -> np.ndarray:
        below = words & ((np.uint64(1) << places) - np.uint64(1))  # u64 [n]
        before: np.ndarray = self._rows_before_words.take(word_numbers).astype(np.int64)  # i64 [n]
        return before + np.bitwise_count(below)


def _aligned_words(kept: Sequence[np.ndarray], token_counts: Sequence[int]) -> np.ndarray:
    """The bits of all shards in a row without gaps, u64 [W], with at least one bit more than there are tokens."""
    token_count = int(sum(token_counts))
    words = np.zeros(token_count // 64 + 1, dtype=np.dtype("<u8"))  # u64 [W]
    joined = words.view(np.uint8)  # u8 [8 W]
    first = 0
    for number, (bits, count) in enumerate(zip(kept, token_counts, strict=True)):
        if len(bits) != -(-count // 8) or (count % 8 and bits[-1] >> (count % 8)):
            raise ValueError(f"the bits of shard {number} are not those of {count} tokens")
        byte, shift = divmod(first, 8)
        joined[byte : byte + len(bits)] |= bits << np.uint8(shift)
        if shift:
            carried = bits >> np.uint8(8 - shift)  # u8 [bytes of the shard]; the last may be past the end, and is 0
            fitting = min(len(bits), len(joined) - byte - 1)
            joined[byte + 1 : byte + 1 + fitting] |= carried[:fitting]
        first += count
    return words if sys.byteorder == "little" else words.astype(np.uint64)
