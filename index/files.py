"""Files written once: every byte counted, hashed and, where the system refuses it, in one clear message."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import resource
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Annotated, Any, BinaryIO, Literal, Protocol

import numpy as np

from npm.core.errors import StorageError

NPY_HEADER_BYTES = 128
CHUNK_BYTES = 16 << 20


Size = Annotated[int, range(2**63)]
Digest = Annotated[str, re.compile("[0-9a-f]{64}")]


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What the manifest says of one file."""

    bytes: Size
    sha256: Digest


class Readable(Protocol):
    """A file that can be opened, on this machine or elsewhere."""

    def open(self, mode: Literal["rb"]) -> AbstractContextManager[IO[bytes]]:
        """It opened at its beginning."""


@cache
def allow_many_files() -> None:
    """Let this process open as many files as the system's hard limit allows: every mapped array takes one."""
    with suppress(ValueError, OSError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def sha256_of_bytes(data: bytes | memoryview) -> str:
    """Hexadecimal SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path: Readable, on_bytes: Callable[[int], None] | None = None) -> str:
    """Hexadecimal SHA-256 of all bytes of the file, as `sha256sum` prints it; `on_bytes(read)` after each piece."""
    result = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            result.update(piece)
            if on_bytes is not None:
                on_bytes(len(piece))
    return result.hexdigest()


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value, whatever the order of its keys.

    >>> digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return sha256_of_bytes(text.encode())


@contextmanager
def storage_errors(path: Path, *also: Path) -> Iterator[None]:
    """Turn what the operating system refuses about `path`, or the paths in `also`, into a `StorageError`.

    A refusal that names a file elsewhere, such as an unreadable corpus, is not about what is written, and passes.
    """
    try:
        yield
    except OSError as error:
        named = [Path(os.fsdecode(name)) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
        ours = not named or any(_is_near(name, target) for name in named for target in (path, *also))
        if not error.strerror or isinstance(error, ConnectionError) or not ours:
            raise
        raise StorageError(f"cannot write {path}: {error.strerror}") from error


def _is_near(path: Path, target: Path) -> bool:
    """Whether `path` is `target`, lies in it, or is one of its parents."""
    return path == target or target in path.parents or path in target.parents


@contextmanager
def made_parents(path: Path) -> Iterator[None]:
    """Make the folders above `path`; those made here and left empty are removed if what follows fails."""
    missing = [parent for parent in path.parents if not parent.exists()]
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for parent in missing:
                parent.rmdir()
        raise


def check_writable(folder: Path) -> None:
    """Raise StorageError if the system refuses to write to `folder`, or to make it; nothing is left there."""
    whole = folder.absolute()  # as refusals name their files
    place = next(path for path in (whole, *whole.parents) if path.exists())
    with storage_errors(folder, place), TemporaryFile(dir=place, buffering=0) as file:
        file.write(bytes(4096))


class CountingFile:
    """A new file that counts and hashes what is written; every byte of an artefact passes `write`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.byte_count = 0
        self._hash = hashlib.sha256()
        with storage_errors(path):
            self._file: BinaryIO = path.open("w+b")

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append `data`; raises StorageError if the operating system refuses."""
        with storage_errors(self.path):
            self._file.write(data)
        self._hash.update(data)
        length = data.nbytes if isinstance(data, memoryview) else len(data)
        self.byte_count += length
        return length

    def replace_head(self, head: bytes) -> None:
        """Overwrite the first bytes and hash the whole file anew: a hash cannot be changed at its beginning."""
        with storage_errors(self.path):
            self._file.seek(0)
            self.write(head)
            self._file.seek(0)
        self.byte_count -= len(head)
        self._hash = hashlib.sha256()
        while chunk := self._file.read(CHUNK_BYTES):
            self._hash.update(chunk)

    def close(self) -> None:
        """Flush to the disk and close; a second call does nothing."""
        if self._file.closed:
            return
        with storage_errors(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def abandon(self) -> None:
        """Close without caring for the content."""
        with suppress(OSError):
            self._file.close()

    def record(self) -> FileRecord:
        """Size and hash of what was written."""
        return FileRecord(bytes=self.byte_count, sha256=self._hash.hexdigest())


def replace_file(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file, or the pieces of one, whole or not at all, in place of one that may be there.

    Raises StorageError, and what making the pieces raises.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with storage_errors(path):
        temporary.unlink(missing_ok=True)  # of a killed process; a link under this name would be written through
    file = CountingFile(temporary)
    try:
        for piece in [data] if isinstance(data, bytes) else data:
            file.write(piece)
        file.close()
        with storage_errors(path):
            temporary.replace(path)
    finally:
        file.abandon()
        temporary.unlink(missing_ok=True)


def npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """A version 1.0 .npy header of always 128 bytes, so that the number of rows can be filled in at the end."""
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    body = text.ljust(NPY_HEADER_BYTES - 11) + "\n"
    header = b"\x93NUMPY\x01\x00" + (NPY_HEADER_BYTES - 10).to_bytes(2, "little") + body.encode("ascii")
    assert len(header) == NPY_HEADER_BYTES, f"header of {len(header)} bytes for {dtype} {shape}"
    return header


def stored_dtype(dtype: np.dtype | type | str) -> np.dtype:
    """The little-endian form of a plain numeric or boolean dtype; others need pickle and are refused."""
    plain = np.dtype(dtype)
    if plain.kind not in "biuf":
        raise TypeError(f"arrays of dtype {plain} are not stored: only bool, integers and floats")
    return plain.newbyteorder("<")


def write_rows(file: CountingFile, rows: np.ndarray) -> None:
    """Write the bytes of a C-contiguous array."""
    data = rows.reshape(-1).view(np.uint8).data
    for start in range(0, len(data), CHUNK_BYTES):
        file.write(data[start : start + CHUNK_BYTES])


class ArrayStream:
    """A .npy file that grows by rows; its header is right only after `close`."""

    def __init__(
        self, file: CountingFile, dtype: np.dtype, trailing_shape: tuple[int, ...], row_count: int | None
    ) -> None:
        self._file = file
        self._dtype = dtype
        self._trailing_shape = trailing_shape
        self._declared_rows = row_count
        self._closed = False
        self.row_count = 0
        file.write(npy_header(dtype, (row_count or 0, *trailing_shape)))

    def append(self, array: np.ndarray) -> None:
        """Add rows [n, *trailing_shape]; their dtype must already be the stream's."""
        rows = np.asarray(array)
        if rows.shape[1:] != self._trailing_shape or rows.ndim == 0 or rows.dtype != self._dtype:
            wanted = f"{self._dtype} [n, *{self._trailing_shape}]"
            raise ValueError(f"{self._file.path.name}: expected {wanted}, got {rows.dtype} {rows.shape}")
        write_rows(self._file, np.ascontiguousarray(rows, dtype=self._dtype))
        self.row_count += len(rows)

    def close(self) -> None:
        """Put the number of rows into the header; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._declared_rows is None:
            self._file.replace_head(npy_header(self._dtype, (self.row_count, *self._trailing_shape)))
        elif self._declared_rows != self.row_count:
            raise ValueError(f"{self._file.path.name}: {self._declared_rows} rows declared, {self.row_count} written")
        self._file.close()


def rows_per_chunk(array: np.ndarray) -> int:
    """Rows of `array` that make about `CHUNK_BYTES`."""
    return max(1, CHUNK_BYTES // max(1, array.itemsize * math.prod(array.shape[1:])))


def json_bytes(value: Any) -> bytes:
    """A JSON value as stored in files: keys sorted, UTF-8, one final newline."""
    return (json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode()


KEPT_FREE_BYTES = 64 << 20
"""What is left for everything else on the disk."""


def check_room(folder: Path, needed_bytes: float, *, what: str) -> None:
    """Raise StorageError unless the disk of `folder`, which need not be there yet, has room for `needed_bytes` more."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free_bytes = shutil.disk_usage(place).free
    if needed_bytes > 0 and needed_bytes + KEPT_FREE_BYTES > free_bytes:
        raise StorageError(
            f"the disk has no room for the {what} in {folder}: {shown_bytes(needed_bytes)} and "
            f"{shown_bytes(KEPT_FREE_BYTES)} to spare are needed, {shown_bytes(free_bytes)} are free; "
            "free some space, or choose another disk"
        )


def stored_bytes(folder: Path) -> int:
    """Bytes of all files below `folder`; 0 where there is none. Files that vanish meanwhile do not count."""
    total = 0
    for place, _, names in os.walk(folder):  # passes over folders that vanish meanwhile
        for name in names:
            with suppress(FileNotFoundError):
                total += (Path(place) / name).lstat().st_size
    return total


def shown_bytes(count: float) -> str:
    """A number of bytes for people.

    >>> shown_bytes(512), shown_bytes(3 << 20), shown_bytes(5 * 2**30)
    ('512 B', '3.0 MiB', '5.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
