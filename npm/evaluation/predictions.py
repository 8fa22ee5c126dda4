"""What a method says about an example, and what an evaluation asks of a method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from npm.evaluation.examples import Example
from npm.evaluation.results import Progress
from npm.evaluation.task import Task
from npm.types import Answer, Occurrence


@dataclass(frozen=True, slots=True)
class Evidence:
    """The word that counts most for one label, and the occurrence of it that fits best."""

    label: int
    word: str
    score: float
    """Log of the occurrence's weight, before anything is divided."""
    occurrence: Occurrence


@dataclass(frozen=True, slots=True)
class LabelPrediction:
    """The scores of all labels for one example of a closed task; they sum to 1."""

    scores: tuple[float, ...]
    evidence: tuple[Evidence, ...] = ()

    @property
    def label(self) -> int:
        """The best label; the first of equals."""
        return max(range(len(self.scores)), key=lambda number: self.scores[number])

    def record(self) -> dict[str, Any]:
        """As in a line of predictions.jsonl."""
        return {"scores": list(self.scores), "evidence": [asdict(each) for each in self.evidence]}


class ClosedMethod(Protocol):
    """Chooses among the labels of a closed task."""

    name: str

    def prepare(self, task: Task) -> None:
        """Raise UserError for whatever would stop `predict`, so that it is told before any task is asked."""

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[LabelPrediction]:
        """One prediction an example."""

    def facts(self) -> dict[str, Any]:
        """What the predictions of the last call depend on: settings, fingerprints, counts; goes into metrics.json."""


class OpenMethod(Protocol):
    """Fills the mask of an open task with phrases, best first."""

    name: str

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[Answer]:
        """One answer an example."""

    def facts(self) -> dict[str, Any]:
        """As for a closed method."""
