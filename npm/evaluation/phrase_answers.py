"""Methods `npm`, `npm-dense`, `npm-bm25` and `npm-hybrid` for open tasks: fill the mask from a phrase index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npm.errors import SettingError
from npm.evaluation.examples import Example
from npm.evaluation.results import Progress, filler_facts
from npm.evaluation.task import Task
from npm.retrieval.settings import Retrieval
from npm.types import Answer

if TYPE_CHECKING:
    from npm.retrieval.fill import PhraseFiller


TEXTS_PER_CALL = 64
RETRIEVAL_OF: dict[str, Retrieval | None] = {
    "npm": None,
    "npm-dense": Retrieval.dense,
    "npm-bm25": Retrieval.bm25,
    "npm-hybrid": Retrieval.hybrid,
}
"""Where each method looks: `npm` as the filler's settings say."""


class PhraseAnswers:
    """Fills the mask with phrases of an index: an `OpenMethod`."""

    def __init__(self, filler: PhraseFiller, name: str = "npm") -> None:
        """`name` is one of `RETRIEVAL_OF`; raises SettingError for another, and for one that the index cannot serve."""
        if name not in RETRIEVAL_OF:
            raise SettingError(
                f"no method fills open tasks under the name {name}",
                expected=", ".join(RETRIEVAL_OF),
                got=name,
                where="method",
                fix="choose one of these",
            )
        self.name = name
        self._filler = filler
        self._settings = replace(filler.settings, retrieval=RETRIEVAL_OF[name] or filler.settings.retrieval)
        if self._settings.retrieval is not Retrieval.dense and filler.index.lexicon is None:
            raise SettingError(
                f"method={name} needs the text of the blocks",
                expected="an index over blocks with text, or method=npm-dense",
                got="an index over blocks of token ids",
                where=str(filler.index.folder),
                fix="use method=npm-dense",
            )
        self._cut = self._unanswered = 0

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[Answer]:  # noqa: ARG002
        """One answer an example, from the filler's settings; `task` changes nothing."""
        answers: list[Answer] = []
        for first in range(0, len(examples), TEXTS_PER_CALL):
            texts = [example.text for example in examples[first : first + TEXTS_PER_CALL]]
            # One occurrence at least, whatever the filler would show: a prediction says where it was found.
            shown = max(1, self._settings.occurrences)
            answers += self._filler.fill(texts, occurrences=shown, retrieval=self._settings.retrieval)
            progress(len(answers), len(examples))
        self._cut = sum(answer.cut for answer in answers)
        self._unanswered = sum(not answer.phrases for answer in answers)
        return answers

    def facts(self) -> dict[str, Any]:
        """Settings of filling, fingerprints, and how many texts were cut or found no phrase in the last call."""
        return {
            **filler_facts(self._filler, self._settings),
            "counts": {"cut": self._cut, "unanswered": self._unanswered},
        }
