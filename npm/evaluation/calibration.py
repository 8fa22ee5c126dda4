"""Confidence fitted to questions that people wrote. Half of them are asked with their passage removed.

The function is measured by five-fold cross-validation. The threshold, chosen on the same held-out confidences,
withholds 90 % of the questions without their passage, but never more than 12.5 % of the right answers.

Shapes: n questions, f features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npm.core.errors import CorpusError, QueryError, SettingError
from npm.core.types import Answer, Phrase, Progress, Table, silent
from npm.evaluation.metrics import exact_match
from npm.evaluation.reading import Asked, auroc
from npm.reading.confidence import FEATURES, Confidence, fit, probabilities
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.settings import FillSettings, Retrieval

if TYPE_CHECKING:
    from npm.retrieval.blocks import Restriction

FOLDS, BINS, FEWEST = 5, 10, 50
WITHHELD, MOST_LOST = 0.9, 0.125
"""Share of the questions without an answer that are withheld, and most right answers that may be lost by it."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted function, and what cross-validation says of it."""

    confidence: Confidence
    questions: int
    right: int
    auroc: float | None
    """Right first phrases against wrong ones."""
    calibration_error: float
    """Mean distance of confidence and share of right answers, over ten bins of equally many questions."""
    withheld: float
    """Share of the questions without their passage that are withheld."""
    kept: float
    """Share of the right answers kept."""

    def table(self) -> Table:
        """The measures, for people."""
        rows = [
            ["questions, right first", f"{self.questions:,}, {self.right:,}"],
            ["AUROC, right against wrong", "–" if self.auroc is None else f"{self.auroc:.3f}"],
            ["expected calibration error", f"{self.calibration_error:.3f}"],
            ["withheld below", f"{self.confidence.withheld_below:.3f}"],
            ["withheld of those without their passage", f"{100 * self.withheld:.1f} %"],
            ["kept of the right answers", f"{100 * self.kept:.1f} %"],
        ]
        return Table("", ["five-fold cross-validation", ""], rows)


class _ObservedFiller(PhraseFiller):
    """Keeps the features of the last answer instead of a confidence."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.seen: np.ndarray | None = None

    def _with_confidence(
        self, answer: Answer, found: Sequence[Phrase], restriction: Restriction | None, settings: FillSettings
    ) -> Answer:
        self.seen = self.features(answer.text, found, restriction, settings)
        return answer


def calibrate(filler: PhraseFiller, asked: Sequence[Asked], *, progress: Progress = silent) -> Calibration:
    """Fit the confidence of the reader of `filler`, whose index is over the passages of `asked`.

    Raises CorpusError for too few questions that were read, or if all or none of the answers are right.
    """
    store, reader = filler.index.store, filler.reader(filler.settings)
    if reader is None or not filler.settings.joint_share or filler.settings.retrieval is not Retrieval.hybrid:
        raise SettingError("calibrate needs a reader that reads: set fill.reader, and leave fill.joint_share above 0")
    ids = store.document_ids(range(store.document_count))
    if not {each.passage for each in asked} <= {*ids}:
        raise CorpusError(f"{filler.index.folder} is not over the passages of the questions: give another index=")
    observed = _ObservedFiller(filler.index, filler.encoder, filler.settings, reader=reader)
    rows: list[tuple[np.ndarray, bool, bool]] = []
    for number, each in enumerate(asked):
        progress("questions", number, len(asked))
        absent, observed.seen = number % 2 == 1, None
        try:
            answer = observed.fill(
                each.question, documents=[name for name in ids if name != each.passage] if absent else None
            )
        except QueryError:  # too long for the encoder: it has no features
            continue
        if observed.seen is not None:
            rows.append((observed.seen, exact_match(answer.phrases[0].phrase, each.answers), absent))
    progress("questions", len(asked), len(asked))
    features, right, without = zip(*rows, strict=True) if rows else ([], [], [])
    found = np.array(features).reshape(-1, len(FEATURES))  # f64 [n, f]
    return fitted(found, np.array(right, dtype=bool), np.array(without, dtype=bool))


def fitted(features: np.ndarray, right: np.ndarray, without: np.ndarray) -> Calibration:
    """The calibration by features f64 [n, f] of answers that are `right` or asked without a passage, bool [n] each."""
    if len(right) < FEWEST or right.all() or not right.any():
        raise CorpusError(
            f"{len(right)} questions were read and {int(right.sum())} of their first phrases are right: at least"
            f" {FEWEST} questions are needed, and both right and wrong answers; give more questions, or another reader"
        )
    folds = np.random.default_rng(0).permutation(len(right)) % FOLDS  # i64 [n]
    held_out = np.zeros(len(right))  # f64 [n]
    for fold in range(FOLDS):
        weights, bias = fit(features[folds != fold], right[folds != fold])
        held_out[folds == fold] = probabilities(features[folds == fold] @ weights + bias)
    absent, kept = held_out[without & ~right], held_out[right & ~without]
    withheld_below = float(np.quantile(absent, WITHHELD)) if len(absent) else 0.0
    if len(kept):
        withheld_below = min(withheld_below, float(np.quantile(kept, MOST_LOST)))
    weights, bias = fit(features, right)
    return Calibration(
        confidence=Confidence(tuple(weights.tolist()), bias, withheld_below),
        questions=len(right),
        right=int(right.sum()),
        auroc=auroc(held_out[right], held_out[~right]),
        calibration_error=calibration_error(held_out, right),
        withheld=float((absent < withheld_below).mean()) if len(absent) else 0.0,
        kept=float((kept >= withheld_below).mean()) if len(kept) else 0.0,
    )


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Mean of |mean confidence − share right| over bins of equally many answers, by f64 [n] and bool [n].

    >>> round(calibration_error(np.array([0.2] * 10 + [0.9] * 10), np.array([False] * 10 + [True] * 10)), 6)
    0.15
    """
    bins = np.array_split(np.argsort(confidence, kind="stable"), BINS)
    distances = [len(own) * abs(float(confidence[own].mean() - right[own].mean())) for own in bins if len(own)]
    return sum(distances) / len(confidence)
