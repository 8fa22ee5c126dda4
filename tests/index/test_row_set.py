"""Sets of rows against numpy masks."""

from __future__ import annotations

import numpy as np
import pytest

from index import arrays
from index.arrays import RowSet


def test_bits_by_hand() -> None:
    rows = RowSet.of_rows(np.array([9, 0, 9]), 11)
    assert rows.bits.tolist() == [1, 2]
    assert (len(rows), rows.row_count, rows.rows().tolist()) == (2, 11, [0, 9])
    assert rows.contains(np.array([[9, 1], [10, 0]])).tolist() == [[True, False], [False, True]]
    assert rows.rows().dtype == np.int64


@pytest.mark.parametrize("row_count", [0, 1, 7, 8, 9, 100, 1000])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_it_equals_a_mask(monkeypatch: pytest.MonkeyPatch, row_count: int, share: float) -> None:
    monkeypatch.setattr(arrays, "BYTES_PER_CHUNK", 3)
    rng = np.random.default_rng(row_count)
    mask = rng.random(row_count) < share
    rows = RowSet.of_mask(mask)
    np.testing.assert_array_equal(rows.bits, RowSet.of_rows(rng.permutation(np.flatnonzero(mask)), row_count).bits)
    assert len(rows) == mask.sum()
    np.testing.assert_array_equal(rows.rows(), np.flatnonzero(mask))
    np.testing.assert_array_equal(rows.contains(np.arange(row_count)), mask)
    for start in range(0, row_count, 5):
        for stop in (start, min(start + 13, row_count), row_count):
            np.testing.assert_array_equal(rows.mask(start, stop), mask[start:stop])


def test_bits_of_another_size_and_rows_outside_are_refused() -> None:
    for bits in (np.zeros(1, np.uint8), np.zeros(3, np.uint8), np.zeros(2, np.int8), np.array([0, 8], np.uint8)):
        with pytest.raises(ValueError):
            RowSet(bits, 11)
    rows = RowSet(np.array([255, 7], np.uint8), 11)
    assert len(rows) == 11
    for outside in (-1, 11):
        with pytest.raises(IndexError):
            rows.contains(np.array([outside]))
        with pytest.raises(IndexError):
            RowSet.of_rows(np.array([outside]), 11)
    with pytest.raises(IndexError):
        rows.mask(0, 12)
    with pytest.raises(ValueError, match="mask"):
        RowSet.of_mask(np.zeros(12))
