"""The text that people read on an HTML page, with the offsets of the file as given; see `npm.corpus.markup`."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from npm.corpus.markup import HIDDEN, INLINE_TAG, SPACE, decoded, hidden, squeezed, visible

_UNREAD = re.compile("script|style|template|noscript|svg|title|nav")
_ENTITY = re.compile(r"&#?\w+;?")


def page_text(page: str) -> tuple[str, str]:
    """What is read of an HTML page, of the same length, and its title, else its first `h1`; "" without one.

    Tags, comments, scripts, styles, templates, drawings and navigation are hidden. Blocks are lines of their own, the
    cells of a row are parted by `|`, `pre` keeps its lines.

    >>> text, title = page_text("<title>Leave</title><p>Up to <b>45</b>\\n days &amp; more.<p>Ask.")
    >>> title, visible(text)
    ('Leave', '\\nUp to 45 days & more.\\nAsk.')
    """
    parser = _Page(page)
    parser.feed(page)
    parser.close()
    text = squeezed("".join(parser.characters))
    return text, " ".join(parser.title.split()) or " ".join(visible(text[slice(*parser.heading)]).split())


class _Page(HTMLParser):
    """Writes what is read into `characters`, at the place where it is in the page."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=False)
        self.characters = [HIDDEN] * len(page)
        self.title = ""
        self.heading = (0, 0)  # where the first one begins and ends
        self._page = page
        self._line_starts = [0, *(found.end() for found in re.finditer("\n", page))]
        self._unread: list[str] = []  # open elements that are not read
        self._pre = 0  # depth
        self._has_cell = False  # in this row

    def _place(self) -> int:
        line, column = self.getpos()
        return self._line_starts[line - 1] + column

    def _write(self, text: str) -> None:
        if self._unread[:1] == ["title"]:
            self.title += visible(text)
        elif not self._unread:
            place = self._place()
            self.characters[place : place + len(text)] = text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - its signature
        if tag in ("td", "th"):
            self._write(" | " if self._has_cell else "")
            self._has_cell = True
        else:
            self._has_cell &= tag != "tr"
            self._separate(tag)
        if _UNREAD.fullmatch(tag):
            self._unread.append(tag)
        self._pre += tag == "pre"
        if tag == "h1" and self.heading == (0, 0):
            self.heading = (self._place(), len(self._page))

    def handle_endtag(self, tag: str) -> None:
        if tag in self._unread:
            del self._unread[self._unread.index(tag) :]
        self._pre -= tag == "pre" and self._pre > 0
        if tag == "h1" and self.heading[1] == len(self._page):
            self.heading = (self.heading[0], self._place())
        if tag not in ("td", "th", "sup"):
            self._separate(tag)

    def _separate(self, tag: str) -> None:
        if not INLINE_TAG.fullmatch(tag):
            self._write(" " if tag == "sup" else "\n")

    def handle_data(self, data: str) -> None:
        data = data.replace(HIDDEN, " ")
        self._write(data if self._pre else SPACE.sub(lambda run: " " + hidden(run[0][1:]), data))

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        """Take `<![if !IE]>` and the like for a comment, as browsers do; the parser would raise AssertionError."""
        return self.parse_bogus_comment(i, report)

    def handle_entityref(self, name: str) -> None:  # noqa: ARG002 - it may have been written without a semicolon
        entity = _ENTITY.match(self._page, self._place())
        self._write(decoded(entity[0]) if entity else "&")

    handle_charref = handle_entityref
