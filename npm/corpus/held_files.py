"""Files that stay readable when their names are gone: a reader of an index keeps what it has opened."""

from __future__ import annotations

import os
import weakref
from pathlib import Path


class HeldFile:
    """A file opened once and read at any place, also by several threads and after its folder was removed.

    Takes one descriptor, given back when the object is collected.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)
        self.byte_count = os.fstat(self._descriptor).st_size

    def read(self, start: int, stop: int) -> bytes:
        """The bytes [start, stop) of the file, fewer at its end."""
        return os.pread(self._descriptor, stop - start, start)
