"""The one loop: read an accumulation window, count, backward, clip, step, schedule, log, evaluate, save.

Objectives return sums; the loop divides each term by its count over all ranks and micro-batches of the window, so
one process with a batch of 32, four micro-batches of 8 and two ranks of 16 agree wherever the objective does not
itself depend on what else is in its batch. In-batch negatives do not grow with accumulation.

RUN/bad-batch/step-00000004-rank-0/   manifest (step, terms of each micro-batch), micro-0.safetensors: `<view>.<tensor>`
"""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import safetensors.torch
import torch

from npm.core.artifact import write_folder
from npm.core.errors import SettingError
from npm.masking.batches import TrainingBatch
from npm.models.memory import return_freed_memory
from npm.objectives.combine import WeightedSum
from npm.objectives.ranks import rank, sum_over_ranks, world_size
from npm.training.acceleration import AveragedWeights, PreparedModel, kept_modules, make_accelerator, whole_parameters
from npm.training.checkpoints import (
    BEST_ENCODER,
    ENCODER,
    Checkpoint,
    Counters,
    RunFolder,
    captured_state,
    restore_state,
)
from npm.training.data import TrainingBatches, iterate_batches
from npm.training.model import SavedModel, TrainedModel
from npm.training.record import Log, check_loggers, open_loggers
from npm.training.settings import TrainingSettings
from npm.training.validation import HeldOut

RETURN_MEMORY_SECONDS = 60.0
"""Returned memory is taken again by the next step, which costs it about a second of the processor."""
BAD_BATCH_KIND = "training batch of a loss that is not finite"


def save_bad_batches(
    folder: Path, *, step: int, window: Sequence[TrainingBatch], sums: Sequence[Mapping[str, float]]
) -> None:
    """Write the micro-batches of a window whose terms are not finite; all of them if only its gradient is not.

    `sums` holds each micro-batch's terms on this rank.
    """
    bad = [number for number, terms in enumerate(sums) if not all(map(math.isfinite, terms.values()))]
    path = folder / f"step-{step:08d}-rank-{rank()}"
    shutil.rmtree(path, ignore_errors=True)  # of the same step of a run that was started again
    terms = [{name: str(value) for name, value in part.items()} for part in sums]  # JSON has no infinity
    with write_folder(path, kind=BAD_BATCH_KIND, settings={"step": step, "rank": rank(), "terms": terms}) as writer:
        for number in bad or range(len(window)):
            values = {
                f"{name}.{item.name}": getattr(view, item.name)
                for name, view in window[number].views.items()
                for item in fields(view)  # type: ignore[arg-type]
            }
            tensors = {
                name: torch.as_tensor(value).cpu().contiguous().clone()
                for name, value in values.items()
                if value is not None
            }
            writer.open_binary(f"micro-{number}.safetensors").write(safetensors.torch.save(tensors))


@dataclass(slots=True)
class EarlyStopping:
    """Early stopping: the best evaluation so far, and how many since were no better; part of the checkpoints."""

    value: float | None = None
    """The best value of the metric that was chosen; None before the first finite one."""
    step: int | None = None
    """The step it was measured at."""
    evaluations_since: int = 0
    """Evaluations after it, none of them better."""
    last_step: int | None = None
    """The step of the latest evaluation."""

    def update(self, *, step: int, value: float, higher_is_better: bool) -> bool:
        """Record an evaluation; returns True if it is better than all before. A non-finite number never is.

        >>> best = EarlyStopping()
        >>> [best.update(step=step, value=value, higher_is_better=False) for step, value in enumerate([3.0, 2.0, 2.0])]
        [True, True, False]
        """
        self.last_step = step
        better = math.isfinite(value) and (
            self.value is None or (value > self.value if higher_is_better else value < self.value)
        )
        if better:
            self.value, self.step, self.evaluations_since = value, step, 0
        else:
            self.evaluations_since += 1
        return better

    def patience_exhausted(self, patience_evaluations: int | None) -> bool:
        """Return True if `patience` evaluations in a row were no better; never without a limit."""
        return patience_evaluations is not None and self.evaluations_since >= patience_evaluations


@dataclass(frozen=True, slots=True)
class StepReport:
    """Figures that a progress display shows after a step."""

    step: int
    progress: float
    tokens: int
    terms: dict[str, float] = field(default_factory=dict)


class Trainer:
    """Trains a model under an objective within a run folder, resuming where the folder left off."""

    def __init__(
        self,
        trained: SavedModel,
        objective: WeightedSum,
        batches: TrainingBatches,
        run_folder: RunFolder,
        *,
        settings: TrainingSettings,
        held_out: HeldOut | None = None,
    ) -> None:
        self.settings, self.schedule = settings.trainer, settings.schedule
        check_loggers(self.settings)
        self.trained, self.objective, self.batches, self.run_folder = trained, objective, batches, run_folder
        self.held_out = held_out
        self.accelerator = make_accelerator(settings)
        # only now is this rank's number known; with one seed for all, their dropouts would be equal
        torch.manual_seed(self.settings.seed + rank())
        model = TrainedModel(trained, objective, rows_per_pass=self.settings.rows_per_pass)
        self.prepared = PreparedModel(model, trained, self.settings, self.accelerator)
        self.optimizer = self.prepared.optimizer
        decay = self.settings.ema_decay
        self.averaged = None if decay is None else AveragedWeights(model, decay)
        self.learning_rate = 0.0
        self.step, self.seconds, self.tokens = 0, 0.0, 0
        self.first_step, self.first_seconds = 0, 0.0
        self.early_stopping = EarlyStopping()
        self._since_line = {"tokens": 0.0, "seconds": 0.0, "waiting": 0.0}
        self._loggers: list[Log] = []
        self._with_dropout: list[torch.nn.Module] = []

    @property
    def model(self) -> TrainedModel:
        """The trained module, without the wrapper of several ranks."""
        return self.prepared.bare

    def train(
        self, report: Callable[[StepReport], None] = lambda _: None, *, most_minutes: float | None = None
    ) -> None:
        """Run to the end of the schedule, or until early stopping; then write the encoder to the run folder.

        After `most_minutes` only a checkpoint is saved.
        """
        self.resume()
        self.model.train()
        dropouts = [part for part in self.model.objective.modules() if isinstance(part, torch.nn.Dropout)]
        # a frozen teacher stays in evaluation mode
        self._with_dropout = [self.model.encoder_model, *(part for part in dropouts if part.training)]
        with ExitStack() as stack:
            if rank() == 0:
                # the evaluation before the first step belongs to step 0, and is not repeated when it was saved
                first_step = 0 if self.step == 0 and self.early_stopping.last_step is None else self.step + 1
                self._loggers = stack.enter_context(
                    open_loggers(self.settings, self.run_folder.path, first_step=first_step)
                )
            is_done = self._run(report, math.inf if most_minutes is None else 60 * most_minutes)
        self.save_checkpoint()
        self.model.eval()
        if is_done:
            self.save_encoder(ENCODER)

    def _run(self, report: Callable[[StepReport], None], most_seconds: float) -> bool:
        """Train until the end, or for `most_seconds`; returns True if the end was reached."""
        # batches are a function of the micro-step alone, so the step is the full position in the data
        first_micro_step = self.step * self.settings.accumulation_steps
        stream = iterate_batches(self.batches, first_micro_step=first_micro_step, workers=self.settings.workers)
        clock, saved_seconds, returned_seconds = time.monotonic() - self.seconds, self.seconds, self.seconds
        last_second = self.seconds + most_seconds
        if self.early_stopping.last_step is None:
            self._evaluate()
        patience = self.held_out.settings.patience_evaluations if self.held_out else None
        while self._progress() < 1.0 and not self.early_stopping.patience_exhausted(patience):
            self._set_learning_rate()
            for part in self._with_dropout:
                part.train(self.settings.has_dropout(self.step))
            started = time.perf_counter()
            window = [next(stream) for _ in range(self.settings.accumulation_steps)]
            self._since_line["waiting"] += time.perf_counter() - started
            terms = self.update(window)
            self._since_line["seconds"] += time.perf_counter() - started
            self.step += 1
            if self.averaged:
                self.averaged.update(self.step)
            self._count(sum(batch.token_count for batch in window), time.monotonic() - clock)
            self._report(terms, report)
            if self.seconds - returned_seconds >= RETURN_MEMORY_SECONDS:
                # batches of many lengths leave gaps in the heap, which would otherwise grow with every step
                return_freed_memory()
                returned_seconds = self.seconds
            if self.held_out and (self.step % self.held_out.settings.every_steps == 0 or self._progress() >= 1.0):
                self._evaluate()
            if self.seconds - saved_seconds >= self.settings.checkpoint_every_minutes * 60:
                self.save_checkpoint()
                saved_seconds = self.seconds
            if self.seconds >= last_second:
                break
        return self._progress() >= 1.0 or self.early_stopping.patience_exhausted(patience)

    def update(self, window: list[TrainingBatch]) -> dict[str, float]:
        """One optimizer step on an accumulation window; returns each term's mean over all ranks."""
        # Counted before any forward pass, over all micro-batches and ranks: a mean over the window is not the mean of
        # its micro-batches' means where these have different numbers of spans.
        own_counts: Counter[str] = Counter()
        for batch in window:
            own_counts.update(self.objective.counts(batch))
        counts = sum_over_ranks(own_counts, self.accelerator.device)
        sums: list[dict[str, float]] = []
        for number, batch in enumerate(window):
            with self.prepared.gathering(last=number == len(window) - 1):
                terms = self.prepared(batch.to(self.accelerator.device))
                # gradients are averaged over ranks; the factor turns that mean back into a sum
                parts = [term.weight * term.sum * (world_size() / max(1, counts[name])) for name, term in terms.items()]
                self.accelerator.backward(torch.stack(parts).sum())
            sums.append({name: float(term.sum.detach()) for name, term in terms.items()})
        own_totals = dict.fromkeys(own_counts, 0.0)
        for name, value in (item for part in sums for item in part.items()):
            own_totals[name] += value
        totals = sum_over_ranks(own_totals, self.accelerator.device)
        # a term without anything to count, such as a denoiser that was not drawn, has no mean
        means = {name: total / counts[name] for name, total in totals.items() if counts[name]}
        # after the last micro-batch, where the gradient is that of the entire window on all ranks
        gradient_length = self.prepared.clip()
        # a gradient that is not finite may be due to the loss scale of float16 alone: that step is skipped
        may_overflow = self.prepared.scaler is not None and self.prepared.scaler.get_scale() > 1
        lengths = {} if may_overflow else {"length of the gradient": gradient_length}
        self._refuse_not_finite({**means, **lengths}, window, sums)
        self.prepared.step()
        return means

    def _refuse_not_finite(
        self, numbers: dict[str, float], window: list[TrainingBatch], sums: list[dict[str, float]]
    ) -> None:
        """Stop before a step that would leave NaN in the weights and in the next checkpoint, on all ranks."""
        wrong = {name: number for name, number in numbers.items() if not math.isfinite(number)}
        if not wrong:
            return
        own_terms_are_bad = any(not math.isfinite(value) for part in sums for value in part.values())
        if own_terms_are_bad or wrong.keys() == {"length of the gradient"}:  # else the batch of another rank is
            save_bad_batches(self.run_folder.bad_batch_path, step=self.step + 1, window=window, sums=sums)
        shown = ", ".join(f"{name}={number}" for name, number in wrong.items())
        raise SettingError(
            f"the loss is not finite at step {self.step + 1} ({shown}): choose a schedule.learning_rate below"
            f" {self.learning_rate:.3g} or a lower trainer.max_gradient_norm in a new run folder. The batch is kept in"
            f" {self.run_folder.bad_batch_path}"
        )

    def _count(self, own_tokens: int, own_seconds: float) -> None:
        """Count the tokens of all ranks, and take the first rank's clock."""
        # with separate clocks, ranks would differ in learning rate, and one would stop while others wait for it
        numbers = {"tokens": own_tokens, "seconds": own_seconds if rank() == 0 else 0.0}
        totals = sum_over_ranks(numbers, self.accelerator.device)
        self.seconds = totals["seconds"]
        self.tokens += int(totals["tokens"])
        self._since_line["tokens"] += int(totals["tokens"])

    def _progress(self, *, more_steps: int = 0) -> float:
        minutes_done = (self.seconds - self.first_seconds) / 60
        return self.schedule.progress(steps_done=self.step + more_steps - self.first_step, minutes_done=minutes_done)

    def _set_learning_rate(self) -> None:
        # progress at the end of the coming step, so that the first one has a rate above zero; by the clock that is not
        # known, so it is a little above zero
        by_clock = self.schedule.max_steps is None
        progress = max(self._progress(), 1e-4) if by_clock else self._progress(more_steps=1)
        self.learning_rate = self.schedule.learning_rate_at(progress)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    def _report(self, terms: dict[str, float], report: Callable[[StepReport], None]) -> None:
        report(StepReport(self.step, self._progress(), self.tokens, terms))
        if self.step % self.settings.log_every_steps == 0 or self._progress() >= 1.0:
            seconds = max(1e-9, self._since_line["seconds"])
            counters = {
                "tokens": self.tokens,
                "seconds": round(self.seconds, 2),
                "learning_rate": self.learning_rate,
                "tokens_per_second": round(self._since_line["tokens"] / seconds, 1),
                "data_fraction": round(self._since_line["waiting"] / seconds, 4),
            }
            self._since_line = dict.fromkeys(self._since_line, 0.0)
            self._log(counters | terms)

    def _log(self, metrics: dict[str, float]) -> None:
        if rank() == 0:
            self.run_folder.log({"step": self.step, **metrics})
            for log in self._loggers:
                log(self.step, metrics)

    def _evaluate(self) -> None:
        """Measure the model; a new best is kept, with a checkpoint that knows of it, so that the two stay together."""
        if self.held_out is None:
            return
        with self._saved_weights():
            metrics = self.held_out.measure(self.prepared)
        chosen = self.held_out.settings
        value = metrics[chosen.best]
        self._log({"tokens": self.tokens, **metrics})
        if self.early_stopping.update(step=self.step, value=value, higher_is_better=chosen.higher_is_better):
            self.save_checkpoint()
            self.save_encoder(BEST_ENCODER)

    def save_checkpoint(self) -> None:
        """Write weights, optimizer state, counters and every rank's generators."""
        # the allocator keeps freed memory from step to step, which is fast, and more of it with each new batch length;
        # the copies to write must not come on top of it
        return_freed_memory()
        scaler, best = self.prepared.scaler, asdict(self.early_stopping)
        scale = scaler.state_dict() if scaler is not None else {}
        counters = Counters(
            step=self.step,
            seconds=self.seconds,
            tokens=self.tokens,
            best=best,
            gradient_scale=scale,
            first_step=self.first_step,
            first_seconds=self.first_seconds,
        )
        averages = self.averaged.state() if self.averaged else {}
        checkpoint = Checkpoint(counters, captured_state(self.model, self.optimizer, averages))
        if rank() == 0:
            self.run_folder.save_checkpoint(checkpoint)
        return_freed_memory()
        self.accelerator.wait_for_everyone()

    def resume(self) -> None:
        """Load the newest checkpoint of the run folder, if there is one."""
        checkpoint = self.run_folder.latest_checkpoint()
        if rank() == 0:
            self.run_folder.cut_metrics(checkpoint.counters.step if checkpoint else -1)
        if checkpoint is None:
            return
        # generators come back last, and the loader draws from a separate one: from here on the run draws the numbers of
        # an uninterrupted run after this step
        counters = checkpoint.counters
        with self.run_folder.checkpoint_errors():
            restore_state(checkpoint, self.model, self.optimizer, where=self.run_folder.path)
            if self.averaged:
                self.averaged.restore(checkpoint.tensors["averages"])
            if self.prepared.scaler is not None:
                self.prepared.scaler.load_state_dict(counters.gradient_scale)
            self.step, self.seconds, self.tokens = counters.step, counters.seconds, counters.tokens
            self.first_step, self.first_seconds = counters.first_step, counters.first_seconds
            self.early_stopping = EarlyStopping(**counters.best)
        if self.early_stopping.step == self.step:  # a kill may have come between the checkpoint and the encoder
            self.save_encoder(BEST_ENCODER)

    def _saved_weights(self) -> AbstractContextManager[None]:
        """Context in which the model has the weights that are measured and saved: the average, if there is one."""
        return self.averaged.in_place() if self.averaged else nullcontext()

    def save_encoder(self, name: str) -> None:
        """Write the trained model to the folder `name` of the run, in a form that loads by itself."""
        with self._saved_weights(), whole_parameters(kept_modules(self.trained)):
            if rank() == 0:
                self.trained.weights_changed()
                self.run_folder.save_encoder(self.trained, name)
        self.accelerator.wait_for_everyone()
