"""The text that people read on an HTML page, with the offsets of the file as given; see `npm.corpus.markup`."""

from __future__ import annotations

import re

from npm.corpus.markup import HIDDEN, INLINE_TAG, SPACE, decoded, hidden, squeezed, visible

_TOKEN = re.compile(
    r"<!--[\s\S]*?(?:-->|\Z)|<(?P<raw>script|style)\b[\s\S]*?(?:</(?P=raw)\s*>|\Z)"
    r"|<(?P<end>/?)(?P<tag>[a-z][^\s/<>]*)(?:=\s*(?:\"[^\"]*\"|'[^']*')?|[^<>=])*+>|<[!?/][^<>]*+>"
    r"|(?P<entity>&#?\w{1,31};?)|(?P<data>[^<&]++|[<&])",
    re.IGNORECASE,
)
"""A comment, a script, a tag, a declaration, an entity, or text: every character belongs to one of them."""
_UNREAD = re.compile("template|noscript|svg|title|nav")


def page_text(page: str) -> tuple[str, str]:
    """Text of an HTML page, of the same length, and its title, else its first `h1`; "" without one.

    Tags, comments, scripts, styles, templates, drawings and navigation are hidden. Blocks are separate lines, the
    cells of a row are parted by `|`, `pre` keeps its lines.

    >>> text, title = page_text("<title>Leave</title><p>Up to <b>45</b>\\n days &amp; more.<p>Ask.")
    >>> title, visible(text)
    ('Leave', '\\nUp to 45 days & more.\\nAsk.')
    """
    reader = _Reader()
    pieces = [reader.read(token) for token in _TOKEN.finditer(page)]
    return squeezed("".join(pieces)), " ".join((reader.title or reader.heading).split())


class _Reader:
    """Reads the tokens of a page in order."""

    def __init__(self) -> None:
        self.title = self.heading = ""
        self._unread: list[str] = []  # open elements whose text is not read
        self._pre_depth = 0
        self._has_cell = self._is_heading = False  # in this row; within the first h1

    def read(self, token: re.Match[str]) -> str:
        """Text of a token, with HIDDEN for the rest."""
        if token["tag"]:
            read = self._tag(token["tag"].lower(), is_end=token["end"] != "", is_empty=token[0].endswith("/>"))
        elif token["entity"]:
            read = decoded(token[0])
        else:
            data = (token["data"] or "").replace(HIDDEN, " ")
            read = data if self._pre_depth else SPACE.sub(lambda run: " " + hidden(run[0][1:]), data)
        if self._unread == ["title"] and not token["tag"]:
            self.title += visible(read)
        read = "" if self._unread else read
        self.heading += visible(read) if self._is_heading else ""
        return read + HIDDEN * (len(token[0]) - len(read))

    def _tag(self, tag: str, *, is_end: bool, is_empty: bool) -> str:
        """Replacement of a tag: a space, a line break or a mark."""
        if _UNREAD.fullmatch(tag) and not is_end and not is_empty:
            self._unread.append(tag)
        elif is_end and tag in self._unread:
            del self._unread[self._unread.index(tag) :]
        self._pre_depth = max(0, self._pre_depth + (tag == "pre") * (-1 if is_end else 1))
        if tag == "h1":
            self._is_heading = not is_end and not self.heading
        if tag in ("td", "th"):
            had_cell, self._has_cell = self._has_cell, True
            return " | " if had_cell and not is_end else ""
        self._has_cell &= tag != "tr"
        if tag == "sup":
            return "" if is_end else " "
        return "" if INLINE_TAG.fullmatch(tag) else "\n"
