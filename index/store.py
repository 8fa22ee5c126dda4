"""Folders of arrays on disk: written whole or not at all, with a manifest that tells damage from good data.

A folder is written under a temporary sibling name, every file is flushed to the disk, the manifest comes last, and
one rename makes it visible. So a folder with its final name is complete, and a build that was killed leaves only a
temporary folder, which the next build removes. Nothing written here holds a time, host, process id or absolute
path: the same input gives the same bytes.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from index.files import (
    NPY_HEADER_BYTES,
    ArrayStream,
    CountingFile,
    FileRecord,
    allow_many_files,
    json_bytes,
    made_parents,
    npy_header,
    replace_file,
    rows_per_chunk,
    sha256_of_file,
    storage_errors,
    stored_dtype,
    write_rows,
)
from index.locking import folder_lock, owned_folder, release, remove_temporary
from index.manifest import (
    MANIFEST_NAME,
    Manifest,
    build_again,
    damaged,
    linked,
    manifest_bytes,
    part_folder,
    read_any_manifest,
    read_manifest,
)
from npm.core.errors import ArtifactError, UserError, named

HASHED_AT_OPENING_BYTES = 64 << 20
"""Files smaller than this are always hashed by `check_folder`; larger ones by `verify_folder`, or with `hash_all`."""

_HEADERS = threading.Lock()


class FolderWriter:
    """Writes the files of one folder; made by `write_folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, CountingFile] = {}
        self._streams: list[ArrayStream] = []

    def open_binary(self, name: str) -> CountingFile:
        """A new file of exactly this name, to `write` bytes to."""
        if Path(name).name != name or name.startswith(".") or name == MANIFEST_NAME or name in self.files:
            raise ValueError(f"not a new plain file name: {name!r}")
        self.files[name] = CountingFile(self.folder / name)
        return self.files[name]

    def write_array(self, name: str, array: np.ndarray) -> None:
        """Write `array` as `name`.npy."""
        dtype = stored_dtype(array.dtype)
        file = self.open_binary(f"{name}.npy")
        file.write(npy_header(dtype, array.shape))
        rows = np.atleast_1d(array)
        step = rows_per_chunk(rows)
        for start in range(0, len(rows), step):
            write_rows(file, np.ascontiguousarray(rows[start : start + step], dtype=dtype))
        file.close()

    def stream_array(
        self,
        name: str,
        dtype: np.dtype | type | str,
        trailing_shape: tuple[int, ...] = (),
        *,
        row_count: int | None = None,
    ) -> ArrayStream:
        """A stream of rows into `name`.npy.

        With `row_count` the header is right from the start and nothing is read again; without it, closing the
        stream fills the header in and reads the file once more for its hash. Both ways give the same bytes.
        """
        stream = ArrayStream(self.open_binary(f"{name}.npy"), stored_dtype(dtype), tuple(trailing_shape), row_count)
        self._streams.append(stream)
        return stream

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON value as `name`.json, keys sorted."""
        file = self.open_binary(f"{name}.json")
        file.write(json_bytes(value))
        file.close()

    def finish(self) -> dict[str, FileRecord]:
        """Close every file; returns their records."""
        for stream in self._streams:
            stream.close()
        for file in self.files.values():
            file.close()
        return {name: file.record() for name, file in sorted(self.files.items())}

    def abandon(self) -> None:
        """Close every file without caring for the content."""
        for file in self.files.values():
            file.abandon()


@contextmanager
def write_folder(path: Path, *, kind: str, settings: Mapping[str, Any]) -> Iterator[FolderWriter]:
    """Write a folder whole or not at all: yields a `FolderWriter` on `.<name>.tmp`, renamed to `path` at the end.

    An exception removes the temporary folder and leaves `path` as it was. Raises ArtifactError if `path` exists or
    another process is writing it, StorageError if the operating system refuses a write.
    """
    temporary = path.parent / f".{path.name}.tmp"
    with storage_errors(path, temporary), made_parents(path), ExitStack() as stack:
        _refuse_existing(path)
        stack.enter_context(owned_folder(temporary, path))
        writer = FolderWriter(temporary)
        try:
            yield writer
            files = {name: asdict(record) for name, record in writer.finish().items()}
            replace_file(temporary / MANIFEST_NAME, manifest_bytes(kind, settings, files, {}))
            release(temporary)
            _sync_folder(temporary)
            _refuse_existing(path)
            temporary.rename(path)
            _sync_folder(path.parent)
        except BaseException:
            writer.abandon()
            with suppress(OSError, ArtifactError):
                remove_temporary(temporary)
            raise


def write_manifest(folder: Path, *, kind: str, settings: Mapping[str, Any], parts: Mapping[str, str] = {}) -> Manifest:
    """Write the manifest of a folder made of other folders, as the last step of its build; replaces an older one.

    `parts` gives the manifest digest of each part, by its path relative to `folder`. Jobs that write it at the same
    moment do so one after the other.
    """
    with storage_errors(folder), folder_lock(folder / MANIFEST_NAME, wait=True):
        replace_file(folder / MANIFEST_NAME, manifest_bytes(kind, settings, {}, parts))
        _sync_folder(folder)
    return read_manifest(folder, kind=kind)


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise ArtifactError(f"{path} exists already: choose another path, or remove it")


def _sync_folder(folder: Path) -> None:
    """Make the names in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_folder(folder: Path, *, kind: str, hash_all: bool = False) -> Manifest:
    """Check what can be checked fast: manifest, sizes, array headers, and the hashes of files under 64 MB.

    `hash_all` hashes larger files too: for callers that go on to read them whole, as exact search does with vectors.
    The manifests of parts must be those that were recorded; their files are checked where the parts are opened.
    Raises ArtifactError on the first fault.
    """
    manifest = read_manifest(folder, kind=kind)
    check_files(folder, manifest, hashed=lambda _, record: hash_all or record.bytes < HASHED_AT_OPENING_BYTES)
    for name, digest in manifest.parts.items():
        check_part(part_folder(folder, name), digest)
    return manifest


def check_files(folder: Path, manifest: Manifest, *, hashed: Callable[[str, FileRecord], bool]) -> None:
    """Check sizes and array headers of the files of a folder, and the hashes of those that `hashed` chooses."""
    for name, record in manifest.files.items():
        _check_file(folder / name, record, hashed=hashed(name, record))


def verify_folder(
    folder: Path, kind: str, progress: Callable[[str, int], None] | None = None, *, hash_all: bool = True
) -> Manifest:
    """Read and check every byte of a folder and of its parts; without `hash_all` manifests, sizes and headers alone.

    `progress(name, bytes)` is called with each piece read of a file. Raises ArtifactError on the first fault.
    """
    manifest = read_manifest(folder, kind=kind)
    for name, record in manifest.files.items():
        _check_file(folder / name, record, hashed=hash_all, progress=progress)
    for name, digest in manifest.parts.items():
        part = check_part(part_folder(folder, name), digest)
        verify_folder(folder / name, part.kind, progress, hash_all=hash_all)
    return manifest


def check_part(folder: Path, digest: str) -> Manifest:
    """The manifest of a part that another manifest names; raises ArtifactError unless it has this digest."""
    manifest = read_any_manifest(folder)
    if manifest.digest != digest:
        raise damaged(folder / MANIFEST_NAME, f"digest {digest}", f"digest {manifest.digest}, from another build")
    return manifest


def _check_file(
    path: Path, record: FileRecord, *, hashed: bool, progress: Callable[[str, int], None] | None = None
) -> None:
    if path.is_symlink():
        raise linked(path)
    if not path.is_file():
        raise ArtifactError(f"{path} is missing; {build_again(path.parent)}")
    if (size := path.stat().st_size) != record.bytes:
        raise damaged(path, f"{record.bytes} bytes", f"{size} bytes")
    on_bytes = None if progress is None else partial(progress, path.name)
    if hashed and (sha256 := sha256_of_file(path, on_bytes)) != record.sha256:
        raise damaged(path, f"SHA-256 {record.sha256}", f"SHA-256 {sha256}")
    if path.suffix == ".npy":
        _check_array_header(path, record)


def _check_array_header(path: Path, record: FileRecord) -> None:
    try:
        array = _mapped(path)
    except (ValueError, SyntaxError, OSError) as error:
        raise damaged(path, "an array of its size", str(error)) from error
    if (size := NPY_HEADER_BYTES + array.nbytes) != record.bytes:
        raise damaged(path, f"an array of {record.bytes} bytes with its header", f"{size} bytes by its header")


def open_array(folder: Path, name: str) -> np.ndarray:
    """The array `name`.npy of a checked folder, memory-mapped and read-only."""
    allow_many_files()
    return _mapped(folder / f"{name}.npy")


def _mapped(path: Path) -> np.ndarray:
    """The array in a file, one thread at a time.

    numpy parses its header as Python, which in CPython 3.11 fails now and then ("AST constructor recursion depth
    mismatch") where threads parse at once and a finaliser runs between.
    """
    with _HEADERS:
        array: np.ndarray = np.load(
            str(path), mmap_mode="r", allow_pickle=False
        )  # of a Path numpy resolves all folders
    return array


OTHER_SETTINGS = "choose another folder, give the same settings as before, or remove this folder"


def finished_folder(
    folder: Path, *, kind: str, settings: Mapping[str, Any], fix: str = OTHER_SETTINGS
) -> Manifest | None:
    """The manifest of a folder finished with exactly `settings`; None if there is none yet.

    Raises ArtifactError if it was made with others, naming those that differ, or is damaged.
    """
    if not (folder / MANIFEST_NAME).is_file():
        return None
    refuse_changed(settings, read_manifest(folder, kind=kind).settings, where=folder, fix=fix)
    return check_folder(folder, kind=kind)


def refuse_changed(
    expected: Mapping[str, Any],
    got: Mapping[str, Any],
    *,
    where: Path,
    problem: str | None = None,
    fix: str = OTHER_SETTINGS,
    error: type[UserError] = ArtifactError,
) -> None:
    """Raise `error`, naming what differs by its dotted name, unless two records of settings are the same JSON."""
    ours, theirs = _flat(expected), _flat(got)
    # what was not recorded is as good as null: a setting that came later does not refuse what was made before it
    names = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name, "null") != theirs.get(name, "null"))
    if names:
        problem = problem or f"{where} was made from something else, or with other settings"
        raise error(f"{problem}: expected {_shown(names, ours)}, got {_shown(names, theirs)}; {fix}")


MOST_SHOWN, MOST_SHOWN_CHARS = 5, 600
"""Settings that a message names, and the characters that they share."""


def _shown(names: Sequence[str], flat: Mapping[str, str]) -> str:
    """The first settings with their values, for a message; of long ones the beginning."""
    most = MOST_SHOWN_CHARS // min(len(names), MOST_SHOWN)
    texts = (f"{name}={json.loads(flat[name]) if name in flat else 'not recorded'}" for name in names[:MOST_SHOWN])
    shown = [text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)" for text in texts]
    return named([*shown, *names[MOST_SHOWN:]], most=MOST_SHOWN)


def _flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A record by dotted name, its values as JSON."""
    flat: dict[str, str] = {}
    for name, value in record.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = json.dumps(value, sort_keys=True)
    return flat
