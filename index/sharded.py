"""Arrays of several shards, read as one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np


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

    def take(self, indices: np.ndarray) -> np.ndarray:
        """The rows at `indices` i64 [...], any order, repeats allowed: [..., *trailing shape].

        Raises IndexError for an index outside [0, len(self)); negative indices do not count from the end.
        """
        indices = np.asarray(indices, dtype=np.int64)
        if indices.size and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"rows {indices.min()}..{indices.max()} of an array of {len(self)} rows")
        if len(self.arrays) == 1:
            return self.arrays[0][indices]
        flat = indices.reshape(-1)  # [n]
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
