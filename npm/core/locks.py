"""Lock files of folders that are written: `.NAME.lock` next to the folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from npm.core.errors import ArtifactError


@contextmanager
def folder_lock(folder: Path, *, wait: bool = False, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock file `.NAME.lock` next to `folder`; the thread that holds it may take it again.

    With `wait` the call waits until the lock is free, and `on_wait()` is called once before; otherwise it raises
    ArtifactError. The system drops the lock of a process however it ends.
    """
    path = _lock_path(folder)
    lock = FileLock(path, is_singleton=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        if not wait:
            raise ArtifactError(f"another process is writing {folder}: wait until it ends, or stop it") from None
        on_wait()
        lock.acquire()
    except OSError as error:  # of which the user knows the folder, not the lock
        is_below_file = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "a folder above it is a file" if is_below_file else error.strerror
        raise OSError(error.errno, reason, str(folder)) from error
    try:
        yield
    finally:
        if lock.lock_counter == 1:  # removed while it is held: who has opened it meanwhile sees that, and tries again
            path.unlink(missing_ok=True)
        lock.release()


def _lock_path(folder: Path) -> Path:
    folder = folder.resolve()
    return folder.with_name(f".{folder.name}.lock")


def clear_locks(folder: Path) -> None:
    """Remove the lock files, which are empty, that killed processes left next to and in `folder`."""
    for path in (_lock_path(folder), *folder.rglob(".*.lock")):
        with suppress(OSError):  # a Timeout is one
            if path.lstat().st_size == 0:
                with FileLock(path, timeout=0):
                    path.unlink()
