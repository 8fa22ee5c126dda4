"""Artifacts: folders of files on disk, written completely or not at all, with a manifest that reveals damage.

An artifact is written as `.NAME.tmp`, every file is flushed to the disk, the manifest comes last, and one rename makes
it visible. So a folder with its final name is complete, and a killed process leaves a temporary folder that the
next writer removes. Writers hold the lock `.NAME.lock`. Nothing written here has a time, host, process id or absolute
path: the same input gives the same bytes.

A manifest may come from anyone: its names are plain ones below its own folder, and links are refused.
"""

from __future__ import annotations

import json
import resource
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from filelock import FileLock, Timeout
from pydantic import Field, TypeAdapter, ValidationError

from npm.core.errors import ArtifactError, UserError, damaged, named
from npm.core.files import (
    Digest,
    FileRecord,
    FolderWriter,
    digest_of,
    json_bytes,
    name_file,
    replace_file,
    sha256_of_file,
    sync,
)

FORMAT_VERSION = 3
FORMAT_VERSIONS = {"phrase-index": 4, "block-store": 4, "block-store-shard": 4}
"""Of kinds that changed since the others, which have `FORMAT_VERSION`."""
MANIFEST_NAME = "manifest.json"
HASHED_AT_OPENING_BYTES = 64 << 20
"""Files smaller than this are always hashed by `check_folder`; larger ones by `verify_folder`, or with `hash_all`."""
OTHER_SETTINGS = "choose another folder, repeat the settings of before, or remove this folder"
_HEADERS = threading.Lock()

FileName = Annotated[str, Field(pattern=r"^[^./\\\x00][^/\\\x00]*$")]
PartName = Annotated[str, Field(pattern=r"^[^./\\\x00][^/\\\x00]*(/[^./\\\x00][^/\\\x00]*)*$")]


class RecordedSettings(dict[str, Any]):
    """Settings that made a folder. Reading one that its manifest does not record raises ArtifactError."""

    def __init__(self, settings: Mapping[str, Any], *, file: Path, prefix: str = "") -> None:
        inner = {
            name: RecordedSettings(value, file=file, prefix=f"{prefix}{name}.") if isinstance(value, Mapping) else value
            for name, value in settings.items()
        }
        super().__init__(inner)
        self.file, self._prefix = file, prefix

    def typed(self, name: str, hint: Any) -> Any:
        """The setting `name`, which may be dotted, as the type `hint`. Raises ArtifactError for any other value."""
        value: Any = self
        for key in name.split("."):
            value = value[key] if isinstance(value, dict) else None
        return read_as(hint, value, file=self.file, key=self._prefix + name)

    def __missing__(self, name: str) -> Any:
        raise ArtifactError(
            f"{self.file} was written by another version of this program, without {self._prefix}{name}; "
            "remove the folder and build it again"
        )


def read_as(hint: Any, value: Any, *, file: Path, key: str = "") -> Any:
    """The JSON `value` of `key` in `file` as the type `hint`. Raises ArtifactError for any other value."""
    try:
        return _adapter(hint).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, (key, *first["loc"]))).strip(".")
        raise damaged(file, f"{place}: {first['msg']}, got {first['input']!r:.80}") from None


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


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
    ours, theirs = (
        {name: json.dumps(value, sort_keys=True) for name, value in flat_record(record).items()}
        for record in (expected, got)
    )
    if names := sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)):
        problem = problem or f"{where} was made from something else, or with other settings"
        shown = []
        for flat in (ours, theirs):
            values = [flat.get(name, "not recorded").strip('"') for name in names]
            shown.append(named([f"{name}={value:.120}" for name, value in zip(names, values, strict=True)], most=5))
        raise error(f"{problem}: expected {shown[0]}, got {shown[1]}; {fix}")


def flat_record(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested settings by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in record.items():
        nested = isinstance(value, Mapping) and value
        flat |= flat_record(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return flat


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a folder; `digest` is the SHA-256 of everything else in it."""

    kind: str
    settings: RecordedSettings
    files: dict[str, FileRecord]
    parts: dict[str, str]
    digest: str

    def file(self, name: str) -> FileRecord:
        """The record of the file `name`; raises ArtifactError if there is none."""
        if (record := self.files.get(name)) is None:
            raise damaged(self.settings.file, f"it does not name the file {name}")
        return record


def manifest_bytes(kind: str, settings: Mapping[str, Any], files: Mapping[str, Any], parts: Mapping[str, str]) -> bytes:
    """The content of a manifest, its digest included."""
    content = {
        "kind": kind,
        "format_version": FORMAT_VERSIONS.get(kind, FORMAT_VERSION),
        "settings": dict(settings),
        "files": dict(files),
        "parts": dict(parts),
    }
    return json_bytes({**content, "digest": digest_of(content)})


def read_manifest(folder: Path, *, kind: str | None = None) -> Manifest:
    """The manifest of a folder, its own digest checked.

    Raises ArtifactError if the folder or its manifest is missing, the manifest is damaged, of another kind than `kind`,
    or written by another version.
    """
    file = folder / MANIFEST_NAME
    refuse_link(file)
    if not folder.is_dir():
        what = f"{folder} is a file, not the folder of an index" if folder.exists() else f"no folder {folder}"
        raise ArtifactError(f"{what}: check the path, or build it first")
    if not file.is_file():
        raise ArtifactError(
            f"{folder} has no {MANIFEST_NAME}: it is not the folder of an index, or a build of it did not finish; "
            "check the path, or run the command that makes it again"
        )
    manifest = parsed_manifest(file.read_bytes(), file)
    if kind not in (None, manifest.kind):
        raise ArtifactError(f"{folder} must be a folder of kind {kind!r}, got {manifest.kind!r}")
    return manifest


def parsed_manifest(data: bytes, file: Path) -> Manifest:
    """The manifest that is the content of `file`; raises ArtifactError as `read_manifest` does."""
    try:
        content = json.loads(data)
        version, digest = content["format_version"], content.pop("digest")
        expected = FORMAT_VERSIONS.get(content["kind"], FORMAT_VERSION)
        is_damaged = digest_of(content) != digest
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(
            f"{file} is damaged, or not a manifest of this program: {error!r}; check the path"
        ) from error
    if version != expected:
        raise ArtifactError(
            f"{file.parent} was written by another version of this program: expected format {expected}, "
            f"got {version}; remove the folder and build it again, or install the version that wrote it"
        )
    if is_damaged:
        raise damaged(file, f"its content does not have the digest {digest}")
    try:
        hints = {"kind": str, "files": dict[FileName, FileRecord], "parts": dict[PartName, Digest]}
        read = {name: read_as(hint, content.get(name), file=file, key=name) for name, hint in hints.items()}
        settings = RecordedSettings(
            read_as(dict[str, Any], content.get("settings"), file=file, key="settings"), file=file
        )
    except RecursionError as error:
        raise damaged(file, "a value is nested too deeply") from error
    return Manifest(settings=settings, digest=digest, **read)


def refuse_link(path: Path) -> None:
    """Raise ArtifactError for a link inside an artifact: it may lead anywhere."""
    if path.is_symlink():
        raise ArtifactError(f"{path} is a link to {path.readlink()}: put what it leads to in its place")


def part_folder(folder: Path, name: str) -> Path:
    """The part `name`, such as 00000, of a folder; raises ArtifactError if a link is on the way."""
    for part in accumulate(name.split("/"), "{}/{}".format):
        refuse_link(folder / part)
    return folder / name


@contextmanager
def write_folder(path: Path, *, kind: str, settings: Mapping[str, Any]) -> Iterator[FolderWriter]:
    """Write an artifact completely or not at all: yields a `FolderWriter` on `.NAME.tmp`, renamed to `path` at the end.

    An exception removes the temporary folder and leaves `path` as it was. Raises ArtifactError if `path` exists or
    another process is writing it.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with folder_lock(path):
        if path.exists():
            raise ArtifactError(f"{path} exists already: choose another path, or remove it")
        shutil.rmtree(temporary, ignore_errors=True)  # of a killed process; a link is not followed
        temporary.mkdir()
        writer = FolderWriter(temporary)
        try:
            yield writer
            files = {name: asdict(record) for name, record in writer.finish().items()}
            replace_file(temporary / MANIFEST_NAME, manifest_bytes(kind, settings, files, {}))
            temporary.rename(path)
            sync(path.parent)
        except BaseException as error:
            writer.abandon()
            shutil.rmtree(temporary, ignore_errors=True)
            name_file(error, path)
            raise


def written_once(
    folder: Path, *, kind: str, settings: Mapping[str, Any], write: Callable[[FolderWriter], None]
) -> Manifest:
    """The manifest of a folder with exactly `settings`, whose files `write` makes unless it is finished already.

    Raises ArtifactError if it was made with other settings, is damaged, or another process is writing it.
    """
    with folder_lock(folder):
        if (kept := finished_folder(folder, kind=kind, settings=settings)) is not None:
            return kept
        with write_folder(folder, kind=kind, settings=settings) as writer:
            write(writer)
    return read_manifest(folder, kind=kind)


def write_manifest(folder: Path, *, kind: str, settings: Mapping[str, Any], parts: Mapping[str, str] = {}) -> Manifest:
    """Write the manifest of an artifact made of other artifacts, as the last step of its build; replaces an older one.

    `parts` has the manifest digest of each part, by its path relative to `folder`. Jobs that write it at the same
    moment do so one after the other.
    """
    with folder_lock(folder / MANIFEST_NAME, wait=True):
        sync(folder)  # the names of the parts survive a power cut before the manifest that lists them
        replace_file(folder / MANIFEST_NAME, manifest_bytes(kind, settings, {}, parts))
        sync(folder.absolute().parent)
    return read_manifest(folder, kind=kind)


def finish_shards(
    folder: Path, count: int, *, kinds: tuple[str, str], settings: Callable[[], Mapping[str, Any]], stage: str
) -> Manifest:
    """Write the manifest of a part over its `count` shards, or keep a finished one.

    `kinds` are those of the part and of a shard. Raises ArtifactError, naming them, if shards are missing, or if one is
    damaged.
    """
    with folder_lock(folder, wait=True):
        if (folder / MANIFEST_NAME).is_file():
            return check_folder(folder, kind=kinds[0])
        names = [f"{number:05d}" for number in range(count)]
        if missing := [name for name in names if not (folder / name / MANIFEST_NAME).is_file()]:
            raise ArtifactError(
                f"{folder}: {len(missing)} of {count} shards are missing ({named(missing, most=8)}); "
                f"run `npmlm build … stage={stage}` with the same settings"
            )
        parts = {name: check_folder(folder / name, kind=kinds[1]).digest for name in names}
        return write_manifest(folder, kind=kinds[0], settings=settings(), parts=parts)


def check_folder(folder: Path, *, kind: str, hash_all: bool = False) -> Manifest:
    """Check quickly: manifest, sizes, array headers, and the hashes of files under 64 MB.

    `hash_all` hashes larger files too: for callers that then read them completely, as exact search does. The
    manifests of parts must be those that were recorded; their files are checked where the parts are opened. Raises
    ArtifactError on the first fault.
    """
    manifest = read_manifest(folder, kind=kind)
    check_files(folder, manifest, hashed=lambda _, record: hash_all or record.bytes < HASHED_AT_OPENING_BYTES)
    for name, digest in manifest.parts.items():
        check_part(part_folder(folder, name), digest)
    return manifest


def verify_folder(
    folder: Path, kind: str, progress: Callable[[str, int], None] | None = None, *, hash_all: bool = True
) -> Manifest:
    """Read and check every byte of a folder and of its parts; without `hash_all` manifests, sizes and headers alone.

    `progress(name, bytes)` is called after each file. Raises ArtifactError on the first fault.
    """
    manifest = read_manifest(folder, kind=kind)
    for name, record in manifest.files.items():
        check_file(folder / name, record, hashed=hash_all)
        if progress is not None:
            progress(name, record.bytes)
    for name, digest in manifest.parts.items():
        part = check_part(part_folder(folder, name), digest)
        verify_folder(folder / name, part.kind, progress, hash_all=hash_all)
    return manifest


def check_files(folder: Path, manifest: Manifest, *, hashed: Callable[[str, FileRecord], bool]) -> None:
    """Check sizes and array headers of the files of a folder, and the hashes of those that `hashed` chooses."""
    for name, record in manifest.files.items():
        check_file(folder / name, record, hashed=hashed(name, record))


def check_part(folder: Path, digest: str) -> Manifest:
    """The manifest of a part that another manifest names; raises ArtifactError unless it has this digest."""
    if not folder.is_dir():
        raise ArtifactError(
            f"no folder {folder}, a part that a manifest names: remove the entire index or corpus, and build or "
            "copy it again"
        )
    manifest = read_manifest(folder)
    if manifest.digest != digest:
        raise damaged(folder / MANIFEST_NAME, f"digest {manifest.digest}, from another build, instead of {digest}")
    return manifest


def check_file(path: Path, record: FileRecord, *, hashed: bool) -> None:
    """Raise ArtifactError unless the file `path` is as recorded, its hash only if it is to be `hashed`."""
    refuse_link(path)
    if not path.is_file():
        raise damaged(path, "it is missing")
    if (size := path.stat().st_size) != record.bytes:
        raise damaged(path, f"{size} bytes instead of {record.bytes}")
    if hashed and (sha256 := sha256_of_file(path)) != record.sha256:
        raise damaged(path, f"SHA-256 {sha256} instead of {record.sha256}")
    if path.suffix == ".npy":
        try:
            array = open_array(path.parent, path.stem)
        except (ValueError, SyntaxError, OSError) as error:
            raise damaged(path, str(error)) from error
        if array.offset + array.nbytes != record.bytes:
            raise damaged(path, f"its header does not fit {record.bytes} bytes")


@cache
def _allow_many_files() -> None:
    """Let this process open as many files as the system's hard limit allows: every mapped array takes one."""
    with suppress(ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_array(folder: Path, name: str) -> np.memmap:
    """The array `name`.npy of a checked folder, memory-mapped and read-only."""
    _allow_many_files()
    # numpy parses the header as Python, which in CPython 3.11 fails now and then ("AST constructor recursion depth
    # mismatch") where threads parse at once and a finalizer runs between. Of a Path numpy would resolve all folders.
    with _HEADERS:
        array: np.memmap = np.load(f"{folder}/{name}.npy", mmap_mode="r", allow_pickle=False)
    return array


def finished_folder(folder: Path, *, kind: str, settings: Mapping[str, Any]) -> Manifest | None:
    """The manifest of a folder finished with exactly `settings`; None if there is none yet.

    Raises ArtifactError if it was made with others, naming those that differ, or is damaged.
    """
    if not (folder / MANIFEST_NAME).is_file():
        return None
    refuse_changed(settings, read_manifest(folder, kind=kind).settings, where=folder)
    return check_folder(folder, kind=kind)


@contextmanager
def folder_lock(folder: Path, *, wait: bool = False, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock file `.NAME.lock` next to `folder`; the thread that holds it may take it again.

    With `wait` the call waits until the lock is free, and `on_wait()` is called once before; otherwise it raises
    ArtifactError. The system drops the lock of a process however it ends.
    """
    path = _lock_path(folder)
    lock = FileLock(path, is_singleton=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        if not wait:
            raise ArtifactError(f"another process is writing {folder}: wait until it ends, or stop it") from None
        on_wait()
        lock.acquire()
    except OSError as error:  # of which the user knows the folder, not the lock
        is_below_file = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "a folder above it is a file" if is_below_file else error.strerror
        raise OSError(error.errno, reason, str(folder)) from error
    try:
        yield
    finally:
        if lock.lock_counter == 1:  # removed while it is held: who has opened it meanwhile sees that, and tries again
            path.unlink(missing_ok=True)
        lock.release()


def _lock_path(folder: Path) -> Path:
    folder = folder.resolve()
    return folder.with_name(f".{folder.name}.lock")


def clear_locks(folder: Path) -> None:
    """Remove the lock files, which are empty, that killed processes left next to and in `folder`."""
    for path in (_lock_path(folder), *folder.rglob(".*.lock")):
        with suppress(OSError):  # a Timeout is one
            if path.lstat().st_size == 0:
                with FileLock(path, timeout=0):
                    path.unlink()
