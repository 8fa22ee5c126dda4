"""Where sentences begin and end: a few rules, one pass, no model.

A line break always ends a sentence. So does `.`, `!`, `?` or `…`, closing quotes and brackets included, when spaces
and then something other than a lower-case letter follow, unless the dot belongs to an abbreviation or an initial.
The full stops of Chinese and Japanese need no space.
"""

from __future__ import annotations

import re

import numpy as np

CLOSING = "\"'”’)]»"
OPENING = "\"'“‘([«¿¡"
LINE_BREAKS = "\n\r\u2028\u2029"

# Possessive quantifiers and look-behinds keep a million dots or spaces linear.
_CANDIDATE = re.compile(
    rf"[{LINE_BREAKS}]\s*+"
    rf"|(?<=[.!?…{re.escape(CLOSING)}])\s++"
    r"|(?<![。！？])[。！？]++[」』”’）]*+\s*+"
)

_ABBREVIATIONS = """
mr mrs ms dr prof st mt gen col sgt capt cpt lt cmdr adm maj rev hon sen gov pres messrs mme mlle
vs approx ca cf e.g i.e eg ie viz jan feb mar apr jun jul aug sep sept oct nov dec
"""
_NUMBERED_ABBREVIATIONS = "no nos nr vol vols pp fig figs ch sec art op eq"

ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
NUMBERED_ABBREVIATIONS = frozenset(_NUMBERED_ABBREVIATIONS.split())
"""Abbreviations only before a number, as in "No. 5"; elsewhere they may be words."""

CONTEXT_CHARS = 1000
"""How far a context reaches to each side of a phrase at most, in code points: some sentences are whole files."""
NEAR_CHARS, LOOKED_BACK = 300, 32
"""Most sentences end this near; and what is looked at around a boundary to tell whether it is one."""


def sentence_bounds(text: str) -> np.ndarray:
    """The sentences of `text` without the space around them: i64 [sentences, 2], code points.

    >>> sentence_bounds("Dr. Low came. He stayed!").tolist()
    [[0, 13], [14, 24]]
    """
    edges: list[int] = [_skip_space(text, 0)]
    for candidate in _CANDIDATE.finditer(text):
        start, stop = candidate.span()
        if text[start] in "。！？":
            start = stop - (len(candidate[0]) - len(candidate[0].rstrip()))
        elif not _ends_sentence(text, start, stop):
            continue
        while start > edges[-1] and text[start - 1].isspace():
            start -= 1
        if start <= edges[-1]:  # nothing but space so far
            edges[-1] = max(edges[-1], stop)
            continue
        edges += [start, stop]
    last = len(text)
    while last > edges[-1] and text[last - 1].isspace():
        last -= 1
    edges = [*edges, last] if last > edges[-1] else edges[:-1]
    return np.array(edges, dtype=np.int64).reshape(-1, 2)  # [sentences, 2]


def sentence_around(text: str, start_char: int, end_char: int) -> tuple[int, int]:
    """The sentence, or the run of sentences, that holds the characters [start_char, end_char).

    At most `CONTEXT_CHARS` to each side: a longer sentence is cut between words where it has any.
    """
    for reach in (NEAR_CHARS, CONTEXT_CHARS):
        first, last = max(0, start_char - reach), min(len(text), end_char + reach)
        if first > 0:
            first = _word_edge(text, first, start_char)
        if last < len(text):
            space = max(text.rfind(" ", end_char, last), text.rfind("\n", end_char, last))
            last = space if space >= end_char else last
        bounds = sentence_bounds(text[first:last]) + first  # [sentences, 2]
        before = bounds[bounds[:, 0] <= start_char, 0]
        after = bounds[bounds[:, 1] >= end_char, 1]
        start = int(before[-1]) if len(before) else start_char
        end = int(after[0]) if len(after) else end_char
        # What begins after the cut and ends before it is a sentence of the whole text too.
        begins, ends = first == 0 or start > first + LOOKED_BACK, last == len(text) or end < last - LOOKED_BACK
        if begins and ends:
            break
    return start, max(end, end_char)


def _word_edge(text: str, first: int, limit: int) -> int:
    """The first position in (first, limit] after a space, else `first`."""
    spaces = [at for at in (text.find(" ", first, limit), text.find("\n", first, limit)) if at >= 0]
    return min(spaces) + 1 if spaces else first


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _ends_sentence(text: str, start: int, stop: int) -> bool:
    """Whether the space [start, stop) separates two sentences."""
    if stop == len(text) or any(mark in text[start:stop] for mark in LINE_BREAKS):
        return True
    tail = text[max(0, start - 24) : start].rstrip(CLOSING)
    if not tail or tail[-1] not in ".!?…":
        return False
    following = text[stop]
    if following in OPENING and stop + 1 < len(text):
        following = text[stop + 1]
    if following.islower():
        return False
    if tail[-1] != ".":
        return True
    word = tail[:-1].split()[-1:] or [""]
    name = word[0].lstrip(OPENING).lower()
    if name in NUMBERED_ABBREVIATIONS and following.isdigit():
        return False
    # "J. Smith", "U.S. Army", "p. 5": a letter that stands alone, or after a dot.
    is_initial = name[-1:].isalpha() and (len(name) == 1 or name[-2] == ".")
    return not is_initial and name not in ABBREVIATIONS
