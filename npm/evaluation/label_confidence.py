"""Confidence of a label, the probability that it is right: fitted to rows whose labels are known.

A logistic function, as of the answers of a reader (`npm.reading.confidence`), of the log of the first label's score and
the log of its ratio to the second's. Where labels compete, both say how far the first is ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from npm.core.errors import CorpusError, SettingError
from npm.evaluation.labeling import LabeledText
from npm.evaluation.tasks import Task
from npm.reading.confidence import LEAST, fit, probabilities

FEWEST = 20


@dataclass(frozen=True, slots=True)
class LabelConfidence:
    """A fitted function of the scores of a text's labels."""

    weights: tuple[float, ...]
    bias: float
    rows: int
    """Rows that it is fitted to."""
    right: int
    """Rows of them whose first label is right."""

    def of(self, found: LabeledText) -> float:
        """The probability that the first label of a text is right."""
        return float(probabilities(label_features(found) @ np.array(self.weights) + self.bias))


def label_features(found: LabeledText) -> np.ndarray:
    """Log of the first label's score, and of its ratio to the second's, f64 [2]."""
    first, second = (max(LEAST, each.score) for each in found.ranked[:2])
    return np.log([first, first / second])


def fit_label_confidence(task: Task, labeled: Sequence[LabeledText], known: Sequence[str]) -> LabelConfidence:
    """The function of texts labeled without a threshold, whose right labels, by value or name, are `known`.

    Raises SettingError for a label that the task has not, CorpusError for too few rows, or if all or none are right.
    """
    # a value comes before the name of another label
    names = {label.name: label.name for label in task.labels} | {str(label.value): label.name for label in task.labels}
    if unknown := next((label for label in known if label not in names), None):
        raise SettingError(
            f"known: {unknown!r} is not one of the labels {', '.join(names)}; correct it, or set known_column"
        )
    first = [found.ranked[0].label for found in labeled]
    right = np.array([names[label] == chosen for label, chosen in zip(known, first, strict=True)], dtype=bool)  # [n]
    if len(right) < FEWEST or right.all() or not right.any():
        given = f"{len(right)} with {int(right.sum())} right"
        raise CorpusError(f"known needs at least {FEWEST} rows, some with a wrong label, got {given}: give more rows")
    weights, bias = fit(np.stack(list(map(label_features, labeled))), right)
    return LabelConfidence(tuple(weights.tolist()), bias, len(right), int(right.sum()))
