"""Sources of documents: paths, folders, addresses, globs and hub data sets, found and checked before reading.

Files of an object store are read through fsspec by their address; an `Address` has what reading needs of a `Path`.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

from npm.core.display import counted
from npm.core.errors import CorpusError, SettingError, StorageError
from npm.core.files import sha256_of_file
from npm.core.types import SURROGATE

DRIVERS = {"s3": "s3fs", "gs": "gcsfs", "file": "", "memory": ""}
"""Kinds of addresses, and the package that each needs next to fsspec."""
DRIVER_MODULES = ("s3fs", "botocore", "aiobotocore", "aiohttp", "gcsfs", "google")
"""Packages whose exceptions are not OSErrors, such as missing credentials."""
KINDS = ", ".join(f"{scheme}://…" for scheme in DRIVERS)


def is_address(name: str) -> bool:
    """Return True if `name` has the form of an address, such as s3://bucket/x.jsonl."""
    return "://" in name


@contextmanager
def store_errors(address: object) -> Iterator[None]:
    """Turn errors of an object store or its driver about `address` into a StorageError."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in DRIVER_MODULES:
            raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise StorageError(
            f"cannot access {address}: {reason}; check the address, your credentials and the connection"
        ) from error


class Address:
    """One file at an address, or the common prefix of many; all methods raise StorageError."""

    def __init__(self, text: str) -> None:
        """Raises SettingError for an address of an unknown kind, StorageError if its driver is missing."""
        import fsspec

        scheme, _, rest = text.partition("://")
        if scheme not in DRIVERS or not rest.strip("/"):
            raise SettingError(f"unknown address {text!r}: expected {KINDS}, such as s3://bucket/name")
        try:
            self.fs: Any = fsspec.filesystem(scheme)
        except ImportError as error:
            raise StorageError(
                f"{text} needs a driver: pip install {DRIVERS[scheme]} fsspec=={fsspec.__version__}"
            ) from error
        self._text: str = self.fs.unstrip_protocol(self.fs._strip_protocol(text))
        place = PurePosixPath(self._text)
        self.name, self.stem, self.suffix, self.suffixes = place.name, place.stem, place.suffix, place.suffixes

    def __str__(self) -> str:
        return self._text

    def info(self) -> dict[str, Any]:
        """Return what the store knows of it; nothing if it does not exist."""
        with store_errors(self):
            try:
                return dict(self.fs.info(str(self)))
            except FileNotFoundError:
                return {}

    def exists(self) -> bool:
        """Return True if a file, or something below it, exists."""
        return bool(self.info())

    def is_dir(self) -> bool:
        """Return True if it is the prefix of other files."""
        return self.info().get("type") == "directory"

    def matches(self) -> list[Address]:
        """Return the files that match it as a glob, sorted."""
        with store_errors(self):
            self.fs.invalidate_cache()
            found = self.fs.glob(str(self), detail=True)
        return [Address(self.fs.unstrip_protocol(name)) for name in sorted(found) if found[name]["type"] == "file"]

    @contextmanager
    def open(self, mode: str = "rb") -> Iterator[IO[bytes]]:
        """Open it for reading from the beginning."""
        with store_errors(self), self.fs.open(str(self), mode) as stream:
            yield stream


StoredFile = Path | Address


def stored_file(name: str) -> StoredFile:
    """Return the path or the address that `name` is."""
    return Address(name) if is_address(name) else Path(name)


def file_size(file: StoredFile) -> int:
    """Return the bytes of a file; 0 where a store does not know."""
    return file.stat().st_size if isinstance(file, Path) else file.info().get("size") or 0


MOST_NAMED = 8
"""Kinds of unread files that are named."""
CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")

HUB_PREFIX = "hub:"
FORMATS = {
    ".jsonl": "jsonl",
    ".json": "json",
    ".txt": "txt",
    ".text": "txt",
    ".rst": "txt",
    ".adoc": "txt",
    ".org": "txt",
    ".md": "md",
    ".markdown": "md",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".csv": "table",
    ".tsv": "table",
    ".pdf": "pdf",
    ".docx": "docx",
    ".pptx": "pptx",
    ".epub": "epub",
    ".parquet": "parquet",
}
KNOWN_SUFFIXES = f"{', '.join(FORMATS)}, all but the last also with .gz or .zst"
PART_NAMES = {
    "pdf": "page",
    "pptx": "slide",
    "docx": "section",
    "epub": "section",
    "md": "section",
    "html": "section",
}
"""Formats whose files are read in parts, those of text only with corpus.split=heading; and the name of a part."""
COMPRESSED = {".zst": "zstd", ".gz": "gzip"}
"""Codecs of pyarrow by the suffix after the extension of any format except parquet, which compresses by itself."""
INDEX_PART = f"corpus-{16 * '[0-9a-f]'}"
"""A folder in every index, also while it is built: an index in a corpus folder is not part of the corpus."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file or hub data set: `path`, which may be an address, is as given; `name` is unique among the sources."""

    path: str
    name: str
    format: str  # a value of FORMATS, or hub

    @property
    def file(self) -> StoredFile:
        """The file to read; a data set has none."""
        return stored_file(self.path)

    @property
    def identifier(self) -> str:
        """The id of the file where it is one document, and the beginning of the ids of its parts and rows."""
        return self.file.as_posix() if isinstance(self.file, Path) else str(self.file)

    @property
    def stem(self) -> str:
        """The name of the file without its endings."""
        return self.name.rpartition("/")[2].partition(".")[0]


def find_sources(files: Sequence[str | Path]) -> list[Source]:
    """Return the sources that `files` name, globs expanded in sorted order. Raises CorpusError for unusable ones."""
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
    """Prefix files of one name with the fewest folders that make them unique: a/notes.txt and b/notes.txt."""
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
        below = sorted(path for path in _walk(name) if _is_read(path))
        if not below:
            raise CorpusError(f"{name} has no file of a known format ({KNOWN_SUFFIXES})")
        yield from map(file_source, map(str, below))
    elif not glob.has_magic(name) or (not is_address(name) and Path(name).exists()):
        yield file_source(name)
    else:
        if is_address(name):
            matches = [str(match) for match in Address(name).matches()]
        else:
            found = glob.glob(name, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
            matches = sorted(match for match in found if not Path(match).is_dir())
        if not matches:
            raise CorpusError(f"no file matches {name}; check the path, and quote the glob in the shell")
        yield from map(file_source, matches)


def _walk(folder: str) -> Iterator[Path]:
    """Yield the files in a folder and below but hidden and empty ones, links to folders and folders of an index."""
    for place, folders, names in os.walk(folder, onerror=_refuse_unreadable):
        folders[:] = [
            name for name in folders if not name.startswith(".") and not any(Path(place, name).glob(INDEX_PART))
        ]
        paths = (Path(place, name) for name in names if not name.startswith("."))
        yield from (path for path in paths if path.is_file() and file_size(path))


def _refuse_unreadable(error: OSError) -> None:
    """Raise CorpusError for a folder that cannot be listed: left out, its documents would be taken for deleted."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise CorpusError(f"{error.filename} cannot be read: change its permissions, or leave it out") from error


def _is_read(path: Path) -> bool:
    return _format(path) not in (None, "json")  # a .json file in a folder is rarely a list of documents


def unread_files(files: Sequence[str | Path]) -> str:
    """A note on the files in folders of `files` that are of no known format; "" without any."""
    folders = (os.fspath(file).removeprefix("file://") for file in files)
    unread = [path for folder in folders if not is_address(folder) for path in _walk(folder) if not _is_read(path)]
    if not unread:
        return ""
    kinds = Counter(format_suffix(path) or "without ending" for path in unread)
    named = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(MOST_NAMED))
    more = ", …" if len(kinds) > MOST_NAMED else ""
    first = min(unread)
    are = "is" if len(unread) == 1 else "are"
    files = counted(len(unread), "file")
    return f"{files} of the folders {are} of a kind that is not read ({named}{more}), such as {first}"


def file_format(path: StoredFile) -> str:
    """Return the format of a file by its extension. Raises CorpusError if it is unknown."""
    if (found := _format(path)) is None:
        raise CorpusError(f"{path} has an unknown extension: expected one of {KNOWN_SUFFIXES}")
    return found


def _format(path: StoredFile) -> str | None:
    found = FORMATS.get(format_suffix(path))
    return None if found == "parquet" and path.suffix.lower() != ".parquet" else found


def format_suffix(path: StoredFile) -> str:
    """Return the extension that says the format, in lower case and without that of a compression."""
    name = path.name.lower()
    for compressed in COMPRESSED:
        name = name.removesuffix(compressed)
    return Path(name).suffix


def part_fields(names: Iterable[str], *, in_sections: bool) -> list[str]:
    """The fields that the parts and rows of files with these names keep; `in_sections` as with corpus.split=heading.

    >>> part_fields(["a.txt", "b.PDF"], in_sections=False), part_fields(["c.md"], in_sections=True)
    (['file', 'page'], ['file', 'heading'])
    """
    formats = {FORMATS.get(format_suffix(Path(name))) for name in names}
    headed = {"docx", "pptx", "epub", *(("md", "html") if in_sections else ())}
    has_pages, has_headings = bool(formats & {"pdf", "pptx"}), bool(formats & headed)
    fields = {"file": has_pages or has_headings or "table" in formats, "page": has_pages, "heading": has_headings}
    return [name for name, is_kept in fields.items() if is_kept]


def file_of_part(identifier: str) -> str:
    """The file that this id of a document names a part of; "" unless it has the form that `read_corpus` gives.

    >>> file_of_part("a/b.pdf, page 7"), file_of_part("b.pdf, section 7"), file_of_part("b.py, part 7")
    ('a/b.pdf', '', '')
    """
    file, _, place = identifier.rpartition(", ")
    name, _, number = place.partition(" ")
    is_part = number.isdecimal() and name == PART_NAMES.get(FORMATS.get(format_suffix(Path(file)), ""))
    return file if is_part else ""


def file_of_id(identifier: str) -> str:
    """The file of which this id names a part or a row without an id; the id as it is if it has no such form.

    >>> file_of_id("a/b.pdf, page 7"), file_of_id("a/prices.csv:12"), file_of_id("a/notes.txt")
    ('a/b.pdf', 'a/prices.csv', 'a/notes.txt')
    """
    file, _, number = identifier.rpartition(":")
    return file_of_part(identifier) or (file if file and number.isdecimal() else identifier)


def is_table(name: str) -> bool:
    """Return True for the name of a .csv or .tsv file."""
    return FORMATS.get(format_suffix(Path(name))) == "table"


def file_source(name: str) -> Source:
    """Return the source that one file is. Raises CorpusError unless it can be read and has a known extension."""
    path = stored_file(name)
    if SURROGATE.search(name):
        raise CorpusError(f"{name!r}: the name of the file is not UTF-8; rename it")
    if isinstance(path, Path) and CONTROL_CHARACTER.search(path.name):
        raise CorpusError(f"{name!r}: the name of the file has control characters; rename it")
    if path.is_dir():
        problem = f"is a folder; give its files, such as {path}/*.jsonl"
    elif not path.exists():
        problem = "does not exist"
    elif isinstance(path, Path) and not path.is_file():
        problem = "is not a regular file"
    elif file_size(path) == 0:
        problem = "is empty; fetch or make it again, or leave it out"
    elif isinstance(path, Path) and not os.access(path, os.R_OK):
        problem = "cannot be read: change its permissions"
    else:
        return Source(name if isinstance(path, Path) else str(path), path.name, file_format(path))
    raise CorpusError(f"{name} {problem}")


def input_record(sources: Sequence[Source], recorded: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Name, size and SHA-256 of every source, in order: what the blocks depend on, without its location.

    If name and size match a `recorded` file, its SHA-256 is reused, and the file is not read.
    """
    known = {(record["name"], record.get("bytes")): record.get("sha256") for record in recorded}
    records: list[dict[str, Any]] = []
    for source in sources:
        record: dict[str, Any] = {"name": source.name}
        if source.format != "hub":
            size = file_size(source.file)
            record |= {"bytes": size, "sha256": known.get((source.name, size)) or sha256_of_file(source.file)}
        records.append(record)
    return records
