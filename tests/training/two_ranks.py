"""What two gloo ranks compute together; started once in two processes, compared with one process by the tests.

RUNS/gradients-<parts>-<spans>.safetensors   gradients of the whole global batch, summed over both ranks
RUNS/trained/, RUNS/resumed/, RUNS/undisturbed/, RUNS/failed-<rank>.txt   what trainers left behind
RUNS/gradients-<parts>-in-passes.safetensors   the same with rows_per_pass
RUNS/told-<rank>.txt   what a run from settings reported on each rank
RUNS/clock-<rank>.txt, RUNS/seed-<rank>.txt   the seconds that a trainer counted on each rank, and what it drew from
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import safetensors.torch
import torch
import torch.distributed as dist
from torch import nn

from npm.core.errors import SettingError
from npm.core.types import Sequences
from npm.masking.batches import MaskedBatch, TrainingBatch
from npm.objectives.combine import Term, WeightedSum
from npm.objectives.encoded import EncodedBatch
from npm.training import trainer as trainer_module
from npm.training.model import TrainedModel
from npm.training.run import run_training
from npm.training.settings import ScheduleSettings
from tests.helpers.groups import group
from tests.helpers.toy_training import (
    STEEP,
    Stopped,
    parameters_of,
    stop_at,
    toy_batches,
    toy_encoder,
    toy_groups,
    toy_objective,
    toy_settings,
    toy_trainer,
)
from tests.training import question_ranks, sentence_ranks
from tests.training.sharded_ranks import measuring_trainer, sharded_work
from tests.training.two_processes import WORLD_SIZE

PARTS = {"phrase": ("phrase",), "masked": ("masked",), "both": ("phrase", "masked")}
SPANS = {
    "uneven": [toy_groups(1)[0], group([20, 21, 20, 20, 21, 20], [20, 21, 21, 20], [22, 20])],
    "none on the second rank": [toy_groups(1)[0], group([20, 21, 22], [23, 24])],
    "none on the first rank": [group([20, 21, 22], [23, 24]), toy_groups(1)[0]],
}
"""By name, the group of each rank; a group whose sequences share no word has no spans."""
RESUMING: dict[str, Any] = {"max_steps": 6, "dropout": 0.2, "checkpoint_every_minutes": 0.0}


def batch_of(groups: Sequence[Sequences], **settings: int) -> TrainingBatch:
    """Micro-step 0 of these groups, in an order that does not depend on how many ranks share them."""
    return toy_batches(toy_encoder(), groups, views=("phrases", "tokens"), **settings)[0]


def gradients(
    groups: Sequence[Sequences],
    parts: Sequence[str],
    *,
    rank: int,
    world_size: int,
    rows_per_pass: int | None = None,
) -> dict[str, torch.Tensor]:
    """Gradients of Σ terms / global counts on this rank's share of `groups`, by parameter name."""
    encoder = toy_encoder()
    objective = toy_objective(encoder, *parts)
    per_rank = len(groups) // world_size
    batch = batch_of(groups, groups_per_device_batch=per_rank, rank=rank, world_size=world_size)
    whole = batch_of(groups, groups_per_device_batch=len(groups))
    counts = objective.counts(whole)
    model = TrainedModel(encoder, objective, rows_per_pass=rows_per_pass).eval()
    terms = model(batch)
    torch.stack([term.weight * term.sum / max(1, counts[name]) for name, term in terms.items()]).sum().backward()
    missing = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert not missing, f"no gradient for {missing}; DistributedDataParallel would wait for them"
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


class InfiniteOnSecondRank(nn.Module):
    """A loss that only one rank finds infinite."""

    view = "phrases"

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        return {"strange": 1}

    def forward(self, encoded: EncodedBatch) -> dict[str, Term]:
        factor = math.inf if dist.get_rank() == 1 else 1.0
        return {"strange": Term((encoded.query_vectors * self.weight).sum() * factor, 1)}


def work(rank: int, runs: Path) -> None:
    """Everything that one of the two processes does, the other files of ranks included."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD_SIZE)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(WORLD_SIZE), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    _gradients(rank, runs)
    _gradients_in_passes(rank, runs)
    _trained(rank, runs)
    measuring_trainer(runs / "measured", rank=rank, world_size=WORLD_SIZE).train()
    _stopped_and_resumed(rank, runs)
    _stopped_by_numbers(rank, runs)
    _run_from_settings(rank, runs)
    _timed(rank, runs)
    sharded_work(rank, runs)
    for name, write in (("questions", question_ranks.write_gradients), ("sentences", sentence_ranks.write_gradients)):
        (runs / name).mkdir(exist_ok=True)
        write(rank, runs / name)


def _gradients(rank: int, runs: Path) -> None:
    for parts_name, parts in PARTS.items():
        for spans_name, groups in SPANS.items():
            summed = gradients(groups, parts, rank=rank, world_size=WORLD_SIZE)
            for gradient in summed.values():
                dist.all_reduce(gradient)
            if rank == 0:
                safetensors.torch.save_file(summed, runs / f"gradients-{parts_name}-{spans_name}.safetensors")


def _gradients_in_passes(rank: int, runs: Path) -> None:
    """The same with few rows in the encoder at once, and of a trainer whose gradients DDP has averaged."""
    for parts_name, parts in PARTS.items():
        summed = gradients(SPANS["uneven"], parts, rank=rank, world_size=WORLD_SIZE, rows_per_pass=2)
        for gradient in summed.values():
            dist.all_reduce(gradient)
        if rank == 0:
            safetensors.torch.save_file(summed, runs / f"gradients-{parts_name}-in-passes.safetensors")
    settings: dict[str, Any] = {"rows_per_pass": 4, "accumulation_steps": 2, **STEEP}
    trainer = toy_trainer(runs / "in-passes", rank=rank, world_size=WORLD_SIZE, **settings)
    trainer.train()
    safetensors.torch.save_file(parameters_of(trainer), runs / f"in-passes-{rank}.safetensors")


def _trained(rank: int, runs: Path) -> None:
    trainer = toy_trainer(runs / "trained", rank=rank, world_size=WORLD_SIZE, **STEEP)
    trainer.train()
    safetensors.torch.save_file(parameters_of(trainer), runs / f"trained-{rank}.safetensors")


def _stopped_and_resumed(rank: int, runs: Path) -> None:
    toy_trainer(runs / "undisturbed", rank=rank, world_size=WORLD_SIZE, **RESUMING).train()
    try:
        toy_trainer(runs / "resumed", rank=rank, world_size=WORLD_SIZE, **RESUMING).train(stop_at(4))
    except Stopped:
        dist.barrier()
    toy_trainer(runs / "resumed", rank=rank, world_size=WORLD_SIZE, **RESUMING).train()


def _stopped_by_numbers(rank: int, runs: Path) -> None:
    trainer = toy_trainer(
        runs / "failed",
        max_steps=2,
        objective=WeightedSum({"strange": InfiniteOnSecondRank()}, {"strange": 1.0}),
        rank=rank,
        world_size=WORLD_SIZE,
    )
    try:
        trainer.train()
    except SettingError as error:
        (runs / f"failed-{rank}.txt").write_text(str(error), encoding="utf-8")


def _run_from_settings(rank: int, runs: Path) -> None:
    if rank == 0:
        toy_settings(runs)
    dist.barrier()
    told: list[str] = []
    run_training(
        runs / "from-settings",
        toy_settings(runs, schedule=ScheduleSettings(max_steps=2)),
        announce=lambda summary: told.append("summary"),
        progress=lambda stage, done, total: told.append("blocks"),
        report_step=lambda done: told.append(f"step {done.step}"),
    )
    (runs / f"told-{rank}.txt").write_text("\n".join(dict.fromkeys(told)), encoding="utf-8")


def _timed(rank: int, runs: Path) -> None:
    """Three steps by clocks that tick a minute on the first rank and ten on the second."""
    ticks = itertools.count(step=60 * (1, 10)[rank])
    clock = SimpleNamespace(monotonic=lambda: next(ticks), perf_counter=time.perf_counter)
    with mock.patch.object(trainer_module, "time", clock):
        trainer = toy_trainer(runs / "timed", rank=rank, world_size=WORLD_SIZE, max_steps=3)
        (runs / f"seed-{rank}.txt").write_text(str(torch.initial_seed()), encoding="utf-8")
        trainer.train()
    (runs / f"clock-{rank}.txt").write_text(str(trainer.seconds), encoding="utf-8")
