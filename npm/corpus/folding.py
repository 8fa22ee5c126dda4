"""Text in the form in which it is compared: one normal form, one case, without characters that nobody sees."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

import numpy as np

_INVISIBLE = "\xad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff"
"""Soft hyphens, characters without width, and marks of direction."""
_NOT_PRINTED = re.compile("[\xad\u200b\u2060\ufeff]+")
_NO_WIDTH = re.compile(f"[{_INVISIBLE}]+")
_MARKS = f"\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u064b-\u065f\u1160-\u11ff\u3099\u309a{_INVISIBLE}"
"""Characters that belong to the one before them."""
_CLUSTER = re.compile(rf"[\x00-\x7f]+(?![{_MARKS}])|[\s\S][{_MARKS}]*")
_KEPT = re.compile("(?<=[0-9])[⁰¹²³⁴-⁹⁺⁻]+|[¼-¾⅐-⅞]")
"""Exponents and fractions that would become a part of the number before them: 10⁶ is not 106."""
_ALIKE = str.maketrans({
    **dict.fromkeys("’‘ʼ", "'"), **dict.fromkeys("“”„«»", '"'), **dict.fromkeys("‐‑‒–—―−", "-"),
})  # fmt: skip
"""Marks that are one mark in several forms."""


def folded(text: str, *, match_case: bool = False) -> str:
    """A text in normal form NFKC without invisible characters, case-folded unless case is to match.

    >>> folded("Cafe\\u0301 Jo\\xadhann ﬁnal İzmir ＡＢ-5 m³ 10⁶ 2½")
    'café johann final izmir ab-5 m3 10⁶ 2½'
    """
    if not text.isascii():
        text = _NO_WIDTH.sub("", text)
        edges = [0, *(edge for kept in _KEPT.finditer(text) for edge in kept.span()), len(text)]
        parts = [text[start:stop] for start, stop in pairwise(edges)]
        parts[::2] = [unicodedata.normalize("NFKC", part) for part in parts[::2]]
        text = "".join(parts)
    if match_case:
        return text
    cased = text.casefold()
    return cased if cased.isascii() else unicodedata.normalize("NFC", cased.replace("i\u0307", "i"))


def printed(text: str) -> str:
    """A phrase in one line without soft hyphens and the like; joiners of letters and emoji stay.

    >>> printed("Jo\\xadhann\\n Ek")
    'Johann Ek'
    """
    return " ".join(_NOT_PRINTED.sub("", text).split())


def comparable(text: str, *, match_case: bool = False) -> tuple[str, np.ndarray]:
    """The folded text with one form of each mark, and where each of its characters begins in `text`, and the end.

    >>> plain, places = comparable("“Jo\\xadhann”")
    >>> plain, places.tolist()
    ('"johann"', [0, 1, 2, 4, 5, 6, 7, 8, 9])
    """
    if text.isascii():
        return folded(text, match_case=match_case), np.arange(len(text) + 1)
    pieces: list[str] = []
    places: list[np.ndarray] = []
    for cluster in _CLUSTER.finditer(text):
        start, stop = cluster.span()
        if cluster[0].isascii():
            pieces.append(folded(cluster[0], match_case=match_case))
            places.append(np.arange(start, stop))
        else:
            before = text[start - 1 : start] if text[start - 1 : start].isdigit() else ""
            pieces.append(folded(before + cluster[0], match_case=match_case)[len(before) :])
            places.append(np.full(len(pieces[-1]), start))
    return "".join(pieces).translate(_ALIKE), np.append(np.concatenate(places), len(text))
