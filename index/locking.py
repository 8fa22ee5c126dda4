"""One process at a time builds a folder."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from index.files import made_parents, storage_errors
from index.types import ArtefactError


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock file `.<name>.lock` beside `folder`.

    The operating system drops the lock when its owner ends in whatever way, so there is no stale lock to remove.
    Raises ArtefactError with the owner's process id and the lock's age if another process holds it.
    """
    path = folder.parent / f".{folder.name}.lock"
    with made_parents(path):
        with storage_errors(path):
            descriptor = _lock(path, folder)
        try:
            with storage_errors(path):
                os.truncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
            yield
        finally:
            # Unlinked while still held: whoever opened the old file meanwhile sees that it is gone and starts afresh.
            path.unlink(missing_ok=True)
            os.close(descriptor)


def _lock(path: Path, folder: Path) -> int:
    """Open and lock `path`; returns the descriptor."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same_file(descriptor, path):
                return descriptor
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            age_seconds = max(0.0, time.time() - os.fstat(descriptor).st_mtime)
            os.close(descriptor)
            raise ArtefactError(
                f"another process is building {folder}",
                expected="one build of a folder at a time",
                got=f"process {owner}, since {age_seconds:.0f} s",
                where=str(path),
                fix="wait until it ends, or stop it and run the same command again",
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
