"""Method `oracle-blocks`: the phrase that fits best in the blocks that hold an answer.

It is told which blocks to look in. What it has over `npm-bm25` is what finding the blocks is worth; what it lacks to
100 % is lost in choosing the phrase, or stands nowhere in the corpus.

Shapes: n examples, k blocks of an example.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.core.types import Answer, Progress
from npm.evaluation.results import filler_facts
from npm.evaluation.tasks.document_conditions import NO_DOCUMENT, admissible_parts
from npm.evaluation.zero_shot.baselines import lexicon_of
from npm.evaluation.zero_shot.occurrences import name_blocks

if TYPE_CHECKING:
    from npm.evaluation.tasks.task import Example, Task
    from npm.retrieval.fill import PhraseFiller


ORACLE_BLOCKS = "oracle-blocks"
NO_BLOCK = "no block that may be looked in holds an answer"


class OracleBlocks:
    """Fills the mask from blocks that hold an answer: an `OpenMethod`."""

    name = ORACLE_BLOCKS

    def __init__(self, filler: PhraseFiller) -> None:
        """Raises SettingError if the index has no text."""
        self._lexicon = lexicon_of(filler.index, fix="leave this method out")
        self._filler = filler
        self._without_block = 0

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[Answer]:
        """One answer an example, without phrases where no block holds what is right."""
        answers: list[Answer] = []
        shown = max(1, self._filler.settings.occurrences)
        for example, blocks in zip(examples, self.blocks(examples), strict=True):
            if blocks is not None and len(blocks):
                answers.append(self._filler.fill(example.text, occurrences=shown, blocks=blocks))
            else:
                answers.append(Answer(example.text, (), notes=(NO_DOCUMENT if blocks is None else NO_BLOCK,)))
            progress(f"task {task.name}", len(answers), len(examples))
        self._without_block = sum(bool({NO_BLOCK, NO_DOCUMENT} & {*answer.notes}) for answer in answers)
        return answers

    def blocks(self, examples: Sequence[Example]) -> list[np.ndarray | None]:
        """The blocks i64 [k] that each of n examples is answered from, ascending; None where no document may answer.

        Of those that hold an answer, within the filters of the filler and the example's own, the fill.bm25_blocks best
        by BM25, then the first in the corpus of those that share no word with the text.
        """
        settings = self._filler.settings
        chosen: list[np.ndarray | None] = [None] * len(examples)
        whole = self._filler.index
        for index, places in admissible_parts(whole, examples, where=settings.where, documents=settings.documents):
            if index is None:
                continue
            names = list(dict.fromkeys(name for place in places for name in examples[place].answers))
            held = dict(zip(names, name_blocks(index, self._filler.encoder, names), strict=True))
            for place in places:
                holding = np.unique(np.concatenate([held[name] for name in examples[place].answers]))  # i64 [holding]
                scores = self._lexicon.scores(examples[place].text)[holding]  # f32 [holding]
                best = np.argsort(-scores, kind="stable")[: settings.bm25_blocks]  # i64 [k]
                chosen[place] = np.sort(holding[best])  # i64 [k]
        return chosen

    def facts(self) -> dict[str, Any]:
        """Settings of filling, fingerprints, and for how many examples no block held an answer in the last call."""
        return {**filler_facts(self._filler), "counts": {"without_block": self._without_block}}
