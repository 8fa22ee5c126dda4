"""Text as people read it, with the offsets of the file as given.

What reads Markdown, HTML and wrapped text returns a text of the same length. What is not read becomes HIDDEN, white
space that is dropped before tokenizing and display: marks, link targets, all but one character of the space around
them. Cells of a table stay apart by CELL, the cells of its header by HEADER_CELL, so that `readable` can put them
before the cells of each row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from npm.corpus.text import STOP_WORDS

HIDDEN, CELL, HEADER_CELL = "\u2001", "\u037e", "\u0387"
"""EM QUAD, GREEK QUESTION MARK and GREEK ANO TELEIA: absent from text in a Unicode normal form. The first is white
space to code that does not know it."""
SPACE = re.compile(r"\s++")
_HIDING_SPACE = re.compile(rf"[^\S{HIDDEN}]*{HIDDEN}\s*")
_INLINE = (
    "a abbr b bdi bdo big cite code data del dfn em font i img input ins kbd label mark q s samp small span strike"
    " strong sub sup time tt u var wbr"
)
INLINE_TAGS = frozenset(_INLINE.split())
"""HTML tags that neither separate words nor end a sentence."""
STRUCK_TAGS = "del", "s", "strike"
"""HTML tags of text that is no longer valid."""

INVISIBLE = "\u2060"
"""WORD JOINER, a character without width, in place of HIDDEN where offsets count."""
_EDGE_OF_CELL = re.compile(f"[{CELL}{HEADER_CELL}]")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_AS_BAR = {ord(mark): "|" for mark in (CELL, HEADER_CELL)}
_AS_SHOWN = {**_AS_BAR, ord(HIDDEN): INVISIBLE}
SUPERSCRIPTS = str.maketrans("0123456789+-−n()", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻ⁿ⁽⁾")
_EXPONENT = re.compile(r"[+\-−]?[\dn]{1,3}")
_BASE = re.compile(
    r"(?:(?<![\w.,])(?P<number>\d+(?:[.,]\d+)?)|(?P<measure>[\d/·] ?)?(?<![^\W\d_])(?P<letters>[^\W\d_]{1,2}))$"
)
"""Base of a raised number that is an exponent and no note: a number, a unit or a variable of at most two letters."""
_YEAR = re.compile(r"(?:1[5-9]|20)\d\d")


class ReadText(NamedTuple):
    """Text that people read in a file, of the same length as the file."""

    text: str
    title: str  # "" without one
    headings: list[tuple[int, str]]  # first character and text of each


def unmarked(text: str) -> str:
    """A given text without the characters that mean something here."""
    return text.replace(HIDDEN, " ").replace(CELL, ";").replace(HEADER_CELL, "·")


def hidden(text: str) -> str:
    """As many HIDDEN as `text` has characters."""
    return HIDDEN * len(text)


def shown(text: str) -> str:
    """The text as programs get it by offsets: hidden characters have no width, and offsets are the same."""
    return text.translate(_AS_SHOWN)


def visible(text: str) -> str:
    """The text without hidden characters; its offsets are other ones."""
    return text.replace(HIDDEN, "").replace(CELL, "|").replace(HEADER_CELL, "|")


class Readable(NamedTuple):
    """A text without hidden characters, its rows with their header cells."""

    text: str
    places: np.ndarray  # i64 [characters + 1], in the text as stored; of header cells where their cell begins
    is_header: np.ndarray  # bool [characters], of header cells

    @property
    def is_inserted(self) -> np.ndarray:
        """Mask of the characters that are repeated from the header of their table, bool [characters]."""
        return np.asarray(self.is_header & (np.diff(self.places) == 0))


def readable(text: str, start: int = 0, stop: int | None = None) -> Readable:
    """The characters [start, stop) of a stored text as they are read: each row of a table as a sentence of its own.

    >>> stored = f"Depot{HEADER_CELL}Rate\\nPorto{CELL}737 EUR\\n"
    >>> readable(stored).text
    'Depot|Rate\\nDepot: Porto; Rate: 737 EUR\\n'
    >>> readable(stored, 17).text
    'Rate: 737 EUR\\n'
    """
    stop = len(text) if stop is None else stop
    characters = np.frombuffer(text[start:stop].encode("utf-32-le"), dtype=np.uint32)  # u32 [stop - start]
    places = start + np.flatnonzero(characters != ord(HIDDEN))  # i64 [visible characters]
    plain = text[start:stop].replace(HIDDEN, "")
    header, cells_before = _open_table(text, start) if start and CELL in text else ([], 0)
    if not header and HEADER_CELL not in plain:
        return Readable(plain.translate(_AS_BAR), np.append(places, stop), np.zeros(len(plain), dtype=bool))
    pieces: list[tuple[str, np.ndarray, bool]] = []  # text, places, and whether it is of a header
    done = 0
    for line in _LINE.findall(plain):
        own = places[done : done + len(line)]  # i64 [line]
        edges = len(_EDGE_OF_CELL.findall(line)) + cells_before
        if HEADER_CELL in line and CELL not in line:
            header, cells_before = [cell.strip() for cell in line.split(HEADER_CELL)], 0
            pieces.append((line.translate(_AS_BAR), own, True))
        elif edges and edges == len(header) - 1:
            pieces += _row(line, own, header[cells_before:])
        else:
            header = header if edges else []
            pieces.append((line.translate(_AS_BAR), own, False))
        cells_before = 0
        done += len(line)
    lengths = [len(piece) for piece, _, _ in pieces]
    return Readable(
        "".join(piece for piece, _, _ in pieces),
        np.append(np.concatenate([own for _, own, _ in pieces]), stop),
        np.repeat([is_header for _, _, is_header in pieces], lengths),
    )


def _row(line: str, places: np.ndarray, header: Sequence[str]) -> Iterator[tuple[str, np.ndarray, bool]]:
    """The cells of a row that are not empty, each after the cell of the header above it."""
    edges = [-1, *(edge.start() for edge in _EDGE_OF_CELL.finditer(line)), len(line)]
    mark = ""
    for name, (before, after) in zip(header, pairwise(edges), strict=False):
        cell = line[before + 1 : after]
        if body := cell.strip():
            first = before + 1 + len(cell) - len(cell.lstrip())
            above = f"{mark}{name}: " if name else mark
            yield above, np.full(len(above), places[first]), True
            yield body, places[first : first + len(body)], False
            mark = "; "
    ending = line[len(line.rstrip("\r\n")) :]
    yield ending, places[len(line) - len(ending) :], False


def _open_table(text: str, start: int) -> tuple[list[str], int]:
    """Header of the table in which the line of character `start` is a row, and the cells of the row before it."""
    first = text.rfind("\n", 0, start) + 1
    above = text.rfind(HEADER_CELL, 0, first)
    begin = text.rfind("\n", 0, above) + 1
    header, *rows = text[begin : max(first - 1, 0)].split("\n") if above >= 0 else [CELL]
    if CELL in header or not all(CELL in row for row in rows):
        return [], 0
    return [visible(cell).strip() for cell in header.split(HEADER_CELL)], len(_EDGE_OF_CELL.findall(text, first, start))


def row_text(cells: Mapping[str, str]) -> str:
    """A row of a table under the header of its columns, as a text of its own.

    >>> readable(row_text({"Depot": "Porto", "Rate": "737 EUR"})).text
    'Depot|Rate\\nDepot: Porto; Rate: 737 EUR\\n'
    """
    header, row = ([" ".join(unmarked(cell).split()) for cell in each] for each in (cells, cells.values()))
    if len(header) == 1:
        return row[0]
    return f"{HEADER_CELL.join(header)}\n{CELL.join(row)}\n" if any(row) else ""


class Cell(NamedTuple):
    """A cell of a row under a header, with its characters in the text as stored."""

    header: str
    text: str
    start: int
    stop: int


def table_rows(read: Readable) -> Iterator[list[Cell]]:
    """The cells of each row of a table that has a header.

    >>> [[cell.text for cell in row] for row in table_rows(readable(f"A{HEADER_CELL}B\\n1{CELL}2\\n3{CELL}4\\n"))]
    [['1', '2'], ['3', '4']]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], read.is_inserted, [False]])))  # i64 [2 · cells]
    row: list[Cell] = []
    ends = [*edges[2::2].tolist(), None]  # of each cell, where the header of the next begins
    for (first, stop), after in zip(edges.reshape(-1, 2).tolist(), ends, strict=False):
        text, ending, _ = read.text[stop:after].partition("\n")
        start, end = read.places[[stop, stop + len(text) - 1]].tolist()
        row.append(Cell(read.text[first:stop].removeprefix("; ").removesuffix(": "), text, start, end + 1))
        if ending or after is None:
            yield row
            row = []


def sections(read: ReadText) -> Iterator[tuple[str, str]]:
    """Yield heading and text of the sections between headings; the text contains the heading.

    A heading without text of its own belongs to the next section.

    >>> read = ReadText("A\\nB\\nOne.\\nC\\nTwo.\\n", "A", [(0, "A"), (2, "B"), (9, "C")])
    >>> [(name, visible(text)) for name, text in sections(read)]
    [('B', 'A\\nB\\nOne.\\n'), ('C', 'C\\nTwo.\\n')]
    """
    begin = 0
    named = [(start, heading) for start, heading in read.headings if heading]
    for (start, heading), (stop, _) in pairwise([(0, ""), *named, (len(read.text), "")]):
        is_bare = " ".join(visible(read.text[start:stop]).split()) == heading
        if not is_bare or (heading and stop == len(read.text)):
            yield heading, read.text[begin:stop]
            begin = stop


def raised(before: str, content: str) -> str:
    """Raised characters after the visible text `before`: an exponent, an ordinal's letters, or HIDDEN for a note.

    >>> [raised(*each) for each in (("25 m", "2"), ("10", "−6"), ("1", "st"), ("x", "2"))]
    ['²', '⁻⁶', 'st', '²']
    >>> [raised(*each).strip() for each in (("founder", "1"), ("1998", "4"), ("word.", "2"), ("it", "3"), ("x", "[7]"))]
    ['', '', '', '', '']
    """
    plain, base = visible(content).strip(), _BASE.search(before)
    if _EXPONENT.fullmatch(plain) and base is not None:
        is_note = _YEAR.fullmatch(base["number"] or "") or (not base["measure"] and base["letters"] in STOP_WORDS)
        return hidden(content) if is_note else content.translate(SUPERSCRIPTS)
    return content if plain.isalpha() and len(plain) > 1 and before[-1:].isalnum() else hidden(content)


def decoded(entity: str) -> str:
    """The character that an HTML entity means, and HIDDEN for the rest of it; the same if it is none.

    >>> visible(decoded("&amp;")), visible(decoded("&nbsp;")), decoded("&unheard;")
    ('&', ' ', '&unheard;')
    """
    character = SPACE.sub(" ", unescape(entity))
    return character + HIDDEN * (len(entity) - len(character))


def squeezed(text: str) -> str:
    """Of white space with hidden characters one line break or space, the rest hidden; other white space unchanged."""
    return _HIDING_SPACE.sub(_one_space, text)


def _one_space(run: re.Match[str]) -> str:
    space = run[0]
    before, line_break, indent = space.rpartition("\n")
    if line_break:
        return line_break + hidden(before) + (hidden(indent) if HIDDEN in indent else indent)
    kept = " " if run.start() and visible(space) else ""
    return kept + hidden(space[len(kept) :])
