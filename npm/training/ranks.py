"""What the ranks of a run tell each other besides gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.distributed as dist

from npm.objectives.gather import world_size

Told = TypeVar("Told")


def sum_over_ranks(values: Sequence[float], device: torch.device) -> list[float]:
    """The sum of each number over all ranks, in float64."""
    summed = torch.tensor(values, dtype=torch.float64)
    if world_size() > 1:
        summed = summed.to("cpu" if dist.get_backend() == "gloo" else device)
        dist.all_reduce(summed)
    return [float(value) for value in summed]


def of_first_rank(own: Told) -> Told:
    """What the first rank holds, on every rank, so that all decide alike."""
    if world_size() == 1:
        return own
    told = [own]
    dist.broadcast_object_list(told, src=0)
    return told[0]


def leave_ranks() -> None:
    """End the process group, if there is one, when all ranks are here: none waits for one that has left."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
