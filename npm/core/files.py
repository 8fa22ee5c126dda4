"""Files of ours: written completely or not at all, arrays and JSON, their hashes, and the disk space that they need."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Annotated, Any, Literal, Protocol

import numpy as np
from pydantic import Field

from npm.core.errors import ArtifactError, StorageError

KEPT_FREE_BYTES = 64 << 20
"""Disk space that is reserved for everything else."""


Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and hash of a file."""

    bytes: Annotated[int, Field(ge=0, lt=2**63)]
    sha256: Digest


class Readable(Protocol):
    """A file that can be opened, on this machine or elsewhere."""

    def open(self, mode: Literal["rb"]) -> AbstractContextManager[IO[bytes]]:
        """Open it at its beginning."""


class NewFile(io.BufferedRandom):
    """A file that did not exist before; every byte of an artifact passes through `write`."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "x+"))

    def write(self, data: Any) -> int:
        """Append the bytes of `data`, such as a C-contiguous array."""
        return super().write(data)


class ArrayStream:
    """A .npy file that grows by rows; its header is right only after `close`."""

    def __init__(self, file: NewFile, dtype: np.dtype, trailing_shape: tuple[int, ...]) -> None:
        self._file = file
        self._dtype, self._trailing_shape = dtype, trailing_shape
        self.row_count = 0
        self._write_header()

    def _write_header(self) -> None:
        # numpy leaves space for the digits of a growing first dimension, so the length of the header stays
        shape = (self.row_count, *self._trailing_shape)
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, array: np.ndarray) -> None:
        """Add rows [n, *trailing_shape]; their dtype must already be the stream's."""
        if array.shape[1:] != self._trailing_shape or array.ndim == 0 or array.dtype != self._dtype:
            wanted = f"{self._dtype} [n, *{self._trailing_shape}]"
            raise ValueError(f"{self._file.name}: expected {wanted}, got {array.dtype} {array.shape}")
        self._file.write(np.ascontiguousarray(array, dtype=self._dtype))
        self.row_count += len(array)

    def close(self) -> None:
        """Put the number of rows into the header; a second call does nothing."""
        if not self._file.closed:
            self._file.seek(0)
            self._write_header()
            self._file.close()


def stored_dtype(dtype: np.dtype | type | str) -> np.dtype:
    """The little-endian form of a plain numeric or boolean dtype; others need pickle and are refused."""
    plain = np.dtype(dtype)
    if plain.kind not in "biuf":
        raise TypeError(f"arrays of dtype {plain} are not stored: only bool, integers and floats")
    return plain.newbyteorder("<")


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(folder: Path) -> None:
    """Make a folder, with everything in it, survive a power cut."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def name_file(error: BaseException, path: Path) -> None:
    """Add `path` to an OSError that names no file, such as one of a full disk."""
    if isinstance(error, OSError) and error.filename is None:
        error.filename = str(path)


def replace_file(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file, or the pieces of one, completely or not at all, in place of one that may exist."""
    is_new_folder = not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # of a killed process
    try:
        with NewFile(temporary) as file:
            for piece in [data] if isinstance(data, bytes) else data:
                file.write(piece)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        name_file(error, path)
        raise
    finally:
        temporary.unlink(missing_ok=True)
        if is_new_folder:
            with suppress(OSError):  # it holds the file
                path.parent.rmdir()


def sha256_of_bytes(data: bytes | memoryview) -> str:
    """Hexadecimal SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path: Readable) -> str:
    """Hexadecimal SHA-256 of all bytes of the file, as `sha256sum` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type] # IO[bytes] has readinto


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value, independent of the order of its keys.

    >>> digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return sha256_of_bytes(text.encode(errors="surrogatepass"))  # an id to delete may be anything


def json_bytes(value: Any) -> bytes:
    """A JSON value as stored in files: keys sorted, UTF-8, one final newline."""
    return (json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode()


def read_object(file: Path, *, fix: str) -> dict[str, Any]:
    """The JSON object in a file. Raises ArtifactError, with this `fix`, for anything else."""
    try:
        content = json.loads(file.read_bytes())
        got = f"expected a JSON object, got {type(content).__name__}"
    except OSError as error:
        content, got = None, error.strerror or str(error)
    except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8
        content, got = None, str(error)
    if not isinstance(content, dict):
        raise ArtifactError(f"{file} cannot be read: {got}; {fix}")
    return content


class FolderWriter:
    """Writes the files of one artifact; made by `write_folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: list[NewFile] = []
        self._streams: list[ArrayStream] = []

    def open_binary(self, name: str) -> NewFile:
        """A new file of exactly this name, to `write` bytes to."""
        file = NewFile(self.folder / name)
        self._files.append(file)
        return file

    def stream_array(
        self, name: str, dtype: np.dtype | type | str, trailing_shape: tuple[int, ...] = ()
    ) -> ArrayStream:
        """A stream of rows into `name`.npy."""
        stream = ArrayStream(self.open_binary(f"{name}.npy"), stored_dtype(dtype), tuple(trailing_shape))
        self._streams.append(stream)
        return stream

    def write_array(self, name: str, array: np.ndarray) -> None:
        """Write `array` as `name`.npy."""
        with NewFile(self.folder / f"{name}.npy") as file:
            np.lib.format.write_array(file, array.astype(stored_dtype(array.dtype), order="C", copy=False), (1, 0))

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON value as `name`.json, keys sorted."""
        self.open_binary(f"{name}.json").write(json_bytes(value))

    def finish(self) -> dict[str, FileRecord]:
        """Close every file; returns the records of all files in the folder."""
        for stream in self._streams:
            stream.close()
        for file in self._files:
            file.close()
        paths = sorted(self.folder.iterdir())
        for path in paths:
            sync(path)
        return {path.name: FileRecord(path.stat().st_size, sha256_of_file(path)) for path in paths}

    def abandon(self) -> None:
        """Close every file regardless of its content."""
        for file in self._files:
            with suppress(OSError):
                file.close()


def check_writable(folder: Path) -> None:
    """Raise OSError if the system refuses to write to `folder`, or to create it; nothing is left there."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with TemporaryFile(dir=place) as file:
            file.write(bytes(4096))
    except OSError as error:  # which names the temporary file
        raise OSError(error.errno, error.strerror, str(folder)) from error


def check_room(folder: Path, needed_bytes: float, *, what: str) -> None:
    """Raise StorageError unless the disk of `folder`, which may not exist yet, has `needed_bytes` of free space."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free_bytes = shutil.disk_usage(place).free
    if needed_bytes > 0 and needed_bytes + KEPT_FREE_BYTES > free_bytes:
        raise StorageError(
            f"the disk has no room for the {what} in {folder}: {shown_bytes(needed_bytes)} and "
            f"{shown_bytes(KEPT_FREE_BYTES)} to spare are needed, {shown_bytes(free_bytes)} are free; "
            "free some space, or choose another disk"
        )


def stored_bytes(folder: Path) -> int:
    """Bytes of all files below `folder`; 0 if there is none. Files that vanish meanwhile do not count."""
    total = 0
    for place, _, names in os.walk(folder):  # skips folders that vanish meanwhile
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


def user_folder(variable: str, usual: str) -> Path:
    """The folder `npmlm` in the one that the environment's `variable` names, else in `usual` of the home folder.

    Relative paths do not count, as in the XDG Base Directory Specification.
    """
    named = Path(os.environ.get(variable, ""))
    return (named if named.is_absolute() else Path.home() / usual) / "npmlm"
