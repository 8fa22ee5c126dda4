"""Answers as people and as programs read them."""

from __future__ import annotations

import json
import sys
from typing import Any

from npm.types import Answer, Occurrence

OPEN, CLOSE = "«", "»"


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


def print_answer(answer: Answer) -> None:
    """A table on stdout: phrase, score, the sentence of its best occurrence, the document it stands in."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)
    table = Table(title=Text(answer.text), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("phrase", overflow="fold", max_width=28, style="bold")
    table.add_column("score", justify="right")
    table.add_column("where it stands", overflow="fold", ratio=1)
    table.add_column("document", overflow="fold", max_width=22)
    for phrase in answer.phrases:
        best = phrase.occurrences[0] if phrase.occurrences else None
        context = Text(marked_context(best)) if best else Text("")
        context.highlight_regex(f"{OPEN}.*?{CLOSE}", "bold")
        table.add_row(Text(phrase.phrase), f"{phrase.score:.3f}", context, Text(best.title if best else ""))
    if not answer.phrases:
        table.add_row(Text("no phrase found"), "", "", "")
    console.print(table)
