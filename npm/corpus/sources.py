"""Where documents come from: paths, globs and hub data sets, found and checked before anything is read."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from npm.errors import CorpusError

HUB_PREFIX = "hub:"
FORMATS = {".jsonl": "jsonl", ".jsonl.zst": "jsonl", ".txt": "txt", ".parquet": "parquet"}
ROWS_PER_BATCH = 256


@dataclass(frozen=True, slots=True)
class Source:
    """One file or hub data set: `name` stands in ids, `path` in messages."""

    path: str
    name: str
    format: str  # a value of FORMATS, or hub


def find_sources(files: Sequence[str | Path]) -> list[Source]:
    """The sources that `files` name, globs expanded in sorted order. Raises CorpusError for what is not usable."""
    if isinstance(files, str | Path):
        files = [files]
    sources = [source for file in files for source in _expand(os.fspath(file))]
    if not sources:
        raise CorpusError(
            "no corpus is given",
            expected="at least one file",
            got="an empty list",
            where="corpus.files",
            fix="give corpus.files=FILE.jsonl, a glob, or a list of them",
        )
    first: dict[str, str] = {}
    for source in sources:
        identity = source.path if source.format == "hub" else os.path.realpath(source.path)
        if identity in first:
            raise CorpusError(
                f"{source.name} is given twice",
                expected="each file once",
                got=f"{first[identity]} and {source.path}",
                where="corpus.files",
                fix="leave one of them out; globs may overlap",
            )
        first[identity] = source.path
    return _with_distinct_names(sources)


def _with_distinct_names(sources: list[Source]) -> list[Source]:
    """Files of the same name get as many of their folders as make them differ: a/notes.txt and b/notes.txt."""
    with_name: dict[str, list[Source]] = {}
    for source in sources:
        with_name.setdefault(source.name, []).append(source)
    names: dict[str, str] = {}  # by path
    for group in with_name.values():
        parts = {source.path: Path(source.path).parts for source in group if source.format != "hub"}
        depth = 1
        while len({last[-depth:] for last in parts.values()}) < len(parts):
            depth += 1
        names |= {path: Path(*last[-depth:]).as_posix() for path, last in parts.items()}
    return [replace(source, name=names.get(source.path, source.name)) for source in sources]


def _expand(name: str) -> Iterator[Source]:
    if name.startswith(HUB_PREFIX):
        yield Source(path=name, name=name, format="hub")
    elif Path(name).exists() or not glob.has_magic(name):
        yield _file_source(name)
    else:
        found = glob.glob(name, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
        matches = sorted(match for match in found if not Path(match).is_dir())
        if not matches:
            raise CorpusError(
                f"no file matches {name}",
                expected="a glob that matches at least one file",
                got="no match",
                where=name,
                fix="check the path, and quote the glob so that the shell leaves it alone",
            )
        yield from map(_file_source, matches)


def _file_source(name: str) -> Source:
    path = Path(name)
    file_format = FORMATS.get("".join(path.suffixes[-2:])) or FORMATS.get(path.suffix)
    problem = None
    if path.is_dir():
        problem = ("is a folder", "a file", "a folder", f"give its files, such as {path / '*.jsonl'}")
    elif not path.exists():
        problem = ("does not exist", "a file", "nothing there", "check the path")
    elif file_format is None:
        known = ", ".join(FORMATS)
        problem = ("has an unknown extension", f"one of {known}", path.suffix or "none", "convert or rename the file")
    elif path.stat().st_size == 0:
        problem = ("is empty", "a file with text", "0 bytes", "fetch or make the file again, or leave it out")
    elif not os.access(path, os.R_OK):
        problem = ("cannot be read", "a readable file", "no permission", "change its permissions")
    if problem is not None:
        what, expected, got, fix = problem
        raise CorpusError(f"{name} {what}", expected=expected, got=got, where=name, fix=fix)
    return Source(path=name, name=path.name, format=str(file_format))


def read_parquet(
    source: Source,
    *,
    columns: Sequence[str],
    required: str,
    fix: str = "name the column that holds the text with corpus.text_field=",
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows of a Parquet file, numbered from 1, only `columns`.

    Raises CorpusError if `required` is not there; `fix` is what it then advises.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(source.path) as file:
            present = file.schema_arrow.names
            if required not in present:
                raise CorpusError(
                    f"{source.name} lacks the column {required!r}",
                    expected=f"a column {required!r}",
                    got=f"the columns {present}",
                    where=source.path,
                    fix=fix,
                )
            read_columns = [name for name in dict.fromkeys(columns) if name in present]
            number = 0
            for batch in file.iter_batches(batch_size=ROWS_PER_BATCH, columns=read_columns):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _not_parquet(source, error) from error


def parquet_row_count(source: Source) -> int:
    """The rows of a Parquet file, by its own account. Raises CorpusError as `read_parquet` does."""
    import pyarrow
    from pyarrow import parquet

    try:
        return int(parquet.read_metadata(source.path).num_rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise _not_parquet(source, error) from error


def _not_parquet(source: Source, error: Exception) -> CorpusError:
    return CorpusError(
        f"{source.name} cannot be read as Parquet",
        expected="a whole Parquet file with UTF-8 text",
        got=str(error).splitlines()[0],
        where=source.path,
        fix="fetch or make the file again",
    )


def read_hub(source: Source) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows of a data set read through `datasets`, streamed and numbered from 1.

    `hub:NAME`, `hub:NAME@CONFIG`, `hub:NAME@CONFIG/SPLIT` or `hub:NAME@/SPLIT`; the split is "train" by default.
    """
    import datasets

    name, _, choice = source.path.removeprefix(HUB_PREFIX).partition("@")
    config, _, split = choice.partition("/")
    try:
        rows = datasets.load_dataset(name, config or None, split=split or "train", streaming=True)
        yield from enumerate(rows, start=1)
    except (OSError, ValueError, RuntimeError, ImportError, datasets.exceptions.DatasetsError) as error:
        raise CorpusError(
            f"{source.name} cannot be read as a data set",
            expected=f"a data set {name!r} with a split {split or 'train'!r}",
            got=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            where=source.path,
            fix="check name, config and split (hub:NAME@CONFIG/SPLIT) and the connection to the hub",
        ) from error


CHUNK_BYTES = 1 << 18
BYTE_ORDER_MARK = "\ufeff"


def read_lines(
    path: Path, *, keep_ends: bool = False, on_bytes: Callable[[int], None] | None = None
) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file with their numbers from 1; `.zst` files are decompressed.

    Only a line feed, with a carriage return before it or not, ends a line; it is removed unless `keep_ends`. A byte
    order mark at the beginning is not text. `on_bytes(bytes)` is called with the size of each piece of the file, as it
    lies on the disk, before its lines come. Raises CorpusError naming file and line for bytes that are not UTF-8 and
    for compressed data that is damaged or ends early.
    """
    stored = _plain_chunks(path, on_bytes)
    chunks = _decompressed_chunks(path, stored) if path.suffix == ".zst" else stored
    for number, line in enumerate(_split_lines(chunks), start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{path.name} is not UTF-8 in line {number}",
                expected="text encoded as UTF-8",
                got=f"byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line",
                where=f"{path}:{number}",
                fix="convert the file to UTF-8, for example with iconv",
            ) from None
        text = text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text
        yield number, text if keep_ends else text.removesuffix("\n").removesuffix("\r")


def _split_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The lines of all chunks in a row, each with its line feed."""
    unfinished: list[bytes] = []
    for chunk in chunks:
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            yield b"".join((*unfinished, line, b"\n"))
            unfinished.clear()
        unfinished.append(rest)
    if last := b"".join(unfinished):
        yield last


def _plain_chunks(path: Path, on_bytes: Callable[[int], None] | None) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            if on_bytes is not None:
                on_bytes(len(chunk))
            yield chunk


def _decompressed_chunks(path: Path, stored: Iterator[bytes]) -> Iterator[bytes]:
    """Frame by frame: zstandard's own stream reader ends quietly where a file was cut off."""
    import zstandard

    decompressor = zstandard.ZstdDecompressor()
    frame = None
    try:
        for compressed in stored:
            while compressed:
                frame = frame or decompressor.decompressobj()
                yield frame.decompress(compressed)
                compressed = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
    except zstandard.ZstdError as error:
        raise CorpusError(
            f"{path.name} cannot be decompressed",
            expected="data compressed with zstd",
            got=str(error),
            where=str(path),
            fix="fetch or make the file again",
        ) from None
    if frame is not None:
        raise CorpusError(
            f"{path.name} ends in the middle of its compressed data",
            expected="a whole zstd file",
            got=f"the first {path.stat().st_size} bytes of one",
            where=str(path),
            fix="fetch or make the file again: it was not written or copied to the end",
        )
