"""Where words that somebody gives stand in a store with text: whatever their case, Unicode form and space between.

Shapes: n places, T tokens, E ends of words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING
from unicodedata import combining, normalize

import numpy as np

from npm.corpus.text import normalised_text
from npm.errors import QueryError
from npm.types import SURROGATE, TokenFlag

if TYPE_CHECKING:
    from npm.corpus.store import BlockStore


SPANS_IN_MEMORY = 1024
"""Places of so many different words are kept, for those who ask for the same words in many texts."""
CHARACTERS_IN_MEMORY = 4096
"""So many characters are folded once for all texts."""


def checked_texts(given: object, *, name: str) -> list[str]:
    """One text or several as a list; `name` is what messages call each. Raises QueryError for anything else."""
    expected = "a string, or a list of strings"
    if isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
        got, fix = type(given).__name__, f"give one {name} as a string, or several in a list"
        raise QueryError(f"a {name} is no text", expected=expected, got=got, where=f"{name}s", fix=fix)
    several = [given] if isinstance(given, str) else list(given)
    for number, text in enumerate(several, start=1):
        where = name if len(several) == 1 else f"{name} {number} of {len(several)}"
        if not isinstance(text, str):
            fix = "give strings alone, or leave this one out"
            raise QueryError(f"a {name} is no text", expected=expected, got=type(text).__name__, where=where, fix=fix)
        if half := SURROGATE.search(text):
            raise QueryError(
                f"a {name} is not valid Unicode",
                expected="text that can be written as UTF-8",
                got=f"half a surrogate pair, {half.group()!a}, at character {half.start()}",
                where=where,
                fix="take out the escape that stands there in place of a character",
            )
    return several


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
        self._starts = before[self._firsts] + store.start_chars.take(self._firsts)  # i64 [words], ascending
        lasts = np.flatnonzero(flags & TokenFlag.WORD_END.value)  # i64 [words]
        ends = before[lasts] + store.end_chars.take(lasts)  # i64 [words], ascending
        # A tokenizer that strips accents leaves a combining one at the end of a word out: such words have two ends.
        ends_with_marks = _after_marks("".join(texts), ends)  # i64 [words]
        has_marks = ends_with_marks > ends  # bool [words]
        ends, lasts = np.append(ends, ends_with_marks[has_marks]), np.append(lasts, lasts[has_marks])  # i64 [E] each
        order = np.argsort(ends, kind="stable")  # i64 [E]
        self._ends, self._lasts = ends[order], lasts[order]  # i64 [E] each, ends ascending
        self._found = lru_cache(maxsize=SPANS_IN_MEMORY)(self._find)

    def find(self, words: str) -> tuple[np.ndarray, np.ndarray]:
        """First token positions and lengths in tokens, i64 [n] each, of all places where `words` stand in one block.

        They begin and end with a word, and are the same text once both are case-folded and decomposed, and runs of
        space are one.
        """
        return self._found(folded_with_places(normalised_text(words))[0])

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
    """The text case-folded and decomposed (NFD), and where each character and the end went, i64 [characters + 1].

    None stands for places that are as they were. Texts are equal so folded just if they are canonical caseless matches
    (The Unicode Standard 16.0, D145). Combining marks that change places with each other have one place.

    >>> folded_with_places("Maße")[0], folded_with_places("Maße")[1].tolist()
    ('masse', [0, 1, 2, 4, 5])
    """
    folded = _folded(text)
    # Neither step takes a character away, so equal lengths mean that each one became one, and here in its place.
    if len(folded) == len(text) and folded == text.casefold():
        return folded, None
    pieces: list[str] = []
    places = [0]
    for letter in _with_marks(text):
        alone = [_folded_character(char) for char in letter]
        together = alone[0] if len(alone) == 1 else _folded(letter)
        begin = places[-1]
        if together == "".join(alone):
            places += accumulate(map(len, alone[1:]), initial=begin + len(alone[0]))
        else:
            marks = begin + len(alone[0]) if together.startswith(alone[0]) else begin
            places += [marks] * (len(letter) - 1) + [begin + len(together)]
        pieces.append(together)
    return "".join(pieces), np.array(places, dtype=np.int64)


def _folded(text: str) -> str:
    return normalize("NFD", normalize("NFD", text).casefold())


_folded_character = lru_cache(maxsize=CHARACTERS_IN_MEMORY)(_folded)


def _with_marks(text: str) -> Iterator[str]:
    """Each character with the combining marks behind it."""
    first = 0
    for place in range(1, len(text)):
        if not combining(text[place]):
            yield text[first:place]
            first = place
    if text:
        yield text[first:]


def _after_marks(text: str, ends: np.ndarray) -> np.ndarray:
    """Where the combining marks end that stand in `text` at the places `ends` i64 [n]: i64 [n]."""
    if text.isascii():
        return ends
    moved = ends.tolist()
    for number, end in enumerate(moved):
        while end < len(text) and combining(text[end]):
            end += 1
        moved[number] = end
    return np.array(moved, dtype=np.int64)
