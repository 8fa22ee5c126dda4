"""Terms of losses, and a weighted sum of objectives, each over the view of the batch that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from npm.masking.batches import TrainingBatch


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a loss before any division: only the trainer divides, by the count over ranks and micro-batches."""

    sum: torch.Tensor  # scalar
    count: int
    weight: float = 1.0


def classification_terms(name: str, logits: torch.Tensor, targets: torch.Tensor) -> dict[str, Term]:
    """Cross entropy of logits f32 [n, C] at targets i64 [n]; `NAME_top1`, of weight 0, counts right predictions."""
    losses = nn.functional.cross_entropy(logits, targets, reduction="sum")
    correct = (logits.detach().argmax(1) == targets).sum()
    return {name: Term(losses, len(targets)), f"{name}_top1": Term(correct, len(targets), weight=0.0)}


class WeightedSum(nn.Module):
    """Several objectives at once; each term keeps its own denominator and is multiplied by its objective's weight.

    An objective whose view a batch does not have contributes no term.

    An objective is a module with `view`, the name of the view it reads; `counts(view)`, the denominators of its terms
    on this rank, known before any forward pass; and a forward from the encoded view to its terms. It may have
    `reads_clean_copies` (True where it is absent).
    """

    def __init__(self, objectives: Mapping[str, nn.Module], weights: Mapping[str, float]) -> None:
        super().__init__()
        assert objectives.keys() == weights.keys(), f"{sorted(objectives)} != {sorted(weights)}"
        self.objectives = nn.ModuleDict(objectives)
        self.weights = dict(weights)

    @property
    def views(self) -> set[str]:
        """Names of the views that are read."""
        return {str(part.view) for part in self.objectives.values()}

    @property
    def views_with_clean_copies(self) -> set[str]:
        """Names of the views whose clean copies an objective needs encoded."""
        parts = self.objectives.values()
        return {str(part.view) for part in parts if getattr(part, "reads_clean_copies", True)}

    def counts(self, batch: TrainingBatch) -> dict[str, int]:
        """Denominators of all terms."""
        counts: dict[str, int] = {}
        for objective in self.objectives.values():
            if str(objective.view) in batch.views:
                counts |= objective.counts(batch.views[str(objective.view)])  # type: ignore[operator]
        return counts

    def forward(self, encoded: Mapping[str, Any]) -> dict[str, Term]:
        """Terms of all objectives from the encoded views, by name; the terms' names must differ."""
        terms: dict[str, Term] = {}
        for name, objective in self.objectives.items():
            if str(objective.view) not in encoded:
                continue
            for term_name, term in objective(encoded[str(objective.view)]).items():
                assert term_name not in terms, f"two objectives have a term {term_name!r}"
                terms[term_name] = Term(term.sum, term.count, term.weight * self.weights[name])
        return terms
