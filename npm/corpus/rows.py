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
    no_column,
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
        return read_parquet(source, columns=(*columns, *optional), required=columns[0])
    raise TaskDataError(f"{path} has an unknown extension: expected one of {', '.join(EXTENSIONS)}")


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
            row, got = None, f"{fault}: {line[:80]}"
            kind = "has two equal keys" if isinstance(fault, _RepeatedKeyError) else kind
        if isinstance(row, dict):
            yield number, row
            continue
        where = f"{path}:{number}"
        on_bad(where, kind, error(f"{where}: the line {kind}: {got}; expected {example}"))


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
            where = f"{path}:{place}"
            on_bad(where, BAD_ROW, error(f"{where}: {fault}; quote cells that hold a separator"))
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
            f"{path} is not a JSON list: {got}; expected [{EXAMPLE}, …], or .jsonl for one object a line"
        )
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise TaskDataError(
                f"{path}: item {number} must be an object such as {EXAMPLE}, got a JSON {type(row).__name__}"
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
        raise error(f"{path}:1: each column must have a name of its own, got {names!r:.80}")
    separator = SEPARATORS[path.suffix.lower()]
    other = next((each for each in _SEPARATOR_NAMES if len(names) == 1 and each in names[0]), None)
    if other is not None:  # one column only because another separator stands in the first line
        rename = next((f"rename it to {path.stem}{end}, or " for end, own in SEPARATORS.items() if own == other), "")
        found, wanted = _SEPARATOR_NAMES[other], _SEPARATOR_NAMES[separator]
        raise error(f"{path}:1: one column only, with {found} in its name: {rename}save it with {wanted} instead")
    if required and required not in names:
        raise no_column(f"{path}:1", [required], names, "corpus.text_field")
    for number, cells in rows:
        if cells and len(cells) != len(names):
            where = f"{path}:{number}"
            on_bad(where, BAD_ROW, error(f"{where}: {len(cells)} cells, expected {len(names)}: {cells!r:.80}"))
        elif cells:
            yield number, dict(zip(names, cells, strict=True))


def unusable_value(where: str, column: str, expected: str, value: object) -> CorpusError:
    """The error for a value of a row that cannot be used."""
    return CorpusError(f"{where}: {column!r} must be {expected}, got {value!r:.80}; correct or remove this row")
