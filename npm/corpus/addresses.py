"""Files of an object store, by their address: found, read and written through fsspec, which is imported here alone.

An `Address` offers what reading a corpus asks of a `Path`, so that one code reads both. Addresses of files on this
machine, file:///…, are read as the paths that they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from npm.core.errors import SettingError, StorageError

DRIVERS = {"s3": "s3fs", "gs": "gcsfs", "file": "", "memory": ""}
"""Kinds of addresses, and the package that each needs beside fsspec."""
DRIVER_MODULES = ("s3fs", "botocore", "aiobotocore", "aiohttp", "gcsfs", "google")
"""Where errors of the drivers come from that are no OSErrors, such as missing credentials."""
VERSION_KEYS = ("ETag", "etag", "mtime", "created")
"""What stores say of a file that is another once the file was written again."""
KINDS = ", ".join(f"{scheme}://…" for scheme in DRIVERS)


def is_address(name: str) -> bool:
    """Whether `name` has the form of an address.

    >>> is_address("s3://bucket/x.jsonl"), is_address("hub:wikipedia"), is_address("a/b.jsonl")
    (True, False, False)
    """
    return "://" in name


@contextmanager
def store_errors(address: object) -> Iterator[None]:
    """Turn what an object store or its driver refuses about `address` into a StorageError."""
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
    """One file at an address, or the place that many have in common."""

    def __init__(self, text: str) -> None:
        """Raises SettingError for no address of a known kind, StorageError if the driver of its store is missing."""
        import fsspec

        scheme, _, rest = text.partition("://")
        if scheme not in DRIVERS or not rest.strip("/"):
            raise SettingError(f"unknown address {text!r}: expected {KINDS}, such as s3://bucket/name")
        try:
            self.fs: Any = fsspec.filesystem(scheme, **({"auto_mkdir": True} if scheme == "file" else {}))
        except ImportError as error:
            raise StorageError(
                f"{text} needs a driver: pip install {DRIVERS[scheme]} fsspec=={fsspec.__version__}"
            ) from error
        self._text: str = self.fs.unstrip_protocol(self.fs._strip_protocol(text))
        place = PurePosixPath(self._text)
        self.name, self.stem, self.suffix, self.suffixes = place.name, place.stem, place.suffix, place.suffixes

    def __str__(self) -> str:
        return self._text

    def __truediv__(self, name: str) -> Address:
        return Address(f"{self}/{name}")

    def info(self) -> dict[str, Any]:
        """What the store says of it; nothing if it is not there. Raises StorageError, as all that follow."""
        with store_errors(self):
            try:
                return dict(self.fs.info(str(self)))
            except FileNotFoundError:
                return {}

    def exists(self) -> bool:
        """Whether a file, or something below it, is there."""
        return bool(self.info())

    def is_dir(self) -> bool:
        """Whether it is the place of other files."""
        return self.info().get("type") == "directory"

    def matches(self) -> list[Address]:
        """The files that it names as a glob, sorted."""
        with store_errors(self):
            self.fs.invalidate_cache()
            found = self.fs.glob(str(self), detail=True)
        return [Address(self.fs.unstrip_protocol(name)) for name in sorted(found) if found[name]["type"] == "file"]

    def sizes(self) -> dict[str, int]:
        """The bytes of all files below it, by the rest of their path."""
        with store_errors(self):
            self.fs.invalidate_cache()
            try:
                found = self.fs.find(str(self), detail=True)
            except FileNotFoundError:
                return {}
        above = len(self.fs._strip_protocol(str(self))) + 1
        return {name[above:]: info["size"] for name, info in found.items() if info}

    @contextmanager
    def open(self, mode: str = "rb") -> Iterator[IO[bytes]]:
        """It opened, to be read from its beginning or written whole."""
        with store_errors(self), self.fs.open(str(self), mode) as stream:
            yield stream

    def write(self, pieces: Iterable[bytes]) -> None:
        """Write a file, in place of one that may be there; if `pieces` raises, a part of it may be left."""
        with self.open("wb") as stream:
            for piece in pieces:
                stream.write(piece)


StoredFile = Path | Address


def stored_file(name: str) -> StoredFile:
    """The file that `name` stands for, on this machine or at an address."""
    return Address(name) if is_address(name) else Path(name)


def file_state(file: StoredFile) -> tuple[int, int | str]:
    """Bytes of a file, and what is another once it was written again.

    That is the time of the last change in ns; at an address the ETag, else a time, and nothing where a store tells
    neither.
    """
    if isinstance(file, Path):
        found = file.stat()
        return found.st_size, found.st_mtime_ns
    info = file.info()
    return info.get("size", 0), next((str(info[key]) for key in VERSION_KEYS if info.get(key)), "")
