"""The text that people read on an HTML page, with the offsets of the file as given; see `npm.corpus.markup`."""

from __future__ import annotations

import re

from npm.corpus.markup import (
    CELL,
    HEADER_CELL,
    HIDDEN,
    INLINE_TAGS,
    STRUCK_TAGS,
    ReadText,
    decoded,
    hidden,
    raised,
    squeezed,
    unmarked,
    visible,
)

_TOKEN = re.compile(
    r"<!--[\s\S]*?(?:-->|\Z)|<(?P<raw>script|style)\b[\s\S]*?(?:</(?P=raw)\s*>|\Z)"
    r"|<(?P<end>/?)(?P<tag>[a-z][^\s/<>]*)(?:=\s*(?:\"[^\"]*\"|'[^']*')?|[^<>=])*+>|<[!?/][^<>]*+>"
    r"|(?P<entity>&#?\w{1,31};?)|(?P<data>[^<&]++|[<&])",
    re.IGNORECASE,
)
"""A comment, a script, a tag, a declaration, an entity, or text: every character belongs to one of them."""
_UNREAD = frozenset({"template", "noscript", "svg", "title", "nav", *STRUCK_TAGS})
_HIDING = re.compile(
    r"\s(?:hidden(?=[\s=/>])|style\s*=\s*[\"']?[^\"'>]*(?:display\s*:\s*none|visibility\s*:\s*hidden))", re.I
)
"""Attributes of an element that a browser does not show."""
_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_EMPTY, _OFTEN_OPEN = "area base br col embed hr img input link meta source track wbr", "p li dt dd option tr td th"
_VOID, _UNCLOSED = frozenset(_EMPTY.split()), frozenset(_OFTEN_OPEN.split())
"""Elements whose end tag is often missing: the next one of the kind ends them."""
_LONG_SPACE = re.compile(r"\s{2,}|[^\S ]")
_DIGIT = re.compile(r"\d")
REACH, MOST_OPEN = 8, 500
"""Tokens before a raised number that are looked at; elements in each other that are kept in mind."""


def page_text(page: str) -> ReadText:
    """Text of an HTML page, its title, else its first `h1`, and its headings.

    Tags, comments, scripts, styles, templates, drawings, navigation, struck and hidden elements are hidden. Blocks are
    separate lines, the cells of a row stay apart in one line, `pre` keeps its lines.

    >>> text, title, _ = page_text("<title>Leave</title><p>Up to <b>45</b>\\n days &amp; more.<p>Ask.")
    >>> title, visible(text)
    ('Leave', '\\nUp to 45 days & more.\\nAsk.')
    """
    reader = _Reader()
    for token in _TOKEN.finditer(unmarked(page)):
        reader.read(token)
    headings = [(start, " ".join(text.split())) for start, _, text in reader.headings]
    first = (text for (_, tag, _), (_, text) in zip(reader.headings, headings, strict=True) if tag == "h1" and text)
    return ReadText(squeezed("".join(reader.pieces)), " ".join(reader.title.split()) or next(first, ""), headings)


def _one_space(run: re.Match[str]) -> str:
    return " " + hidden(run[0][1:])


class _Reader:
    """Reads the tokens of a page in order."""

    def __init__(self) -> None:
        self.title = ""
        self.headings: list[tuple[int, str, str]] = []  # first character, tag, text
        self.pieces: list[str] = []  # text of each token, with HIDDEN for the rest
        self._open: list[str] = []  # elements
        self._unread: int | None = None  # number of open elements around the one that is not read
        self._pre_depth = 0
        self._row: int | None = None  # first piece of the open row of a table
        self._rows: list[tuple[int, int]] = []  # pieces of the rows of the open table that have several cells
        self._has_cell = self._is_header = self._is_heading = False  # in this row; of a header; within a heading
        self._raised: int | None = None  # first piece of raised text

    def read(self, token: re.Match[str]) -> None:
        """Add the text of a token."""
        given, tag = token[0], (token["tag"] or "").lower()
        was_unread = self._unread is not None
        if tag:
            read = self._tag(tag, given, is_end=token["end"] != "")
        elif token["entity"]:
            read = decoded(given)
        else:
            data = token["data"] or ""
            read = data if self._pre_depth else _LONG_SPACE.sub(_one_space, data)
        if was_unread or self._unread is not None:
            if was_unread and not tag and self._open[-1:] == ["title"] and self._unread == len(self._open) - 1:
                self.title += visible(read)
            read = "" if not tag or tag in INLINE_TAGS or (was_unread and self._unread is not None) else "\n"
        elif tag in _HEADINGS:
            self._is_heading = not token["end"]
            self.headings += [(token.start(), tag, "")] if self._is_heading else []
        elif self._is_heading:
            start, heading, text = self.headings[-1]
            self.headings[-1] = (start, heading, text + visible(read))
        self.pieces.append(read + HIDDEN * (len(given) - len(read)))

    def _tag(self, tag: str, given: str, *, is_end: bool) -> str:
        """Replacement of a tag: a line break or the edge of a cell."""
        if is_end:
            self._close(tag)
        elif tag not in _VOID and not given.endswith("/>"):
            if tag in _UNCLOSED and self._open[-1:] == [tag]:
                self._close(tag)
            if self._unread is None and (tag in _UNREAD or _HIDING.search(given)):
                self._unread = len(self._open)
            if len(self._open) < MOST_OPEN:
                self._open.append(tag)
        if tag == "pre":
            self._pre_depth = max(0, self._pre_depth + (-1 if is_end else 1))
        elif tag == "sup":
            self._raise(is_end=is_end)
        elif tag in ("td", "th"):
            return self._cell(tag, is_end=is_end)
        elif tag in ("tr", "table"):
            self._end_row(has_nested=tag == "table" and not is_end)
            if tag == "table":
                self._end_table()
            self._row = len(self.pieces) + 1 if tag == "tr" and not is_end else None
        return "" if tag in INLINE_TAGS else "\n"

    def _close(self, tag: str) -> None:
        """Close the innermost open element of a kind, and those in it."""
        if tag in self._open:
            del self._open[len(self._open) - 1 - self._open[::-1].index(tag) :]
            if self._unread is not None and len(self._open) <= self._unread:
                self._unread = None

    def _cell(self, tag: str, *, is_end: bool) -> str:
        if is_end:
            return ""
        had_cell, self._has_cell = self._has_cell, True
        self._is_header = tag == "th" and (self._is_header or not had_cell)
        return (HEADER_CELL if self._is_header else CELL) if had_cell else ""

    def _end_row(self, *, has_nested: bool) -> None:
        """Make a row of several cells one line."""
        edge = HEADER_CELL if self._is_header or "thead" in self._open else CELL
        if self._row is not None and not has_nested:
            row = self.pieces[self._row :]
            if sum(piece[:1] in (CELL, HEADER_CELL) for piece in row):
                marks = str.maketrans({"\n": " ", CELL: edge, HEADER_CELL: edge})
                self.pieces[self._row :] = [piece.translate(marks) for piece in row]
                self._rows.append((self._row, len(self.pieces)))
        self._has_cell = self._is_header = False

    def _end_table(self) -> None:
        """Take the first row for the header of a table without one if a column has numbers only in the rows below."""
        places, self._rows = self._rows, []
        rows = ["".join(self.pieces[first:stop]) for first, stop in places]
        if len(rows) < 2 or any(HEADER_CELL in row or row.count(CELL) != rows[0].count(CELL) for row in rows):
            return
        cells = [[_DIGIT.search(cell) is not None for cell in row.split(CELL)] for row in rows]
        if not any(cells[0]) and any(all(column) for column in zip(*cells[1:], strict=True)):
            own = slice(*places[0])
            self.pieces[own] = [piece.replace(CELL, HEADER_CELL) for piece in self.pieces[own]]

    def _raise(self, *, is_end: bool) -> None:
        if not is_end:
            self._raised = len(self.pieces) + 1
        elif self._raised is not None:
            first, self._raised = self._raised, None
            before = visible("".join(self.pieces[max(0, first - REACH) : first]))
            content = "".join(self.pieces[first:])
            is_link = self._open[-1:] == ["a"] or content.startswith(HIDDEN)
            read = hidden(content) if is_link else raised(before, content)
            self.pieces[first:] = [read] if read else []
