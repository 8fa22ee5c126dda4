"""Confidence of a reader, fitted to questions that people wrote, every other one asked without its passage.

It is measured by five-fold cross-validation. The threshold, chosen on the same held-out confidences, withholds 90 % of
the questions without their passage, but never more than 12.5 % of the right answers.

Shapes: n questions that were read, f features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from npm.core.display import Table
from npm.core.errors import CorpusError, QueryError, SettingError
from npm.core.types import Answer, Phrase, Progress, silent
from npm.evaluation.metrics import auroc, exact_match
from npm.evaluation.reading import PASSAGE_ID, WITHHELD, Asked
from npm.indexing.phrase_index import PhraseIndex
from npm.reading.confidence import FEATURES, Confidence, fit, probabilities
from npm.retrieval.answers import confidence_features
from npm.retrieval.blocks import BlockPlan
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FillSettings, Retrieval

FOLDS, BINS, FEWEST = 5, 10, 50
MOST_LOST = 0.125  # of the right answers, by the threshold


@dataclass(frozen=True, slots=True)
class Observed:
    """Answers to n questions, every other one asked without its passage."""

    features: np.ndarray  # f64 [n, f]
    right: np.ndarray  # bool [n], the first phrase
    without: np.ndarray  # bool [n], its passage


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of numbers that are given to answers."""

    auroc: float | None  # right first phrases against wrong ones
    calibration_error: float
    """Mean distance of the number and the share of right answers, over ten bins of equally many questions."""
    surer_half: float  # share of right answers among the surer half of the questions with their passage
    withheld: float  # share of the wrong answers to questions without their passage that are withheld
    kept: float  # share of the right answers kept


@dataclass(frozen=True, slots=True)
class FittedConfidence:
    """A fitted function with its measures from cross-validation, and those of the saved one."""

    confidence: Confidence
    questions: int
    right: int
    fitted: Measures
    saved: Measures | None = None

    def table(self) -> Table:
        """The measures, for people."""
        columns = {"fitted here": self.fitted} | ({"saved": self.saved} if self.saved else {})
        each = columns.values()
        rows = [
            ["AUROC, right against wrong", *("–" if one.auroc is None else f"{one.auroc:.3f}" for one in each)],
            ["expected calibration error", *(f"{one.calibration_error:.3f}" for one in each)],
            ["right in the surer half", *(f"{100 * one.surer_half:.1f} %" for one in each)],
            ["withheld of those without their passage", *(f"{100 * one.withheld:.1f} %" for one in each)],
            ["kept of the right answers", *(f"{100 * one.kept:.1f} %" for one in each)],
        ]
        title = f"{self.questions:,} questions, {self.right:,} right first; fitted here: five-fold cross-validation"
        rows.append(
            ["withheld below, fitted here", f"{self.confidence.withheld_below:.3f}"] + [""] * (len(columns) - 1)
        )
        return Table(title, ["", *columns], rows)


class _ObservedFiller(PhraseFiller):
    """Keeps the features of the last answer instead of a confidence."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.seen: np.ndarray | None = None

    def _with_confidence(
        self, answer: Answer, found: Sequence[Phrase], plan: BlockPlan, settings: FillSettings
    ) -> Answer:
        self.seen = confidence_features(self.index, self.encoder, answer.text, found, plan, settings)
        return answer


def calibrate(filler: PhraseFiller, asked: Sequence[Asked], *, progress: Progress = silent) -> FittedConfidence:
    """Fit the confidence of the reader of `filler`, whose index is over the passages of `asked`, and measure it.

    Raises CorpusError for too few questions that were read, or if all or none of the answers are right.
    """
    seen = observed(filler, asked, progress=progress)
    found = fitted(seen)
    reader = filler.reader(filler.settings)
    saved = reader.confidence if reader is not None else None
    if saved is None:
        return found
    return replace(found, saved=measures(saved.of(seen.features), seen, saved.withheld_below))


def observed(
    filler: PhraseFiller, asked: Sequence[Asked], *, passages: Sequence[str] | None = None, progress: Progress = silent
) -> Observed:
    """The answers to the questions of `asked`, every other one without its passage.

    Where the index has other documents than their passages, two in four are asked of the passages alone. With
    `passages`, the id of a document for each question, only that one is read.
    Raises SettingError without a reader that reads, CorpusError if the index does not have the passages of `asked`.
    """
    reader = filler.reader(filler.settings)
    if reader is None or not filler.settings.joint_share or filler.settings.retrieval is not Retrieval.hybrid:
        raise SettingError("calibrate needs a reader that reads: set fill.reader, and leave fill.joint_share above 0")
    corpora = corpora_of(filler.index, asked)
    observing = _ObservedFiller(filler.index, filler.encoder, filler.settings, reader=reader)
    rows: list[tuple[np.ndarray, bool, bool]] = []
    for number, each in enumerate(asked):
        progress("questions", number, len(asked))
        absent, observing.seen = number % 2 == 1, None
        documents = [name for name in corpora[number // 2 % len(corpora)] if not absent or name != each.passage]
        try:
            answer = observing.fill(each.question, documents=[passages[number]] if passages else documents)
        except QueryError:  # too long for the encoder: it has no features
            continue
        if observing.seen is not None:
            rows.append((observing.seen, exact_match(answer.phrases[0].phrase, each.answers), absent))
    progress("questions", len(asked), len(asked))
    features, right, without = zip(*rows, strict=True) if rows else ([], [], [])
    return Observed(
        np.array(features).reshape(-1, len(FEATURES)), np.array(right, dtype=bool), np.array(without, dtype=bool)
    )


def corpora_of(index: PhraseIndex, asked: Sequence[Asked]) -> list[list[str]]:
    """The documents to ask of, by id: all of the index, and where it has others, the passages alone.

    Raises CorpusError if it does not have the passages of `asked`.
    """
    ids = index.store.document_ids(range(index.store.document_count))
    if not {each.passage for each in asked} <= {*ids}:
        raise CorpusError(f"{index.folder} is not over the passages of the questions: give another index=")
    alone = [name for name in ids if name.startswith(PASSAGE_ID)]
    return [ids] if len(alone) == len(ids) else [ids, alone]


def fitted(seen: Observed) -> FittedConfidence:
    """The confidence fitted to answers, with its threshold, and its measures by cross-validation."""
    features, right, absent = seen.features, seen.right, seen.without & ~seen.right  # f64 [n, f], bool [n] each
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
    withheld_below = float(np.quantile(held_out[absent], WITHHELD, method="higher")) if absent.any() else 0.0
    kept = held_out[right & ~seen.without]  # f64 [right]
    if len(kept):
        withheld_below = min(withheld_below, float(np.quantile(kept, MOST_LOST, method="lower")))
    weights, bias = fit(features, right)
    return FittedConfidence(
        confidence=Confidence(tuple(weights.tolist()), bias, withheld_below),
        questions=len(right),
        right=int(right.sum()),
        fitted=measures(held_out, seen, withheld_below),
    )


def measures(numbers: np.ndarray, seen: Observed, withheld_below: float) -> Measures:
    """The measures of `numbers` f64 [n] from 0 to 1 that are given to answers, and of a threshold."""
    right = seen.right  # bool [n]
    of_right = numbers[right & ~seen.without]
    of_unanswerable = numbers[seen.without & ~right]
    of_answerable = numbers[~seen.without]
    surer = np.argsort(-of_answerable, kind="stable")[: len(of_answerable) // 2]
    return Measures(
        auroc=auroc(numbers[right], numbers[~right]),
        calibration_error=calibration_error(numbers, right),
        surer_half=float(right[~seen.without][surer].mean()) if len(surer) else 0.0,
        withheld=float((of_unanswerable < withheld_below).mean()) if len(of_unanswerable) else 0.0,
        kept=float((of_right >= withheld_below).mean()) if len(of_right) else 0.0,
    )


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Mean of |mean confidence − share right| over bins of equally many answers, by f64 [n] and bool [n].

    >>> round(calibration_error(np.array([0.2] * 10 + [0.9] * 10), np.array([False] * 10 + [True] * 10)), 6)
    0.15
    """
    bins = np.array_split(np.argsort(confidence, kind="stable"), BINS)
    distances = [len(own) * abs(float(confidence[own].mean() - right[own].mean())) for own in bins if len(own)]
    return sum(distances) / len(confidence)
