"""Task `demo`: questions about the demo corpus, answered by filling their mask; hit@1 and hit@k.

Shapes: n questions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from index.files import sha256_of_file
from npm.display import CONTEXT_CHARS, marked_context, one_line
from npm.errors import SettingError, UserError, check_range
from npm.evaluation.metrics import Interval, bootstrap_interval, chance_of_hit, hit_rank, is_hit, normalise_answer
from npm.evaluation.report import Row, percent, terminal_table
from npm.evaluation.results import Progress, filler_facts, write_results
from npm.evaluation.zero_shot.baselines import BlockSpans, lexicon_of
from npm.evaluation.zero_shot.task import Split
from npm.indexing.rows import RowMap
from npm.retrieval.queries import check_query
from npm.settings import enum_value
from npm.types import SURROGATE, TokenFlag

if TYPE_CHECKING:
    from npm.retrieval.fill import PhraseFiller
    from npm.types import Answer, Occurrence, Phrase


BASELINE_NAME = "BM25, random span"


class RandomSpanOfRightPassage:
    """BM25 with an oracle: of all blocks that hold an answer the one that BM25 ranks best, and random spans of it.

    A span starts and ends with a word, has no stop-word or punctuation at its ends, does not run over the end of a
    clause where the filler's may not, and has as many tokens as the filler allows. Spans are drawn without
    replacement; chances are exact, so nothing is drawn at all.
    """

    def __init__(self, filler: PhraseFiller) -> None:
        """Raises SettingError if the index has no text."""
        self._lexicon = lexicon_of(filler, fix="leave the baseline out with baseline=false")
        self._store = filler.index.store
        barred = (TokenFlag.STOPWORD | TokenFlag.PUNCTUATION | TokenFlag.SPECIAL).value
        flags = self._store.flags.slice(0, self._store.token_count)  # u8 [T]
        self._spans = BlockSpans(filler, RowMap.of_mask((flags & barred) == 0))
        self._plain_texts: dict[int, str] = {}

    def chances(self, question: Question, draws: Sequence[int]) -> list[float]:
        """For each number of draws, the chance of a hit; 0 where no block holds an answer."""
        answers = {normalise_answer(answer) for answer in question.answers}
        best_first = np.argsort(-self._lexicon.scores(question.text), kind="stable")  # i64 [blocks]
        for block in best_first.tolist():
            # Whatever a span says stands in its block, and reading the block is far cheaper than listing its spans.
            if not any(answer in self._plain_text(block) for answer in answers):
                continue
            spans = self.spans(block)
            hits = sum(normalise_answer(span) in answers for span in spans)
            if hits:
                return [chance_of_hit(len(spans), hits, count) for count in draws]
        return [0.0] * len(draws)

    def spans(self, block: int) -> list[str]:
        """The surface texts of the candidate spans of a block."""
        return self._spans.texts(self._spans.of(block))

    def _plain_text(self, block: int) -> str:
        if block not in self._plain_texts:
            self._plain_texts[block] = normalise_answer(self._store.block_text(block))
        return self._plain_texts[block]


EXAMPLE = '{"questions": [{"id": "q1", "kind": "river", "text": "… <mask>.", "answers": ["…"], "split": "dev"}]}'
_STRING_KEYS = ("id", "kind", "text", "split")


class QuestionFileError(UserError):
    """A file of questions is missing or not in its form."""


@dataclass(frozen=True, slots=True)
class Question:
    """A text with one `<mask>` and everything that is right in its place."""

    id: str
    kind: str
    text: str
    answers: tuple[str, ...]
    split: Split


def read_questions(path: str | Path) -> list[Question]:
    """All questions of a file, in its order.

    Raises QuestionFileError if the file is not in the form of `EXAMPLE`, QueryError for a text without one `<mask>`.
    """
    path = Path(path)
    entries = _entries(path)
    questions: list[Question] = []
    first_places: dict[str, int] = {}
    for number, entry in enumerate(entries, start=1):
        question = _question(entry, where=f"{path}: question {number}")
        if question.id in first_places:
            raise QuestionFileError(
                f"the question id {question.id!r} comes twice",
                expected="every question has an id of its own",
                got=f"questions {first_places[question.id]} and {number}",
                where=str(path),
                fix="give one of them another id",
            )
        first_places[question.id] = number
        questions.append(question)
    return questions


def _entries(path: Path) -> list[Any]:
    try:
        content = json.loads(path.read_bytes())
        got = f"a JSON {type(content).__name__}"
    except OSError as error:
        content, got = None, error.strerror or str(error)
    except ValueError as error:  # not JSON, or not UTF-8
        content, got = None, str(error)
    entries = content.get("questions") if isinstance(content, dict) else None
    if isinstance(entries, list) and entries:
        return entries
    if isinstance(content, dict):
        got = "an empty list" if entries == [] else f"the keys {sorted(content)}"
    raise QuestionFileError(
        f"{path.name} is not a file of questions", expected=EXAMPLE, got=got, where=str(path), fix="mend the file"
    )


def _question(entry: object, *, where: str) -> Question:
    if not isinstance(entry, Mapping):
        raise _malformed("is not an object", f"an object as in {EXAMPLE}", repr(entry), where)
    for key in _STRING_KEYS:
        if not isinstance(entry.get(key), str) or not entry[key]:
            got = repr(entry[key]) if key in entry else f"the keys {sorted(entry)}"
            raise _malformed(f"lacks {key!r}", f"a string under {key!r}", got, where)
    answers = entry.get("answers")
    if not isinstance(answers, list) or not answers or not all(isinstance(answer, str) for answer in answers):
        got = repr(answers) if "answers" in entry else f"the keys {sorted(entry)}"
        raise _malformed("lacks 'answers'", "a list of at least one string under 'answers'", got, where)
    if empty := [answer for answer in answers if not normalise_answer(answer)]:
        raise _malformed(
            "has an answer that nothing can equal", "answers with letters or digits", repr(empty[0]), where
        )
    if halves := [text for text in (*answers, *(entry[key] for key in _STRING_KEYS)) if SURROGATE.search(text)]:
        raise _malformed("is not valid Unicode", "whole characters", ascii(halves[0]), where)
    if entry["split"] not in Split.__members__:
        raise _malformed("has an unknown split", " or ".join(Split.__members__), entry["split"], where)
    check_query(entry["text"], where=where)
    return Question(entry["id"], entry["kind"], entry["text"], tuple(answers), Split(entry["split"]))


def _malformed(what: str, expected: str, got: str, where: str) -> QuestionFileError:
    return QuestionFileError(
        f"a question {what}", expected=expected, got=got, where=where, fix="mend this question in the file"
    )


PHRASES_SHOWN = 3
PHRASE_COLUMNS = 22
"""Widest a phrase may be in a table before it is wrapped."""


def hit_rows(rates: Iterable[HitRates], *, k: int) -> tuple[Row, list[Row]]:
    """Header and rows of a table of hit rates, in per cent."""
    header = ["", "questions", "hit@1, % [95 %]", f"hit@{k}, % [95 %]"]
    return header, [[row.name, str(row.question_count), percent(row.hit_at_1), percent(row.hit_at_k)] for row in rates]


def spread_over_kinds(predictions: Iterable[Prediction], count: int) -> list[Prediction]:
    """The first `count` predictions when each kind of question has its turn, in the order in which kinds first come."""
    by_kind: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        by_kind.setdefault(prediction.question.kind, []).append(prediction)
    turns = (prediction for turn in zip_longest(*by_kind.values()) for prediction in turn if prediction is not None)
    return [prediction for prediction, _ in zip(turns, range(count), strict=False)]


def answer_table(predictions: Iterable[Prediction], *, phrases: int = PHRASES_SHOWN) -> Group:
    """Each question with its best phrases: score, phrase, and the sentence it stands in with the document's title.

    The phrase is marked in the sentence, bold and with «»; ✓ stands before a right one. A question that no shown
    phrase answers says what would have been right.
    """
    parts: list[RenderableType] = []
    for prediction in predictions:
        shown = prediction.answer.phrases[:phrases]
        heading = Text(prediction.question.text, style="bold cyan")
        if prediction.hit_rank is None or prediction.hit_rank > len(shown):
            heading.append(f"  (answer: {prediction.question.answers[0]})", style="not bold red")
        parts += [heading, Padding(_phrase_grid(shown, prediction.question.answers), (0, 0, 1, 2))]
    return Group(*parts)


def _phrase_grid(phrases: Sequence[Phrase], answers: Sequence[str]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(no_wrap=True, width=1)
    grid.add_column(no_wrap=True, width=5, justify="right")
    grid.add_column(overflow="fold", max_width=PHRASE_COLUMNS, min_width=PHRASE_COLUMNS)
    grid.add_column(overflow="fold", ratio=1)
    for phrase in phrases:
        right = is_hit(phrase.phrase, answers)
        where = marked_occurrence(phrase.occurrences[0]) if phrase.occurrences else Text("")
        grid.add_row(
            Text("✓" if right else "", style="green"),
            f"{phrase.score:.3f}",
            Text(one_line(phrase.phrase), style="bold green" if right else "bold"),
            where,
        )
    if not phrases:
        grid.add_row("", "", Text("no phrase found", style="dim"), "")
    return grid


def marked_occurrence(occurrence: Occurrence, *, most_chars: int = CONTEXT_CHARS) -> Text:
    """The sentence around a phrase, the phrase marked, and the document's title behind it."""
    text = marked_context(occurrence, most_chars=most_chars)
    text.append(f" ({one_line(occurrence.title or occurrence.document)})", style="italic dim")
    return text


def print_demo(result: DemoResult, console: Console, *, shown: int | None = None) -> None:
    """The whole report of task `demo`: answers (`shown` of them, spread over the kinds; None: all), then hit rates."""
    count = len(result.predictions) if shown is None else shown
    console.print(answer_table(spread_over_kinds(result.predictions, count)))
    if count < len(result.predictions):
        console.print(Text(f"{count} of {len(result.predictions)} questions shown.\n", style="dim"))
    header, rows = hit_rows(result.kinds, k=result.k)
    console.print(terminal_table(["kind of question", *header[1:]], rows))
    compared = [result.total] if result.baseline is None else [result.baseline, result.total]
    header, rows = hit_rows(compared, k=result.k)
    console.print(terminal_table(["all questions", *header[1:]], rows))


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
    return Path(__file__).parents[1] / "assets" / "demo" / "questions.json"


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
