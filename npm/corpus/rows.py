"""The rows of a data file, one at a time: JSON lines (plain or zstd), a JSON list, CSV, TSV, or a hub data set."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from npm.corpus.sources import HUB_PREFIX, Source, read_hub, read_lines
from npm.errors import UserError

SEPARATORS = {".csv": ",", ".tsv": "\t"}
_SEPARATOR_NAMES = {",": "a comma", ";": "a semicolon", "\t": "a tab"}
EXTENSIONS = (".jsonl", ".jsonl.zst", ".json", *SEPARATORS)
Row = Mapping[str, Any]


class TaskDataError(UserError):
    """The data of a task is missing, empty, not in its form, or does not fit the task."""


def read_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """The rows of a file with their places: line numbers, or in a JSON list its items, from 1.

    Raises TaskDataError for a file that is not what its extension says, CorpusError for bytes that are not UTF-8.
    """
    if path.name.endswith((".jsonl", ".jsonl.zst")):
        return _json_lines(path)
    if path.suffix == ".json":
        return _json_list(path)
    if path.suffix in SEPARATORS:
        return _separated(path, SEPARATORS[path.suffix])
    raise TaskDataError(
        f"{path.name} has an unknown extension",
        expected=f"one of {', '.join(EXTENSIONS)}",
        got=path.suffix or "none",
        where=str(path),
        fix="convert or rename the file",
    )


def read_hub_rows(name: str, config: str, split: str) -> Iterator[tuple[int, Row]]:
    """The rows of one split of a data set on the hub, numbered from 1. Raises CorpusError if it cannot be read."""
    address = f"{HUB_PREFIX}{name}@{config}/{split}"
    return read_hub(Source(path=address, name=address, format="hub"))


def _json_lines(path: Path) -> Iterator[tuple[int, Row]]:
    for number, line in read_lines(path):
        if line.strip():
            try:
                row = json.loads(line)
                got = f"a JSON {type(row).__name__}"
            except (ValueError, RecursionError) as error:
                row, got = None, str(error)
            yield number, _object(row, got, f"{path}:{number}")


def _json_list(path: Path) -> Iterator[tuple[int, Row]]:
    try:
        rows = json.loads("".join(line for _, line in read_lines(path, keep_ends=True)))
        got = f"a JSON {type(rows).__name__}"
    except (ValueError, RecursionError) as error:
        rows, got = None, str(error)
    if not isinstance(rows, list):
        raise TaskDataError(
            f"{path.name} is not a JSON list",
            expected='a list of objects such as [{"text": "…", "label": 1}]',
            got=got,
            where=str(path),
            fix="mend the file, or name it .jsonl if it has one object a line",
        )
    for number, row in enumerate(rows, start=1):
        yield number, _object(row, f"a JSON {type(row).__name__}", f"{path}: item {number}")


def _object(row: object, got: str, where: str) -> Row:
    if isinstance(row, dict):
        return row
    raise TaskDataError(
        "a row is not a JSON object",
        expected='an object such as {"text": "…", "label": 1}',
        got=got,
        where=where,
        fix="mend or remove it",
    )


def _separated(path: Path, separator: str) -> Iterator[tuple[int, Row]]:
    """Rows of a CSV or TSV file; the first line names the columns, and each row has a cell for every column."""
    lines = (line for _, line in read_lines(path, keep_ends=True))
    reader = csv.reader(lines, delimiter=separator, strict=True)
    try:
        names = next(reader, [])
        if not all(name.strip() for name in names) or len(set(names)) < len(names):
            raise _not_a_table(path, "a name of its own for each column in the first line", str(names), 1)
        _check_separator(path, names, separator)
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(names):
                raise _not_a_table(path, f"{len(names)} cells a row", f"{len(cells)}: {cells!r:.80}", reader.line_num)
            yield reader.line_num, dict(zip(names, cells, strict=True))
    except csv.Error as error:
        raise _not_a_table(
            path, "cells in quotation marks where they hold a separator", str(error), reader.line_num
        ) from None


def _check_separator(path: Path, names: list[str], separator: str) -> None:
    """Refuse a first line that is one column only because another separator stands in it."""
    other = next((each for each in _SEPARATOR_NAMES if len(names) == 1 and each in names[0]), None)
    if other is not None:
        kind = next((f"rename it to {path.stem}{end}, or " for end, own in SEPARATORS.items() if own == other), "")
        raise _not_a_table(
            path,
            f"columns separated by {_SEPARATOR_NAMES[separator]}",
            f"one column, {names[0]!r}, with {_SEPARATOR_NAMES[other]} in its name",
            1,
            fix=f"{kind}save it with {_SEPARATOR_NAMES[separator]} in place of {_SEPARATOR_NAMES[other]}",
        )


def _not_a_table(
    path: Path,
    expected: str,
    got: str,
    line: int,
    *,
    fix: str = "mend this line; spreadsheets write such files with 'save as CSV'",
) -> TaskDataError:
    return TaskDataError(
        f"{path.name} is not a table",
        expected=expected,
        got=got,
        where=f"{path}:{line}",
        fix=fix,
    )
