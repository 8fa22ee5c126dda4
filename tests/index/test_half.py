"""Half precision numbers: all of them."""

from __future__ import annotations

import numpy as np
import pytest

from index import arrays
from index.arrays import to_float32


def test_every_finite_half_precision_number_becomes_the_same_bits_as_by_casting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrays, "NUMBERS_PER_PIECE", 1000)
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    assert len(finite) == 2 * 31 * 1024
    np.testing.assert_array_equal(to_float32(finite).view(np.uint32), finite.astype(np.float32).view(np.uint32))


def test_shapes_are_kept_and_single_precision_is_not_copied() -> None:
    vectors = np.arange(24, dtype=np.float16).reshape(4, 6)
    np.testing.assert_array_equal(to_float32(vectors[::2, 1:]), vectors[::2, 1:].astype(np.float32))
    single = vectors.astype(np.float32)
    assert to_float32(single) is single
    assert to_float32(vectors[:0]).shape == (0, 6)
    with pytest.raises(ValueError, match="float64"):
        to_float32(np.zeros(3))
