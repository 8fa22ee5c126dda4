"""Order of fsync and rename: what gets its final name, and what a manifest lists, survives a power cut by then."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.helpers.power_cut import Disk
from tests.indexing.crashes import COMMANDS, NEW, prepared, write_inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("power")
    write_inputs(folder)
    prepared(folder)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_renamed_or_listed_before_it_is_flushed(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = folder / command / "index"
    index.parent.mkdir()
    disk = Disk(monkeypatch)
    if command not in NEW:
        shutil.copytree(folder / "base" / "index", index)
        disk.flush(index.parent)
    COMMANDS[command](index)
    if command == "transfer":
        index /= "here"
    disk.check(index)
    disk.check_parts(index.parent, [index.name])
    assert disk.renames > 2
