"""A lock that somebody else holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from npm.core.artifact import folder_lock


@contextmanager
def locked_elsewhere(folder: Path) -> Iterator[None]:
    """Let another thread, which counts as another process, hold the lock of `folder`."""
    taken, done = Event(), Event()

    def hold() -> None:
        with folder_lock(folder):
            taken.set()
            done.wait()

    thread = Thread(target=hold)
    thread.start()
    taken.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()
