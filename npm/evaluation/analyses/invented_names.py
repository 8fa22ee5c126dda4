"""Names that nobody bears: drawn from the letters of real ones, in Latin letters and written in others."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

import numpy as np

from npm.core.errors import CorpusError

LEAST_LETTERS, MOST_LETTERS = 5, 10
MOST_DRAWS = 10_000
"""Names drawn at most until one is new."""
_ASCII_NAME = re.compile(r"[a-z]{3,}")
_LATIN = "abcdefghijklmnopqrstuvwxyz"
SCRIPTS = {
    "latin": str.maketrans({}),
    "accented": str.maketrans("aceinosuyz", "áčéíñóšúýž"),
    "greek": str.maketrans(_LATIN, "αβψδεφγηιξκλμνοπθρστυωχζϋζ"),
    "cyrillic": str.maketrans(_LATIN, "абцдефгхижклмнопярстувшюыз"),
    "hebrew": str.maketrans(_LATIN, "אבצדהפגחיזכלמנועקרסתוףשטםן"),
}
"""How the letters of an invented name are written, one for one; sounds are not meant to be kept."""


class NameModel:
    """P(letter | the two before it), counted over the names of a corpus; draws names of like letters."""

    def __init__(self, names: Iterable[str]) -> None:
        """Names in other than ASCII letters are left out. Raises CorpusError if none is left."""
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for name in names:
            if _ASCII_NAME.fullmatch(name.lower()):
                padded = f"^^{name.lower()}$"
                for at in range(2, len(padded)):
                    counts[padded[at - 2 : at]][padded[at]] += 1
        if not counts:
            raise CorpusError("corpus.files has no capitalized words in ASCII letters to invent names from")
        self._letters = {before: "".join(sorted(own)) for before, own in counts.items()}
        self._sums = {
            before: np.cumsum([own[letter] for letter in self._letters[before]])  # i64 [letters]
            for before, own in counts.items()
        }

    def draw(self, rng: np.random.Generator) -> str:
        """A name in lower-case ASCII letters, cut at `MOST_LETTERS`."""
        name = ""
        while len(name) < MOST_LETTERS:
            before = f"^^{name}"[-2:]
            sums = self._sums[before]
            letter = self._letters[before][int(np.searchsorted(sums, rng.integers(sums[-1]), side="right"))]
            if letter == "$":
                break
            name += letter
        return name

    def invent(
        self, rng: np.random.Generator, word_counts: Iterable[int], *, known: Collection[str]
    ) -> list[dict[str, str]]:
        """For each number of words a name of as many, by script; no word of it is in `known` (lower case) or twice.

        Raises CorpusError if the letters of the corpus's names make no new ones.
        """
        taken: set[str] = set()
        return [self._name(rng, count, known, taken) for count in word_counts]

    def _name(
        self, rng: np.random.Generator, word_count: int, known: Collection[str], taken: set[str]
    ) -> dict[str, str]:
        words: list[str] = []
        for _ in range(MOST_DRAWS):
            drawn = self.draw(rng)
            spellings = {drawn.translate(script) for script in SCRIPTS.values()}
            if len(drawn) >= LEAST_LETTERS and not any(word in known or word in taken for word in spellings):
                taken |= spellings
                words.append(drawn)
            if len(words) == word_count:
                return {script: written(words, script) for script in SCRIPTS}
        raise CorpusError(f"no new name after {MOST_DRAWS} draws: give more corpus.files, or ask for fewer sentences")


def written(words: Iterable[str], script: str) -> str:
    """Words in lower-case ASCII letters, capitalised and in the letters of `script`.

    >>> written(["orvak", "tem"], "latin"), written(["orvak"], "cyrillic")
    ('Orvak Tem', 'Орвак')
    """
    return " ".join(word.translate(SCRIPTS[script]).capitalize() for word in words)
