"""Ends in the middle of the work: of a process, and of the space on a disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from npm.core.files import NewFile


class Killed(BaseException):
    """The process ends here."""


def fail_writes(
    patched: pytest.MonkeyPatch, fails: Callable[[int, Path], bool], error: int | BaseException = errno.ENOSPC
) -> list[Path]:
    """Let the one writer raise an error, or one of the system by its code, where `fails` (call from 1 on, file).

    Returns the files of all calls so far.
    """
    write = NewFile.__dict__["write"]
    calls: list[Path] = []

    def failing(self: NewFile, data: bytes) -> int:
        calls.append(Path(self.name))
        if fails(len(calls), calls[-1]):
            raise OSError(error, os.strerror(error)) if isinstance(error, int) else error
        return write(self, data)  # type: ignore[no-any-return]

    patched.setattr(NewFile, "write", failing)
    return calls
