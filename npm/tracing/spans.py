"""Spans of running text that can be traced: quotations, dates, numbers with their units, and names.

Spans do not overlap: a quotation contains the others, and a number or date is no part of a name. Offsets are those of
the text as given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unicodedata import combining

import numpy as np

from npm.corpus.expressions import joined_characters
from npm.corpus.text import is_stop_word, sentence_bounds
from npm.tracing.settings import SpanKind


@dataclass(frozen=True, slots=True)
class Span:
    """A span [start, stop) of a text, in the sentence [first, last); all in code points."""

    kind: SpanKind
    start: int
    stop: int
    first: int
    last: int


_QUOTATION = re.compile(
    r"“([^“”\n]{3,400})”|„([^“”„\n]{3,400})[“”]|«([^«»\n]{3,400})»|(?<!\w)\"([^\"\n]{3,400})\"(?!\w)"
)
_MONTH = re.compile(r"Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec")
_YEAR = re.compile(r"(?:1\d|20)\d\ds?")
_NUMBER = re.compile(r"(?:[A-Z]{0,3}[$€£¥₹₩₽][ \u00a0]?|(?:USD|EUR|GBP|CHF|AD)[ \u00a0]|[+\u2212±-])?\d")
_RANGE = re.compile(r"(?<=\d)[\u2013-](?=\d)")
_LINK = r"(?:of|the|de|da|do|dos|del|della|di|du|la|le|van|von|der|den|al|el|bin|ibn|y)"
"""Lower-case words between the capitalized words of one name."""
_CAPITALIZED = (
    r"(?:(?:St|Mt|Dr|Mr|Mrs|Ms|Prof|Gen|Col|Capt|Lt|Sen|Gov|Rev|Jr)\.|(?:[A-Z]\.)+"
    r"|[A-Z]\w*(?:(?:['’](?!s\b)|[-‐‑&])\w+)*)"
)
_NAME = re.compile(rf"(?<![\w-]){_CAPITALIZED}(?:\s+(?:{_LINK}\s+){{0,2}}{_CAPITALIZED})*")


def spans_of(text: str, begins_name: Callable[[str], bool]) -> Iterator[Span]:
    """The spans of `text`, in order.

    A name that begins its sentence is cut by its first word until it `begins_name`, and has a word that is no
    function word.
    """
    for first, last in sentence_bounds(text).tolist():
        sentence = text[first:last]
        found: list[tuple[SpanKind, int, int]] = []
        for kind, start, stop in (*_quotations(sentence), *_numbers(sentence)):
            if all(stop <= before or start >= after for _, before, after in found):
                found.append((kind, start, stop))
        found += [("name", *own) for own in _names(sentence, [own[1:] for own in found], begins_name)]
        for kind, start, stop in sorted(found, key=lambda own: own[1]):
            yield Span(kind, first + start, first + stop, first, last)


def _quotations(sentence: str) -> Iterator[tuple[SpanKind, int, int]]:
    for match in _QUOTATION.finditer(sentence):
        start, body = match.start(match.lastindex or 0), match[match.lastindex or 0]
        yield "quotation", start + len(body) - len(body.lstrip()), start + len(body.rstrip(" ,.;"))


def _numbers(sentence: str) -> Iterator[tuple[SpanKind, int, int]]:
    """Expressions with a digit, unless letters before it make them a name as in F-16, and numbers in words with a unit.

    >>> sentence = "In May 1998 the F-16 cost $15,000 for two years."
    >>> [sentence[start:stop] for _, start, stop in _numbers(sentence)]
    ['May 1998', '$15,000', 'two years']
    """
    is_first = ~joined_characters(sentence)  # bool [characters]
    for match in re.finditer(r"\w+", sentence):
        is_first[match.start() + 1 : match.end()] = False
    for match in _RANGE.finditer(sentence):
        is_first[match.start() : match.end() + 1] = False
    starts = np.flatnonzero(is_first).tolist()
    for start, stop in zip(starts, [*starts[1:], len(sentence)], strict=True):
        body = sentence[start:stop]
        if sentence[start - 1 : start] == "[" and sentence[stop : stop + 1] == "]":
            continue  # the mark of a citation
        has_digit = any(map(str.isdigit, body))
        if has_digit and (_MONTH.search(body) or _YEAR.fullmatch(body)):
            yield "date", start, stop
        elif _NUMBER.match(body) if has_digit else " " in body and body[0].isalpha():
            yield "number", start, stop


def _names(
    sentence: str, taken: list[tuple[int, int]], begins_name: Callable[[str], bool]
) -> Iterator[tuple[int, int]]:
    """Runs of capitalized words, with the small words inside of them.

    >>> [slice(*own) for own in _names("Iceland's poet José of the Sea met J. Low.", [], str)]
    [slice(0, 7, None), slice(15, 30, None), slice(35, 41, None)]
    """
    letters = [_letter(char) for char in sentence]
    for start, stop in taken:
        letters[start:stop] = "\0" * (stop - start)
    opening = next((at for at, char in enumerate(sentence) if char.isalnum()), 0)
    for match in _NAME.finditer("".join(letters)):
        start, stop = match.span()
        if start == opening:
            words = list(re.finditer(r"\S+", sentence[start:stop]))
            cut = (
                word.start()
                for word in words
                if word[0][0].isupper() and not is_stop_word(word[0]) and (word.start() or begins_name(word.string))
            )
            start += next(cut, stop - start)
        if stop == len(sentence.rstrip(".")) + 1 and sentence.count(".", start, stop) == 1:
            stop -= 1  # of a sentence that ends with an initial
        if not all(is_stop_word(word) for word in sentence[start:stop].split()):
            yield start, stop


def _letter(char: str) -> str:
    """An ASCII character that stands for any letter of its case."""
    if char.isascii():
        return char
    return "X" if char.isupper() else "x" if char.isalnum() or combining(char) else char
