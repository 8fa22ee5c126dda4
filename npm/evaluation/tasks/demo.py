"""Task `demo`: questions about the demo corpus, answered by filling their mask; hit@1 and hit@k.

Shapes: n questions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.files import sha256_of_file
from npm.errors import SettingError, check_range
from npm.evaluation.baselines import NAME as BASELINE_NAME
from npm.evaluation.baselines import RandomSpanOfRightPassage
from npm.evaluation.metrics import Interval, bootstrap_interval, hit_rank
from npm.evaluation.phrase_answers import filler_facts
from npm.evaluation.predictions import Progress
from npm.evaluation.questions import Question, Split, read_questions
from npm.evaluation.results import write_results
from npm.settings import enum_value

if TYPE_CHECKING:
    from npm.retrieval.fill import PhraseFiller
    from npm.types import Answer

TASK = "demo"
QUESTIONS_PER_CALL = 32


@dataclass(kw_only=True, slots=True)
class DemoSettings:
    """Which questions are asked, and how the answers are counted."""

    questions: str = ""
    """File of questions; empty: those shipped with the demo corpus."""
    split: Split = Split.test
    """`dev`: the half to choose settings on; `test`: the half to report."""
    k: int = 5
    """Phrases an answer has at most: hit@k beside hit@1."""
    limit: int | None = None
    """Questions asked at most, from the beginning of the split; null asks all."""
    baseline: bool = True
    """Whether a random span of the right passage is scored beside the index."""
    seed: int = 0
    """Of the bootstrap."""
    resamples: int = 10_000
    """Of the bootstrap, for 95 % confidence intervals."""

    def __post_init__(self) -> None:
        for name in ("k", "limit", "resamples"):
            value = getattr(self, name)
            check_range(value is None or value >= 1, name, expected="at least 1", got=value)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A question, its answer, and the place of the first phrase that is right."""

    question: Question
    answer: Answer
    hit_rank: int | None  # from 1; None if no phrase is right

    def record(self) -> dict[str, Any]:
        """As a line of predictions.jsonl."""
        question = {**asdict(self.question), "split": self.question.split.value}
        phrases = [
            {
                "phrase": phrase.phrase,
                "score": phrase.score,
                "occurrence_count": phrase.occurrence_count,
                "best_occurrence": asdict(phrase.occurrences[0]) if phrase.occurrences else None,
            }
            for phrase in self.answer.phrases
        ]
        return {**question, "hit_rank": self.hit_rank, "phrases": phrases}


@dataclass(frozen=True, slots=True)
class HitRates:
    """One row of a table: how often one of the first phrases was right."""

    name: str
    question_count: int
    hit_at_1: Interval
    hit_at_k: Interval


@dataclass(frozen=True, slots=True)
class DemoResult:
    """All that one evaluation found."""

    predictions: tuple[Prediction, ...]
    k: int
    total: HitRates
    kinds: tuple[HitRates, ...]  # in the order in which they first come
    baseline: HitRates | None
    record: dict[str, Any]  # settings and fingerprints: what the numbers depend on

    def metrics(self) -> dict[str, Any]:
        """As stored in metrics.json."""
        return {
            **self.record,
            "question_count": len(self.predictions),
            "total": asdict(self.total),
            "kinds": [asdict(rates) for rates in self.kinds],
            "baseline": None if self.baseline is None else asdict(self.baseline),
        }

    def write(self, out: str | Path) -> None:
        """Write predictions.jsonl and metrics.json to the folder `out`; see `write_results`."""
        lines = (prediction.record() for prediction in self.predictions)
        write_results(out, record=self.record, predictions=lines, metrics=self.metrics())


def shipped_questions_file() -> Path:
    """The questions about the shipped demo corpus."""
    return Path(__file__).parents[2] / "assets" / "demo" / "questions.json"


def evaluate_demo(
    filler: PhraseFiller, settings: DemoSettings | None = None, *, progress: Progress | None = None
) -> DemoResult:
    """Ask the questions of one split and count hits.

    `filler.settings` decide how texts are filled. Raises QuestionFileError or QueryError for a file of questions that
    is not in its form, SettingError for a setting that cannot be met.
    """
    settings = settings if settings is not None else DemoSettings()
    file = Path(settings.questions) if settings.questions else shipped_questions_file()
    questions = [question for question in read_questions(file) if question.split is settings.split][: settings.limit]
    if not questions:
        raise SettingError(
            "the file has no question of this split",
            expected="at least one question",
            got="none",
            where=f"{file}, split={settings.split.value}",
            fix="choose the other split",
        )
    # Before the questions are asked, because it may refuse the index.
    baseline = RandomSpanOfRightPassage(filler) if settings.baseline else None
    predictions = _predictions(filler, questions, k=settings.k, progress=progress)
    ranks = np.array([prediction.hit_rank or settings.k + 1 for prediction in predictions])  # i64 [n]
    hits_at_1, hits_at_k = (ranks == 1).astype(float), (ranks <= settings.k).astype(float)  # f64 [n]

    def rates(name: str, at_1: np.ndarray, at_k: np.ndarray) -> HitRates:
        return HitRates(name, len(at_1), _interval(at_1, settings), _interval(at_k, settings))

    kinds = np.array([question.kind for question in questions])  # [n]
    chosen = {kind: kinds == kind for kind in dict.fromkeys(kinds.tolist())}  # bool [n] each
    baseline_rates = None
    if baseline is not None:
        chances = np.array([baseline.chances(question, (1, settings.k)) for question in questions])  # f64 [n, 2]
        baseline_rates = rates(BASELINE_NAME, chances[:, 0], chances[:, 1])
    return DemoResult(
        predictions=tuple(predictions),
        k=settings.k,
        total=rates(f"{filler.encoder.name}, {filler.settings.retrieval.value}", hits_at_1, hits_at_k),
        kinds=tuple(rates(kind, hits_at_1[is_kind], hits_at_k[is_kind]) for kind, is_kind in chosen.items()),
        baseline=baseline_rates,
        record=_record(filler, settings, file),
    )


def _predictions(
    filler: PhraseFiller, questions: Sequence[Question], *, k: int, progress: Progress | None
) -> list[Prediction]:
    predictions: list[Prediction] = []
    for first in range(0, len(questions), QUESTIONS_PER_CALL):
        batch = questions[first : first + QUESTIONS_PER_CALL]
        # Predictions show where a phrase stands, whatever the filler would show.
        answers = filler.fill([question.text for question in batch], k, occurrences=1)
        for question, answer in zip(batch, answers, strict=True):
            rank = hit_rank((phrase.phrase for phrase in answer.phrases), question.answers)
            predictions.append(Prediction(question, answer, rank))
        if progress is not None:
            progress(len(predictions), len(questions))
    return predictions


def _interval(values: np.ndarray, settings: DemoSettings) -> Interval:
    """Mean of `values` f64 [n]; every row of a table draws with the same generator, so that rows can be compared."""
    return bootstrap_interval(values, np.random.default_rng(settings.seed), resamples=settings.resamples)


def _record(filler: PhraseFiller, settings: DemoSettings, file: Path) -> dict[str, Any]:
    """What the numbers depend on, without where anything lies."""
    chosen: dict[str, Any] = json.loads(json.dumps(asdict(settings), default=enum_value))
    return {"task": TASK, "settings": {**chosen, "questions": sha256_of_file(file)}, **filler_facts(filler)}
