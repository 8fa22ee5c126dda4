"""Arrays of several shards read as one, sets of rows as bits, and half precision made float32 fast.

Shapes: n rows in all, m rows asked for or in the set.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

NUMBERS_PER_PIECE = 1 << 17
"""Numbers that go through all steps at once, so that they stay in the cache."""
KEPT_BITS = np.int32(-0x70002000)
"""0x8FFFE000: the sign, and below it the 15 bits of a half precision number moved up by 13."""
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""What SplitMix64 adds before it mixes (Steele et al. 2014): 2^64 over the golden ratio, odd."""
EXPONENT_SHIFT = np.float32(2.0**112)
"""The bias of float32 exponents, 127, less that of float16, 15."""


def to_float32(array: np.ndarray) -> np.ndarray:
    """`array` f16|f32 [...], all finite, as contiguous float32 [...]; not copied if it already is.

    The same bits as `astype` gives, also for numbers below the normal range, at an eighth of the time.

    >>> to_float32(np.float16([1.5, -0.0, 6e-8])).tolist() == np.float16([1.5, -0.0, 6e-8]).tolist()
    True
    """
    if array.dtype == np.float32:
        return np.ascontiguousarray(array)
    if array.dtype != np.float16:
        raise ValueError(f"vectors are f16 or f32, not {array.dtype}")
    halves = np.ascontiguousarray(array).reshape(-1).view(np.int16)  # [numbers]
    result = np.empty(array.shape, dtype=np.float32)  # [...]
    floats = result.reshape(-1)  # [numbers], the same memory
    bits = floats.view(np.int32)  # [numbers], the same memory
    for start in range(0, len(halves), NUMBERS_PER_PIECE):
        piece = slice(start, start + NUMBERS_PER_PIECE)
        # Widening repeats the sign bit, so that one of its copies ends up at bit 31.
        np.copyto(bits[piece], halves[piece])
        np.left_shift(bits[piece], 13, out=bits[piece])
        np.bitwise_and(bits[piece], KEPT_BITS, out=bits[piece])
        np.multiply(floats[piece], EXPONENT_SHIFT, out=floats[piece])
    return result


BYTES_PER_CHUNK = 1 << 16


class RowSet:
    """Rows of [0, row_count): row r is in the set if bit r % 8, from the lowest, of byte r // 8 is set.

    Raises ValueError unless `bits` is u8 [ceil(row_count / 8)] whose unused last bits are 0.

    >>> rows = RowSet.of_rows(np.array([1, 9]), 10)
    >>> rows.bits.tolist(), len(rows), rows.contains(np.array([0, 9])).tolist()
    ([2, 2], 2, [False, True])
    """

    def __init__(self, bits: np.ndarray, row_count: int) -> None:
        if bits.dtype != np.uint8 or bits.shape != ((row_count + 7) // 8,):
            raise ValueError(f"{row_count} rows need bits u8 [{(row_count + 7) // 8}], not {bits.dtype} {bits.shape}")
        if row_count % 8 and int(bits[-1]) >> (row_count % 8):
            raise ValueError(f"bits beyond row {row_count - 1} are set")
        self.bits = bits
        self.row_count = row_count
        chunks = range(0, len(bits), BYTES_PER_CHUNK)
        self._count = sum(int(np.bitwise_count(bits[start : start + BYTES_PER_CHUNK]).sum()) for start in chunks)

    @classmethod
    def of_rows(cls, rows: np.ndarray, row_count: int) -> RowSet:
        """The set of `rows` i64 [m], in any order; raises IndexError for one outside [0, row_count)."""
        rows = np.asarray(rows, dtype=np.int64)
        _check_range(rows, row_count)
        bits = np.zeros((row_count + 7) // 8, dtype=np.uint8)  # [ceil(n / 8)]
        np.bitwise_or.at(bits, rows >> 3, np.left_shift(np.uint8(1), (rows & 7).astype(np.uint8)))
        return cls(bits, row_count)

    @classmethod
    def of_mask(cls, mask: np.ndarray) -> RowSet:
        """The set of the rows where `mask` bool [n] holds."""
        if mask.dtype != np.bool_ or mask.ndim != 1:
            raise ValueError(f"a mask is bool [n], not {mask.dtype} {mask.shape}")
        return cls(np.packbits(mask, bitorder="little"), len(mask))

    def __len__(self) -> int:
        return self._count

    def rows(self) -> np.ndarray:
        """The rows in the set, ascending: i64 [m]."""
        rows = np.empty(self._count, dtype=np.int64)  # [m]
        filled = 0
        for start in range(0, len(self.bits), BYTES_PER_CHUNK):
            chunk = self.bits[start : start + BYTES_PER_CHUNK]  # u8 [bytes]
            used = np.flatnonzero(chunk)  # i64 [bytes that are not 0]: few, where the set holds few rows
            spread = np.unpackbits(chunk[used], bitorder="little").reshape(len(used), 8)  # u8 [used, 8]
            byte, bit = np.nonzero(spread)  # i64 [rows of the chunk]
            rows[filled : filled + len(byte)] = (start + used[byte]) * 8 + bit
            filled += len(byte)
        return rows

    def mask(self, start: int, stop: int) -> np.ndarray:
        """Whether each row of [start, stop) is in the set: bool [stop - start]."""
        if not 0 <= start <= stop <= self.row_count:
            raise IndexError(f"rows [{start}, {stop}) of {self.row_count}")
        first = start // 8
        unpacked = np.unpackbits(self.bits[first : (stop + 7) // 8], bitorder="little")  # u8 [8 * bytes]
        return unpacked[start - 8 * first : stop - 8 * first].view(np.bool_)

    def between(self, start: int, stop: int) -> RowSet:
        """Those of the rows [start, stop) that are in the set, counted from `start`."""
        if not 0 <= start <= stop <= self.row_count:
            raise IndexError(f"rows [{start}, {stop}) of {self.row_count}")
        count, shift = stop - start, start % 8
        size = (count + 7) // 8
        found = self.bits[start // 8 : start // 8 + size + 1].astype(np.uint16)  # [size or one more]
        padded = np.append(found, np.zeros(size + 1 - len(found), dtype=np.uint16))  # [size + 1]
        bits = ((padded[:-1] >> shift) | (padded[1:] << (8 - shift))).astype(np.uint8)  # [size]
        if count % 8:
            bits[-1] &= (1 << count % 8) - 1
        return RowSet(bits, count)

    def contains(self, rows: np.ndarray) -> np.ndarray:
        """Whether each of `rows` i64 [...] is in the set: bool [...]; IndexError for one outside [0, row_count)."""
        rows = np.asarray(rows, dtype=np.int64)
        _check_range(rows, self.row_count)
        return (self.bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1 == 1


def _check_range(rows: np.ndarray, row_count: int) -> None:
    if rows.size and (rows.min() < 0 or rows.max() >= row_count):
        raise IndexError(f"rows {rows.min()}..{rows.max()} of {row_count}")


def mixed_bits(numbers: np.ndarray) -> np.ndarray:
    """A permutation of the numbers u64 of any shape that spreads each bit over all (the finaliser of SplitMix64)."""
    mixed = numbers + GOLDEN_GAMMA
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


class ShardedArray:
    """Several arrays with equal dtype and equal trailing shape, addressed as their concatenation along axis 0.

    The arrays are not copied, so they may be memory-mapped files.
    """

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        if not arrays:
            raise ValueError("a sharded array needs at least one array")
        first = arrays[0]
        for number, array in enumerate(arrays):
            if array.dtype != first.dtype or array.shape[1:] != first.shape[1:] or array.ndim == 0:
                got, wanted = f"{array.dtype} {array.shape}", f"{first.dtype} [n, *{first.shape[1:]}]"
                raise ValueError(f"shard {number} is {got}, the first one is {wanted}")
        # Plain views: indexing a np.memmap costs several times more, for its subclass bookkeeping.
        self.arrays = tuple(np.asarray(array) for array in arrays)
        self._starts = np.cumsum([0, *(len(array) for array in arrays)])  # i64 [shards + 1]
        self.dtype = first.dtype
        self.shape = (int(self._starts[-1]), *first.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def shards(self, first: int, stop: int) -> ShardedArray:
        """The arrays [first, stop) alone."""
        return ShardedArray(self.arrays[first:stop])

    def take(self, indices: np.ndarray) -> np.ndarray:
        """The rows at `indices` i64 [...], any order, repeats allowed: [..., *trailing shape].

        Raises IndexError for an index outside [0, len(self)); negative indices do not count from the end.
        """
        indices = np.asarray(indices, dtype=np.int64)
        if indices.size and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"rows {indices.min()}..{indices.max()} of an array of {len(self)} rows")
        flat = indices.reshape(-1)  # [n]
        if len(self.arrays) == 1:
            return self.arrays[0][indices]  # [..., *trailing]
        ascending = bool((flat[1:] >= flat[:-1]).all())
        order = slice(None) if ascending else flat.argsort(kind="stable")
        taken = np.empty((len(flat), *self.shape[1:]), dtype=self.dtype)  # [n, *trailing]
        sorted_rows = flat[order]  # [n]
        bounds = sorted_rows.searchsorted(self._starts).tolist()  # shards + 1 numbers
        target = taken if ascending else np.empty_like(taken)  # [n, *trailing], in the order of sorted_rows
        for shard, (start, stop) in enumerate(itertools.pairwise(bounds)):
            if start < stop:
                # Every index was checked above; without mode="clip" numpy would fill a buffer first and copy it.
                rows = sorted_rows[start:stop] - self._starts[shard]
                self.arrays[shard].take(rows, axis=0, out=target[start:stop], mode="clip")
        if not ascending:
            taken[order] = target
        return taken.reshape((*indices.shape, *self.shape[1:]))

    def slice(self, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop); a view where they lie in one shard, else a copy."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"rows [{start}, {stop}) of an array of {len(self)} rows")
        pieces = [
            array[max(0, start - first) : max(0, stop - first)]
            for array, first in zip(self.arrays, self._starts[:-1].tolist(), strict=True)
            if first < stop and start < first + len(array)
        ]
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty((0, *self.shape[1:]), dtype=self.dtype)
