"""A set of rows as packed bits: one bit a row, however many rows it holds.

Shapes: n rows in all, m rows asked for or in the set.
"""

from __future__ import annotations

import numpy as np

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

    def nth(self, places: np.ndarray) -> np.ndarray:
        """The rows at `places` i64 [m], ascending, of `rows()`, without making all of them: i64 [m]."""
        rows = np.empty(len(places), dtype=np.int64)  # [m]
        before, filled = 0, 0
        for start in range(0, len(self.bits), BYTES_PER_CHUNK):
            count = int(np.bitwise_count(self.bits[start : start + BYTES_PER_CHUNK]).sum())
            stop = int(np.searchsorted(places, before + count))
            if stop > filled:
                found = np.flatnonzero(self.mask(8 * start, min(8 * (start + BYTES_PER_CHUNK), self.row_count)))
                rows[filled:stop] = found[places[filled:stop] - before] + 8 * start
            before, filled = before + count, stop
        if filled < len(places):
            raise IndexError(f"place {int(places[-1])} of a set of {self._count} rows")
        return rows

    def mask(self, start: int, stop: int) -> np.ndarray:
        """Whether each row of [start, stop) is in the set: bool [stop - start]."""
        if not 0 <= start <= stop <= self.row_count:
            raise IndexError(f"rows [{start}, {stop}) of {self.row_count}")
        first = start // 8
        unpacked = np.unpackbits(self.bits[first : (stop + 7) // 8], bitorder="little")  # u8 [8 * bytes]
        return unpacked[start - 8 * first : stop - 8 * first].view(np.bool_)

    def contains(self, rows: np.ndarray) -> np.ndarray:
        """Whether each of `rows` i64 [...] is in the set: bool [...]; IndexError for one outside [0, row_count)."""
        rows = np.asarray(rows, dtype=np.int64)
        _check_range(rows, self.row_count)
        return (self.bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1 == 1

    def __and__(self, other: RowSet) -> RowSet:
        if self.row_count != other.row_count:
            raise ValueError(f"sets over {self.row_count} and {other.row_count} rows")
        return RowSet(self.bits & other.bits, self.row_count)


def _check_range(rows: np.ndarray, row_count: int) -> None:
    if rows.size and (rows.min() < 0 or rows.max() >= row_count):
        raise IndexError(f"rows {rows.min()}..{rows.max()} of {row_count}")
