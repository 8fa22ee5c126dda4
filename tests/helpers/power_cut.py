"""A plain model of what a power cut leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

Content = tuple[int, int] | frozenset[tuple[str, int]]


class Disk:
    """A plain model of a disk's cache: the content that each inode had when it was flushed last."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.flushed: dict[int, Content] = {}
        self.renames = 0
        for name in ("rename", "replace"):
            patched.setattr(os, name, self._checked(getattr(os, name)))
        patched.setattr(os, "fsync", self._fsync)

    def _fsync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        self.flushed[path.stat().st_ino] = self._content(path)

    def flush(self, path: Path) -> None:
        """Flush everything in `path`, as after a long time."""
        self.flushed[path.stat().st_ino] = self._content(path)
        for each in path.iterdir() if path.is_dir() else ():
            self.flush(each)

    def _content(self, path: Path) -> Content:
        """Size and time of a file; names in a folder, with what they lead to."""
        if path.is_dir():
            return frozenset((each.name, each.stat().st_ino) for each in path.iterdir())
        return path.stat().st_size, path.stat().st_mtime_ns

    def check(self, path: Path) -> None:
        """Assert that everything in `path` is flushed."""
        flushed, content = self.flushed.get(path.stat().st_ino), self._content(path)
        if isinstance(content, frozenset):  # more names may be flushed, which were removed since
            assert isinstance(flushed, frozenset) and content <= flushed, f"names in {path}"
            for each in path.iterdir():
                self.check(each)
        else:
            assert flushed == content, f"content of {path}"

    def _checked(self, rename):  # type: ignore[no-untyped-def]
        def checked(source: Path, target: Path) -> None:
            source, target = Path(source), Path(target)
            if not target.name.endswith(".tmp"):  # else what is unlisted goes
                self.renames += 1
                self.check(source)
                if target.name == "manifest.json":
                    self.check_parts(target.parent, json.loads(source.read_bytes())["parts"])
            rename(source, target)

        return checked

    def check_parts(self, folder: Path, names: list[str]) -> None:
        """Assert that the parts of a manifest are flushed, and their names in the folder above."""
        flushed = self.flushed.get(folder.stat().st_ino, frozenset())
        assert isinstance(flushed, frozenset)
        for name in names:
            assert (name, (folder / name).stat().st_ino) in flushed, f"name of {name}"
            self.check(folder / name)
