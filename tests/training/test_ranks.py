from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from npm.objectives.ranks import leave_ranks, of_first_rank, sum_over_ranks
from tests.helpers.command_line import run_subprocess


def test_one_process_needs_no_group() -> None:
    leave_ranks()
    assert sum_over_ranks({"a": 1.5, "b": 2.0}, torch.device("cpu")) == {"a": 1.5, "b": 2.0}
    assert of_first_rank("told") == "told"


def test_a_process_that_left_is_in_no_group(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    leave_ranks()
    assert not dist.is_initialized()


def test_a_rank_without_its_others_is_one_sentence(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("The Rhine flows to the North Sea.\n" * 40)
    train = (sys.executable, "-m", "npm", "train", f"run={tmp_path / 'run'}", f"corpus.files=[{corpus}]")
    outcome = run_subprocess(*train, "encoder=encoder-mini", WORLD_SIZE="2")
    assert outcome.status == 2
    assert "WORLD_SIZE" in outcome.err
    assert not (tmp_path / "run").exists()
