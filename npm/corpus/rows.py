"""The rows of a data file, one by one: JSON lines (plain or zstd), a JSON list, CSV, TSV, Parquet, a hub data set."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from npm.corpus.sources import HUB_PREFIX, Source, read_hub, read_lines, read_parquet
from npm.errors import CorpusError, UserError

SEPARATORS = {".csv": ",", ".tsv": "\t"}
_SEPARATOR_NAMES = {",": "a comma", ";": "a semicolon", "\t": "a tab"}
EXTENSIONS = (".jsonl", ".jsonl.zst", ".json", *SEPARATORS)
EXAMPLE = '{"text": "…", "label": 1}'
MOST_SHOWN_CHARS = 80
Row = Mapping[str, Any]


class TaskDataError(UserError):
    """The data of a task is missing, empty, not in its form, or does not fit the task."""


def read_rows(path: Path, *, columns: Sequence[str] = (), optional: Sequence[str] = ()) -> Iterator[tuple[int, Row]]:
    """The rows of a file with their places: line numbers, or in a JSON list and in Parquet its items, from 1.

    Of Parquet only `columns`, of which the first must be there, and the `optional` ones are read. Raises TaskDataError
    for a file that is not what its extension says, CorpusError for bytes that are not UTF-8 and for damaged Parquet.
    """
    if path.name.endswith((".jsonl", ".jsonl.zst")):
        return json_rows(path, example=EXAMPLE, error=TaskDataError)
    if path.suffix == ".json":
        return _json_list(path)
    if path.suffix in SEPARATORS:
        return _table_rows(path)
    if path.suffix == ".parquet" and columns:
        source = Source(path=str(path), name=path.name, format="parquet")
        fix = f"name the columns {', '.join(columns)}"
        return read_parquet(source, columns=(*columns, *optional), required=columns[0], fix=fix)
    raise TaskDataError(
        f"{path.name} has an unknown extension",
        expected=f"one of {', '.join(EXTENSIONS)}",
        got=path.suffix or "none",
        where=str(path),
        fix="convert or rename the file",
    )


def json_rows(
    path: Path, *, example: str, error: type[UserError] = CorpusError, refuse_nan: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines with their line numbers, empty lines left out.

    Raises `error`, whose message shows `example`, for any other line; with `refuse_nan` also for NaN and Infinity,
    which Python reads though they are not JSON.
    """
    for number, line in read_lines(path):
        if not line or line.isspace():
            continue
        try:
            row = json.loads(line, parse_constant=_refuse_constant if refuse_nan else None)
            got = f"a JSON {type(row).__name__}"
        except (ValueError, RecursionError) as fault:
            row, got = None, f"{fault}: {line[:MOST_SHOWN_CHARS]}"
        if not isinstance(row, dict):
            raise error(
                f"{path.name} has a line {number} that is not a JSON object",
                expected=f"one JSON object a line, such as {example}",
                got=got,
                where=f"{path}:{number}",
                fix="correct or remove this line; if it is the last one, the file may not have been written to its end",
            )
        yield number, row


def read_cells(
    path: Path, *, quoted: bool = True, error: type[UserError] = CorpusError
) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV or TSV file as cells, with the numbers of the lines they end in; [] for an empty line.

    Unless `quoted`, quotation marks are ordinary characters. Raises `error` where quotation marks are wrong.
    """
    lines = (line for _, line in read_lines(path, keep_ends=True))
    reader = csv.reader(
        lines,
        delimiter=SEPARATORS[path.suffix],
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        strict=True,
    )
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as fault:
        expected = "cells in quotation marks where they hold a separator"
        raise _not_a_table(path, expected, str(fault), reader.line_num, error=error) from None


def read_hub_rows(name: str, config: str, split: str) -> Iterator[tuple[int, Row]]:
    """The rows of one split of a data set on the hub, numbered from 1. Raises CorpusError if it cannot be read."""
    address = f"{HUB_PREFIX}{name}@{config}/{split}"
    return read_hub(Source(path=address, name=address, format="hub"))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _json_list(path: Path) -> Iterator[tuple[int, Row]]:
    try:
        rows = json.loads("".join(line for _, line in read_lines(path, keep_ends=True)))
        got = f"a JSON {type(rows).__name__}"
    except (ValueError, RecursionError) as error:
        rows, got = None, str(error)
    if not isinstance(rows, list):
        raise TaskDataError(
            f"{path.name} is not a JSON list",
            expected=f"a list of objects such as [{EXAMPLE}]",
            got=got,
            where=str(path),
            fix="correct the file, or name it .jsonl if it has one object a line",
        )
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise TaskDataError(
                "a row is not a JSON object",
                expected=f"an object such as {EXAMPLE}",
                got=f"a JSON {type(row).__name__}",
                where=f"{path}: item {number}",
                fix="correct or remove it",
            )
        yield number, row


def _table_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Rows of a CSV or TSV file; the first line names the columns, and each row has a cell for every column."""
    rows = read_cells(path, error=TaskDataError)
    _, names = next(rows, (1, []))
    if not all(name.strip() for name in names) or len(set(names)) < len(names):
        raise _not_a_table(path, "a name of its own for each column in the first line", str(names), 1)
    separator = SEPARATORS[path.suffix]
    other = next((each for each in _SEPARATOR_NAMES if len(names) == 1 and each in names[0]), None)
    if other is not None:  # one column only because another separator stands in the first line
        kind = next((f"rename it to {path.stem}{end}, or " for end, own in SEPARATORS.items() if own == other), "")
        raise _not_a_table(
            path,
            f"columns separated by {_SEPARATOR_NAMES[separator]}",
            f"one column, {names[0]!r}, with {_SEPARATOR_NAMES[other]} in its name",
            1,
            fix=f"{kind}save it with {_SEPARATOR_NAMES[separator]} in place of {_SEPARATOR_NAMES[other]}",
        )
    for number, cells in rows:
        if cells and len(cells) != len(names):
            raise _not_a_table(path, f"{len(names)} cells a row", f"{len(cells)}: {cells!r:.80}", number)
        if cells:
            yield number, dict(zip(names, cells, strict=True))


def _not_a_table(
    path: Path,
    expected: str,
    got: str,
    line: int,
    *,
    fix: str = "correct this line; spreadsheets write such files with 'save as CSV'",
    error: type[UserError] = TaskDataError,
) -> UserError:
    return error(
        f"{path.name} is not a table",
        expected=expected,
        got=got,
        where=f"{path}:{line}",
        fix=fix,
    )
