"""`npmlm adapt`: maps of queries learned from corrected answers, kept with an index if they help on a held-out part.

Shapes: d dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from npm.core.errors import CorpusError
from npm.core.settings import checked
from npm.core.types import Progress, silent
from npm.corpus.questions import read_questions
from npm.corpus.text import normalized_text
from npm.indexing.adaptation import QueryMaps
from npm.indexing.changes import changed, commit
from npm.indexing.layout import ADAPTATION
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.queries import check_query
from npm.retrieval.settings import FillSettings, Retrieval
from npm.tuning.examples import CorrectedAnswer, examples_of
from npm.tuning.query_maps import Lesson, learned_maps

MIN_QUESTIONS = 20
HELD_OUT_EVERY = 5
FIRST = 5
"""Phrases of an answer among which a right one counts, next to the first alone."""
TEXTS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Measures:
    """Answers to the held-out questions."""

    first: int
    """Questions whose first phrase is right."""
    among_five: int
    loss: float
    """Mean of −log of the share of right phrases before reranking, over questions with one among the candidates."""


@dataclass(frozen=True, slots=True)
class Adaptation:
    """Result of `adapt`: how the held-out questions were answered, and what was written."""

    retrieval: str
    questions: int
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
        """Return True if the held-out questions are not answered worse, and their right phrases have more evidence."""
        return self.after.first >= self.before.first and self.after.loss < self.before.loss

    def record(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def read_corrections(files: Sequence[str]) -> list[CorrectedAnswer]:
    """The corrected answers of some files. Raises CorpusError for a row in another form."""
    rows = (row for _, row in read_questions(files, with_blocks=False))
    return [CorrectedAnswer(row["question"], tuple(row["answers"])) for row in rows]


def corrected_answers(given: Mapping[str, str | Sequence[str]]) -> list[CorrectedAnswer]:
    """The right answers of each text. Raises QueryError for a text without one `<mask>`, SettingError for answers."""
    answers = checked(dict(given), dict[str, str | list[str]], "questions")
    for text in answers:
        check_query(text, where="question")
    return [CorrectedAnswer(text, (own,) if isinstance(own, str) else tuple(own)) for text, own in answers.items()]


def adapt_index(
    filler: PhraseFiller,
    questions: Sequence[CorrectedAnswer],
    *,
    retrieval: Retrieval = Retrieval.hybrid,
    seed: int = 0,
    progress: Progress = silent,
) -> Adaptation:
    """Learn maps of the queries of `retrieval`, and write them into the index if they help.

    They are learned from four fifths of the questions, drawn by `seed`, and measured on the rest; maps that the index
    has are replaced. Raises CorpusError for fewer than `MIN_QUESTIONS`, or if none can be learned from; ArtifactError
    if the index is being changed.
    """
    if len(questions) < MIN_QUESTIONS:
        raise CorpusError(f"questions must be at least {MIN_QUESTIONS}, got {len(questions)}: add corrected answers")
    settings = FillSettings(retrieval=retrieval, k=FIRST)
    plain = PhraseFiller(replace(filler.index, query_maps=None), filler.encoder, settings)
    order = np.random.default_rng(seed).permutation(len(questions))  # i64 [questions]
    held_out = [questions[number] for number in order[: len(order) // HELD_OUT_EVERY].tolist()]
    learned_from = [questions[number] for number in order[len(held_out) :].tolist()]
    examples = []
    for number, example in enumerate(examples_of(plain, [*held_out, *learned_from], settings), start=1):
        examples.append(example)
        progress("questions", number, len(questions))
    scale = plain.encoder.cut_to(None).similarity_scale
    known, tested = ([each for each in own if each] for own in (examples[len(held_out) :], examples[: len(held_out)]))
    if not (known and tested):
        raise CorpusError("questions: no answer is among the candidates of its question: check answers, or the index")
    lesson, test, steps = Lesson(known, scale), Lesson(tested, scale), 0

    def on_step(_: float) -> None:
        nonlocal steps
        steps += 1
        progress("maps", steps, None)

    maps = learned_maps(lesson, on_step=on_step)
    learned = QueryMaps(retrieval.value, lesson.is_joint, maps)
    adapted = PhraseFiller(replace(plain.index, query_maps=learned), plain.encoder, settings)
    with torch.no_grad():
        losses = [float(test.loss(torch.from_numpy(each))) for each in (np.zeros_like(maps), maps)]
    before, after = (
        Measures(*_hits(own, held_out, stage, progress), loss)
        for own, loss, stage in zip((plain, adapted), losses, ("answers before", "answers after"), strict=True)
    )
    counts = (len(questions), len(known), len(held_out), seed)
    result = Adaptation(retrieval.value, *counts, before, after, None)
    return replace(result, generation=_write(plain.index.folder, learned, result)) if result.is_better else result


def remove_adaptation(folder: str | Path) -> bool:
    """Remove the maps of the index in `folder`; returns False if it has none.

    Raises ArtifactError if there is no finished index, or it is being changed.
    """
    with changed(Path(folder)) as before:
        if before.manifest.adaptation_folder is None:
            return False
        commit(before, replace(before.manifest, adaptation_folder=None), collects=(ADAPTATION,))
        return True


def _hits(
    filler: PhraseFiller, questions: Sequence[CorrectedAnswer], stage: str, progress: Progress
) -> tuple[int, int]:
    """The questions whose first phrase is right, and those with a right one among `FIRST`."""
    ranks: list[int] = []
    for start in range(0, len(questions), TEXTS_AT_ONCE):
        batch = questions[start : start + TEXTS_AT_ONCE]
        for question, answer in zip(batch, filler.fill([each.text for each in batch]), strict=True):
            right = frozenset(map(normalized_text, question.answers))
            hits = [rank for rank, each in enumerate(answer.phrases) if normalized_text(each.phrase) in right]
            ranks += hits[:1]
        progress(stage, start + len(batch), len(questions))
    return ranks.count(0), len(ranks)


def _write(folder: Path, maps: QueryMaps, result: Adaptation) -> int:
    """Make the maps a part of the next generation of the index, which is returned."""
    facts = {name: value for name, value in result.record().items() if name not in ("retrieval", "generation")}
    with changed(folder) as before:
        name = maps.write(folder, facts)
        return commit(before, replace(before.manifest, adaptation_folder=name), collects=(ADAPTATION,)).generation
