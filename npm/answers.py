"""Answers as people and as programs read them."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from npm.types import MASK_TEXT, Answer, Occurrence

OPEN, CLOSE = "«", "»"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
TITLE_CHARS = 400
"""Characters of a text shown above its answers."""


def answer_record(answer: Answer) -> dict[str, Any]:
    """The answer as JSON values; `cut` and `notes` are there only if they say something."""
    record: dict[str, Any] = {
        "text": answer.text,
        "phrases": [
            {
                "phrase": phrase.phrase,
                "score": phrase.score,
                "occurrence_count": phrase.occurrence_count,
                "occurrences": [
                    {name: getattr(occurrence, name) for name in Occurrence.__dataclass_fields__}
                    for occurrence in phrase.occurrences
                ],
            }
            for phrase in answer.phrases
        ],
    }
    if answer.cut:
        record["cut"] = True
    if answer.notes:
        record["notes"] = list(answer.notes)
    return record


def answer_json(answer: Answer) -> str:
    """The answer as one line of JSON."""
    return json.dumps(answer_record(answer), ensure_ascii=False)


def marked_context(occurrence: Occurrence) -> str:
    """The sentence an occurrence stands in, with the phrase in guillemets.

    >>> marked_context(Occurrence("d", "Iceland", 115, 124, "It is run from Reykjavík.", 100))
    'It is run from «Reykjavík».'
    """
    start = occurrence.start_char - occurrence.context_start_char
    end = occurrence.end_char - occurrence.context_start_char
    context = occurrence.context
    marked = f"{context[:start]}{OPEN}{context[start:end]}{CLOSE}{context[end:]}"
    return " ".join(marked.split())


def shown_text(text: str, *, most_chars: int = TITLE_CHARS) -> str:
    """A text for a terminal: what is near its mask, and no character that a terminal would obey.

    >>> shown_text("It is \\x1b[31m <mask>"), shown_text("a " * 9 + "<mask>" + " b" * 9, most_chars=14)
    ('It is �[31m <mask>', '…a a <mask> b b…')
    """
    place = max(0, text.find(MASK_TEXT))
    around = max(0, most_chars - len(MASK_TEXT)) // 2
    start, stop = max(0, place - around), place + len(MASK_TEXT) + around
    cut = ("…" if start else "") + text[start:stop] + ("…" if stop < len(text) else "")
    return printable(cut)


def printable(text: str) -> str:
    """`text` with control characters replaced: those of a corpus or a question must not steer a terminal."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def print_answer(answer: Answer) -> None:
    """A table on stdout: phrase, score, the sentence of its best occurrence, the document it stands in."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)
    table = Table(title=Text(shown_text(answer.text)), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("phrase", overflow="fold", max_width=28, style="bold")
    table.add_column("score", justify="right")
    table.add_column("where it stands", overflow="fold", ratio=1)
    table.add_column("document", overflow="fold", max_width=22)
    for phrase in answer.phrases:
        best = phrase.occurrences[0] if phrase.occurrences else None
        context = Text(printable(marked_context(best))) if best else Text("")
        context.highlight_regex(f"{OPEN}.*?{CLOSE}", "bold")
        title = Text(printable(best.title)) if best else Text("")
        table.add_row(Text(printable(phrase.phrase)), f"{phrase.score:.3f}", context, title)
    if not answer.phrases:
        table.add_row(Text("no phrase found"), "", "", "")
    console.print(table)
