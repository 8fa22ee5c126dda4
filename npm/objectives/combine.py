"""A weighted sum of objectives over the same encoded batch."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from npm.objectives.encoded import EncodedBatch
from npm.types import MaskedBatch, Term


class WeightedSum(nn.Module):
    """Several objectives at once; each term keeps its own denominator and is multiplied by its objective's weight."""

    def __init__(self, objectives: Mapping[str, nn.Module], weights: Mapping[str, float]) -> None:
        super().__init__()
        assert objectives.keys() == weights.keys(), f"{sorted(objectives)} != {sorted(weights)}"
        self.objectives = nn.ModuleDict(objectives)
        self.weights = dict(weights)

    @property
    def similarity_scale(self) -> float:
        """The scale of the one objective that has one; AttributeError if none has."""
        parts = [part for part in self.objectives.values() if hasattr(part, "similarity_scale")]
        if not parts:
            raise AttributeError("none of the objectives has a similarity scale")
        assert len(parts) == 1, f"{len(parts)} objectives have a similarity scale"
        scale: float = getattr(parts[0], "similarity_scale")  # noqa: B009 - the type of a module's attribute is unknown
        return scale

    @property
    def reads_clean_copies(self) -> bool:
        """Whether any of the objectives compares with the vectors of the clean copies."""
        return any(getattr(part, "reads_clean_copies", True) for part in self.objectives.values())

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Denominators of all terms."""
        counts: dict[str, int] = {}
        for objective in self.objectives.values():
            counts |= objective.counts(batch)  # type: ignore[operator]
        return counts

    def forward(self, encoded: EncodedBatch) -> dict[str, Term]:
        """Terms of all objectives; their names must differ."""
        terms: dict[str, Term] = {}
        for name, objective in self.objectives.items():
            for term_name, term in objective(encoded).items():
                assert term_name not in terms, f"two objectives have a term {term_name!r}"
                terms[term_name] = Term(term.sum, term.count, term.weight * self.weights[name])
        return terms
