"""Task `demo`: questions about the demo corpus, answered by filling their mask; hit@1 and hit@k.

Beside the index stands a baseline that knows the right passage and draws a span of it at random.

Shapes: n questions, T tokens of the corpus.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from npm.core.errors import CorpusError, SettingError
from npm.core.files import read_object, sha256_of_file
from npm.core.settings import Settings, as_json, read_settings
from npm.core.types import Progress, TokenFlag, silent
from npm.evaluation.methods.baselines import BlockSpans, lexicon_of
from npm.evaluation.metrics import Interval, bootstrap_interval, chance_of_hit, hit_rank, is_hit, normalise_answer
from npm.evaluation.report import Row, percent, terminal_table
from npm.evaluation.results import CheckRecord, any_record, filler_facts, write_results
from npm.evaluation.settings import DemoSettings, SampleSettings
from npm.evaluation.tasks import Split
from npm.indexing.rows import RowMap
from npm.retrieval.blocks import rank_blocks, rankings
from npm.retrieval.queries import check_query, encode_queries

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    from npm.core.types import Answer, Occurrence, Phrase
    from npm.corpus.store import BlockStore
    from npm.retrieval.fill import PhraseFiller


TASK = "demo"
QUESTIONS_PER_CALL, QUESTIONS_SHOWN, PHRASES_SHOWN = 32, 24, 3
PHRASE_COLUMNS = 22
"""Widest a phrase may be in a table before it is wrapped."""
RANKED_BLOCKS = 3
"""Blocks, besides the first, among which one with an answer is looked for."""


Filled = Annotated[str, Field(min_length=1)]  # which refuses lone surrogates too


class Question(Settings):
    """A text with one `<mask>` and everything that is right in its place."""

    id: Filled
    kind: Filled
    text: Filled
    answers: Annotated[list[Filled], Field(min_length=1)]
    split: Split


@dataclass(frozen=True, slots=True)
class Prediction:
    """A question, its answer, and the place of the first phrase that is right."""

    question: Question
    answer: Answer
    hit_rank: int | None  # from 1; None if no phrase is right

    def record(self) -> dict[str, Any]:
        """As a line of predictions.jsonl."""
        question = as_json(asdict(self.question))
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
    blocks: tuple[HitRates, ...]  # how often a block that holds an answer is first, and among a few, by each ranking
    record: dict[str, Any]  # settings and fingerprints: what the numbers depend on

    def metrics(self) -> dict[str, Any]:
        """As stored in metrics.json."""
        return {
            **self.record,
            "question_count": len(self.predictions),
            "total": asdict(self.total),
            "kinds": [asdict(rates) for rates in self.kinds],
            "baseline": None if self.baseline is None else asdict(self.baseline),
            "blocks": [asdict(rates) for rates in self.blocks],
        }

    def write(self, out: str | Path) -> None:
        """Write predictions.jsonl and metrics.json to the folder `out`; see `write_results`."""
        lines = (prediction.record() for prediction in self.predictions)
        write_results(out, record=self.record, predictions=lines, metrics=self.metrics())

    def show(self, console: Console) -> None:
        """Print the answers to some of the questions, spread over the kinds, then hit rates."""
        shown = spread_over_kinds(self.predictions, QUESTIONS_SHOWN)
        console.print(answer_table(shown))
        if len(shown) < len(self.predictions):
            console.print(f"[dim]{len(shown)} of {len(self.predictions)} questions shown.[/]\n")
        compared = [self.total] if self.baseline is None else [self.baseline, self.total]
        for name, rates in {"kind of question": self.kinds, "all questions": compared}.items():
            header, rows = hit_rows(rates, k=self.k)
            console.print(terminal_table([name, *header[1:]], rows))
        if self.blocks:
            header = ["a block that holds an answer", "questions", "first, %", f"among {RANKED_BLOCKS}, %"]
            console.print(terminal_table(header, hit_rows(self.blocks, k=self.k)[1]))


def shipped_questions_file() -> Path:
    """The questions about the shipped demo corpus."""
    return Path(__file__).parents[1] / "assets" / "demo" / "questions.json"


def evaluate_demo(
    filler: PhraseFiller,
    settings: DemoSettings,
    sample: SampleSettings | None = None,
    *,
    check_record: CheckRecord = any_record,
    progress: Progress = silent,
) -> DemoResult:
    """Ask the questions of one split and count hits.

    `filler.settings` decide how texts are filled, its k which hits count next to the first. Raises as `read_questions`,
    and SettingError for a split without questions.
    """
    sample = sample if sample is not None else SampleSettings()
    k = filler.settings.k
    file = Path(settings.questions) if settings.questions else shipped_questions_file()
    asked_all = with_letter_noise(read_questions(file), settings.letter_noise, seed=sample.seed)
    questions = [question for question in asked_all if question.split is sample.split][: sample.limit]
    if not questions:
        raise SettingError(f"{file} has no question with split={sample.split.value}")
    # By name: a command's settings are a sample too, with paths beside it.
    asked = {name: getattr(sample, name) for name in ("split", "limit", "seed", "resamples")}
    asked |= {"k": k, "baseline": settings.baseline, "letter_noise": settings.letter_noise}
    asked["questions"] = sha256_of_file(file)
    record = {"task": TASK, "settings": as_json(asked), **filler_facts(filler)}
    check_record(record)
    # Before the questions are asked, because it may refuse the index.
    baseline = RandomSpanOfRightPassage(filler) if settings.baseline else None
    predictions = _predictions(filler, questions, progress)
    ranks = np.array([prediction.hit_rank or k + 1 for prediction in predictions])  # i64 [n]
    hits_at_1, hits_at_k = (ranks == 1).astype(float), (ranks <= k).astype(float)  # f64 [n]

    def rates(name: str, *hits: np.ndarray) -> HitRates:
        # Every row of a table draws with the same generator, so that rows can be compared.
        at_1, at_k = (
            bootstrap_interval(each, np.random.default_rng(sample.seed), resamples=sample.resamples) for each in hits
        )
        return HitRates(name, len(hits[0]), at_1, at_k)

    kinds = np.array([question.kind for question in questions])  # [n]
    chosen = {kind: kinds == kind for kind in dict.fromkeys(kinds.tolist())}  # bool [n] each
    baseline_rates = None
    if baseline is not None:
        chances = np.array([baseline.chances(question, (1, k)) for question in questions])  # f64 [n, 2]
        baseline_rates = rates(BASELINE_NAME, chances[:, 0], chances[:, 1])
    return DemoResult(
        predictions=tuple(predictions),
        k=k,
        total=rates(f"{filler.encoder.name}, {filler.settings.retrieval.value}", hits_at_1, hits_at_k),
        kinds=tuple(rates(kind, hits_at_1[is_kind], hits_at_k[is_kind]) for kind, is_kind in chosen.items()),
        baseline=baseline_rates,
        blocks=tuple(rates(f"blocks by {name}", *hits) for name, *hits in _holding_blocks(filler, questions)),
        record=record,
    )


LETTER_PAIRS, PAIR_EDITS = re.compile(r"<mask>|(\w)(\w)"), (r"\2\1", r"\2", r"\1\1\2")


def with_letter_noise(questions: Sequence[Question], share: float, *, seed: int) -> list[Question]:
    """The questions with about `share` of their letters swapped with the next, dropped or doubled; masks stay.

    Drawn one question after the other, so that a question's text depends on those before it in its file.

    >>> values = {"id": "q", "kind": "river", "text": "The longest river is <mask>.", "answers": ["Nile"]}
    >>> question = read_settings(Question, values | {"split": "test"})
    >>> with_letter_noise([question], 0.25, seed=0)[0].text
    'The logest iver si <mask>.'
    """
    rng = random.Random(seed)

    def edited(pair: re.Match[str]) -> str:
        if not pair[1] or rng.random() >= 2 * share:
            return pair[0]
        edit = rng.choice(PAIR_EDITS)  # drawn for digits too, so that the noise of all other pairs is as it always was
        return pair.expand(edit) if pair[0].isalpha() else pair[0]

    return [replace(question, text=LETTER_PAIRS.sub(edited, question.text)) for question in questions]


def _holding_blocks(
    filler: PhraseFiller, questions: Sequence[Question]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """For each ranking of all blocks, where the first one holds an answer, and one of a few: f64 [n] of 0 and 1 each.

    There is none without text.
    """
    index = filler.index
    if index.lexicon is None or filler.settings.where or filler.settings.documents is not None:
        return
    texts, holds_answer = [question.text for question in questions], answer_finder(index.store)
    vectors = encode_queries(
        filler.encoder, texts, pooler=index.block_pooler, tokens_per_batch=filler.settings.tokens_per_batch
    )
    for name, retrieval in rankings(index).items():
        settings = replace(filler.settings, retrieval=retrieval, bm25_blocks=RANKED_BLOCKS)
        hits = rank_blocks(index, texts, vectors.sentences, settings, allowed=index.live_blocks)
        right = np.zeros(hits.found.shape, dtype=bool)  # [n, RANKED_BLOCKS]
        for number, place in np.argwhere(hits.found).tolist():
            right[number, place] = holds_answer(int(hits.blocks[number, place]), questions[number])
        yield name, right[:, 0].astype(float), right.any(axis=1).astype(float)


def answer_finder(store: BlockStore) -> Callable[[int, Question], bool]:
    """Says whether a block holds one of a question's answers; the text of each block is read once."""
    plain_text = cache(lambda block: normalise_answer(store.block_text(block)))
    return lambda block, question: any(normalise_answer(answer) in plain_text(block) for answer in question.answers)


def _predictions(filler: PhraseFiller, questions: Sequence[Question], progress: Progress) -> list[Prediction]:
    predictions: list[Prediction] = []
    for first in range(0, len(questions), QUESTIONS_PER_CALL):
        batch = questions[first : first + QUESTIONS_PER_CALL]
        # Predictions show where a phrase stands, whatever the filler would show.
        answers = filler.fill([question.text for question in batch], occurrences=1)
        for question, answer in zip(batch, answers, strict=True):
            rank = hit_rank((phrase.phrase for phrase in answer.phrases), question.answers)
            predictions.append(Prediction(question, answer, rank))
        progress("questions", len(predictions), len(questions))
    return predictions


BASELINE_NAME = "BM25, random span"


class RandomSpanOfRightPassage:
    """BM25 with an oracle: of all blocks that hold an answer the one that BM25 ranks best, and random spans of it.

    A span starts and ends with a word, has no stop-word or punctuation at its ends, does not run over the end of a
    clause where the filler's may not, and has as many tokens as the filler allows. Spans are drawn without
    replacement; chances are exact, so nothing is drawn at all.
    """

    def __init__(self, filler: PhraseFiller) -> None:
        """Raises SettingError if the index has no text."""
        self._lexicon = lexicon_of(filler.index, fix="leave the baseline out with baseline=false")
        self._store = filler.index.store
        barred = (TokenFlag.STOPWORD | TokenFlag.PUNCTUATION | TokenFlag.SPECIAL).value
        flags = self._store.flags.slice(0, self._store.token_count)  # u8 [T]
        self._spans = BlockSpans(filler, RowMap.of_mask((flags & barred) == 0))
        self._holds_answer = answer_finder(self._store)

    def chances(self, question: Question, draws: Sequence[int]) -> list[float]:
        """For each number of draws, the chance of a hit; 0 where no block holds an answer."""
        answers = {normalise_answer(answer) for answer in question.answers}
        best_first = np.argsort(-self._lexicon.scores(question.text), kind="stable")  # i64 [blocks]
        for block in best_first.tolist():
            # Whatever a span says stands in its block, and reading the block is far cheaper than listing its spans.
            if not self._holds_answer(block, question):
                continue
            spans = self.spans(block)
            hits = sum(normalise_answer(span) in answers for span in spans)
            if hits:
                return [chance_of_hit(len(spans), hits, count) for count in draws]
        return [0.0] * len(draws)

    def spans(self, block: int) -> list[str]:
        """The surface texts of the candidate spans of a block."""
        return self._spans.texts(self._spans.of(block))


def read_questions(path: str | Path) -> list[Question]:
    """All questions of a file, in its order.

    Raises CorpusError if the file is not in its form, QueryError for a text without exactly one `<mask>`.
    """
    entries = read_object(Path(path), fix="see npm/assets/demo/questions.json").get("questions")
    if not isinstance(entries, list) or not entries:
        raise CorpusError(f"{path} must have a list of questions as npm/assets/demo/questions.json has")
    questions: dict[str, Question] = {}
    for number, entry in enumerate(entries, start=1):
        where = f"{path}: question {number}"
        try:
            question = read_settings(Question, entry if isinstance(entry, dict) else {})
        except SettingError as error:
            raise CorpusError(f"{where}: {error}") from None
        if question.id in questions:
            raise CorpusError(f"{where} has the id {question.id!r} of an earlier one")
        if empty := [answer for answer in question.answers if not normalise_answer(answer)]:
            raise CorpusError(f"{where}: the answer {empty[0]!r} has no letter or digit that counts")
        check_query(question.text, where=where)
        questions[question.id] = question
    return list(questions.values())


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
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    parts: list[RenderableType] = []
    for prediction in predictions:
        shown = prediction.answer.phrases[:phrases]
        heading = Text(prediction.question.text, style="bold cyan")
        if prediction.hit_rank is None or prediction.hit_rank > len(shown):
            heading.append(f"  (answer: {prediction.question.answers[0]})", style="not bold red")
        parts += [heading, Padding(_phrase_grid(shown, prediction.question.answers), (0, 0, 1, 2))]
    return Group(*parts)


def _phrase_grid(phrases: Sequence[Phrase], answers: Sequence[str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from npm.core.display import one_line

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


def marked_occurrence(occurrence: Occurrence, *, most_chars: int | None = None) -> Text:
    """The sentence around a phrase, the phrase marked, and the document's title behind it."""
    from npm.core.display import CONTEXT_CHARS, marked_context, one_line

    text = marked_context(occurrence, most_chars=most_chars or CONTEXT_CHARS)
    text.append(f" ({one_line(occurrence.title or occurrence.document)})", style="italic dim")
    return text
