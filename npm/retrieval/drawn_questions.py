"""Questions made from the documents of an index: sentences with a phrase masked, to measure and to show search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npm.core.errors import ArtifactError, QueryError
from npm.core.types import MASK_TEXT
from npm.corpus.markup import visible
from npm.corpus.text import sentence_bounds
from npm.indexing.generation import Generation
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.stages import HELD_OUT_EVERY, unseen_documents
from npm.retrieval.queries import check_query
from npm.retrieval.scoring import ScoringSettings
from npm.retrieval.spans import CandidateSpans, SpanFinder

MIN_SENTENCE_CHARS, MAX_SENTENCE_CHARS = 60, 300
MAX_MASKED_TOKENS = 4


@dataclass(frozen=True, slots=True)
class DrawnQuestion:
    """A sentence with a phrase masked."""

    text: str
    phrase: str  # what was masked
    document: int  # number of the document in the index
    start_char: int  # of the phrase, in the document's text


def held_out_documents(index: PhraseIndex) -> np.ndarray | None:
    """Which documents the quantiser's training has not seen, bool [documents]; None if that is not known."""
    generation = Generation(index.folder, index.manifest)
    if generation.quantiser is None:
        return np.ones(index.store.document_count, dtype=bool)
    return unseen_documents(generation.quantiser, generation.segments, index.store.segment_documents)


def asked_documents(index: PhraseIndex) -> np.ndarray:
    """Numbers i64 [n] of the documents that may be asked about: live, and not seen by the quantiser's training.

    Where what it saw is not known, after a compact that kept it, any document may be asked about.
    """
    documents = np.arange(index.store.document_count)  # i64 [documents]
    if (held_out := held_out_documents(index)) is not None:
        documents = documents[held_out]
    return documents if index.live_documents is None else documents[index.live_documents[documents]]


def draw_questions(index: PhraseIndex, count: int, *, seed: int, words_only: bool = False) -> list[DrawnQuestion]:
    """At most `count` questions, as many from each document as it takes, no sentence twice.

    Fewer if the documents hold no more sentences of 60 to 300 characters with a phrase of up to 4 tokens, or with a
    word where `words_only` says so. Raises ArtifactError if there is none.
    """
    documents = asked_documents(index) if index.store.start_chars is not None else np.zeros(0, dtype=np.int64)
    drawer = _Drawer(index, np.random.default_rng(seed), words_only=words_only)
    questions: list[DrawnQuestion] = []
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
        left_out = f", one of {HELD_OUT_EVERY}, that its quantiser has not seen" if index.manifest.quantiser else ""
        lengths = f"{MIN_SENTENCE_CHARS} to {MAX_SENTENCE_CHARS} characters"
        raise ArtifactError(
            f"{index.folder}: no question from {len(documents)} documents{left_out}, expected sentences of {lengths}; "
            "add documents, or build the index with search.tier=exact"
        )
    return questions


class _Drawer:
    """Draws questions, each sentence once."""

    def __init__(self, index: PhraseIndex, rng: np.random.Generator, *, words_only: bool) -> None:
        self._store = index.store
        self._rows = index.rows
        self._finder = SpanFinder(
            index.store,
            index.rows,
            max_phrase_tokens=MAX_MASKED_TOKENS,
            scoring=ScoringSettings(),
            words_only=words_only,
        )
        self._asked: set[tuple[int, int]] = set()
        self.rng = rng

    def draw(self, document: int) -> DrawnQuestion | None:
        """A question from a sentence of `document` that was not asked about; None if there is none left."""
        store = self._store
        assert store.start_chars is not None and store.end_chars is not None, "a store without text is not asked about"
        text = store.document(document).text
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
            number = int(self.rng.integers(len(found)))
            first, last = int(found.starts[number]), int(found.starts[number] + found.lengths[number] - 1)
            first_char = int(store.start_chars.slice(first, first + 1)[0])
            last_char = int(store.end_chars.slice(last, last + 1)[0])
            question = visible(f"{text[start:first_char]}{MASK_TEXT}{text[last_char:stop]}")
            try:
                check_query(question)
            except QueryError:  # the sentence holds a mask of its own, or is broken
                continue
            return DrawnQuestion(question, text[first_char:last_char], document, first_char)
        return None

    def _phrases(self, document: int, start_char: int, end_char: int) -> CandidateSpans:
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
