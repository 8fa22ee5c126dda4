"""What two gloo ranks do that share weights out among themselves; part of the work in `two_ranks.py`.

RUNS/sharded/, RUNS/sharded-resumed/, RUNS/sharded-measured/   runs with trainer.sharding=full
RUNS/sharded-<rank>.safetensors        weights in the end, put together
RUNS/sharded-share-<rank>.txt          numbers that each rank holds, and all there are
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist

from npm.training.acceleration import whole_tensor
from npm.training.settings import Sharding, TrainingEvaluationSettings
from npm.training.trainer import Trainer
from tests.helpers.toy_training import STEEP, Stopped, stop_at, toy_encoder, toy_trainer

PIECES: dict[str, Any] = {**STEEP, "accumulation_steps": 2, "max_gradient_norm": 0.5, "learning_rate": 0.1}
"""Two micro-batches a step, whose gradient is longer than allowed."""
SHARDED: dict[str, Any] = {"sharding": Sharding.full, "world_size": 2}


def sharded_work(rank: int, runs: Path) -> None:
    """Train with shared weights, plainly, in small passes with accumulation, and killed half way."""
    trainer = toy_trainer(runs / "sharded", rank=rank, **SHARDED, **STEEP)
    trainer.train()
    _save_whole(trainer, runs / f"sharded-{rank}.safetensors")
    own = sum(tensor.to_local().numel() if hasattr(tensor, "to_local") else 0 for tensor in trainer.model.parameters())
    whole = sum(tensor.numel() for tensor in trainer.model.parameters())
    (runs / f"sharded-share-{rank}.txt").write_text(f"{own} {whole}", encoding="utf-8")

    sparing: dict[str, Any] = {"rows_per_pass": 2, "gradient_checkpointing": True}
    trainer = toy_trainer(runs / "sharded-pieces", rank=rank, **SHARDED, **PIECES, **sparing)
    trainer.train()
    _save_whole(trainer, runs / f"sharded-pieces-{rank}.safetensors")

    measuring_trainer(runs / "sharded-measured", rank=rank, **SHARDED).train()

    resuming: dict[str, Any] = {**SHARDED, **STEEP, "checkpoint_every_minutes": 0.0, "dropout": 0.2, "ema_decay": 0.9}
    toy_trainer(runs / "sharded-undisturbed", rank=rank, **resuming).train()
    try:
        toy_trainer(runs / "sharded-resumed", rank=rank, **resuming).train(stop_at(2))
    except Stopped:
        dist.barrier()
    toy_trainer(runs / "sharded-resumed", rank=rank, **resuming).train()


def measuring_trainer(run: Path, *, parts: Sequence[str] = ("masked",), **settings: Any) -> Trainer:
    """A trainer with evaluations, one of which calls the encoder by itself."""
    encoder = toy_encoder()

    def length() -> dict[str, float]:
        ids = torch.arange(20, 32).view(2, 6)  # i64 [2, 6]
        return {"length": float(encoder.token_vectors(ids, torch.ones_like(ids)).norm())}

    evaluation = TrainingEvaluationSettings(every_steps=2, best="length")
    further: dict[str, Any] = {"evaluation": evaluation, "evaluators": [length], **STEEP}
    return toy_trainer(run, encoder=encoder, parts=parts, **further, **settings)


def _save_whole(trainer: Trainer, file: Path) -> None:
    weights = {name: whole_tensor(tensor.detach()).contiguous() for name, tensor in trainer.model.state_dict().items()}
    safetensors.torch.save_file(weights, file)
