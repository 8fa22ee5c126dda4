"""Questions made from the documents of an index: sentences with a phrase masked, to measure and to show search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npm.core.errors import ArtifactError, QueryError
from npm.core.types import MASK_TEXT
from npm.corpus.markup import visible
from npm.corpus.text import sentence_bounds
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.stages import is_held_out
from npm.retrieval.queries import check_query
from npm.retrieval.settings import ScoringSettings
from npm.retrieval.spans import SpanFinder

MIN_SENTENCE_CHARS, MAX_SENTENCE_CHARS = 60, 300
MAX_MASKED_TOKENS = 4


@dataclass(frozen=True, slots=True)
class DrawnQuestion:
    """A sentence with a phrase masked."""

    text: str
    phrase: str  # the masked phrase
    document: int  # number of the document in the index
    start_char: int  # of the phrase, in the document's text


def asked_documents(index: PhraseIndex) -> np.ndarray:
    """Indices i64 [n] of the live documents that the quantizer, where there is one, was not trained on."""
    numbers = np.arange(index.store.document_count)  # i64 [documents]
    may_ask = is_held_out(numbers) if index.manifest.quantizer else np.ones(len(numbers), dtype=bool)  # [documents]
    return np.flatnonzero(may_ask if index.live_documents is None else may_ask & index.live_documents)


def draw_questions(index: PhraseIndex, count: int, *, seed: int, words_only: bool = False) -> list[DrawnQuestion]:
    """At most `count` questions, as many from each document as it takes, no sentence twice.

    Fewer if the documents hold no more sentences of 60 to 300 characters with a phrase of up to 4 tokens, or with a
    word where `words_only` says so. Raises ArtifactError if there is none.
    """
    documents = asked_documents(index)
    rng, asked = np.random.default_rng(seed), set[tuple[int, int]]()
    finder = SpanFinder(index.store, index.rows, (MAX_MASKED_TOKENS, 1 if words_only else None), ScoringSettings())
    questions: list[DrawnQuestion] = []
    while len(questions) < count:
        before = len(questions)
        for document in rng.permutation(documents).tolist():
            if len(questions) < count and (question := _question(index, finder, document, rng, asked)) is not None:
                questions.append(question)
        if len(questions) == before:
            break
    if not questions:
        raise ArtifactError(f"{index.folder}: no question from {len(documents)} documents")
    return questions


def _question(
    index: PhraseIndex, finder: SpanFinder, document: int, rng: np.random.Generator, asked: set[tuple[int, int]]
) -> DrawnQuestion | None:
    """A question from a sentence of `document` that was not `asked` about; None if there is none left."""
    store = index.store
    text = store.document(document).text
    bounds = sentence_bounds(text)  # i64 [sentences, 2]
    lengths = bounds[:, 1] - bounds[:, 0]  # i64 [sentences]
    bounds = bounds[(lengths >= MIN_SENTENCE_CHARS) & (lengths <= MAX_SENTENCE_CHARS)]
    own = np.flatnonzero(store.block_documents == document)  # i64 [blocks of the document], in a row
    if not len(own):
        return None
    first = int(store.block_offsets[own[0]])
    starts, ends = np.concatenate([store.block_places(block) for block in own.tolist()], axis=1)  # u32 [T] each
    for start_char, end_char in rng.permutation(bounds).tolist():
        if (document, start_char) in asked:
            continue
        asked.add((document, start_char))
        begin = first + int(np.searchsorted(starts, start_char))
        end = max(begin, first + int(np.searchsorted(ends, end_char, side="right")))
        found = finder.find(index.rows.rows_within(np.array([begin]), np.array([end])), None)
        found = found.where(found.starts + found.lengths <= end)
        if len(found) == 0:
            continue
        number = int(rng.integers(len(found)))
        at = int(found.starts[number]) - first
        first_char, last_char = int(starts[at]), int(ends[at + found.lengths[number] - 1])
        question = visible(f"{text[start_char:first_char]}{MASK_TEXT}{text[last_char:end_char]}")
        try:
            check_query(question)
        except QueryError:  # the sentence itself contains a mask, or is broken
            continue
        return DrawnQuestion(question, text[first_char:last_char], document, first_char)
    return None
