"""Random changes of one index, many of them killed; `python -m tests.indexing.random_walk` takes longer walks."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.helpers.command_line import run_subprocess


def test_no_document_is_lost_or_comes_back_in_a_random_walk_with_kills(tmp_path: Path) -> None:
    outcome = run_subprocess(sys.executable, "-m", "tests.indexing.random_walk", tmp_path, "25", "7")
    assert outcome.status == 0, outcome.err
    (counts,) = outcome.answers()
    assert counts["generation"] > 8 and counts["died"] > 8
