"""Memory on a CPU: freed blocks kept from step to step or given back, and few compiled kernels kept."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

PRIVATE_FIELDS = ("RssAnon", "RssShmem")


def private_bytes(process: int | str = "self") -> int:
    """RssAnon + RssShmem of a process, by /proc; 0 where there is no /proc, or no such process anymore."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return 0
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    # a process that has ended, but was not yet waited for, has no such fields
    return sum(1024 * int(fields[name].split()[0]) for name in PRIVATE_FIELDS if name in fields)


_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8  # parameters of mallopt(3)


def keep_freed_memory() -> bool:
    """Tell glibc's allocator to reuse large blocks instead of returning them; returns True if it does.

    A step allocates and frees the same large temporaries every time; returned to the system, each costs a page
    fault per 4 KiB when it comes back (a third of the step of a 6×384 encoder, `benchmarks/bench_training.py`).
    """
    return _set_allocator((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 256 << 20))


def share_one_heap() -> bool:
    """Tell glibc's allocator to serve all threads begun from now on from one heap; returns True if it does.

    The heap of a separate thread shrinks whenever its end is free, so that a thread which encodes a text pays the
    page faults again for the next text (about 4 ms of a single caller's, `benchmarks/bench_server.py`).
    """
    return _set_allocator((_ARENA_MAX, 1))


def _set_allocator(*parameters: tuple[int, int]) -> bool:
    mallopt = _of_glibc("mallopt")
    return mallopt is not None and all(mallopt(*pair) for pair in parameters)


def _of_glibc(name: str) -> Any:
    """A function of the C library; None unless it is glibc."""
    try:
        return getattr(ctypes.CDLL(None), name) if sys.platform.startswith("linux") else None
    except (OSError, AttributeError):
        return None


KERNEL_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Environment variables with the number of kernels that oneDNN and torch's bridge to it keep."""
KEPT_KERNELS = 48
"""More than the kinds of matrix products in a training step, some of them in two passes of other lengths."""


def keep_few_kernels() -> None:
    """Keep only the latest kernels for matrix products in bfloat16; without effect once a model was loaded.

    One is compiled for each shape, and 1024 are kept in each of two caches: with batches of many lengths that is 20 MB
    per step, and as much again in the gaps that they leave in the heap (`benchmarks/bench_training.py` part=memory).
    """
    for name in KERNEL_CACHES:
        os.environ.setdefault(name, str(KEPT_KERNELS))


def return_freed_memory() -> bool:
    """Return freed memory to the system, where glibc can; returns True if any was returned.

    The temporaries of batches of many lengths leave gaps in the heap, which otherwise grows with every shard.
    """
    trim = _of_glibc("malloc_trim")
    return trim is not None and bool(trim(0))
