"""`npmlm find` and `npmlm trace`: phrases looked up word for word, and texts traced back to the corpus."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from npm.cli.base import FilesCommand, IndexCommand, OutputCommand, decoded, write_json
from npm.cli.progress import StageProgress
from npm.cli.registry import verb
from npm.core.display import counted, csv_lines
from npm.core.errors import QueryError, SettingError, missing
from npm.core.files import replace_file
from npm.core.settings import PathText
from npm.core.types import SURE
from npm.retrieval.settings import FillSettings, FilterSettings
from npm.tracing.settings import VERDICTS, TraceSettings, Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType

    from npm.tracing.trace import Trace, TracedSpan

MAX_NAME_BYTES = 255
"""Longest name of a file; a longer argument is a text."""
FILE_NAME = re.compile(r"\S*/\S+|[^.!?\n]*\w\.(txt|md|html?|csv|tsv|jsonl?|docx?|pdf)")
"""An argument that is meant as a file: one word with a slash, or words that end as a file does, not a sentence."""
COLUMNS = [
    *("file", "start_char", "end_char", "kind", "text", "verdict", "support"),
    *("place", "other", "other_score", "other_place"),
]
STYLES = {"found": "green", "supported": "green", "other": "bold yellow", "not_found": "bold red"}


class FindCommand(FilterSettings, OutputCommand, IndexCommand):
    """Count the places where the corpus has a phrase word for word, and show them."""

    show: Annotated[int, Field(ge=0, le=1_000_000)] = 10
    """Places shown, the first of the corpus; all are counted."""
    match_case: bool = False
    """Distinguish upper and lower case."""


@verb(
    FindCommand,
    'npmlm find index=DIR "Leonardo da Vinci"',
    "index show match_case documents where output",
    takes_texts=True,
)
def run_find(settings: FindCommand, texts: list[str]) -> int:
    """Look phrases up; exit status 1 if one of them occurs nowhere."""
    if not texts:
        raise missing("a phrase", 'npmlm find index=DIR "Leonardo da Vinci"')
    from npm.cli.cards import print_occurrences
    from npm.indexing.phrase_index import PhraseIndex, select
    from npm.tracing.find import find_phrase

    index = PhraseIndex.open(Path(settings.index))
    allowed = select(index, settings.documents, settings.where)
    status = 0
    for phrase in texts:
        with StageProgress() as progress:
            show, match_case = settings.show, settings.match_case
            found = find_phrase(index, phrase, match_case=match_case, show=show, allowed=allowed, progress=progress)
        status = status if found.count else 1
        if settings.output == "json":
            write_json(asdict(found))
            continue
        places = f"{found.count:,} place{'' if found.count == 1 else 's'}"
        documents = f"{found.documents:,} document{'' if found.documents == 1 else 's'}"
        print_occurrences(found.phrase, f"{places} in {documents}", found.occurrences)
    return status


class TraceCommand(TraceSettings, FilesCommand):
    """Trace the names, numbers, dates and quotations of a text back to the corpus."""

    output: Literal["marks", "json", "csv"] = "marks"
    """`marks`: the text with marks, and below it a card per span; `json`: an object per text; `csv`: a row per span."""
    out: PathText = ""
    """Page of HTML to write besides the output, with the texts, their spans and the sentences; unset: none."""
    fail_on: list[Verdict] = field(default_factory=list)
    """Verdicts that end the command with exit status 1, such as `[other, not_found]`."""


@verb(
    TraceCommand,
    "npmlm trace index=DIR draft.txt",
    "index files kinds documents where output out fail_on encoder device precision",
    required=None,
    takes_texts=True,
)
def run_trace(settings: TraceCommand, texts: list[str]) -> int:
    """Trace files and texts of the command line, or what comes through a pipe."""
    settings.check_source()
    given = [_read(each) for each in texts]
    if not given and sys.stdin is not None and not sys.stdin.isatty():
        given = [("", decoded(sys.stdin.buffer.read(), "standard input"))]
    if not given:
        raise missing("a text or a file", "npmlm trace index=DIR draft.txt")
    if settings.out and not settings.out.endswith((".html", ".htm")):
        raise SettingError(
            f"out must be a file .html, got {settings.out}; output=csv and output=json go through a pipe"
        )
    if settings.out and Path(settings.out).resolve() in {Path(file).resolve() for file, _ in given if file}:
        raise SettingError(f"out={settings.out} is a file that is read: choose another name")
    from npm.cli.fillers import chosen_filler
    from npm.tracing.trace import Tracer

    tracer = Tracer(chosen_filler(settings, FillSettings()), settings)
    if settings.output == "csv":
        _write_rows([COLUMNS])
    traces: list[tuple[str, Trace]] = []
    status = 0
    for file, text in given:
        with StageProgress() as progress:
            trace = tracer.trace(text, progress=progress)
        status = 1 if any(map(trace.count, settings.fail_on)) else status
        traces.append((file, trace))
        if settings.output == "json":
            write_json({"file": file or None, **asdict(trace)})
        elif settings.output == "csv":
            _write_rows(map(partial(_span_cells, file), trace.spans))
        else:
            _print_trace(trace)
    if settings.out:
        from npm.tracing.report import trace_page

        replace_file(Path(settings.out), trace_page(traces).encode())
    return status


def _read(argument: str) -> tuple[str, str]:
    """Name and text of a file; an argument that names none is a text itself."""
    try:
        if all(len(os.fsencode(part)) <= MAX_NAME_BYTES for part in argument.split("/")) and Path(argument).is_file():
            return argument, decoded(Path(argument).read_bytes(), argument)
    except OSError as error:
        raise QueryError(f"cannot read {argument}: {error.strerror}") from error
    if FILE_NAME.fullmatch(argument):
        raise QueryError(f"no file {argument}: name one that exists, or end a text with a full stop")
    return "", argument


def _span_cells(file: str, span: TracedSpan) -> list[Any]:
    ids = {key: place and place.document for key, place in span.places.items()}
    record = {**asdict(span), **ids, "file": file}
    return [record[column] for column in COLUMNS]


def _write_rows(rows: Iterable[list[Any]]) -> None:
    sys.stdout.writelines(csv_lines(rows))
    sys.stdout.flush()


def _print_trace(trace: Trace) -> None:
    """The text, its spans numbered in brackets, and a card for each: verdict, support, place, and the other phrase."""
    from rich.console import Group
    from rich.text import Text

    from npm.core.display import indented, marked_context, one_line, printable, write_rendered

    marked, done = Text(), 0
    cards: list[RenderableType] = []
    for number, span in enumerate(trace.spans, start=1):
        marked.append(printable(trace.text[done : span.start_char]))
        surface, done = printable(trace.text[span.start_char : span.end_char]), span.end_char
        marked.append(f"{surface}[{number}]", style=STYLES[span.verdict])
        heading = Text(f"{number:>3}  ")
        heading.append(f"{span.verdict.replace('_', ' '):<9}", style=STYLES[span.verdict])
        heading.append(f"  {span.support:.2f}  ").append(one_line(span.text), style="bold")
        heading.append(f"  ({span.certainty})" if span.support < SURE and span.certainty else "")
        place = span.place if span.other is None else span.other_place
        if span.other is not None:
            heading.append(f" → {one_line(span.other)}  {span.other_score:.2f}")
        cards += [heading, *(indented(marked_context(place.parts), place.document_name) if place else [])]
    marked.append(printable(trace.text[done:]).rstrip())
    counts = ", ".join(f"{trace.count(verdict)} {verdict.replace('_', ' ')}" for verdict in VERDICTS)
    write_rendered(Group(marked, "", *cards, "", f"{counted(len(trace.spans), 'span')}: {counts}", ""))
