"""Evaluation during training: the same objective on text that is not trained on, and what else the caller measures.

An evaluation leaves no trace in the training: it takes no number from the generators that training draws from, and a
run with evaluations has the losses of one without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from npm.errors import SettingError, check_range
from npm.objectives.ranks import of_first_rank, sum_over_ranks
from npm.training.acceleration import PreparedModel
from npm.training.batches import TrainingBatches

HELD_OUT_PREFIX = "held_out_"
HELD_OUT_LOSS = "held_out_loss"
Evaluator = Callable[[], dict[str, float]]
"""Measures the model that is being trained, in evaluation mode; called on every rank."""


@dataclass(kw_only=True, slots=True)
class TrainingEvaluationSettings:
    """Evaluation during training: at its start, every so many steps, and at its end."""

    files: list[str] = field(default_factory=list)
    """Held-out text in the form of the training text; empty: the objective is not evaluated."""
    every_steps: int = 500
    """Optimiser steps between two evaluations."""
    max_batches: int = 50
    """Batches of held-out text that an evaluation reads on each device, always the same ones."""
    masked_fraction: float = 0.15
    """Share of the tokens that are masked in held-out text for masked-token prediction, at whatever rate is trained."""
    best: str = HELD_OUT_LOSS
    """Name in metrics.jsonl of the metric that decides which encoder is kept in RUN/best-encoder."""
    higher_is_better: bool = False
    """Whether more of that metric is better."""
    patience_evaluations: int | None = None
    """Stop after so many evaluations in a row that were not the best; null: never."""

    def __post_init__(self) -> None:
        for name in ("every_steps", "max_batches", "patience_evaluations"):
            value = getattr(self, name)
            right = value is None or value >= 1
            check_range(right, f"evaluation.{name}", expected="at least 1", got=value)
        right = 0 < self.masked_fraction < 1
        check_range(right, "evaluation.masked_fraction", expected="between 0 and 1", got=self.masked_fraction)


class HeldOut:
    """Measures a model on fixed batches, and by evaluators from outside."""

    def __init__(
        self,
        settings: TrainingEvaluationSettings,
        batches: TrainingBatches | None,
        *,
        evaluators: Sequence[Evaluator] = (),
    ) -> None:
        assert batches is not None or evaluators, "nothing to evaluate"
        self.settings, self.batches, self.evaluators = settings, batches, tuple(evaluators)

    @property
    def micro_steps(self) -> int:
        """Batches of each rank; the smallest source is read once at most."""
        if self.batches is None:
            return 0
        most = min(source.micro_steps_per_epoch for source in self.batches.sources)
        return min(self.settings.max_batches, most)

    def measure(self, prepared: PreparedModel) -> dict[str, float]:
        """Every metric by name: `held_out_<term>`, their weighted sum `held_out_loss`, and those of the evaluators.

        All ranks measure at the same time. Raises SettingError if the metric that decides about the best encoder is
        none of them.
        """
        with undisturbed(prepared.bare):
            metrics = self._held_out_terms(prepared)
            with prepared.gathered():
                for evaluator in self.evaluators:
                    metrics |= evaluator()
        metrics = of_first_rank(metrics)
        if self.settings.best not in metrics:
            raise SettingError(
                "the metric that decides about the best encoder is not measured",
                expected=", ".join(metrics),
                got=self.settings.best,
                where="evaluation.best",
                fix="choose one of these",
            )
        return metrics

    def _held_out_terms(self, prepared: PreparedModel) -> dict[str, float]:
        objective, device = prepared.bare.objective, prepared.accelerator.device
        sums: dict[str, float] = {}
        counts: dict[str, float] = {}
        weights: dict[str, float] = {}
        for micro_step in range(self.micro_steps):
            assert self.batches is not None, "micro_steps is 0 without batches"
            batch = self.batches[micro_step]
            for name, count in objective.counts(batch).items():
                counts[name] = counts.get(name, 0.0) + count
            for name, term in prepared(batch.to(device)).items():
                sums[name] = sums.get(name, 0.0) + float(term.sum)
                weights[name] = term.weight
        global_sums = sum_over_ranks(list(sums.values()), device)
        global_counts = sum_over_ranks([counts[name] for name in sums], device)
        totals = zip(sums, global_sums, global_counts, strict=True)
        means = {name: total / count for name, total, count in totals if count}  # without a count there is no mean
        if not means:
            return {}
        loss = sum(weights[name] * mean for name, mean in means.items())
        return {**{f"{HELD_OUT_PREFIX}{name}": mean for name, mean in means.items()}, HELD_OUT_LOSS: loss}


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; modes and generators are afterwards as they were before.

    Within it the generators start from the same seed every time, so that what is drawn there is the same too.
    """
    modes = [(module, module.training) for module in model.modules()]
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(0)
        model.eval()
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training
