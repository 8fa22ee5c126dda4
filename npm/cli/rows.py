"""Tables in and out: the rows of a file, a template filled from each row, and rows written as CSV or JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from npm.cli.base import Output
from npm.core.display import SENTENCE_CHARS, csv_lines, marked_context
from npm.core.errors import CorpusError, SettingError, near
from npm.core.files import replace_file
from npm.core.types import Occurrence
from npm.corpus.readers import read_records
from npm.corpus.sources import file_source
from npm.retrieval.queries import COLUMN, check_unmasked

OUT_SUFFIXES = (".csv", ".jsonl")
SHARE_DIGITS = 4
"""Digits of a share or score in a table."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row, and where it was read."""

    place: str
    cells: dict[str, Any]


def read_table(key: str, file: str, *, line_column: str = "", added: Sequence[str] = ()) -> list[TableRow]:
    """The rows of the file that the setting `key` names; the lines of a text file are cells of `line_column`.

    Raises CorpusError for a file without rows or with a column that is among the `added` ones of the output.
    """
    source = file_source(file)
    lines = (line_column,) if line_column and source.format not in ("jsonl", "json", "table", "parquet") else ()
    rows = [TableRow(f"{file}:{line}", dict(cells)) for line, cells in read_records(source, required=lines)]
    if not rows:
        raise CorpusError(f"{key}: {file} has no rows")
    if taken := [name for name in added if name in columns_of(rows)]:
        raise CorpusError(f"{key}: {file} has a column {taken[0]!r}, which the output adds: rename it")
    return rows


def columns_of(rows: Iterable[TableRow]) -> list[str]:
    """All columns, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row.cells))


def cell_text(row: TableRow, name: str) -> str:
    """The cell `name` in one line.

    Raises CorpusError if it is missing, empty, or neither text nor a number, QueryError if it contains a mask.
    """
    if name not in row.cells:
        raise CorpusError(f"{row.place}: no column {name!r}: {near(name, list(row.cells))}")
    value = row.cells[name]
    text = "" if value is None or value != value else " ".join(str(value).split())
    if not text or not isinstance(value, str | int | float):
        raise CorpusError(f"{row.place}: column {name!r} must be a text or a number, got {value!r:.80}")
    check_unmasked(text, name, row.place)
    return text


def filled_template(template: str, row: TableRow) -> str:
    """`template` with the row's cells in place of `{column}`. Raises what `cell_text` raises.

    >>> filled_template("{name} was founded in <mask>.", TableRow("a.csv:2", {"name": "Fiat"}))
    'Fiat was founded in <mask>.'
    """
    return COLUMN.sub(lambda field: cell_text(row, field[1]), template)


def place_cells(prefix: str, place: Occurrence | None) -> dict[str, str]:
    """Title, document and marked sentence of an occurrence, as cells; empty without one."""
    sentence = "" if place is None else marked_context(place.parts, most_chars=SENTENCE_CHARS).plain
    cells = ("", "") if place is None else (place.title, place.document)
    return dict(zip((f"{prefix}_title", f"{prefix}_document", f"{prefix}_sentence"), (*cells, sentence), strict=True))


def check_out(out: str, source: str) -> None:
    """Raise SettingError for an output of another kind, or that is the `source` itself."""
    if out and Path(out).suffix not in OUT_SUFFIXES:
        raise SettingError(f"out must end in {' or '.join(OUT_SUFFIXES)}, got {out}")
    if out and Path(out).resolve() == Path(source).resolve():
        raise SettingError(f"out={out} is the file that is read: choose another name")


def writes_csv(out: str, output: Output) -> bool:
    """Return True if `write_rows` writes CSV."""
    return Path(out).suffix == ".csv" if out else output == "table"


def write_rows(out: str, output: Output, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """Write rows to the file `out`, complete or not at all, or else to stdout, where `output` chooses the form."""
    records = ([_cell(row.get(name)) for name in columns] for row in rows)
    pieces = (
        csv_lines(chain([columns], records))
        if writes_csv(out, output)
        else (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    )
    if out:
        replace_file(Path(out), (piece.encode(errors="replace") for piece in pieces))
        return
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
