"""Work that is killed where it commits something, again and again, until it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from npm.core import artifact


class Killed(BaseException):
    """The process ends here."""


def kills_until_done(
    work: Callable[[], object],
    commits: Callable[[int], int],
    monkeypatch: pytest.MonkeyPatch,
    *,
    after: Callable[[], None] = lambda: None,
) -> int:
    """How often `work` was killed: after `commits(kills so far)` manifests each time; then `after` is called."""
    written = artifact.replace_file
    kills = writes = 0

    def killed(path: Path, data: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes > commits(kills):
            raise Killed
        written(path, data)

    while kills < 100:
        writes = 0
        with monkeypatch.context() as patched:
            patched.setattr(artifact, "replace_file", killed)
            try:
                work()
                return kills
            except Killed:
                kills += 1
        after()
    raise AssertionError("it never ends")
