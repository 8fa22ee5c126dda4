"""What counts as a word in the lexical stage, and which words of a text with a mask are looked up."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

from npm.corpus.stopwords import CONTRACTION_TAILS, STOP_WORDS
from npm.types import MASK_TEXT

_WORD = re.compile(r"\w+")


class Stemming(Enum):
    """What is taken off the end of a word."""

    none = "none"
    plural = "plural"


def words_of(text: str, stemming: Stemming = Stemming.none, *, keep_stopwords: bool = True) -> list[str]:
    """Case-folded runs of letters, digits and underscores, in order.

    >>> words_of("Größe der 2 Städte")
    ['grösse', 'der', '2', 'städte']
    >>> words_of("Croatia's seat is in", keep_stopwords=False)
    ['croatia', 'seat']
    """
    return counted_forms(folded_words(text), stemming, keep_stopwords=keep_stopwords)


def folded_words(text: str) -> list[str]:
    """The words of a text, case-folded, whole and with function words."""
    return _WORD.findall(text.casefold())


def counted_forms(words: Iterable[str], stemming: Stemming, *, keep_stopwords: bool) -> list[str]:
    """The form in which each folded word is counted; function words are left out unless they are kept."""
    if not keep_stopwords:
        words = [word for word in words if word not in STOP_WORDS and word not in CONTRACTION_TAILS]
    return [_singular(word) for word in words] if stemming is Stemming.plural else list(words)


def _singular(word: str) -> str:
    """The S-stemmer (Harman 1991).

    >>> [_singular(word) for word in ("countries", "rivers", "glass", "gas")]
    ['country', 'river', 'glass', 'ga']
    """
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    if word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")):
        return word[:-1]
    return word


def lexical_query(text: str) -> str:
    """What is looked up for a text with a mask: the question if the mask comes after one, else all but the mask.

    >>> lexical_query("Who wrote it? The answer is: <mask>.")
    'Who wrote it?'
    >>> lexical_query("Rome lies on <mask>. Why?")
    'Rome lies on  . Why?'
    """
    before, found, after = text.partition(MASK_TEXT)
    question, mark, _ = before.partition("?")
    return question + mark if mark and found else f"{before} {after}"
