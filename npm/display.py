"""Answers as people and as programs read them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from npm.types import MASK_TEXT, Answer, JointAnswer, Occurrence, Phrase

OPENING_MARK, CLOSING_MARK = "«", "»"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
TITLE_CHARS = 400
"""Characters of a text shown above its answers."""
CONTEXT_CHARS = 150
"""Characters of a sentence shown around a phrase."""
LEAST_TABLE_COLUMNS = 60
"""A terminal that is narrower gets lines in place of a table."""


def answer_json(answer: Answer, *, line: int | None = None) -> str:
    """The answer as one line of JSON, with the `line` of its text in a file or a pipe, from 1.

    Raises ValueError for a score that is no number, which JSON cannot hold.
    """
    record = asdict(answer) if line is None else {**asdict(answer), "line": line}
    return json.dumps(record, ensure_ascii=False, allow_nan=False)


def marked_context(occurrence: Occurrence, *, most_chars: int = CONTEXT_CHARS) -> Text:
    """The sentence an occurrence stands in, the phrase bold and in guillemets; a long sentence is shortened around it.

    >>> marked_context(Occurrence("d", "Iceland", 115, 124, "It is run from Reykjavík.", 100)).plain
    'It is run from «Reykjavík».'
    """
    first = occurrence.start_char - occurrence.context_start_char
    last = occurrence.end_char - occurrence.context_start_char
    before, phrase, after = occurrence.context[:first], occurrence.context[first:last], occurrence.context[last:]
    room = max(0, most_chars - len(phrase))
    kept_before = min(len(before), max(room // 2, room - len(after)))
    text = Text(one_line(_end_of(before, kept_before)))
    text.append(f"{OPENING_MARK}{one_line(phrase)}{CLOSING_MARK}", style="bold")
    text.append(one_line(_beginning_of(after, room - kept_before)))
    return text


def one_line(text: str) -> str:
    """`text` for a line of a terminal: line breaks and tabs as spaces, other control characters replaced."""
    return printable("".join(" " if char.isspace() else char for char in text))


def shown_text(text: str, *, most_chars: int = TITLE_CHARS) -> str:
    """A text for a terminal: what is near its masks and between them, and no character that a terminal would obey.

    >>> shown_text("It is \\x1b[31m <mask>"), shown_text("a " * 9 + "<mask>" + " b" * 9, most_chars=14)
    ('It is �[31m <mask>', '…a a <mask> b b…')
    >>> shown_text("a a <mask> b <mask> c c", most_chars=19)
    '…a <mask> b <mask> c…'
    """
    first, last = max(0, text.find(MASK_TEXT)), max(0, text.rfind(MASK_TEXT)) + len(MASK_TEXT)
    around = max(0, most_chars - (last - first)) // 2
    start, stop = max(0, first - around), last + around
    cut = ("…" if start else "") + text[start:stop] + ("…" if stop < len(text) else "")
    return printable(cut)


def printable(text: str) -> str:
    """`text` with control characters replaced: those of a corpus or a question must not steer a terminal."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def print_answer(answer: Answer, *, with_text: bool = True) -> None:
    """A table on stdout: phrase, score, the sentence of its best occurrence, the document it stands in, with its id.

    Of a text with several masks a table of the fillings, and below it a table like that for each mask.
    """
    console = Console(file=sys.stdout, highlight=False)
    narrow = console.width < LEAST_TABLE_COLUMNS
    title = Text(shown_text(answer.text)) if with_text else None
    parts = [(title, answer.phrases)]
    with console.capture() as printed:
        if isinstance(answer, JointAnswer):
            console.print(_filling_lines(title, answer) if narrow else _filling_table(title, answer))
            above = "\n" if narrow else ""
            numbered = enumerate(answer.masks, start=1)
            parts = [(Text(f"{above}mask {number}"), mask.phrases) for number, mask in numbered]
        for heading, phrases in parts:
            rows = _phrase_rows(phrases)
            console.print(_lines(heading, rows) if narrow else _table(heading, rows))
    # written by us, because rich ends the process with status 1 when the reader of a pipe goes away
    sys.stdout.write(printed.get())
    sys.stdout.flush()


def _phrase_rows(phrases: Sequence[Phrase]) -> list[tuple[Text, str, Text, Text]]:
    rows: list[tuple[Text, str, Text, Text]] = []
    for phrase in phrases:
        best = phrase.occurrences[0] if phrase.occurrences else None
        context = marked_context(best) if best else Text("")
        document = Text(document_name(best) if best else "")
        rows.append((Text(one_line(phrase.phrase), style="bold"), f"{phrase.score:.3f}", context, document))
    return rows or [(Text("no phrase found"), "", Text(""), Text(""))]


def document_name(occurrence: Occurrence) -> str:
    """The title and the id, by which documents= and delete know it.

    >>> document_name(Occurrence("painting-12", "Mona Lisa", 0, 4, "Lisa", 0))
    'Mona Lisa (painting-12)'
    """
    title, identifier = one_line(occurrence.title), one_line(occurrence.document)
    return f"{title} ({identifier})" if title and title != identifier else identifier


def _filling_lines(title: Text | None, answer: JointAnswer) -> Group:
    rows = [(Text(one_line(" / ".join(each.phrases)), style="bold"), f"{each.score:.3f}") for each in answer.fillings]
    return _lines(title, rows or [(Text("no filling found"), "")])


def _filling_table(title: Text | None, answer: JointAnswer) -> Group:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number in range(1, len(answer.masks) + 1):
        table.add_column(f"mask {number}", overflow="fold")
    table.add_column("score", justify="right")
    for filling in answer.fillings:
        table.add_row(*(Text(one_line(phrase), style="bold") for phrase in filling.phrases), f"{filling.score:.3f}")
    if not answer.fillings:
        table.add_row("no filling found")
    # above, not as the table's title: that would be folded to the width of a few short phrases
    return Group(*([title] if title else []), table)


def _lines(title: Text | None, rows: Sequence[tuple[Text, str, *tuple[Text, ...]]]) -> Group:
    """What the columns of a table hold, one below the other."""
    lines: list[Text | Padding | str] = [title, ""] if title else []
    for phrase, score, *below in rows:
        lines += [Text.assemble(phrase, "  ", score), *(Padding(cell, (0, 0, 0, 2)) for cell in below if cell)]
    return Group(*lines)


def _table(title: Text | None, rows: list[tuple[Text, str, Text, Text]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("phrase", overflow="fold", max_width=28)
    table.add_column("score", justify="right")
    table.add_column("where it stands", overflow="fold", ratio=1)
    table.add_column("document", overflow="fold", max_width=22)
    for row in rows:
        table.add_row(*row)
    return table


def _end_of(text: str, most_chars: int) -> str:
    """The last characters of `text`, cut at a word.

    >>> _end_of("one two three", 9), _end_of("one", 3)
    ('… three', 'one')
    """
    if len(text) <= most_chars:
        return text
    cut = text[len(text) - most_chars :]
    return "… " + (cut.partition(" ")[2] if " " in cut.rstrip() else "")


def _beginning_of(text: str, most_chars: int) -> str:
    """The first characters of `text`, cut at a word.

    >>> _beginning_of("one two three", 9), _beginning_of("one", 3)
    ('one two …', 'one')
    """
    if len(text) <= most_chars:
        return text
    cut = text[:most_chars]
    return (cut.rpartition(" ")[0] if " " in cut.lstrip() else "") + " …"
