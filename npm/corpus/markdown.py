"""The text that people read in Markdown and wrapped plain text; see `npm.corpus.markup`.

A joined line break becomes a space; the end of a block stays a line break.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

from npm.corpus.html_pages import page_text
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

CODE_INDENT = 4

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_JOINT = re.compile(rf"(?<![ \t\r{HIDDEN}])[ \t\r{HIDDEN}]*+\n[ \t{HIDDEN}]*+")
_QUOTE = re.compile(r"(?:(?!>>> ) {0,3}> ?)*")
_FENCE = re.compile(r"(`{3,})[^`]*$|(~{3,})", re.M)
_RULE = re.compile(r"([-=*_~])(?:[ \t]*\1)+")
_HEADING = re.compile(r"#{1,6}(?=\s)")
_CLOSING_MARKS = re.compile(r"(?<!\S)#+$")
_DEFINITION = re.compile(r"\[(?!\^)[^\[\]]+\]:[ \t]+\S")
_TABLE_RULE = re.compile(r"\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?")
_CALLOUT = re.compile(r"\[![\w-]+\][+-]?[ \t]*")
_BULLET = re.compile(r"(?:[-*+•◦▪:]|\[\^[^\]\s]+\]:)(?=\s)")
_BULLET_MARK = re.compile(rf"[ \t{HIDDEN}]*[-*+•◦▪:][ \t](?:[ \t]*\[[ xX]\](?=\s))?")
_NUMBER = re.compile(r"\(?(?:\d{1,4}(?:\.\d+)*|[A-Za-z]|[ivxlcIVXLC]{2,5})[.)](?=\s)")
_CODE_MARK = re.compile(r"[={}<>\\|_]|\w[(\[]|^[#$/%]")
_PAUSE = re.compile(r"(?:[.;:,!?…]|\band|\bor)[\"'”’)\]]*\s*$")


class _Kind(Enum):
    """Runs of lines, by how they are read."""

    text = "text"
    heading = "heading"
    header = "header of a table"
    row = "row of a table"
    rule = "nothing but marks"
    kept = "code or an empty line"


Run = tuple[_Kind, str]
_EDGES = {_Kind.header: HEADER_CELL, _Kind.row: CELL}


def joined_lines(text: str) -> str:
    """Plain text whose paragraphs are one line each.

    Empty lines, list items, headings, table rows, code and deeper indentation end a paragraph.

    >>> visible(joined_lines("The Office of\\nCommunications.\\n\\n- one\\n  item\\n- two"))
    'The Office of Communications.\\n\\n- one item\\n- two'
    """
    runs = _Blocks(is_markdown=False).runs(unmarked(text))
    return "".join(
        _joined(run) if kind in (_Kind.text, _Kind.heading) else run.replace("|", _EDGES.get(kind, "|"))
        for kind, run in runs
    )


def _joined(run: str) -> str:
    """The lines of a paragraph as one, with the line end of the last."""
    body = run.rstrip()
    return _JOINT.sub(_space, body) + run[len(body) :] if "\n" in body else run


def _space(joint: re.Match[str]) -> str:
    return " " + hidden(joint[0][1:])


class _Blocks:
    """Cuts lines into paragraphs and the text between them, and hides the marks of block quotes."""

    def __init__(self, *, is_markdown: bool, join_lines: bool = True) -> None:
        self._is_markdown, self._join_lines = is_markdown, join_lines
        self._run: list[str] = []  # the lines of the open paragraph
        self._is_item = self._is_table = self._is_row = self._is_code = False
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
            yield (_Kind.row if self._is_row else kind), "".join(self._run)
        self._run, self._is_row = [], False

    def _fenced(self, line: str) -> Iterator[Run]:
        mark = line.strip(" \t\r\n>")
        is_end = mark.startswith(self._fence) and not mark.strip(self._fence[0])
        self._fence = "" if is_end else self._fence
        yield (_Kind.rule if is_end else _Kind.kept), line

    def _line(self, line: str) -> Iterator[Run]:
        quote = _QUOTE.match(line)[0] if ">" in line else ""  # type: ignore[index] # it matches nothing, too
        content = line[len(quote) :]
        line, body, stripped = hidden(quote) + content, content.lstrip(), content.strip()
        indent = content[: len(content) - len(body)].expandtabs(CODE_INDENT).count(" ")
        if self._is_markdown and quote and (callout := _CALLOUT.match(body)):
            yield from self._finished()
            yield _Kind.text, hidden(quote + callout[0]) + body[callout.end() :]
            return
        if quote.count(">") != self._quotes:
            yield from self._finished()
            self._quotes, self._base = quote.count(">"), 0
        self._is_table &= "|" in stripped
        is_table_rule = "|" in stripped and _TABLE_RULE.fullmatch(stripped) is not None
        if self._is_row and not is_table_rule:
            yield from self._finished()
        is_code = self._is_markdown or self._is_code or _CODE_MARK.search(stripped) is not None
        self._is_code = stripped != "" and not self._run and indent >= self._base + CODE_INDENT and is_code
        if not stripped or self._is_code or CELL in stripped or HEADER_CELL in stripped:
            yield from self._finished()
            yield _Kind.kept, line
        elif opening := _FENCE.match(body):
            yield from self._finished()
            self._fence = opening[1] or opening[2]
            yield _Kind.rule, line
        elif is_table_rule:
            header = [self._run.pop()] if self._run else []
            yield from self._finished()
            yield from ((_Kind.header, row) for row in header)
            yield _Kind.rule, line
            self._is_table = True
        elif self._is_markdown and body[0] == "[" and _DEFINITION.match(body):
            yield from self._finished()
            yield _Kind.rule, line
        elif _RULE.fullmatch(stripped):
            yield from self._finished(_Kind.heading if stripped[0] in "-=" else _Kind.text)
            yield _Kind.rule, line
        elif self._is_table or body.startswith("|"):
            yield from self._finished()
            self._run, self._is_row, self._base = [line], True, indent  # the next line may make it a header
        elif _HEADING.match(body):
            yield from self._finished()
            yield _Kind.heading, line
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


_UNESCAPED_BAR = re.compile(r"(?<!\\)\|")
_SKIPPED = re.compile(
    r"(?P<code>^[ \t>]*(?P<fence>```+(?=[^`\n]*$)|~~~+)[\s\S]*?(?:^[ \t>]*(?P=fence)[`~]*[ \t\r]*$|\Z)"
    r"|(?<!`)(?P<ticks>`+)(?!`)(?:(?!\n[ \t]*\r?\n)[\s\S])+?(?<!`)(?P=ticks)(?!`))"
    rf"|<!--[\s\S]*?(?:-->|\Z)|<(?P<tag>script|style|{'|'.join(STRUCK_TAGS)})\b[\s\S]*?(?:</(?P=tag)\s*>|\Z)"
    r"|(?P<table><table\b[\s\S]*?</table\s*>)|(?<!\S)%%[\s\S]*?%%(?!\S)"
    r"|\{\{[\s\S]{0,1000}?\}\}|\{%[\s\S]{0,1000}?%\}|\{[#:][^{}\n]{1,200}\}",
    re.M | re.I,
)
"""Comments, template tags and scripts, and the code in which their marks are text."""
_LITERAL = re.compile(
    r"(?<!`)(`+)(?!`)([\s\S]+?)(?<!`)\1(?!`)|\\([!-/:-@\[-`{-~]|(?=\s))|<((?:https?|ftp|mailto):[^\s<>]*)>"
    r"|(https?://[^\s<>()\[\]*`]+)"
)
"""Text in which no mark counts: code, escaped characters, addresses. The last group is read."""
_MAY_BE_LITERAL = re.compile(r"[`\\<]|https?://")
_BRACKETED = r"((?:[^\[\]]|\[[^\[\]]*\])*)"
_TARGET = r"(?:\((?:[^()\n]|\([^()\n]*\))*\)|\[[^\[\]]*\])"
_EDGE, _EDGE_BEFORE = r"(?=[^ \t\r\n])", r"(?<=[^ \t\r\n])"
_MARKS = {
    mark: re.compile(pattern)
    for mark, pattern in {
        "[^": r"\[\^[^\]\s]+\]:?",
        "![[": r"!\[\[[^\]\n]+\]\]",
        "[[": r"\[\[(?:[^|\]\n]+\\?\|)?([^\]\n]+)\]\]",
        "![": rf"!\[{_BRACKETED.replace('(', '(?:', 1)}\]{_TARGET}",
        "[": rf"\[{_BRACKETED}\]{_TARGET}",
        "**": rf"(\*\*){_EDGE}((?:[^*]|\*(?!\*))+){_EDGE_BEFORE}\*\*",
        "__": rf"(?<!\w)(__){_EDGE}((?:[^_]|_(?!_))+){_EDGE_BEFORE}__(?!\w)",
        "*": rf"(\*){_EDGE}([^*]+){_EDGE_BEFORE}\*",
        "_": rf"(?<!\w)(_){_EDGE}((?:[^_]|(?<=\w)_(?=\w))+){_EDGE_BEFORE}_(?!\w)",
        "==": rf"(==){_EDGE}([^=\n]+){_EDGE_BEFORE}==",
        "~~": rf"~~{_EDGE}[^~]+~~",
    }.items()
}
"""Footnotes, images, links, emphasis, struck text, by how they begin; of each the last group is read."""
_INLINE_NOTE = re.compile(r"\^\[([^\[\]]+)\]")
_RAISED = re.compile(r"(<sup\b[^<>]*>)((?:(?!</?sup\b)[\s\S])*?)(</sup\s*>)", re.I)
_TAG = re.compile(r"</?([A-Za-z][\w-]*)(?:\s[^<>]*)?/?>")
_ENTITY = re.compile(r"&#?\w{1,31};")
_LITERAL_CHARACTER = "\ue000"
_LITERAL_RUN = re.compile(f"{_LITERAL_CHARACTER}+")


def markdown_text(text: str, *, join_lines: bool = True) -> ReadText:
    """Text that people read in Markdown, its first heading as the title, and all headings.

    Bullets, marks of headings and emphasis, link targets, images, HTML tags, comments and template tags are hidden;
    code stays unchanged, without its fences; the cells of a table stay apart.

    >>> plain, title, _ = markdown_text("# Leave\\n\\nTake **45\\ndays** ([form](/f.pdf)).\\n")
    >>> title, visible(plain)
    ('Leave', 'Leave\\n\\nTake 45 days (form).\\n')
    """
    text = _SKIPPED.sub(_without_skipped, unmarked(text))
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


def _without_skipped(skipped: re.Match[str]) -> str:
    if skipped["table"]:
        return page_text(skipped["table"]).text
    return skipped["code"] or hidden(skipped[0])


def _read(kind: _Kind, run: str) -> str:
    """Text of a run of lines, of the same length."""
    if kind is _Kind.kept:
        return run
    body, start = run.rstrip(), len(run) - len(run.lstrip())
    stop = start if kind is _Kind.rule else len(body)
    if edge := _EDGES.get(kind):
        start, stop = start + body.startswith("|", start), stop - body.endswith("|")
        run = _UNESCAPED_BAR.sub(edge, run)
    elif kind is _Kind.heading and (marks := _HEADING.match(run, start)):
        closing = _CLOSING_MARKS.search(body, marks.end())
        start, stop = marks.end(), closing.start() if closing else stop
    elif kind is _Kind.text and (bullet := _BULLET_MARK.match(run)):
        start = min(bullet.end(), stop)
    return hidden(run[:start]) + _inline(_joined(run[start:stop])) + hidden(body[max(start, stop) :]) + run[len(body) :]


def _inline(text: str) -> str:
    """A paragraph without its marks, of the same length."""
    marked = _LITERAL.sub(_literal, text) if _MAY_BE_LITERAL.search(text) else text
    if "<" in marked:
        marked = _TAG.sub(_tag_space, _RAISED.sub(_raised, marked))
    if "^[" in marked:
        marked = _INLINE_NOTE.sub(r" (\1)", marked)
    for mark, pattern in _MARKS.items():
        if mark in marked:
            marked = pattern.sub(_last_group, marked)
    if "&" in marked:
        marked = _ENTITY.sub(lambda entity: decoded(entity[0]), marked)
    if _LITERAL_CHARACTER in marked:
        marked = _LITERAL_RUN.sub(lambda run: text[slice(*run.span())], marked)
    return marked


def _literal(found: re.Match[str]) -> str:
    return re.sub(rf"[^{HIDDEN}]", _LITERAL_CHARACTER, _last_group(found))


def _last_group(found: re.Match[str]) -> str:
    """The last group of a match in its position, all else hidden."""
    first, last = found.span(found.lastindex) if found.lastindex else (found.start(), found.start())
    return HIDDEN * (first - found.start()) + found.string[first:last] + HIDDEN * (found.end() - last)


def _raised(sup: re.Match[str]) -> str:
    before = sup.string[max(0, sup.start() - 40) : sup.start()].rstrip(f"*_{HIDDEN}")
    content = hidden(sup[2]) if "<" in sup[2] else raised(visible(before), sup[2])
    return hidden(sup[1]) + content + hidden(sup[3])


def _tag_space(tag: re.Match[str]) -> str:
    name = tag[1].lower()
    space = "" if name in INLINE_TAGS else " " if name == "br" else "\n"
    return space + hidden(tag[0][len(space) :])
