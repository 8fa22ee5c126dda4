"""Records of data files, each with the number of its line or row: JSON, CSV, TSV, Parquet, hub data sets, plain lines.

Files are local or at an address; `.gz` and `.zst` are decompressed. Unusable records go to `on_bad`,
which by default raises CorpusError with file and line.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

from npm.core.display import counted
from npm.core.errors import CorpusError, named
from npm.core.types import SURROGATE
from npm.corpus.sources import COMPRESSED, FORMATS, HUB_PREFIX, Source, StoredFile, file_format, format_suffix

SEPARATORS = {".csv": ",", ".tsv": "\t"}
OTHER_SEPARATORS = ";\t|"
"""Of `.csv` files from programs that follow the country's settings, where the first line has no comma."""
_DECLARED = re.compile(
    rb"<meta\b[^>]{0,200}?charset\s*=\s*[\"']?([\w.:-]+)|<\?xml\b[^>]{0,200}?encoding\s*=\s*[\"']([\w.:-]+)", re.I
)
DECLARED_WITHIN = 1024
"""First bytes of a page in which it may declare its encoding."""
_MEANT = {"iso-8859-1": "cp1252", "latin1": "cp1252", "us-ascii": "cp1252", "utf-16": "utf-8", "utf8": "utf-8"}
"""Encodings that browsers read in place of some declared ones."""
MAX_LINE_BYTES = 1 << 28
BYTE_ORDER_MARK = "\ufeff"
ROWS_PER_BATCH = 256

Row = Mapping[str, Any]
Rows = Iterator[tuple[int, Row]]
OnBad = Callable[[str, str, str], None]
"""Receives the position of an unusable record, the kind of fault in a few words, and its details."""


def refuse(where: str, kind: str, detail: str) -> None:
    """Raise CorpusError for the first fault: the default of `on_bad`."""
    raise CorpusError(f"{where}: {kind}: {detail}")


def read_rows(file: Path | str) -> Rows:
    """Yield the records of one file of rows, which may be empty."""
    return read_records(Source(str(file), Path(file).name, file_format(Path(file))))


def read_records(
    source: Source,
    *,
    required: Sequence[str] = (),
    optional: Sequence[str] = (),
    keys: str = "",
    quoted_tsv: bool = True,
    header: bool = True,
    same_length: bool = True,
    on_bad: OnBad = refuse,
) -> Rows:
    """Yield the records of one file or data set.

    Without all `required` columns, which the settings `keys` name, a record is bad, a table or Parquet file refused; of
    Parquet only `required` and `optional` columns are read, or all without any. A text file has one required column,
    its lines. Tables: with `quoted_tsv` False quotes of a `.tsv` file are characters, without `header` columns are
    called 1, 2, …, without `same_length` a row may have more or fewer cells than columns.
    """
    rows: Rows
    if source.format == "jsonl":
        rows = _json_lines(source.file, on_bad)
    elif source.format == "json":
        rows = _json_rows(source.file, on_bad)
    elif source.format == "table":
        is_quoted = quoted_tsv or format_suffix(source.file) == ".csv"
        rows = _table_rows(source.file, is_quoted, header, same_length, required, keys, on_bad)
    elif source.format == "parquet":
        rows = _parquet_rows(source, required, optional, keys)
    elif source.format == "hub":
        rows = _hub_rows(source)
    elif len(required) == 1:
        rows = (
            (number, {required[0]: line}) for number, line in read_lines(source.file, on_bad=on_bad) if line.strip()
        )
    else:
        raise CorpusError(f"{source.path} has no columns: give a .jsonl, .json, .csv, .tsv or .parquet file")
    for number, row in rows:
        if missing := [name for name in required if row.get(name) is None]:
            on_bad(f"{source.path}:{number}", *_no_column(missing, row, keys))
        else:
            yield number, row


def _no_column(missing: Sequence[str], present: Sequence[str] | Row, keys: str) -> tuple[str, str]:
    advice = f"; set {keys}" if keys else ""
    return f"has no {named(missing)}", f"the columns are {named([*present], most=10) or 'none'}{advice}"


def read_lines(
    file: StoredFile, *, keep_ends: bool = False, byte_order_mark: str = "", on_bad: OnBad = refuse
) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file with their numbers from 1.

    It is UTF-8 unless its byte order mark, or the declaration of an HTML page, says otherwise. Only a line feed, with a
    carriage return before it or not, ends a line; it is removed unless `keep_ends`. The byte order mark of UTF-8
    becomes `byte_order_mark`. Raises CorpusError for compressed data that is damaged or ends early; lines that cannot
    be decoded, or are longer than MAX_LINE_BYTES, go to `on_bad`.
    """
    with open_text(file) as opened:
        stream = opened if isinstance(opened, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, opened))
        begin = stream.peek(DECLARED_WITHIN)[:DECLARED_WITHIN]
        encoding = declared_encoding(begin, is_page=FORMATS.get(format_suffix(file)) == "html")
        lines: IO[bytes] = stream
        if encoding != "utf-8":
            try:
                lines = io.BytesIO(stream.read(MAX_LINE_BYTES).decode(encoding).encode())
            except (UnicodeError, LookupError) as error:
                on_bad(str(file), f"is not {encoding}, as it says", f"{error}; convert the file to UTF-8")
                return
        number = 0
        while line := lines.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                while line and not line.endswith(b"\n"):
                    line = lines.readline(MAX_LINE_BYTES)
                on_bad(f"{file}:{number}", "too long", f"a line has at most {MAX_LINE_BYTES >> 20} MiB; cut it")
                continue
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                found = f"0x{line[error.start]:02x} at byte {error.start + 1} of the line"
                on_bad(f"{file}:{number}", "not UTF-8", f"{found}; convert the file: iconv -f ENCODING -t UTF-8")
                continue
            if number == 1 and text.startswith(BYTE_ORDER_MARK):
                text = byte_order_mark + text[1:]
            yield number, text if keep_ends else text.removesuffix("\n").removesuffix("\r")


def declared_encoding(begin: bytes, *, is_page: bool) -> str:
    """Return the encoding that the first bytes of a text file tell, or of an HTML page declare; UTF-8 without one.

    >>> declared_encoding(b'<meta charset="ISO-8859-1">', is_page=True)
    'cp1252'
    """
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    declared = _DECLARED.search(begin) if is_page and not begin.startswith(codecs.BOM_UTF8) else None
    name = (declared[1] or declared[2]).decode("ascii", "replace").lower() if declared else "utf-8"
    return _MEANT.get(name, name)


@contextmanager
def open_text(file: StoredFile, stored: IO[bytes] | None = None) -> Iterator[IO[bytes]]:
    """Open a file, or use its open `stored` form, for reading decompressed."""
    if isinstance(file, Path) and not file.is_file():
        raise CorpusError(f"{file} {'is not a regular file' if file.exists() else 'does not exist'}")
    codec = COMPRESSED.get(file.suffix.lower())
    with file.open("rb") if stored is None else nullcontext(stored) as opened:
        if codec is None:
            yield opened
            return
        import pyarrow

        compressed = pyarrow.PythonFile(opened, mode="r")
        try:
            yield io.BufferedReader(pyarrow.CompressedInputStream(compressed, codec), 1 << 16)
        except OSError as error:
            raise CorpusError(f"{file} cannot be decompressed: {error}; fetch or make the file again") from None


def _json_lines(file: StoredFile, on_bad: OnBad) -> Rows:
    for number, line in read_lines(file, on_bad=on_bad):
        if not line or line.isspace():
            continue
        try:
            row = json.loads(line)
            fault = f"it is a JSON {type(row).__name__}"
        except (ValueError, RecursionError) as error:
            row, fault = None, str(error)
        if isinstance(row, dict):
            yield number, row
        else:
            on_bad(f"{file}:{number}", "is not a JSON object", f"{fault}: {line[:80]}")


def _json_rows(file: StoredFile, on_bad: OnBad) -> Rows:
    """Yield the items of a JSON list, or of the one list of an object, or of JSON lines despite the file's name."""
    with open_text(file) as stream:
        begin = stream.read(4096).lstrip()
    if not (begin.startswith(b"[") or re.match(rb'\{\s*"[^"]*"\s*:\s*\[\s*\{', begin)):
        yield from _json_lines(file, on_bad)
        return
    try:
        rows = json.loads("".join(line for _, line in read_lines(file, keep_ends=True)))
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{file} is not JSON: {error}") from None
    if isinstance(rows, dict):
        (rows,) = rows.values() if len(rows) == 1 else [[rows]]
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise CorpusError(f"{file}: item {number} is not a JSON object, but {row!r:.80}")
        yield number, row


def _table_rows(
    file: StoredFile, quoted: bool, header: bool, same_length: bool, required: Sequence[str], keys: str, on_bad: OnBad
) -> Rows:
    """Yield the rows of a CSV or TSV file, each with the number of the line that it ends in."""
    place = 0  # the reader's own count would miss skipped lines

    def lines() -> Iterator[str]:
        nonlocal place
        for place, line in read_lines(file, keep_ends=True, on_bad=on_bad):  # noqa: B007
            yield line

    csv.field_size_limit(MAX_LINE_BYTES)  # a text may be longer than the 128 KiB of Python's own limit
    numbered = lines()
    first = next(numbered, "")
    usual, outside = SEPARATORS[format_suffix(file)], re.sub(r'"[^"]*"', "", first)
    is_usual = usual != "," or usual in outside
    separator = usual if is_usual else max(usual, *OTHER_SEPARATORS, key=outside.count)
    rows = chain([first], numbered)
    reader = csv.reader(rows, delimiter=separator, quoting=0 if quoted else csv.QUOTE_NONE, strict=True)
    names: list[str] = []
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as fault:
            on_bad(f"{file}:{place}", "is not a row of the table", f"{fault}; quote cells that contain a separator")
            continue
        if cells is None:
            return
        if not names and cells:
            names = cells if header else [str(number) for number in range(1, len(cells) + 1)]
            if len(set(names)) < len(names):
                raise CorpusError(f"{file}:{place}: each column must have a name of its own, got {names!r:.80}")
            if missing := [name for name in required if name not in names]:
                refuse(f"{file}:{place}", *_no_column(missing, names, keys))
            if header:
                continue
        if same_length and cells and len(cells) != len(names):
            found = f"{counted(len(cells), 'cell')} for {counted(len(names), 'column')}: {cells!r:.80}"
            on_bad(f"{file}:{place}", "is not a row of the table", found)
        elif cells:
            yield place, dict(zip(names, cells, strict=False))


def _parquet_rows(source: Source, required: Sequence[str], optional: Sequence[str], keys: str) -> Rows:
    import pyarrow
    from pyarrow import parquet

    try:
        with source.file.open("rb") as stored, parquet.ParquetFile(stored) as table:
            present = table.schema_arrow.names
            if missing := [name for name in required if name not in present]:
                refuse(source.path, *_no_column(missing, present, keys))
            columns = [name for name in dict.fromkeys((*required, *optional)) if name in present] or None
            batches = table.iter_batches(batch_size=ROWS_PER_BATCH, columns=columns)
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:  # also of dates unknown to Python
        reason = str(error).splitlines()[0]
        raise CorpusError(f"{source.path} cannot be read as Parquet: {reason}; fetch or make the file again") from error


def parquet_row_count(source: Source) -> int:
    """Return the number of rows that a Parquet file, which was read already, records."""
    from pyarrow import parquet

    with source.file.open("rb") as stored:
        return int(parquet.read_metadata(stored).num_rows)


def _hub_rows(source: Source) -> Rows:
    """Stream `hub:NAME@CONFIG/SPLIT` through `datasets`; config and split may be missing, the split is then train."""
    import datasets

    name, _, choice = source.path.removeprefix(HUB_PREFIX).partition("@")
    config, _, split = choice.partition("/")
    try:
        rows = datasets.load_dataset(name, config or None, split=split or "train", streaming=True)
        yield from enumerate(rows, start=1)
    except (OSError, ValueError, RuntimeError, ImportError, datasets.exceptions.DatasetsError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CorpusError(
            f"cannot read {source.path} as a data set, hub:NAME@CONFIG/SPLIT: {reason}; check it and the connection"
        ) from error


def unusable_value(where: str, column: str, expected: str, value: object) -> CorpusError:
    """Return the error for a value of a record that cannot be used."""
    return CorpusError(f"{where}: {column!r} must be {expected}, got {value!r:.80}; correct or remove this row")


def text_value(where: str, column: str, value: object) -> str:
    """Return a value that is text, which may be empty; raises CorpusError for another one."""
    if not isinstance(value, str) or SURROGATE.search(value):
        raise unusable_value(where, column, "a string with text", value)
    return value


def score_value(where: str, column: str, value: Any, least: float = -math.inf, most: float = math.inf) -> float:
    """Return a number from `least` to `most`, written as a number or a text; raises CorpusError for another value."""
    try:
        score = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        score = math.nan
    if not least <= score <= most:
        limits = "" if math.isinf(most) else f" from {least:g} to {most:g}"
        raise unusable_value(where, column, f"a number{limits}", value)
    return score
