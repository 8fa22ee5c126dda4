"""Half precision to single precision, at the speed of memory: numpy's own cast goes number by number."""

from __future__ import annotations

import numpy as np

NUMBERS_PER_PIECE = 1 << 17
"""Numbers that go through all steps at once, so that they stay in the cache."""
KEPT_BITS = np.int32(-0x70002000)
"""0x8FFFE000: the sign, and below it the 15 bits of a half precision number moved up by 13."""
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
