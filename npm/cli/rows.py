"""Tables in and out: rows of a file, a template filled from each, and rows written as CSV or JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npm.cli.base import Output
from npm.cli.progress import StageProgress
from npm.core.display import SENTENCE_CHARS, csv_lines, marked_context
from npm.core.errors import CorpusError, SettingError, missing, near
from npm.core.files import replace_file
from npm.core.types import Answer, Occurrence
from npm.corpus.readers import read_records
from npm.corpus.sources import file_source
from npm.retrieval.queries import COLUMN, check_template, check_unmasked, read_query

if TYPE_CHECKING:
    from npm.retrieval.filler import PhraseFiller

OUT_SUFFIXES = (".csv", ".jsonl")
SHARE_DIGITS = 4
"""Digits of a share or score in a table."""
ROWS_AT_ONCE = 64
ADDED = ("answer", "answer_share", "second_answer", "second_share", "answer_confidence")
ADDED_PLACE = ("answer_title", "answer_document", "answer_sentence", "answer_status", "answer_note")


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
    rows = [
        TableRow(f"{file}:{line}", {name: _plain(cell) for name, cell in cells.items()})
        for line, cells in read_records(source, required=lines)
    ]
    if not rows:
        raise CorpusError(f"{key}: {file} has no rows")
    if taken := [name for name in added if name in columns_of(rows)]:
        raise CorpusError(f"{key}: {file} has a column {taken[0]!r}, which the output adds: rename it")
    return rows


def _plain(cell: Any) -> Any:
    """A cell as a JSON value: None for NaN, infinity and bytes, a date or another value of Parquet as text."""
    text = json.dumps(cell, default=lambda value: None if isinstance(value, bytes) else str(value))
    return json.loads(text, parse_constant=lambda _: None)


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


def table_texts(table: str, template: str) -> list[tuple[TableRow, str]]:
    """The rows of the file `table` with the template filled from each, all checked.

    Raises SettingError for a template without a column, QueryError for one without a mask and a cell with
    one, CorpusError for a row.
    """
    if not (table and template):
        raise missing("template" if table else "table", 'table=FILE template="{name} was founded in <mask>."')
    check_template(template)
    rows = read_table("table", table, added=ADDED + ADDED_PLACE)
    return [(row, read_query(filled_template(template, row), where=f"{row.place}, template")) for row in rows]


def fill_table(
    filler: PhraseFiller, asked: list[tuple[TableRow, str]], out: str, output: Output, *, by_doubt: bool = False
) -> None:
    """Answer each row, and write all rows as `write_rows` does; with `by_doubt` the least certain ones first."""
    columns = [*columns_of(row for row, _ in asked), *ADDED, *ADDED_PLACE]
    with StageProgress() as progress:

        def rows() -> Iterator[dict[str, Any]]:
            for first in range(0, len(asked), ROWS_AT_ONCE):
                batch = asked[first : first + ROWS_AT_ONCE]
                answers = filler.fill([text for _, text in batch], 2, occurrences=1)
                for (row, _), answer in zip(batch, answers, strict=True):
                    yield row.cells | answer_cells(answer)
                progress("fill", first + len(batch), len(asked))

        write_rows(out, output, columns, sorted(rows(), key=certainty) if by_doubt else rows())


def certainty(cells: dict[str, Any]) -> tuple[bool, float]:
    """Sort key: unanswered rows first, then ascending confidence, or ascending share where the reader has none."""
    known = cells["answer_confidence"]
    return cells["answer"] != "", (cells["answer_share"] or 0.0) if known == "" else known


def answer_cells(answer: Answer) -> dict[str, Any]:
    """The cells that an answer adds to its row."""
    cells: list[Any] = []
    for phrase in (*answer.phrases[:2], None, None)[:2]:
        cells += ["", ""] if phrase is None else [phrase.phrase, round(phrase.score, SHARE_DIGITS)]
    places = answer.phrases[0].occurrences if answer.phrases else ()
    place = place_cells("answer", next(iter(places), None))
    # A note that there is no second phrase would only repeat the empty cells.
    note = "; ".join(answer.notes) if answer.cut or not answer.phrases or answer.status != "ok" else ""
    cells.append("" if answer.confidence is None else round(answer.confidence, SHARE_DIGITS))
    return dict(zip(ADDED, cells, strict=True)) | place | {"answer_status": answer.status, "answer_note": note}
