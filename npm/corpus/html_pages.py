"""The text that people read on an HTML page, with the offsets of the file as given; see `npm.corpus.markup`."""

from __future__ import annotations

import re

from npm.corpus.markup import HIDDEN, INLINE_TAG, SPACE, ReadText, decoded, hidden, squeezed, visible

_TOKEN = re.compile(
    r"<!--[\s\S]*?(?:-->|\Z)|<(?P<raw>script|style)\b[\s\S]*?(?:</(?P=raw)\s*>|\Z)"
    r"|<(?P<end>/?)(?P<tag>[a-z][^\s/<>]*)(?:=\s*(?:\"[^\"]*\"|'[^']*')?|[^<>=])*+>|<[!?/][^<>]*+>"
    r"|(?P<entity>&#?\w{1,31};?)|(?P<data>[^<&]++|[<&])",
    re.IGNORECASE,
)
"""A comment, a script, a tag, a declaration, an entity, or text: every character belongs to one of them."""
_UNREAD = re.compile("template|noscript|svg|title|nav")
_HEADING = re.compile("h[1-6]")


def page_text(page: str) -> ReadText:
    """Text of an HTML page, its title, else its first `h1`, and its headings.

    Tags, comments, scripts, styles, templates, drawings and navigation are hidden. Blocks are separate lines, the
    cells of a row are parted by `|`, `pre` keeps its lines.

    >>> text, title, _ = page_text("<title>Leave</title><p>Up to <b>45</b>\\n days &amp; more.<p>Ask.")
    >>> title, visible(text)
    ('Leave', '\\nUp to 45 days & more.\\nAsk.')
    """
    reader = _Reader()
    pieces = [reader.read(token) for token in _TOKEN.finditer(page)]
    headings = [(start, " ".join(text.split())) for start, _, text in reader.headings]
    first = (text for (_, tag, _), (_, text) in zip(reader.headings, headings, strict=True) if tag == "h1" and text)
    return ReadText(squeezed("".join(pieces)), " ".join(reader.title.split()) or next(first, ""), headings)


class _Reader:
    """Reads the tokens of a page in order."""

    def __init__(self) -> None:
        self.title = ""
        self.headings: list[tuple[int, str, str]] = []  # first character, tag, text
        self._unread: list[str] = []  # open elements whose text is not read
        self._pre_depth = 0
        self._has_cell = self._is_heading = False  # in this row; within a heading

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
        if token["tag"] and _HEADING.fullmatch(tag := token["tag"].lower()) and not self._unread:
            self._is_heading = not token["end"]
            self.headings += [(token.start(), tag, "")] if self._is_heading else []
        elif self._is_heading:
            start, tag, text = self.headings[-1]
            self.headings[-1] = (start, tag, text + visible(read))
        return read + HIDDEN * (len(token[0]) - len(read))

    def _tag(self, tag: str, *, is_end: bool, is_empty: bool) -> str:
        """Replacement of a tag: a space, a line break or a mark."""
        if _UNREAD.fullmatch(tag) and not is_end and not is_empty:
            self._unread.append(tag)
        elif is_end and tag in self._unread:
            del self._unread[self._unread.index(tag) :]
        self._pre_depth = max(0, self._pre_depth + (tag == "pre") * (-1 if is_end else 1))
        if tag in ("td", "th"):
            had_cell, self._has_cell = self._has_cell, True
            return " | " if had_cell and not is_end else ""
        self._has_cell &= tag != "tr"
        if tag == "sup":
            return "" if is_end else " "
        return "" if INLINE_TAG.fullmatch(tag) else "\n"
