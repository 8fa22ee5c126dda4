from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from npm.objectives.ranks import leave_ranks, of_first_rank, sum_over_ranks


def test_one_process_needs_no_group() -> None:
    leave_ranks()
    assert sum_over_ranks({"a": 1.5, "b": 2.0}, torch.device("cpu")) == {"a": 1.5, "b": 2.0}
    assert of_first_rank("told") == "told"


def test_a_process_that_left_is_in_no_group(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    leave_ranks()
    assert not dist.is_initialized()
