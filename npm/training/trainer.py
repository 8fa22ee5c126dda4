"""The one loop: read an accumulation window, count, backward, clip, step, schedule, log, save.

Objectives return sums; the loop divides each term by its count over all ranks and micro-batches of the window, so
one process with a batch of 32, four micro-batches of 8 and two ranks of 16 agree wherever the objective does not
itself depend on what else is in its batch. In-batch negatives do not grow with accumulation.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from npm.errors import SettingError
from npm.models.encoder import Encoder
from npm.objectives.encoded import EncodedBatch
from npm.objectives.gather import rank, world_size
from npm.training.batches import MaskedBatches, iterate_batches
from npm.training.run_folder import Checkpoint, RunFolder
from npm.training.schedule import ScheduleSettings
from npm.training.settings import Precision, TrainerSettings
from npm.training.state import (
    gathered_generator_states,
    load_optimizer_tensors,
    optimizer_tensors,
    rank_count,
    restore_generators,
)
from npm.types import MaskedBatch, Term

__all__ = [
    "Objective",
    "Precision",
    "StepReport",
    "TrainedModel",
    "Trainer",
    "TrainerSettings",
    "make_accelerator",
    "make_optimizer",
]


class Objective(Protocol):
    """What the loop asks of a loss."""

    def counts(self, batch: MaskedBatch) -> dict[str, int]: ...
    def __call__(self, encoded: EncodedBatch) -> dict[str, Term]: ...


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a progress display may want to know after a step."""

    step: int
    progress: float
    tokens: int
    terms: dict[str, float] = field(default_factory=dict)


class TrainedModel(nn.Module):
    """Encoder and objective as one module, so that one wrapper (DDP) sees every parameter."""

    def __init__(self, encoder: Encoder, objective: nn.Module) -> None:
        super().__init__()
        self.encoder_model = encoder.model
        self.objective = objective

    def forward(self, batch: MaskedBatch) -> dict[str, Term]:
        with_clean_copies = getattr(self.objective, "reads_clean_copies", True)
        encoded = EncodedBatch(self._token_vectors, batch, with_clean_copies=with_clean_copies)
        terms: dict[str, Term] = self.objective(encoded)
        return terms

    def _token_vectors(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        vectors: torch.Tensor = self.encoder_model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return vectors  # [B, L, d]


class Trainer:
    """Trains an encoder under an objective within a run folder, resuming where the folder left off."""

    def __init__(
        self,
        encoder: Encoder,
        objective: nn.Module,
        batches: MaskedBatches,
        run_folder: RunFolder,
        *,
        settings: TrainerSettings,
        schedule: ScheduleSettings,
    ) -> None:
        self.encoder, self.objective, self.batches, self.run_folder = encoder, objective, batches, run_folder
        self.settings, self.schedule = settings, schedule
        self.accelerator = make_accelerator(settings)
        # only now is this rank's number known; with one seed for all, their dropouts would be equal
        torch.manual_seed(settings.seed + rank())
        assert (batches.rank, batches.world_size) == (rank(), world_size()), (
            f"batches of rank {batches.rank} of {batches.world_size}, but this is rank {rank()} of {world_size()}"
        )
        model = TrainedModel(encoder, objective)
        self.model, self.optimizer = self.accelerator.prepare(model, make_optimizer(model, settings))
        self.step, self.seconds, self.tokens = 0, 0.0, 0

    def train(self, report: Callable[[StepReport], None] = lambda _: None) -> None:
        """Run to the end of the schedule, then write the finished encoder to the run folder."""
        self.resume()
        self.model.train()
        stream = iterate_batches(
            self.batches,
            first_micro_step=self.step * self.settings.accumulation_steps,
            workers=self.settings.workers,
        )
        clock, saved_seconds = time.monotonic() - self.seconds, self.seconds
        while (progress := self._progress()) < 1.0:
            self._set_learning_rate(self._next_progress(progress))
            window, window_tokens = self._read_window(stream)
            terms = self._update(window)
            self.step += 1
            self.tokens += window_tokens
            seconds_before, self.seconds = self.seconds, self._shared_seconds(time.monotonic() - clock)
            rate = window_tokens / max(1e-9, self.seconds - seconds_before)
            self._report(terms, rate, report)
            if self.seconds - saved_seconds >= self.settings.checkpoint_every_minutes * 60:
                self.save_checkpoint()
                saved_seconds = self.seconds
        self.save_checkpoint()
        self.model.eval()
        self.save_encoder()

    def _update(self, window: list[MaskedBatch]) -> dict[str, float]:
        """One optimiser step on an accumulation window; returns each term's mean over all ranks."""
        counts = self._global_counts(window)
        sums = dict.fromkeys(counts, 0.0)
        for number, batch in enumerate(window):
            last = number == len(window) - 1
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self.model):
                terms = self.model(batch.to(self.accelerator.device))
                # DDP averages gradients over ranks; the factor turns that mean back into a sum
                losses = [
                    term.weight * term.sum * (world_size() / max(1, counts[name])) for name, term in terms.items()
                ]
                self.accelerator.backward(torch.stack(losses).sum())
            for name, term in terms.items():
                sums[name] += float(term.sum.detach())
        totals = self._summed(torch.tensor(list(sums.values()), dtype=torch.float64))
        means = {name: total / max(1, counts[name]) for name, total in zip(sums, totals, strict=True)}
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.max_gradient_norm)
        self._refuse_not_finite({**means, "length of the gradient": float(norm)})
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return means

    def _refuse_not_finite(self, numbers: dict[str, float]) -> None:
        """Stop before the weights are spoilt, and with them the next checkpoint; all ranks see the same numbers."""
        wrong = {name: number for name, number in numbers.items() if not math.isfinite(number)}
        if wrong:
            learning_rate = self.optimizer.param_groups[0]["lr"]
            raise SettingError(
                "the loss is not finite",
                expected="finite numbers",
                got=", ".join(f"{name}={number}" for name, number in wrong.items()),
                where=f"step {self.step + 1}, learning rate {learning_rate:.3g}",
                fix="choose a lower schedule.learning_rate or trainer.max_gradient_norm in a new run folder",
            )

    def _global_counts(self, window: list[MaskedBatch]) -> dict[str, int]:
        per_batch = [self.objective.counts(batch) for batch in window]  # type: ignore[operator]
        names = list(per_batch[0])
        local = torch.tensor([sum(counts[name] for counts in per_batch) for name in names], dtype=torch.float64)
        return {name: int(total) for name, total in zip(names, self._summed(local), strict=True)}

    def _summed(self, values: torch.Tensor) -> list[float]:
        if world_size() > 1:
            device = "cpu" if dist.get_backend() == "gloo" else self.accelerator.device
            values = values.to(device)
            dist.all_reduce(values)
        return [float(value) for value in values]

    def _shared_seconds(self, seconds: float) -> float:
        """The first rank's clock, so that all ranks stop and schedule alike."""
        return self._summed(torch.tensor([seconds if rank() == 0 else 0.0], dtype=torch.float64))[0]

    def _read_window(self, stream: Iterator[MaskedBatch]) -> tuple[list[MaskedBatch], int]:
        window = [next(stream) for _ in range(self.settings.accumulation_steps)]
        local = torch.tensor([sum(int(batch.key_attention_mask.sum()) for batch in window)], dtype=torch.float64)
        return window, int(self._summed(local)[0])

    def _progress(self) -> float:
        return self.schedule.progress(steps_done=self.step, minutes_done=self.seconds / 60)

    def _next_progress(self, progress: float) -> float:
        """Step schedules look one step ahead, so that the first step has a learning rate above zero."""
        if self.schedule.max_steps is None:
            return max(progress, 1e-4)
        return self.schedule.progress(steps_done=self.step + 1, minutes_done=0.0)

    def _set_learning_rate(self, progress: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.learning_rate_at(progress)

    def _report(self, terms: dict[str, float], rate: float, report: Callable[[StepReport], None]) -> None:
        report(StepReport(self.step, self._progress(), self.tokens, terms))
        if rank() == 0 and self.step % self.settings.log_every_steps == 0:
            learning_rate = self.optimizer.param_groups[0]["lr"]
            counters = {"step": self.step, "tokens": self.tokens, "seconds": round(self.seconds, 2)}
            self.run_folder.log(
                {**counters, "learning_rate": learning_rate, "tokens_per_second": round(rate, 1), **terms}
            )

    def save_checkpoint(self) -> None:
        """Write weights, optimiser state, counters and every rank's generators."""
        generators = gathered_generator_states()
        if rank() == 0:
            model = self.accelerator.unwrap_model(self.model)
            weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
            tensors = optimizer_tensors(self.optimizer.optimizer)
            self.run_folder.save_checkpoint(
                Checkpoint(self.step, self.seconds, self.tokens, weights, tensors, generators)
            )
        self.accelerator.wait_for_everyone()

    def resume(self) -> None:
        """Take up the newest checkpoint of the run folder, if there is one."""
        checkpoint = self.run_folder.latest_checkpoint()
        if rank() == 0:
            self.run_folder.cut_metrics(checkpoint.step if checkpoint else 0)
        if checkpoint is None:
            return
        if (ranks := rank_count(checkpoint.generators)) != world_size():
            raise SettingError(
                "this run was begun with another number of processes",
                expected=f"{ranks} processes",
                got=str(world_size()),
                where=str(self.run_folder.path),
                fix=f"start {ranks} processes to continue exactly, or choose another run=DIR",
            )
        self.step, self.seconds, self.tokens = checkpoint.step, checkpoint.seconds, checkpoint.tokens
        self.accelerator.unwrap_model(self.model).load_state_dict(checkpoint.weights)
        load_optimizer_tensors(self.optimizer.optimizer, checkpoint.optimizer_tensors)
        restore_generators(checkpoint.generators)

    def save_encoder(self) -> None:
        """Write the encoder as `save_pretrained` does, with the objective's scale."""
        if rank() == 0:
            self.encoder.similarity_scale = getattr(self.objective, "similarity_scale", self.encoder.similarity_scale)
            self.encoder.weights_changed()
            self.run_folder.save_encoder(self.encoder)
        self.accelerator.wait_for_everyone()


def make_accelerator(settings: TrainerSettings) -> Any:
    """An `accelerate.Accelerator` on the chosen device in the chosen precision."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import GradientAccumulationPlugin

    from npm.models.encoder import ComputeDtype, choose_device, choose_dtype

    device = choose_device(settings.device)
    dtype = choose_dtype(ComputeDtype(settings.precision.value), device)
    AcceleratorState._reset_state()  # else a process could not train twice in different precisions
    return Accelerator(
        mixed_precision="bf16" if dtype is torch.bfloat16 else "no",
        cpu=device.type == "cpu",
        # given, because the launcher's number would divide our gradients a second time
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
    )


def make_optimizer(model: nn.Module, settings: TrainerSettings) -> torch.optim.Optimizer:
    """AdamW with weight decay on matrices only."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (settings.adam_beta1, settings.adam_beta2)
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=settings.adam_epsilon, fused=True)
