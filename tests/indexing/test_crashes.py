"""Every command that writes an index, killed where it commits something, walked at random, or cut off from power."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.helpers.command_line import run_subprocess
from tests.helpers.power_cut import Disk
from tests.indexing.crashes import COMMANDS, NEW, prepared, write_inputs

EVERYDAY = ("delete",)
"""Few renames, and so a few seconds."""


@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(EVERYDAY, id="everyday"),
        pytest.param(
            tuple(each for each in COMMANDS if each not in EVERYDAY), id="others", marks=pytest.mark.slow("kills")
        ),
    ],
)
def test_a_command_killed_after_any_rename_ends_in_the_same_bytes(commands: tuple[str, ...], tmp_path: Path) -> None:
    outcome = run_subprocess(sys.executable, "-m", "tests.indexing.crashes", tmp_path, *commands)
    assert outcome.status == 0, outcome.err
    found = outcome.answers()
    assert [each["command"] for each in found] == list(commands)
    for each in found:
        assert each["same"] == [True, True, True], each
        assert each["deaths"]["2"] + each["deaths"]["3"] > 0, each


@pytest.mark.slow("kills")
def test_no_document_is_lost_or_comes_back_in_a_random_walk_with_kills(tmp_path: Path) -> None:
    outcome = run_subprocess(sys.executable, "-m", "tests.indexing.random_walk", tmp_path, "14", "7")
    assert outcome.status == 0, outcome.err
    (counts,) = outcome.answers()
    assert counts["generation"] > 4 and counts["died"] > 4


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
    disk.check(index)
    disk.check_parts(index.parent, [index.name])
    assert disk.renames > 2
