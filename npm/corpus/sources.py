"""Where documents come from: paths, addresses, globs and hub data sets, found and checked before they are read."""

from __future__ import annotations

import glob
import os
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from npm.core.errors import CorpusError, UserError, named
from npm.corpus.addresses import Address, StoredFile, file_state, is_address, stored_file

HUB_PREFIX = "hub:"
FORMATS = {
    ".jsonl": "jsonl",
    ".jsonl.zst": "jsonl",
    ".jsonl.gz": "jsonl",
    ".txt": "txt",
    ".md": "md",
    ".html": "html",
    ".htm": "html",
    ".csv": "table",
    ".tsv": "table",
    ".parquet": "parquet",
}
COMPRESSED = (".zst", ".gz")
INDEX_PART = "segments/00000"
"""What an index has, also while it is built: one in a corpus folder, which holds documents too, is no corpus."""
ROWS_PER_BATCH = 256


@dataclass(frozen=True, slots=True)
class Source:
    """One file or hub data set: `name` stands in ids, `path`, which may be an address, in messages."""

    path: str
    name: str
    format: str  # a value of FORMATS, or hub

    @property
    def file(self) -> StoredFile:
        """What is read; not of a data set."""
        return stored_file(self.path)


def find_sources(files: Sequence[str | Path]) -> list[Source]:
    """The sources that `files` name, globs expanded in sorted order. Raises CorpusError for what is not usable."""
    if isinstance(files, str | Path):
        files = [files]
    sources = [source for file in files for source in _expand(os.fspath(file).removeprefix("file://"))]
    if not sources:
        raise CorpusError("no corpus is given: set corpus.files=FILE.jsonl")
    first: dict[str, str] = {}
    for source in sources:
        is_path = source.format != "hub" and not is_address(source.path)
        identity = os.path.realpath(source.path) if is_path else source.path
        if identity in first:
            raise CorpusError(f"{source.path} is given twice, also as {first[identity]}; globs may overlap")
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
    elif not is_address(name) and Path(name).is_dir():
        yield from map(_file_source, _files_below(name))
    elif not glob.has_magic(name) or (not is_address(name) and Path(name).exists()):
        yield _file_source(name)
    else:
        if is_address(name):
            matches = [str(match) for match in Address(name).matches()]
        else:
            found = glob.glob(name, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
            matches = sorted(match for match in found if not Path(match).is_dir())
        if not matches:
            raise CorpusError(f"no file matches {name}; check the path, and quote the glob in the shell")
        yield from map(_file_source, matches)


def _files_below(folder: str) -> list[str]:
    """The files of known formats in a folder and in folders below, sorted; without hidden and empty ones.

    Folders that are links or hold an index are left out too. Raises CorpusError if there is none.
    """
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name for name in folders if not name.startswith(".") and not Path(place, name, INDEX_PART).is_dir()
        ]
        paths = (Path(place, name) for name in names if not name.startswith("."))
        found += [path for path in paths if _format(path) and path.is_file() and path.stat().st_size]
    if not found:
        raise CorpusError(f"{folder} has no file of a known format ({', '.join(FORMATS)})")
    return [str(path) for path in sorted(found)]


def _format(path: StoredFile) -> str | None:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return FORMATS.get("".join(suffixes[-2:])) or FORMATS.get("".join(suffixes[-1:]))


def _file_source(name: str) -> Source:
    if not name:
        raise CorpusError("a file in corpus.files has no name")
    path = stored_file(name)
    file_format = _format(path)
    if path.is_dir():
        problem = f"is a folder; give its files, such as {path / '*.jsonl'}"
    elif not path.exists():
        problem = "does not exist"
    elif file_format is None:
        problem = f"has an unknown extension: expected one of {', '.join(FORMATS)}"
    elif file_state(path)[0] == 0:
        problem = "is empty; fetch or make it again, or leave it out"
    elif isinstance(path, Path) and not os.access(path, os.R_OK):
        problem = "cannot be read: change its permissions"
    else:
        return Source(path=name if isinstance(path, Path) else str(path), name=path.name, format=file_format)
    raise CorpusError(f"{name} {problem}")


FileState = tuple[str, int, int | str]


def file_states(files: Sequence[str | Path]) -> list[FileState]:
    """Path, bytes and time of the last change, or ETag, of every file: what shows that one was written to since.

    Not its inode, which changes by itself on some network file systems.
    """
    return [(source.path, *file_state(source.file)) for source in find_sources(files) if source.format != "hub"]


def refuse_changed_files(files: Sequence[str | Path], since: Sequence[FileState]) -> None:
    """Raise CorpusError, naming them, if files are others than those `since`, or were written to."""
    try:
        now = file_states(files)
    except (CorpusError, OSError) as error:
        now, problem = [], str(error)
    else:
        problem = named(sorted({state[0] for state in {*since} ^ {*now}}))
    if now != list(since):
        raise CorpusError(
            f"the corpus changed while it was read: {problem}; run the command again once its files are complete"
        )


def no_column(where: str, names: Iterable[str], present: Iterable[str], keys: str) -> CorpusError:
    """Error for columns that are missing; `keys` are the settings that name them."""
    advice = f": set {keys}" if keys else ""
    return CorpusError(f"{where}: no column {', '.join(names)}; the columns are {named([*present]) or 'none'}{advice}")


def read_parquet(
    source: Source, *, columns: Sequence[str], required: str, keys: str = ""
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows of a Parquet file, numbered from 1, only `columns`.

    Raises CorpusError if `required` is not there; `keys` are the settings that name the columns.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        with source.file.open("rb") as stored, parquet.ParquetFile(stored) as file:
            present = file.schema_arrow.names
            if required not in present:
                raise no_column(source.path, [required], present, keys)
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
        with source.file.open("rb") as stored:
            return int(parquet.read_metadata(stored).num_rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise _not_parquet(source, error) from error


def _not_parquet(source: Source, error: Exception) -> CorpusError:
    return CorpusError(
        f"{source.path} cannot be read as Parquet: {str(error).splitlines()[0]}; fetch or make the file again"
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
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CorpusError(
            f"cannot read {source.path} as a data set, hub:NAME@CONFIG/SPLIT: {reason}; check it and the connection"
        ) from error


CHUNK_BYTES = 1 << 18
COMPRESSED_STEP_BYTES = 1 << 10  # of zstd, which become 32 MiB at most: a block of 128 KiB may take 4 bytes
MOST_LINE_BYTES = 1 << 28
BYTE_ORDER_MARK = "\ufeff"

OnBad = Callable[[str, str, UserError], None]
"""Told of a line or document that cannot be used: its place, the kind of fault in a word or two, and the message."""


def refuse_bad(where: str, kind: str, error: UserError) -> None:  # noqa: ARG001 - an OnBad
    """Default of `on_bad`: the first fault ends the reading."""
    raise error


def read_lines(
    path: StoredFile,
    *,
    keep_ends: bool = False,
    byte_order_mark: str = "",
    on_bytes: Callable[[int], None] | None = None,
    on_bad: OnBad = refuse_bad,
) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file with their numbers from 1; `.zst` and `.gz` files are decompressed.

    Only a line feed, with a carriage return before it or not, ends a line; it is removed unless `keep_ends`. A byte
    order mark at the beginning becomes `byte_order_mark`. `on_bytes(bytes)` is called with the size of each piece of
    the file, as it lies on the disk, before its lines come. Raises CorpusError naming the file for compressed data that
    is damaged or ends early; lines that are not UTF-8 or longer than MOST_LINE_BYTES go to `on_bad`, and are left out.
    """
    stored = _plain_chunks(path, on_bytes)
    compression = path.suffix.lower()
    chunks = _decompressed_chunks(path, stored) if compression in COMPRESSED else stored
    for number, line in enumerate(_split_lines(chunks), start=1):
        if len(line) > MOST_LINE_BYTES:
            on_bad(f"{path}:{number}", "too long", too_long(path, number))
            continue
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            where, found = f"{path}:{number}", f"0x{line[error.start]:02x} at byte {error.start + 1} of the line"
            on_bad(where, "not UTF-8", CorpusError(f"{where}: {found} is not UTF-8; convert the file"))
            continue
        if number == 1 and text.startswith(BYTE_ORDER_MARK):
            text = byte_order_mark + text[1:]
        yield number, text if keep_ends else text.removesuffix("\n").removesuffix("\r")


def too_long(path: StoredFile, number: int) -> CorpusError:
    """The error for the line or document of more than MOST_LINE_BYTES that begins in line `number`."""
    return CorpusError(
        f"{path}:{number}: the line or document is too long, above {MOST_LINE_BYTES >> 20} MiB; cut it into several"
    )


def _split_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The lines of all chunks in a row, each with its line feed; more than MOST_LINE_BYTES are not held."""
    unfinished: list[bytes] = []
    size = 0
    for chunk in chunks:
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            yield b"".join((*unfinished, line, b"\n"))
            unfinished.clear()
            size = 0
        if size <= MOST_LINE_BYTES:
            unfinished.append(rest)
            size += len(rest)
    if last := b"".join(unfinished):
        yield last


def _plain_chunks(path: StoredFile, on_bytes: Callable[[int], None] | None) -> Iterator[bytes]:
    try:
        opened = path.open("rb")
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise CorpusError(f"cannot read {path}: {error.strerror or type(error).__name__}") from error
    with opened as file:
        while chunk := file.read(CHUNK_BYTES):
            if on_bytes is not None:
                on_bytes(len(chunk))
            yield chunk


def _decompressed_chunks(path: StoredFile, stored: Iterator[bytes]) -> Iterator[bytes]:
    """Frame by frame, in pieces of a bounded size whatever they decompress to."""
    import zstandard

    try:
        whole = yield from (_gunzipped(stored) if path.suffix.lower() == ".gz" else _unzstd(stored))
    except (zstandard.ZstdError, zlib.error) as error:
        raise CorpusError(f"{path} cannot be decompressed: {error}; fetch or make the file again") from None
    if not whole:
        raise CorpusError(f"{path} ends in the middle of its compressed data; fetch or make the file again")


def _unzstd(stored: Iterator[bytes]) -> Generator[bytes, None, bool]:
    """zstandard's own stream reader ends quietly where a file was cut off; this returns whether it is whole."""
    import zstandard

    decompressor = zstandard.ZstdDecompressor()
    frame = None
    for chunk in stored:
        for start in range(0, len(chunk), COMPRESSED_STEP_BYTES):
            compressed = chunk[start : start + COMPRESSED_STEP_BYTES]
            while compressed:
                frame = frame or decompressor.decompressobj()
                yield frame.decompress(compressed)
                compressed = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
    return frame is None


def _gunzipped(stored: Iterator[bytes]) -> Generator[bytes, None, bool]:
    """The same for gzip, whose members may be followed by zeros."""
    member = None
    for chunk in stored:
        compressed = chunk
        while compressed := compressed if member else compressed.lstrip(b"\0"):
            member = member or zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            yield member.decompress(compressed, CHUNK_BYTES)
            while member.unconsumed_tail and not member.eof:
                yield member.decompress(member.unconsumed_tail, CHUNK_BYTES)
            compressed = member.unused_data
            member = None if member.eof else member
    return member is None
