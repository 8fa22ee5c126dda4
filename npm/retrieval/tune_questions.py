"""Questions that an index is measured with: sentences of its documents with a phrase masked, drawn at random.

Where a quantiser was trained, only documents that it has not seen are asked about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npm.corpus.text import sentence_bounds
from npm.errors import ArtefactError, QueryError
from npm.indexing.generation import Segment
from npm.indexing.stages import HELD_OUT_EVERY, unseen_documents
from npm.retrieval.queries import check_query
from npm.retrieval.scoring import ScoringSettings
from npm.retrieval.spans import Candidates, SpanFinder
from npm.types import MASK_TEXT

if TYPE_CHECKING:
    from npm.indexing.phrase_index import PhraseIndex

MIN_SENTENCE_CHARS, MAX_SENTENCE_CHARS = 60, 300
MAX_MASKED_TOKENS = 4


@dataclass(frozen=True, slots=True)
class TuneQuestion:
    """A sentence with a phrase masked."""

    text: str
    phrase: str  # what was masked
    document: int  # number of the document in the index
    start_char: int  # of the phrase, in the document's text


def held_out_documents(index: PhraseIndex) -> np.ndarray | None:
    """Which documents the quantiser's training has not seen, bool [documents]; None if that is not known."""
    if index.settings["quantiser"] is None:
        return np.ones(index.store.document_count, dtype=bool)
    segments = [Segment(index.folder, name) for name in sorted(index.settings["segments"])]
    return unseen_documents(index.folder / index.settings["quantiser"], segments, index.store.segment_documents)


def asked_documents(index: PhraseIndex) -> np.ndarray:
    """Numbers i64 [n] of the documents that may be asked about: live, and not seen by the quantiser's training.

    Where nobody knows what it saw, after a compact that kept it, any document may be asked about.
    """
    documents = np.arange(index.store.document_count)  # i64 [documents]
    if (held_out := held_out_documents(index)) is not None:
        documents = documents[held_out]
    return documents if index.live_documents is None else documents[index.live_documents[documents]]


def draw_questions(index: PhraseIndex, count: int, *, seed: int) -> list[TuneQuestion]:
    """At most `count` questions, as many from each document as it takes, no sentence twice.

    Fewer if the documents hold no more sentences of 60 to 300 characters with a phrase of up to 4 tokens. Raises
    ArtefactError if there is none.
    """
    documents = asked_documents(index) if index.store.start_chars is not None else np.zeros(0, dtype=np.int64)
    drawer = _Drawer(index, np.random.default_rng(seed))
    questions: list[TuneQuestion] = []
    while len(questions) < count:
        before = len(questions)
        for document in drawer.rng.permutation(documents).tolist():
            if (question := drawer.draw(document)) is not None:
                questions.append(question)
                if len(questions) == count:
                    break
        if len(questions) == before:
            break
    if not questions:
        raise _no_questions(index, len(documents))
    return questions


class _Drawer:
    """Draws questions, and remembers the sentences that it has asked about."""

    def __init__(self, index: PhraseIndex, rng: np.random.Generator) -> None:
        self._store = index.store
        self._rows = index.rows
        self._finder = SpanFinder(
            index.store, index.rows, max_phrase_tokens=MAX_MASKED_TOKENS, scoring=ScoringSettings()
        )
        self._asked: set[tuple[int, int]] = set()
        self.rng = rng

    def draw(self, document: int) -> TuneQuestion | None:
        """A question from a sentence of `document` that was not asked about; None if there is none left."""
        text = self._store.document(document).text
        bounds = sentence_bounds(text)  # i64 [sentences, 2]
        lengths = bounds[:, 1] - bounds[:, 0]  # i64 [sentences]
        bounds = bounds[(lengths >= MIN_SENTENCE_CHARS) & (lengths <= MAX_SENTENCE_CHARS)]
        for start, stop in self.rng.permutation(bounds).tolist():
            if (document, start) in self._asked:
                continue
            self._asked.add((document, start))
            found = self._phrases(document, start, stop)
            if len(found) == 0:
                continue
            first_char, last_char = self._chars(found, int(self.rng.integers(len(found))))
            question = f"{text[start:first_char]}{MASK_TEXT}{text[last_char:stop]}"
            try:
                check_query(question)
            except QueryError:  # the sentence holds a mask of its own, or is broken
                continue
            return TuneQuestion(question, text[first_char:last_char], document, first_char)
        return None

    def _phrases(self, document: int, start_char: int, end_char: int) -> Candidates:
        """All phrases that could be an answer and lie in these characters of `document`."""
        store = self._store
        assert store.start_chars is not None and store.end_chars is not None, "a store without text is not asked about"
        blocks = np.flatnonzero(store.block_documents == document)  # i64 [blocks of the document], in a row
        if len(blocks) == 0:
            return self._finder.find(np.zeros(0, dtype=np.int64), None)
        first, stop = int(store.block_offsets[blocks[0]]), int(store.block_offsets[blocks[-1] + 1])
        begin = first + int(np.searchsorted(store.start_chars.slice(first, stop), start_char))
        end = first + int(np.searchsorted(store.end_chars.slice(first, stop), end_char, side="right"))
        rows = self._rows.rows_within(np.array([begin]), np.array([max(begin, end)]))  # i64 [n]
        found = self._finder.find(rows, None)
        return found.where(found.starts + found.lengths <= end)

    def _chars(self, found: Candidates, number: int) -> tuple[int, int]:
        """Where candidate `number` begins and ends in its document, in characters."""
        store = self._store
        assert store.start_chars is not None and store.end_chars is not None, "a store without text is not asked about"
        first, last = int(found.starts[number]), int(found.starts[number] + found.lengths[number] - 1)
        return int(store.start_chars.slice(first, first + 1)[0]), int(store.end_chars.slice(last, last + 1)[0])


def _no_questions(index: PhraseIndex, document_count: int) -> ArtefactError:
    lengths = f"{MIN_SENTENCE_CHARS} to {MAX_SENTENCE_CHARS} characters"
    left_out = (
        "" if index.settings["quantiser"] is None else f", one of {HELD_OUT_EVERY}, that its quantiser has not seen"
    )
    return ArtefactError(
        "no question can be made from the documents of this index",
        expected=f"documents{left_out} with text, in sentences of {lengths}",
        got=f"{document_count} such documents, without such a sentence" if document_count else "no such document",
        where=str(index.folder),
        fix="add documents, or build the index with search.tier=exact, which leaves none out",
    )
