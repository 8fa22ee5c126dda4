"""One build of a folder at a time, and no lock outlives its owner."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from index.store import folder_lock
from index.types import ArtefactError


def test_a_lock_is_held_by_one_and_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "index"
    with folder_lock(folder):
        with pytest.raises(ArtefactError, match="another process") as caught, folder_lock(folder):
            pass
        assert str(os.getpid()) in caught.value.got
        assert caught.value.got.endswith(" s")
    assert list(folder.parent.iterdir()) == []
    with folder_lock(folder):
        pass


def _die_with_lock(folder: Path) -> None:
    with folder_lock(folder):
        os._exit(9)


def test_the_lock_of_a_dead_owner_does_not_hold(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_die_with_lock, args=(tmp_path / "index",))
    process.start()
    process.join()
    assert (tmp_path / ".index.lock").exists()
    with folder_lock(tmp_path / "index"):
        pass
    assert list(tmp_path.iterdir()) == []
