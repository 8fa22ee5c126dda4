"""Every command that writes an index, killed again and again where it commits something: the same bytes in the end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.helpers.command_line import run_subprocess
from tests.indexing.crashes import COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_killed_after_any_rename_ends_in_the_same_bytes(command: str, tmp_path: Path) -> None:
    outcome = run_subprocess(sys.executable, "-m", "tests.indexing.crashes", tmp_path, command)
    assert outcome.status == 0, outcome.err
    (found,) = outcome.answers()
    assert found["same"] == [True, True, True]
    assert found["deaths"]["2"] + found["deaths"]["3"] > 0
