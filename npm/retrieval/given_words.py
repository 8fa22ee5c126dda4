"""Where words that somebody gives stand in a store with text: whatever their case and the space between them.

Shapes: n places, T tokens.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from npm.retrieval.answers import normalised_text
from npm.types import TokenFlag

if TYPE_CHECKING:
    from npm.corpus.store import BlockStore


SPANS_IN_MEMORY = 1024
"""Places of so many different words are kept, for those who ask for the same words in many texts."""


class GivenWords:
    """Finds words in the texts of all documents: for a store that is small enough to be read as a whole."""

    def __init__(self, store: BlockStore) -> None:
        assert store.start_chars is not None and store.end_chars is not None, "words are looked for in text"
        self._store = store
        texts = [store.document(number).text for number in range(store.document_count)]
        self._folded = [folded_with_places(text) for text in texts]
        self._first_chars = np.cumsum([0, *map(len, texts)])  # i64 [documents + 1], of all texts in a row
        documents = np.repeat(store.block_documents, np.diff(store.block_offsets))  # i64 [T]
        before = self._first_chars[documents]  # i64 [T], characters of the documents before
        flags = store.flags.slice(0, store.token_count)  # u8 [T]
        self._firsts = np.flatnonzero(flags & TokenFlag.WORD_START.value)  # i64 [words], token positions
        self._lasts = np.flatnonzero(flags & TokenFlag.WORD_END.value)  # i64 [words]
        self._starts = before[self._firsts] + store.start_chars.take(self._firsts)  # i64 [words], ascending
        self._ends = before[self._lasts] + store.end_chars.take(self._lasts)  # i64 [words], ascending
        self._found = lru_cache(maxsize=SPANS_IN_MEMORY)(self._find)

    def find(self, words: str) -> tuple[np.ndarray, np.ndarray]:
        """First token positions and lengths in tokens, i64 [n] each, of all places where `words` stand in one block.

        They begin and end with a word, and are the same text once both are case-folded and runs of space are one.
        """
        return self._found(normalised_text(words))

    def _find(self, plain: str) -> tuple[np.ndarray, np.ndarray]:
        words = r"\s+".join(map(re.escape, plain.split()))
        pattern = re.compile(f"(?=({words}))")  # looked for ahead, so that places which overlap are all found
        matches = [np.zeros((0, 2), dtype=np.int64)]
        for first_char, (folded, places) in zip(self._first_chars.tolist(), self._folded, strict=False):
            found = [match.span(1) for match in pattern.finditer(folded)]
            bounds = np.array(found, dtype=np.int64).reshape(-1, 2)  # i64 [matches, 2], in the folded text
            if places is not None:
                bounds = bounds[np.isin(bounds, places).all(axis=1)]  # i64 [matches, 2], of whole characters
                bounds = np.searchsorted(places, bounds)  # i64 [matches, 2], in the text
            matches.append(first_char + bounds)
        starts, ends = np.concatenate(matches).T  # i64 [matches] each, in all texts
        first_words = np.minimum(np.searchsorted(self._starts, starts), len(self._starts) - 1)  # i64 [matches]
        last_words = np.minimum(np.searchsorted(self._ends, ends), len(self._ends) - 1)  # i64 [matches]
        are_words = (self._starts[first_words] == starts) & (self._ends[last_words] == ends)  # bool [matches]
        firsts, lasts = self._firsts[first_words[are_words]], self._lasts[last_words[are_words]]  # i64 [spans]
        in_one_block = self._store.block_of(firsts) == self._store.block_of(lasts)  # bool [spans]
        return firsts[in_one_block], (lasts - firsts + 1)[in_one_block]


def folded_with_places(text: str) -> tuple[str, np.ndarray | None]:
    """The case-folded text, and where each character and the end went, i64 [characters + 1]; None: where it was.

    >>> folded_with_places("Maße")[0], folded_with_places("Maße")[1].tolist()
    ('masse', [0, 1, 2, 4, 5])
    """
    folded = text.casefold()
    # Case folding takes no character away, so equal lengths mean that each one became one.
    if len(folded) == len(text):
        return folded, None
    return folded, np.array([0, *accumulate(len(char.casefold()) for char in text)], dtype=np.int64)
