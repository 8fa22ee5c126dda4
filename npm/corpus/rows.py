"""The rows of a data file, one by one: JSON lines (also compressed), a JSON list, CSV, TSV, Parquet, a hub data set."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from npm.core.errors import CorpusError, UserError
from npm.corpus.addresses import StoredFile
from npm.corpus.sources import (
    HUB_PREFIX,
    MOST_LINE_BYTES,
    OnBad,
    Source,
    read_hub,
    read_lines,
    read_parquet,
    refuse_bad,
)

SEPARATORS = {".csv": ",", ".tsv": "\t"}
_SEPARATOR_NAMES = {",": "a comma", ";": "a semicolon", "\t": "a tab"}
JSON_LINES = (".jsonl", ".jsonl.zst", ".jsonl.gz")
EXTENSIONS = (*JSON_LINES, ".json", *SEPARATORS)
EXAMPLE = '{"text": "…", "label": 1}'
BAD_ROW = "is not a row of the table"
MOST_SHOWN_CHARS = 80
Row = Mapping[str, Any]


class TaskDataError(UserError):
    """The data of a task is missing, empty, not in its form, or does not fit the task."""


def read_rows(path: Path, *, columns: Sequence[str] = (), optional: Sequence[str] = ()) -> Iterator[tuple[int, Row]]:
    """The rows of a file with their places: line numbers, or in a JSON list and in Parquet its items, from 1.

    Of Parquet only `columns`, of which the first must be there, and the `optional` ones are read. Raises TaskDataError
    for a file that is not what its extension says, CorpusError for bytes that are not UTF-8 and for damaged Parquet.
    """
    suffix = path.suffix.lower()
    if path.name.lower().endswith(JSON_LINES):
        return json_rows(path, example=EXAMPLE, error=TaskDataError)
    if suffix == ".json":
        return _json_list(path)
    if suffix in SEPARATORS:
        return table_rows(path, error=TaskDataError)
    if suffix == ".parquet" and columns:
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


class _RepeatedKeyError(ValueError):
    """A JSON object has the same key twice."""


def json_rows(
    path: StoredFile,
    *,
    example: str,
    error: type[UserError] = CorpusError,
    refuse_nan: bool = False,
    on_bad: OnBad = refuse_bad,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines with their line numbers, empty lines left out.

    Any other line, one with two equal keys among them, goes to `on_bad` as an `error` whose message shows `example`;
    with `refuse_nan` so do NaN and Infinity, which Python reads though they are not JSON.
    """
    for number, line in read_lines(path, on_bad=on_bad):
        if not line or line.isspace():
            continue
        kind = "is not a JSON object"
        try:
            row = json.loads(
                line, parse_constant=_refuse_constant if refuse_nan else None, object_pairs_hook=_without_repeats
            )
            got = f"a JSON {type(row).__name__}"
        except (ValueError, RecursionError) as fault:
            row, got = None, f"{fault}: {line[:MOST_SHOWN_CHARS]}"
            kind = "has two equal keys" if isinstance(fault, _RepeatedKeyError) else kind
        if isinstance(row, dict):
            yield number, row
            continue
        refusal = error(
            f"{path.name} has a line {number} that {kind}",
            expected=f"one JSON object a line, such as {example}",
            got=got,
            where=f"{path}:{number}",
            fix="correct or remove this line; if it is the last one, the file may not have been written to its end",
        )
        on_bad(kind, refusal)


def read_cells(
    path: StoredFile, *, quoted: bool = True, error: type[UserError] = CorpusError, on_bad: OnBad = refuse_bad
) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV or TSV file as cells, with the numbers of the lines they end in; [] for an empty line.

    Unless `quoted`, quotation marks are ordinary characters. Rows whose quotation marks are wrong go to `on_bad`.
    """
    place = 0  # the reader's own count would miss lines that are left out

    def lines() -> Iterator[str]:
        nonlocal place
        for place, line in read_lines(path, keep_ends=True, on_bad=on_bad):  # noqa: B007
            yield line

    csv.field_size_limit(MOST_LINE_BYTES)  # a text may be longer than the 128 KiB of Python's own limit
    reader = csv.reader(
        lines(),
        delimiter=SEPARATORS[path.suffix.lower()],
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        strict=True,
    )
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as fault:
            expected = "cells in quotation marks where they hold a separator"
            on_bad(BAD_ROW, _not_a_table(path, expected, str(fault), place, error=error))
            continue
        if cells is None:
            return
        yield place, cells


def read_hub_rows(name: str, config: str, split: str) -> Iterator[tuple[int, Row]]:
    """The rows of one split of a data set on the hub, numbered from 1. Raises CorpusError if it cannot be read."""
    address = f"{HUB_PREFIX}{name}@{config}/{split}"
    return read_hub(Source(path=address, name=address, format="hub"))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedKeyError(f"the key {next(name for name in names if names.count(name) > 1)!r} comes twice")
    return row


def _json_list(path: Path) -> Iterator[tuple[int, Row]]:
    try:
        text = "".join(line for _, line in read_lines(path, keep_ends=True))
        rows = json.loads(text, object_pairs_hook=_without_repeats)
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


def table_rows(
    path: StoredFile, *, required: str = "", error: type[UserError] = CorpusError, on_bad: OnBad = refuse_bad
) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a CSV or TSV file; the first line names the columns, and each row has a cell for every column.

    Raises `error` for names that are none or lack `required`; a row with other cells goes to `on_bad`.
    """
    rows = read_cells(path, error=error, on_bad=on_bad)
    _, names = next(rows, (1, []))
    if not all(name.strip() for name in names) or len(set(names)) < len(names):
        expected = "a name of its own for each column in the first line"
        raise _not_a_table(path, expected, f"{names!r:.80}", 1, error=error)
    separator = SEPARATORS[path.suffix.lower()]
    other = next((each for each in _SEPARATOR_NAMES if len(names) == 1 and each in names[0]), None)
    if other is not None:  # one column only because another separator stands in the first line
        kind = next((f"rename it to {path.stem}{end}, or " for end, own in SEPARATORS.items() if own == other), "")
        raise _not_a_table(
            path,
            f"columns separated by {_SEPARATOR_NAMES[separator]}",
            f"one column, {names[0]!r}, with {_SEPARATOR_NAMES[other]} in its name",
            1,
            fix=f"{kind}save it with {_SEPARATOR_NAMES[separator]} in place of {_SEPARATOR_NAMES[other]}",
            error=error,
        )
    if required and required not in names:
        fix = "name the column that holds the text with corpus.text_field="
        raise _not_a_table(path, f"a column {required!r}", f"the columns {names!r:.80}", 1, fix=fix, error=error)
    for number, cells in rows:
        if cells and len(cells) != len(names):
            got = f"{len(cells)}: {cells!r:.80}"
            on_bad(BAD_ROW, _not_a_table(path, f"{len(names)} cells a row", got, number, error=error))
        elif cells:
            yield number, dict(zip(names, cells, strict=True))


def _not_a_table(
    path: StoredFile,
    expected: str,
    got: str,
    line: int,
    *,
    fix: str = "correct this line; spreadsheets write such files with 'save as CSV'",
    error: type[UserError],
) -> UserError:
    return error(
        f"{path.name} is not a table",
        expected=expected,
        got=got,
        where=f"{path}:{line}",
        fix=fix,
    )


def unusable_value(column: str, value: object, where: str, *, expected: str) -> CorpusError:
    """The error for a value of a row that cannot be used."""
    return CorpusError(
        f"the column {column!r} of a row cannot be used",
        expected=expected,
        got=repr(value)[:MOST_SHOWN_CHARS],
        where=where,
        fix="correct or remove this row, or name another column",
    )
