"""The text that people read in Markdown and wrapped plain text, with the offsets of the file as given.

Each function returns a text of the same length. What is not read becomes HIDDEN, white space that is dropped before
tokenizing and display: marks, link targets, all but one character of the space around them. A joined line break
becomes a space; the end of a block stays a line break.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from html import unescape
from itertools import pairwise
from typing import NamedTuple

from npm.core.types import INVISIBLE

HIDDEN = "\u2001"
"""EM QUAD: white space to code that does not know it, and absent from text in a Unicode normal form."""
CODE_INDENT = 4

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_JOINT = re.compile(rf"(?<![ \t\r{HIDDEN}])[ \t\r{HIDDEN}]*+\n[ \t{HIDDEN}]*+")
_QUOTE = re.compile(r"(?:(?!>>> ) {0,3}> ?)*")
_FENCE = re.compile(r"(`{3,})[^`]*$|(~{3,})", re.M)
_RULE = re.compile(r"([-=*_~])(?:[ \t]*\1)+")
_HEADING = re.compile(r"#{1,6}(?=\s)")
_CLOSING_MARKS = re.compile(r"(?<!\S)#+$")
_DEFINITION = re.compile(r"\[(?!\^)[^\[\]]+\]:[ \t]+\S")
_TABLE_RULE = re.compile(r"(?=.*\|)\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?")
_BULLET = re.compile(r"(?:[-*+•◦▪:]|\[\^[^\]\s]+\]:)(?=\s)")
_BULLET_MARK = re.compile(rf"[ \t{HIDDEN}]*[-*+•◦▪:][ \t](?:[ \t]*\[[ xX]\](?=\s))?")
_NUMBER = re.compile(r"\(?(?:\d{1,4}(?:\.\d+)*|[A-Za-z]|[ivxlcIVXLC]{2,5})[.)](?=\s)")
_CODE_MARK = re.compile(r"[={}<>\\|_]|\w[(\[]|^[#$/%]")
_PAUSE = re.compile(r"(?:[.;:,!?…]|\band|\bor)[\"'”’)\]]*\s*$")


class _Kind(Enum):
    """Runs of lines, by how they are read."""

    text = "text"
    heading = "heading"
    row = "row of a table"
    rule = "nothing but marks"
    kept = "code or an empty line"


Run = tuple[_Kind, str]


class ReadText(NamedTuple):
    """Text that people read in a file, of the same length as the file."""

    text: str
    title: str  # "" without one
    headings: list[tuple[int, str]]  # first character and text of each


def shown(text: str) -> str:
    """The text as people and programs get it: hidden characters have no width, and offsets are the same."""
    return text.replace(HIDDEN, INVISIBLE)


def visible(text: str) -> str:
    """The text without hidden characters; its offsets are other ones."""
    return text.replace(HIDDEN, "")


def joined_lines(text: str) -> str:
    """Plain text whose paragraphs are one line each.

    Empty lines, list items, headings, table rows, code and deeper indentation end a paragraph.

    >>> visible(joined_lines("The Office of\\nCommunications.\\n\\n- one\\n  item\\n- two"))
    'The Office of Communications.\\n\\n- one item\\n- two'
    """
    runs = _Blocks(is_markdown=False).runs(text.replace(HIDDEN, " "))
    return "".join(_joined(run) if kind in (_Kind.text, _Kind.heading) else run for kind, run in runs)


def _joined(run: str) -> str:
    """The lines of a paragraph as one, with the line end of the last."""
    body = run.rstrip()
    return _JOINT.sub(lambda joint: " " + hidden(joint[0][1:]), body) + run[len(body) :]


def hidden(text: str) -> str:
    """As many HIDDEN as `text` has characters."""
    return HIDDEN * len(text)


class _Blocks:
    """Cuts lines into paragraphs and the text between them, and hides the marks of block quotes."""

    def __init__(self, *, is_markdown: bool, join_lines: bool = True) -> None:
        self._is_markdown, self._join_lines = is_markdown, join_lines
        self._run: list[str] = []  # the lines of the open paragraph
        self._is_item = self._is_table = self._is_code = False
        self._fence = ""  # the mark that closes a fenced block of code
        self._quotes = 0  # depth of block quotes
        self._base = 0  # column at which the text of the last paragraph began
        self._first_indent = self._last_indent = 0  # columns, of the first and the last line of the open paragraph

    def runs(self, text: str) -> Iterator[Run]:
        """All lines of a text, in order."""
        for line in _LINE.findall(text):
            yield from self._fenced(line) if self._fence else self._line(line)
        yield from self._finished()

    def _finished(self, kind: _Kind = _Kind.text) -> Iterator[Run]:
        if self._run:
            yield kind, "".join(self._run)
        self._run = []

    def _fenced(self, line: str) -> Iterator[Run]:
        mark = line.strip(" \t\r\n>")
        is_end = mark.startswith(self._fence) and not mark.strip(self._fence[0])
        self._fence = "" if is_end else self._fence
        yield (_Kind.rule if is_end else _Kind.kept), line

    def _line(self, line: str) -> Iterator[Run]:
        quote = _QUOTE.match(line)[0]  # type: ignore[index] # it matches nothing, too
        content = line[len(quote) :]
        line, body, stripped = hidden(quote) + content, content.lstrip(), content.strip()
        indent = content[: len(content) - len(body)].expandtabs(CODE_INDENT).count(" ")
        if quote.count(">") != self._quotes:
            yield from self._finished()
            self._quotes, self._base = quote.count(">"), 0
        self._is_table &= "|" in stripped
        is_code = self._is_markdown or self._is_code or _CODE_MARK.search(stripped) is not None
        self._is_code = stripped != "" and not self._run and indent >= self._base + CODE_INDENT and is_code
        if not stripped or self._is_code:
            yield from self._finished()
            yield _Kind.kept, line
        elif opening := _FENCE.match(body):
            yield from self._finished()
            self._fence = opening[1] or opening[2]
            yield _Kind.rule, line
        elif _TABLE_RULE.fullmatch(stripped):
            header = [self._run.pop()] if self._run else []
            yield from self._finished()
            yield from ((_Kind.row, row) for row in header)
            yield _Kind.rule, line
            self._is_table = True
        elif self._is_markdown and _DEFINITION.match(body):
            yield from self._finished()
            yield _Kind.rule, line
        elif _RULE.fullmatch(stripped):
            yield from self._finished(_Kind.heading if stripped[0] in "-=" else _Kind.text)
            yield _Kind.rule, line
        elif self._is_table or body.startswith("|") or _HEADING.match(body):
            yield from self._finished()
            yield (_Kind.row if self._is_table or body.startswith("|") else _Kind.heading), line
            self._base = indent
        else:
            yield from self._text(line, body, indent)

    def _text(self, line: str, body: str, indent: int) -> Iterator[Run]:
        """A line of a paragraph: of the open one, or the first of the next."""
        bullet, number = _BULLET.match(body), _NUMBER.match(body)
        marker = bullet or number
        is_next = self._is_item and indent <= self._first_indent
        is_deeper = indent > self._last_indent and not (self._is_item and len(self._run) == 1)
        if self._run and (
            bullet is not None
            or (
                number is not None
                and (
                    (is_next and body[0] != "(")
                    or number[0] in ("1.", "1)")
                    or _PAUSE.search(self._run[-1]) is not None
                )
            )
            or (is_deeper and not self._is_markdown)
        ):
            yield from self._finished()
        if not self._run:
            text = body[marker.end() :].lstrip(" \t") if marker else body
            self._is_item, self._first_indent = marker is not None, indent
            self._base = indent + len(body) - len(text)
        self._last_indent = indent
        self._run.append(line)
        if not self._join_lines:
            yield from self._finished()


_SKIPPED = re.compile(
    r"(?P<code>^[ \t>]*(?P<fence>```+(?=[^`\n]*$)|~~~+)[\s\S]*?(?:^[ \t>]*(?P=fence)[`~]*[ \t\r]*$|\Z)"
    r"|(?<!`)(?P<ticks>`+)(?!`)(?:(?!\n[ \t]*\r?\n)[\s\S])+?(?<!`)(?P=ticks)(?!`))"
    r"|<!--[\s\S]*?(?:-->|\Z)|<(?P<tag>script|style)\b[\s\S]*?(?:</(?P=tag)\s*>|\Z)"
    r"|\{\{[\s\S]{0,1000}?\}\}|\{%[\s\S]{0,1000}?%\}|\{[#:][^{}\n]{1,200}\}",
    re.M | re.I,
)
"""Comments, template tags and scripts, and the code in which their marks are text."""
_LITERAL = re.compile(
    r"(?<!`)(`+)(?!`)([\s\S]+?)(?<!`)\1(?!`)|\\([!-/:-@\[-`{-~]|(?=\s))|<((?:https?|ftp|mailto):[^\s<>]*)>"
    r"|(https?://[^\s<>()\[\]*`]+)"
)
"""Text in which no mark counts: code, escaped characters, addresses. The last group is read."""
_BRACKETED = r"((?:[^\[\]]|\[[^\[\]]*\])*)"
_TARGET = r"(?:\((?:[^()\n]|\([^()\n]*\))*\)|\[[^\[\]]*\])"
_EDGE, _EDGE_BEFORE = r"(?=[^ \t\r\n])", r"(?<=[^ \t\r\n])"
_MARKS = [
    re.compile(pattern)
    for pattern in (
        r"\[\^[^\]\s]+\]:?",
        rf"!\[{_BRACKETED.replace('(', '(?:', 1)}\]{_TARGET}",
        rf"\[{_BRACKETED}\]{_TARGET}",
        rf"(\*\*){_EDGE}((?:[^*]|\*(?!\*))+){_EDGE_BEFORE}\*\*",
        rf"(?<!\w)(__){_EDGE}((?:[^_]|_(?!_))+){_EDGE_BEFORE}__(?!\w)",
        rf"(\*){_EDGE}([^*]+){_EDGE_BEFORE}\*",
        rf"(?<!\w)(_){_EDGE}((?:[^_]|(?<=\w)_(?=\w))+){_EDGE_BEFORE}_(?!\w)",
        rf"(~~){_EDGE}([^~]+)~~",
    )
]
"""Footnotes, images, links, emphasis; of each the last group is read."""
_TAG = re.compile(r"</?([A-Za-z][\w-]*)(?:\s[^<>]*)?/?>")
_ENTITY = re.compile(r"&#?\w{1,31};")
SPACE = re.compile(r"\s++")
_LITERAL_CHARACTER = "\ue000"
INLINE_TAG = re.compile(
    "a|abbr|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|ins|kbd|label|mark|q|s|samp|small|span|strike|strong|sub"
    "|time|tt|u|var|wbr"
)
"""HTML tags that neither separate words nor end a sentence."""


def markdown_text(text: str, *, join_lines: bool = True) -> ReadText:
    """Text that people read in Markdown, its first heading as the title, and all headings.

    Bullets, marks of headings and emphasis, link targets, images, HTML tags, comments and template tags are hidden;
    code stays unchanged, without its fences; the cells of a table stay separated by `|`.

    >>> plain, title, _ = markdown_text("# Leave\\n\\nTake **45\\ndays** ([form](/f.pdf)).\\n")
    >>> title, visible(plain)
    ('Leave', 'Leave\\n\\nTake 45 days (form).\\n')
    """
    text = _SKIPPED.sub(lambda skipped: skipped["code"] or hidden(skipped[0]), text.replace(HIDDEN, " "))
    pieces: list[str] = []
    headings: list[tuple[int, str]] = []
    position = 0
    for kind, run in _Blocks(is_markdown=True, join_lines=join_lines).runs(text):
        piece = _read(kind, run)
        pieces.append(piece)
        if kind is _Kind.heading:
            headings.append((position, " ".join(visible(piece).split())))
        position += len(run)
    return ReadText(squeezed("".join(pieces)), next((name for _, name in headings if name), ""), headings)


def sections(read: ReadText) -> Iterator[tuple[str, str]]:
    """Yield heading and text of the sections between headings; the text contains the heading.

    A heading without text of its own belongs to the next section.

    >>> [(name, visible(text)) for name, text in sections(markdown_text("# A\\n## B\\nOne.\\n## C\\nTwo.\\n"))]
    [('B', 'A\\nB\\nOne.\\n'), ('C', 'C\\nTwo.\\n')]
    """
    begin = 0
    named = [(start, heading) for start, heading in read.headings if heading]
    for (start, heading), (stop, _) in pairwise([(0, ""), *named, (len(read.text), "")]):
        is_bare = " ".join(visible(read.text[start:stop]).split()) == heading
        if not is_bare or (heading and stop == len(read.text)):
            yield heading, read.text[begin:stop]
            begin = stop


def _read(kind: _Kind, run: str) -> str:
    """Text of a run of lines, of the same length."""
    if kind is _Kind.kept:
        return run
    body, start = run.rstrip(), len(run) - len(run.lstrip())
    stop = start if kind is _Kind.rule else len(body)
    if kind is _Kind.row:
        start, stop = start + body.startswith("|", start), stop - body.endswith("|")
    elif kind is _Kind.heading and (marks := _HEADING.match(run, start)):
        closing = _CLOSING_MARKS.search(body, marks.end())
        start, stop = marks.end(), closing.start() if closing else stop
    elif kind is _Kind.text and (bullet := _BULLET_MARK.match(run)):
        start = min(bullet.end(), stop)
    return hidden(run[:start]) + _inline(_joined(run[start:stop])) + hidden(body[max(start, stop) :]) + run[len(body) :]


def _inline(text: str) -> str:
    """A paragraph without its marks, of the same length."""
    marked = _LITERAL.sub(lambda found: re.sub(rf"[^{HIDDEN}]", _LITERAL_CHARACTER, _last_group(found)), text)
    marked = _TAG.sub(_tag_space, marked)
    for mark in _MARKS:
        marked = mark.sub(_last_group, marked)
    marked = _ENTITY.sub(lambda entity: decoded(entity[0]), marked)
    if _LITERAL_CHARACTER not in marked:
        return marked
    return "".join(given if now == _LITERAL_CHARACTER else now for given, now in zip(text, marked, strict=True))


def _last_group(found: re.Match[str]) -> str:
    """The last group of a match in its position, all else hidden."""
    first, last = found.span(found.lastindex) if found.lastindex else (found.start(), found.start())
    return HIDDEN * (first - found.start()) + found.string[first:last] + HIDDEN * (found.end() - last)


def _tag_space(tag: re.Match[str]) -> str:
    name = tag[1].lower()
    space = "" if INLINE_TAG.fullmatch(name) else " " if name in ("br", "sup") else "\n"
    return space + hidden(tag[0][len(space) :])


def decoded(entity: str) -> str:
    """The character that an HTML entity means, and HIDDEN for the rest of it; the same if it is none.

    >>> visible(decoded("&amp;")), visible(decoded("&nbsp;")), decoded("&unheard;")
    ('&', ' ', '&unheard;')
    """
    character = SPACE.sub(" ", unescape(entity))
    return character + HIDDEN * (len(entity) - len(character))


def squeezed(text: str) -> str:
    """Of white space with hidden characters one line break or space, the rest hidden; other white space unchanged."""
    return SPACE.sub(_one_space, text)


def _one_space(run: re.Match[str]) -> str:
    space = run[0]
    if HIDDEN not in space:
        return space
    before, line_break, indent = space.rpartition("\n")
    if line_break:
        return line_break + hidden(before) + (hidden(indent) if HIDDEN in indent else indent)
    kept = " " if run.start() and visible(space) else ""
    return kept + hidden(space[len(kept) :])
