"""A weighted sum of objectives, each over the view of the batch that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from torch import nn

from npm.errors import SettingError, check_range
from npm.objectives.masked import MaskedSettings
from npm.objectives.nonparametric import NonparametricSettings
from npm.objectives.sentence import SentenceSettings
from npm.objectives.token_contrast import TokenContrastSettings
from npm.settings import Bounds, CheckedSettings
from npm.types import Term, TrainingBatch


class WeightedSum(nn.Module):
    """Several objectives at once; each term keeps its own denominator and is multiplied by its objective's weight.

    An objective is a module with `view`, the name of the view it reads; `counts(view)`, the denominators of its terms
    on this rank, known before any forward pass; and a forward from the encoded view to its terms. It may have
    `reads_clean_copies` (True where it is absent) and `similarity_scale`.
    """

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
    def views(self) -> set[str]:
        """Names of the views that are read."""
        return {_view(part) for part in self.objectives.values()}

    @property
    def views_with_clean_copies(self) -> set[str]:
        """Names of the views of which an objective compares with the vectors of the clean copies."""
        parts = self.objectives.values()
        return {_view(part) for part in parts if getattr(part, "reads_clean_copies", True)}

    def counts(self, batch: TrainingBatch) -> dict[str, int]:
        """Denominators of all terms."""
        counts: dict[str, int] = {}
        for objective in self.objectives.values():
            counts |= objective.counts(batch.views[_view(objective)])  # type: ignore[operator]
        return counts

    def forward(self, encoded: Mapping[str, Any]) -> dict[str, Term]:
        """Terms of all objectives from the encoded views, by name; the terms' names must differ."""
        terms: dict[str, Term] = {}
        for name, objective in self.objectives.items():
            for term_name, term in objective(encoded[_view(objective)]).items():
                assert term_name not in terms, f"two objectives have a term {term_name!r}"
                terms[term_name] = Term(term.sum, term.count, term.weight * self.weights[name])
        return terms


def _view(objective: nn.Module) -> str:
    name = getattr(objective, "view", None)
    assert isinstance(name, str), f"{type(objective).__name__} does not say which view it reads"
    return name


@dataclass(kw_only=True, slots=True)
class OtherObjective(CheckedSettings):
    """A loss that stands in a file of its own and is not known here; docs/own-objective.md shows one."""

    target: str = ""
    """Where its class is, as module.Class; it is called with the encoder and `settings`."""
    weight: Annotated[float, Bounds(above=0)] = 1.0
    """Weight of its terms; above 0."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What the class takes besides the encoder."""

    def check(self) -> None:
        """Raise SettingError if the target is no class of a module."""
        module, _, name = self.target.rpartition(".")
        check_range(bool(module and name), "target", expected="module.Class", got=self.target or "nothing")


@dataclass(kw_only=True, slots=True)
class ObjectiveSettings(CheckedSettings):
    """Which losses are summed, with which weight; at least one weight is above 0."""

    nonparametric: NonparametricSettings = field(default_factory=NonparametricSettings)
    """The contrastive loss over the tokens of the batch."""
    nonparametric_weight: float = 1.0
    """Weight of the contrastive loss; 0 leaves it out, as with all weights."""
    masked: MaskedSettings = field(default_factory=MaskedSettings)
    """The prediction of masked tokens over the vocabulary."""
    masked_weight: float = 0.0
    """Weight of the prediction of masked tokens; what is masked for it stands under `corruption`."""
    sentence: SentenceSettings = field(default_factory=SentenceSettings)
    """The contrastive loss over sentences (SimCSE)."""
    sentence_weight: float = 0.0
    """Weight of the contrastive loss over sentences; where they come from stands under `sentences`."""
    token_contrast: TokenContrastSettings = field(default_factory=TokenContrastSettings)
    """The contrast of masked copies with the clean copies of a frozen teacher (TaCL)."""
    token_contrast_weight: float = 0.0
    """Weight of the contrast with the teacher; it reads the masked copies of `corruption`."""
    denoising_weight: float = 0.0
    """Weight of writing back what was corrupted, for encoder-decoders; what is corrupted stands under `denoising`."""
    others: dict[str, OtherObjective] = field(default_factory=dict)
    """Further losses by a name of your own: {name: {target: module.Class, weight: 1.0, settings: {}}}."""

    def check(self) -> None:
        """Raise SettingError for weights that leave nothing to train, and for a name that is taken."""
        weights = self.weights()
        if taken := sorted(name for name in self.others if f"{name}_weight" in weights):
            raise SettingError(
                "an objective of one's own has the name of another",
                expected="a name of its own",
                got=", ".join(taken),
                where="others",
                fix="choose another name",
            )
        if min(weights.values()) < 0 or not (sum(weights.values()) or self.others):
            raise SettingError(
                "the weights of the objective leave nothing to train",
                expected="weights of at least 0, one of them above 0",
                got=", ".join(f"{name}={weight}" for name, weight in weights.items()),
                where=", ".join(weights),
                fix="set one of them to 1",
            )

    def weights(self) -> dict[str, float]:
        """The weights of all known losses by the names of their settings."""
        names = ("nonparametric", "masked", "sentence", "token_contrast", "denoising")
        return {f"{name}_weight": getattr(self, f"{name}_weight") for name in names}
