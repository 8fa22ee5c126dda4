"""Files of an object store by their address, read through fsspec; an `Address` has what reading needs of a `Path`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from npm.core.errors import SettingError, StorageError

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
