"""What the allocator does with freed memory: kept for a training step on a CPU, returned by a long build."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # parameters of mallopt(3)


def keep_freed_memory() -> bool:
    """Tell glibc's allocator to reuse large blocks instead of returning them; whether it could be told.

    A step allocates and frees the same large temporaries every time; returned to the system, each costs a page
    fault per 4 KiB when it comes back (a third of the step of a 6×384 encoder, `benchmarks/bench_training.py`).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library
    return all(mallopt(*pair) for pair in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 256 << 20)))


def return_freed_memory() -> bool:
    """Give what was freed back to the system, where glibc can; whether anything was given back.

    The temporaries of batches of many lengths leave gaps in the heap, which otherwise grows with every shard.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False  # another C library
    return bool(trim(0))
