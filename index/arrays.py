"""Arrays of several shards read as one, the formats of stored vectors, and half precision made float32 fast."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Self

import numpy as np

INT8 = np.dtype(np.int8)
SCALE = np.dtype("<f2")
"""Of a row in 8 bits: with its 11 bits, a code of 7 bits times its scale is exact in float32."""
LARGEST_CODE = 127
NUMBERS_PER_PIECE = 1 << 17
"""Numbers that go through all steps at once, so that they stay in the cache."""
KEPT_BITS = np.int32(-0x70002000)
"""0x8FFFE000: the sign, and below it the 15 bits of a half precision number moved up by 13."""
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""Increment of SplitMix64 (Steele et al. 2014): 2^64 over the golden ratio, odd."""
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


def mixed_bits(numbers: np.ndarray) -> np.ndarray:
    """A permutation of the numbers u64 of any shape that spreads each bit over all (the finalizer of SplitMix64)."""
    mixed = numbers + GOLDEN_GAMMA
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


class ShardedArray:
    """Several arrays with equal dtype and equal trailing shape, addressed as their concatenation along axis 0.

    The arrays are not copied, so they may be memory-mapped files. Unsigned integers may be of several widths.
    """

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        if not arrays:
            raise ValueError("a sharded array needs at least one array")
        first = arrays[0]
        for number, array in enumerate(arrays):
            is_alike = array.dtype == first.dtype or array.dtype.kind == first.dtype.kind == "u"
            if not is_alike or array.shape[1:] != first.shape[1:] or array.ndim == 0:
                got, wanted = f"{array.dtype} {array.shape}", f"{first.dtype} [n, *{first.shape[1:]}]"
                raise ValueError(f"shard {number} is {got}, the first one is {wanted}")
        # Plain views: indexing a np.memmap costs several times more, for its subclass bookkeeping.
        self.arrays = tuple(np.asarray(array) for array in arrays)
        self._starts = np.cumsum([0, *(len(array) for array in arrays)])  # i64 [shards + 1]
        self.dtype = self._stored_dtype = np.result_type(*{array.dtype for array in arrays})
        self.shape = (int(self._starts[-1]), *first.shape[1:])

    @classmethod
    def of_vectors(cls, arrays: Sequence[np.ndarray]) -> ShardedArray:
        """Stored vectors, in any format of `stored_rows`."""
        if not arrays[0].shape[1]:  # vectors that are not stored, in any format
            return ShardedArray([array.astype(np.float32) for array in arrays])
        return Int8Array(arrays) if arrays[0].dtype == INT8 else ShardedArray(arrays)

    def __len__(self) -> int:
        return self.shape[0]

    def shards(self, first: int, stop: int) -> Self:
        """The arrays [first, stop) alone."""
        return type(self)(self.arrays[first:stop])

    def within(self, start: int, stop: int) -> Self:
        """The rows [start, stop) alone, not copied."""
        return type(self)(self._pieces(start, stop) or [self.arrays[0][:0]])

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
        first_array = self.arrays[0]
        taken = np.empty((len(flat), *first_array.shape[1:]), dtype=self._stored_dtype)  # [n, *trailing]
        sorted_rows = flat[order]  # [n]
        bounds = sorted_rows.searchsorted(self._starts).tolist()  # shards + 1 numbers
        target = taken if ascending else np.empty_like(taken)  # [n, *trailing], in the order of sorted_rows
        for shard, (start, stop) in enumerate(itertools.pairwise(bounds)):
            if start < stop:
                rows, own = sorted_rows[start:stop] - self._starts[shard], self.arrays[shard]
                if own.dtype != taken.dtype:
                    target[start:stop] = own[rows]
                else:  # Every index was checked above; without mode="clip" numpy would fill a buffer first and copy it.
                    own.take(rows, axis=0, out=target[start:stop], mode="clip")
        if not ascending:
            taken[order] = target
        return taken.reshape((*indices.shape, *first_array.shape[1:]))

    def slice(self, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop); a view if they are in one shard, else a copy."""
        pieces = self._pieces(start, stop)
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else self.arrays[0][:0]

    def _pieces(self, start: int, stop: int) -> list[np.ndarray]:
        """Rows [start, stop) of each shard that has any."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"rows [{start}, {stop}) of an array of {len(self)} rows")
        shards = slice(max(0, int(self._starts.searchsorted(start, "right")) - 1), int(self._starts.searchsorted(stop)))
        return [
            array[max(0, start - first) : max(0, stop - first)]
            for array, first in zip(self.arrays[shards], self._starts[shards].tolist(), strict=True)
            if first < stop and start < first + len(array)
        ]


class Int8Array(ShardedArray):
    """Vectors of which a number takes 8 bits, read as float32 [n, d].

    The arrays, i8 [n, d + 2], have the codes of a row and in their last bytes its scale, a half precision number that
    they are multiplied by.
    """

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        super().__init__(arrays)
        self.dtype = np.dtype(np.float32)
        self.shape = (self.shape[0], self.shape[1] - SCALE.itemsize)

    def take(self, indices: np.ndarray) -> np.ndarray:
        """The rows at `indices` i64 [...]: f32 [..., d]; raises as `ShardedArray.take`."""
        return self._decoded(super().take(indices))

    def slice(self, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop): f32 [stop - start, d], a copy."""
        return self._decoded(super().slice(start, stop))

    def _decoded(self, rows: np.ndarray) -> np.ndarray:
        """The vectors f32 [..., d] of `rows` i8 [..., d + 2]."""
        dimensions = self.shape[1]
        scales = np.ascontiguousarray(rows[..., dimensions:]).view(SCALE)  # f16 [..., 1]
        vectors = rows[..., :dimensions].astype(np.float32)  # [..., d]
        vectors *= scales.astype(np.float32)
        return vectors


def stored_rows(vectors: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`vectors` f32 [n, d] as they are stored: [n, d] of a floating `dtype`, or as int8 the rows of an `Int8Array`.

    >>> stored_rows(np.float32([[0.5, -1.27, 0]]), INT8)[:, :3].tolist()
    [[50, -127, 0]]
    """
    if dtype != INT8:
        return vectors.astype(dtype)
    rows = np.empty((len(vectors), row_bytes(vectors.shape[1], INT8)), dtype=INT8)  # [n, d + 2]
    # A number that is not finite, or too large, leaves a scale that is not: reading finds it.
    with np.errstate(over="ignore", invalid="ignore"):
        scales = (np.abs(vectors).max(axis=1, keepdims=True) / LARGEST_CODE).astype(SCALE)  # f16 [n, 1]
        divisors = np.where((scales > 0) & np.isfinite(scales), scales, 1).astype(np.float32)  # [n, 1]
        codes = np.nan_to_num(np.rint(vectors / divisors))  # f32 [n, d]
    rows[:, : vectors.shape[1]] = codes.clip(-LARGEST_CODE, LARGEST_CODE)
    rows[:, vectors.shape[1] :] = scales.view(INT8)
    return rows


def row_bytes(dimensions: int, dtype: np.dtype) -> int:
    """Bytes of a stored vector."""
    return dimensions * dtype.itemsize + (SCALE.itemsize if dtype == INT8 and dimensions else 0)
