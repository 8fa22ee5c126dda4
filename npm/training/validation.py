"""Evaluation during training: the same objective on text that is not trained on, and the caller's own measures.

An evaluation leaves no trace in the training: it takes no number from the generators that training draws from, and a
run with evaluations has the losses of one without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from npm.core.errors import unknown
from npm.models.stored import evaluating
from npm.objectives.ranks import broadcast, sum_over_ranks
from npm.training.acceleration import PreparedModel
from npm.training.data import TrainingBatches
from npm.training.settings import HELD_OUT_LOSS, HELD_OUT_PREFIX, TrainingEvaluationSettings

Evaluator = Callable[[], dict[str, float]]
"""Measures the model that is being trained, in evaluation mode; called on every rank."""


@dataclass
class HeldOut:
    """Measures a model on fixed batches, and by evaluators from outside."""

    settings: TrainingEvaluationSettings
    batches: TrainingBatches | None
    evaluators: Sequence[Evaluator] = ()

    def __post_init__(self) -> None:
        assert self.batches is not None or self.evaluators, "nothing to evaluate"

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
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices=devices), torch.no_grad(), evaluating(prepared.bare):
            torch.manual_seed(0)  # every evaluation draws the same numbers
            metrics = self._held_out_terms(prepared)
            with prepared.gathered():
                for evaluator in self.evaluators:
                    metrics |= evaluator()
        metrics = broadcast(metrics)
        if self.settings.best not in metrics:
            raise unknown("evaluation.best", self.settings.best, metrics)
        return metrics

    def _held_out_terms(self, prepared: PreparedModel) -> dict[str, float]:
        objective, device = prepared.bare.objective, prepared.accelerator.device
        own_sums: dict[str, float] = {}
        own_counts: Counter[str] = Counter()
        weights: dict[str, float] = {}
        for micro_step in range(self.micro_steps):
            assert self.batches is not None, "micro_steps is 0 without batches"
            batch = self.batches[micro_step]
            own_counts.update(objective.counts(batch))
            for name, term in prepared(batch.to(device)).items():
                own_sums[name] = own_sums.get(name, 0.0) + float(term.sum)
                weights[name] = term.weight
        sums, counts = sum_over_ranks(own_sums, device), sum_over_ranks(own_counts, device)
        means = {name: total / counts[name] for name, total in sums.items() if counts[name]}  # no mean without a count
        if not means:
            return {}
        loss = sum(weights[name] * mean for name, mean in means.items())
        return {**{f"{HELD_OUT_PREFIX}{name}": mean for name, mean in means.items()}, HELD_OUT_LOSS: loss}
