"""`npmlm adapt`: maps of queries learned from corrected answers, kept with an index if they help on a held-out part.

Shapes: d dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from npm.core.errors import CorpusError, SettingError, shown_start
from npm.core.types import Progress, silent
from npm.corpus.questions import are_texts
from npm.corpus.readers import read_records, unusable_value
from npm.corpus.sources import find_sources
from npm.corpus.text import normalized_text
from npm.indexing.adaptation import QueryMaps
from npm.indexing.changes import changed, commit
from npm.indexing.generation import ADAPTATION, Generation
from npm.indexing.phrase_index import PhraseIndex
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.queries import read_query
from npm.retrieval.settings import FillSettings, Retrieval
from npm.tuning.examples import (
    MAX_QUESTIONS_AT_ONCE,
    CorrectedAnswer,
    Lesson,
    examples_of,
    learned_maps,
    learning_reader,
)

MIN_QUESTIONS = 50
"""Of fewer, the held-out part would be too small to decide."""
HELD_OUT_EVERY = 5
MAX_RIGHT_RANK = 5
"""Phrases of an answer among which a right one counts, next to the first alone."""


@dataclass(frozen=True, slots=True)
class Measures:
    """Answers to the held-out questions."""

    first: int
    """Questions whose first phrase is right."""
    among_five: int
    loss: float
    """Mean of −log of the share of right phrases, over questions with one among the candidates."""


@dataclass(frozen=True, slots=True)
class Adaptation:
    """Result of `adapt`: how the held-out questions were answered, and what was written."""

    retrieval: str
    questions: int
    """Different questions."""
    learned: int
    """Questions that the maps were learned from: of the others that are not held out, no candidate is right."""
    held_out: int
    seed: int
    before: Measures
    after: Measures
    generation: int | None
    """The generation of the index with the maps; None: they do not help, and nothing was written."""

    @property
    def is_better(self) -> bool:
        """Return True if no count of right answers is smaller on the held-out questions, and their loss is."""
        before, after = self.before, self.after
        return after.first >= before.first and after.among_five >= before.among_five and after.loss < before.loss


def read_corrections(files: Sequence[str]) -> list[CorrectedAnswer]:
    """The corrected answers in files. Raises QueryError for a question, CorpusError for another row, with its line."""
    return [
        _corrected(row.get("question"), row.get("answers"), f"{source.path}:{line}")
        for source in find_sources(files)
        for line, row in read_records(source)
    ]


def corrected_answers(given: Mapping[str, str | Sequence[str]]) -> list[CorrectedAnswer]:
    """The right answers of each question. Raises QueryError for a question, CorpusError for answers."""
    pairs = enumerate(given.items(), start=1)
    return [_corrected(question, answers, f"entry {number}") for number, (question, answers) in pairs]


def _corrected(question: Any, answers: object, where: str) -> CorrectedAnswer:
    """One row, its question read as `fill` reads it."""
    text = read_query(question, where=f"{where}: question")
    several = [answers] if isinstance(answers, str) else list(answers) if isinstance(answers, tuple) else answers
    if not are_texts(several):
        raise unusable_value(where, "answers", "a text, or a list of texts", answers)
    return CorrectedAnswer(text, tuple(several))


def adapt_index(
    filler: PhraseFiller,
    questions: Sequence[CorrectedAnswer],
    *,
    retrieval: Retrieval = Retrieval.hybrid,
    seed: int = 0,
    progress: Progress = silent,
) -> Adaptation:
    """Learn maps of the queries of `retrieval`, and write them into the index if they help.

    They are learned from four fifths of the questions, drawn by `seed`, and measured on the rest, next to the maps that
    the index has, which they replace. Equal questions are one, with the answers of all. Raises CorpusError for fewer
    than `MIN_QUESTIONS`, or if no answer of a part is a candidate; SettingError if the index has maps for another
    retrieval; ArtifactError if it is changed meanwhile.
    """
    index = filler.index
    Generation.read(index.folder).unchanged_since(index.manifest, verb="adapt")
    if index.query_maps is not None and index.query_maps.retrieval != retrieval.value:
        raise SettingError(
            f"retrieval must be {index.query_maps.retrieval}, for which the index has learned, got {retrieval.value}; "
            "npmlm adapt remove=true removes what it has learned"
        )
    questions = merged(questions)
    if len(questions) < MIN_QUESTIONS:
        raise CorpusError(
            f"questions must be at least {MIN_QUESTIONS} different ones, got {len(questions)}: add corrected answers"
        )
    settings = FillSettings(retrieval=retrieval, k=MAX_RIGHT_RANK)
    plain, present = (filler.with_index(each, settings) for each in (replace(index, query_maps=None), index))
    order = np.random.default_rng(seed).permutation(len(questions))  # i64 [questions]
    held_out = [questions[row] for row in order[: len(order) // HELD_OUT_EVERY].tolist()]
    learned_from = [questions[row] for row in order[len(held_out) :].tolist()]
    training = _examples(plain, learned_from, "questions to learn from", progress)
    test = _examples(plain, held_out, "held-out questions", progress)
    steps, reader = itertools.count(1), learning_reader(filler, settings)
    fitted = learned_maps(training, on_step=lambda _: progress("maps", next(steps), None))
    learned = QueryMaps(retrieval.value, "" if reader is None else reader.fingerprint, fitted)
    adapted = filler.with_index(replace(index, query_maps=learned), settings)
    measures = []
    for each, stage in ((present, "answers before"), (adapted, "answers after")):
        maps = np.zeros_like(learned.maps) if each.index.query_maps is None else each.index.query_maps.maps
        with torch.no_grad():
            loss = float(test.loss(torch.from_numpy(maps)))
        measures.append(Measures(*_hits(each, held_out, stage, progress), loss))
    result = Adaptation(
        retrieval=retrieval.value,
        questions=len(questions),
        learned=len(training.examples),
        held_out=len(held_out),
        seed=seed,
        before=measures[0],
        after=measures[1],
        generation=None,
    )
    return replace(result, generation=_write(index, learned, result)) if result.is_better else result


def merged(questions: Sequence[CorrectedAnswer]) -> list[CorrectedAnswer]:
    """Each question once, in the order of its first row, with the answers of all its rows.

    So none is both learned from and held out. Case and spaces make no difference.
    """
    found: dict[str, CorrectedAnswer] = {}
    for each in questions:
        earlier = found.get(key := normalized_text(each.text))
        answers = dict.fromkeys([*(() if earlier is None else earlier.answers), *each.answers])
        found[key] = CorrectedAnswer(each.text if earlier is None else earlier.text, tuple(answers))
    return list(found.values())


def remove_adaptation(folder: str | Path) -> bool:
    """Remove the maps of the index in `folder`; returns False if it has none.

    Raises ArtifactError if there is no finished index, or it is being changed.
    """
    with changed(Path(folder)) as before:
        if before.manifest.adaptation_folder is None:
            return False
        commit(before, replace(before.manifest, adaptation_folder=None), collects=(ADAPTATION,))
        return True


def _examples(filler: PhraseFiller, questions: Sequence[CorrectedAnswer], name: str, progress: Progress) -> Lesson:
    """The lesson of the questions, called `name` in messages, that have a right candidate. Raises CorpusError."""
    examples = []
    for number, example in enumerate(examples_of(filler, questions, filler.settings), start=1):
        if example is not None:
            examples.append(example)
        progress(name, number, len(questions))
    if not examples:
        text, answer = questions[0].text, questions[0].answers[0]
        raise CorpusError(
            f"questions: none of the {len(questions)} {name} has an answer among its candidates, such as "
            f"{answer!r:.80} for {shown_start(text)}; write answers as the corpus does, or add corrections"
        )
    reader = learning_reader(filler, filler.settings)
    encoder = filler.encoder.cut_to(None) if reader is None else reader.encoder
    return Lesson(examples, encoder.similarity_scale)


def _hits(
    filler: PhraseFiller, questions: Sequence[CorrectedAnswer], stage: str, progress: Progress
) -> tuple[int, int]:
    """The number of questions whose first phrase is right, and of those with a right one among `MAX_RIGHT_RANK`."""
    ranks: list[int] = []
    for start in range(0, len(questions), MAX_QUESTIONS_AT_ONCE):
        batch = questions[start : start + MAX_QUESTIONS_AT_ONCE]
        for question, answer in zip(batch, filler.fill([each.text for each in batch]), strict=True):
            right = frozenset(map(normalized_text, question.answers))
            hits = [rank for rank, each in enumerate(answer.phrases) if normalized_text(each.phrase) in right]
            ranks += hits[:1]
        progress(stage, start + len(batch), len(questions))
    return ranks.count(0), len(ranks)


def _write(index: PhraseIndex, maps: QueryMaps, result: Adaptation) -> int:
    """Make the maps a part of the next generation of the index, which is returned."""
    facts = {name: value for name, value in asdict(result).items() if name not in ("retrieval", "generation")}
    with changed(index.folder) as before:
        before.unchanged_since(index.manifest, verb="adapt")
        name = maps.write(index.folder, facts)
        return commit(before, replace(before.manifest, adaptation_folder=name), collects=(ADAPTATION,)).generation
