"""Exact look-up: the places where a phrase occurs word for word, by the postings of its rarest word first.

Phrase and text are compared as they are read: without markup and invisible characters, in one normal form (NFKC), with
one kind of apostrophe, quotation mark and dash. A phrase matches full words, and a number no part of a longer one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npm.core.errors import QueryError, shown_start
from npm.core.types import Occurrence, Progress, silent
from npm.corpus.folding import comparable
from npm.corpus.markup import readable
from npm.corpus.text import folded_words, names_like_function_words
from npm.retrieval.answers import occurrence_in
from npm.retrieval.queries import check_text

if TYPE_CHECKING:
    from npm.indexing.phrase_index import DocumentFilter, PhraseIndex


@dataclass(frozen=True, slots=True)
class Found:
    """The places of a phrase in a corpus: how many there are, in how many documents, and the first of them."""

    phrase: str
    """The phrase that was looked up."""
    count: int
    """Number of places."""
    documents: int
    """Number of documents with a place."""
    occurrences: tuple[Occurrence, ...]
    """The first places, in the order of the corpus."""
    complete: bool = True
    """False if only a part of the documents with its words was read, so that there may be more."""


class SoughtPhrase:
    """A phrase to look up as full words and full numbers, whatever the space between its words.

    >>> phrase = SoughtPhrase("Noah's  Ark 15")
    >>> list(phrase.places("of noah’s ark\\n15.")), list(phrase.places("Noah's Ark 15,000"))
    ([(3, 16)], [])
    """

    def __init__(self, phrase: str, *, match_case: bool = False) -> None:
        self._match_case = match_case
        folded, _ = comparable(phrase, match_case=match_case)
        words = folded.split()
        first, last = (words[0][0], words[-1][-1]) if words else ("", "")
        before = (r"(?<!\w)" if first.isalnum() else "") + (r"(?<!\d[.,])" if first.isdigit() else "")
        after = (r"(?!\w)" if last.isalnum() else "") + (r"(?![.,]\d)" if last.isdigit() else "")
        self._pattern = re.compile(before + r"\s+".join(map(re.escape, words)) + after)

    def places(self, text: str, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int]]:
        """First and past-the-last character of each place within [start, stop) of a stored text, in order."""
        read = readable(text, start, stop)
        folded, characters = comparable(read.text, match_case=self._match_case)
        for match in self._pattern.finditer(folded):
            first, last = characters[match.start()], characters[match.end()] - 1  # in read.text
            if not read.is_inserted[first : last + 1].all():
                yield int(read.places[first]), int(read.places[last]) + 1


def find_phrase(
    index: PhraseIndex,
    phrase: str,
    *,
    match_case: bool = False,
    show: int = 10,
    allowed: DocumentFilter | None = None,
    most_documents: int | None = None,
    progress: Progress = silent,
) -> Found:
    """The number of places of `phrase` in the live and `allowed` documents, and the first `show` in corpus order.

    `most_documents` bounds the documents that are read. Raises QueryError for a phrase without a word that the index
    counts, such as one of function words alone.
    """
    check_text(phrase, "phrase")
    plain = " ".join(phrase.split())
    numbers = _documents_with(index, plain, index.live_blocks if allowed is None else allowed.blocks)  # i64 [n]
    sought, found, count, holding = SoughtPhrase(plain, match_case=match_case), list[Occurrence](), 0, 0
    for done, number in enumerate(numbers[:most_documents].tolist()):
        document, before = index.store.document(number), count
        for place in sought.places(document.text):
            if count < show:
                found.append(occurrence_in(document, *place))
            count += 1
        holding += count > before
        progress("find", done + 1, len(numbers))
    complete = most_documents is None or len(numbers) <= most_documents
    return Found(plain, count, holding, tuple(found), complete)


def _documents_with(index: PhraseIndex, phrase: str, blocks: np.ndarray | None) -> np.ndarray:
    """The documents i64 [n], ascending, whose blocks of a mask bool [blocks] together hold all words of `phrase`."""
    names = names_like_function_words(phrase)  # looked up by their case where the phrase has no other word
    words = dict.fromkeys(folded_words(phrase)[: -len(names) or None])
    postings = [index.lexicon.blocks_with(word) for word in words]  # i64 [n] each
    counted = sorted((own for own in postings if own is not None), key=len)
    counted = counted or [own for own in map(index.lexicon.blocks_with, names) if own is not None and len(own)]
    if not counted:
        raise QueryError(
            f"phrase has no word but function words, got {shown_start(phrase)!r}: add another word",
            code="no_content_word",
        )
    documents: np.ndarray | None = None
    for own in counted:
        kept = own if blocks is None else own[blocks[own]]  # i64 [n]
        of_word = np.unique(index.store.block_documents[kept])  # i64 [documents]
        documents = of_word if documents is None else np.intersect1d(documents, of_word, assume_unique=True)
        if not len(documents):
            break
    assert documents is not None, "a word is counted"
    return documents
