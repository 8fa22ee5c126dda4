"""Half-open ranges of positions, such as spans in a corpus and blocks in a store, as the positions in them.

Shapes: m ranges.
"""

from __future__ import annotations

import numpy as np


def concatenated_ranges(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """The integers of the half-open ranges [starts[i], stops[i]), one range after the other, i64 [Σ lengths].

    >>> import numpy as np
    >>> concatenated_ranges(np.array([3, 9, 5]), np.array([5, 9, 8])).tolist()
    [3, 4, 5, 6, 7]
    """
    lengths = stops - starts  # [m]
    shifts = starts - (np.cumsum(lengths) - lengths)  # [m], what to add to a running number
    return np.arange(lengths.sum(), dtype=np.int64) + np.repeat(shifts, lengths)  # i64 [Σ lengths]
