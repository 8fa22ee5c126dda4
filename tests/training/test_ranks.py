from __future__ import annotations

import sys
from pathlib import Path

from tests.helpers.command_line import run_subprocess


def test_a_rank_without_its_others_is_one_sentence(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("The Rhine flows to the North Sea.\n" * 40)
    train = (sys.executable, "-m", "npm", "train", f"run={tmp_path / 'run'}", f"corpus.files=[{corpus}]")
    outcome = run_subprocess(*train, "encoder=encoder-mini", WORLD_SIZE="2")
    assert outcome.status == 2
    assert "WORLD_SIZE" in outcome.err
    assert not (tmp_path / "run").exists()
