"""The manifest of a folder: its kind, what made it, its files and its parts, read by the types that they must have.

What a manifest says may come from anybody: it is data, of bounded size, with plain names below its own folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

from index.files import Digest, FileRecord, digest_of, json_bytes
from index.settings import read_record
from npm.core.errors import ArtifactError

FORMAT_VERSION = 2
MANIFEST_NAME = "manifest.json"
OWN_KEYS = ("format_version", "kind")
"""Web applications and browser extensions have files of the name too, without these."""
MOST_MANIFEST_BYTES = 256 << 20
FileName = Annotated[str, re.compile(r"[^./\\][^/\\]*")]
PartName = Annotated[str, re.compile(r"[^./\\][^/\\]*(/[^./\\][^/\\]*)*")]


class RecordedSettings(dict[str, Any]):
    """What made a folder, by name; asking for a setting that its manifest does not record raises ArtifactError.

    So a folder written before a setting was recorded is refused as such, wherever the setting is needed.
    """

    def __init__(self, settings: Mapping[str, Any], *, file: Path, prefix: str = "") -> None:
        inner = {
            name: RecordedSettings(value, file=file, prefix=f"{prefix}{name}.") if isinstance(value, Mapping) else value
            for name, value in settings.items()
        }
        super().__init__(inner)
        self.file, self._prefix = file, prefix

    def typed(self, name: str, hint: Any) -> Any:
        """The setting `name`, which may be dotted, as the type `hint` has it.

        Raises ArtifactError if it is recorded as anything else.
        """
        group, _, inner = name.partition(".")
        if inner:
            return self.typed(group, RecordedSettings).typed(inner, hint)
        return read_record(hint, self[name], file=self.file, key=self._prefix + name)

    def __missing__(self, name: str) -> Any:
        raise ArtifactError(
            f"{self.file} was written by another version of this program, without {self._prefix}{name}; "
            f"{build_again(self.file.parent)}"
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a folder; `digest` is the SHA-256 of all the rest of it."""

    kind: str
    settings: RecordedSettings
    files: dict[FileName, FileRecord]
    parts: dict[PartName, Digest]
    digest: Digest
    format_version: int

    def file(self, name: str) -> FileRecord:
        """What it says of the file `name`; raises ArtifactError if it names none."""
        if (record := self.files.get(name)) is None:
            raise damaged(self.settings.file, f"the file {name}", "none")
        return record


def manifest_bytes(kind: str, settings: Mapping[str, Any], files: Mapping[str, Any], parts: Mapping[str, str]) -> bytes:
    """The file of a manifest, its digest included."""
    content = {
        "kind": kind,
        "format_version": FORMAT_VERSION,
        "settings": dict(settings),
        "files": dict(files),
        "parts": dict(parts),
    }
    return json_bytes({**content, "digest": digest_of(content)})


def read_manifest(path: Path, *, kind: str) -> Manifest:
    """The manifest of folder `path`, its own digest checked.

    Raises ArtifactError if the folder or its manifest is missing, the manifest is damaged, of another kind, or
    written by a newer or an older version.
    """
    manifest = read_any_manifest(path)
    if manifest.kind != kind:
        raise ArtifactError(f"{path} must be a folder of kind {kind!r}, got {manifest.kind!r}")
    return manifest


def read_any_manifest(path: Path) -> Manifest:
    """The manifest of folder `path` of whatever kind; raises ArtifactError as `read_manifest` does."""
    file = path / MANIFEST_NAME
    try:
        if not path.is_dir():
            fix = "check the path, or build it first" if _whole(path) is None else build_again(path)
            raise ArtifactError(f"no folder {path}: {fix}")
        if file.is_symlink():
            raise linked(file)
        if not file.is_file():
            raise ArtifactError(
                f"{path} has no {MANIFEST_NAME}: its build did not finish; run the same build command again"
            )
        if (size := file.stat().st_size) > MOST_MANIFEST_BYTES:
            raise _foreign(file, f"{size} bytes, more than {MOST_MANIFEST_BYTES}")
        data = file.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read: {error.strerror or error}") from error
    return parsed_manifest(data, file)


def parsed_manifest(data: bytes, file: Path) -> Manifest:
    """The manifest that is the content of `file`; raises ArtifactError as `read_manifest` does of its content."""
    path = file.parent
    if not all(f'"{key}"'.encode() in data for key in OWN_KEYS):
        raise _foreign(file, f"a {MANIFEST_NAME} without {' and '.join(OWN_KEYS)}")
    try:
        content = json.loads(data)
        version = content["format_version"]
        digest = digest_of({name: value for name, value in content.items() if name != "digest"})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise damaged(file, "a JSON manifest", f"{type(error).__name__}: {error}") from error
    if not isinstance(version, int) or version != FORMAT_VERSION:
        is_older = isinstance(version, int) and version < FORMAT_VERSION
        raise ArtifactError(
            f"{path} was written by {'an older' if is_older else 'a newer'} version of this program: expected format "
            f"{FORMAT_VERSION}, got {version}; {build_again(path) if is_older else 'install a newer version of npmlm'}"
        )
    if (recorded := content.get("digest")) != digest:
        raise damaged(file, f"a manifest with digest {recorded}", f"digest {digest}")
    try:
        settings = RecordedSettings(
            read_record(dict[str, Any], content.get("settings"), file=file, key="settings"), file=file
        )
    except RecursionError as error:
        raise damaged(file, "a JSON manifest", "a value nested too deeply") from error
    manifest: Manifest = read_record(Manifest, content | {"settings": settings}, file=file)
    return manifest


def _foreign(file: Path, got: str) -> ArtifactError:
    return ArtifactError(
        f"{file.parent} is not a folder of this program, or its manifest was overwritten: {got}; check the path"
    )


def read_object(file: Path, *, fix: str) -> dict[str, Any]:
    """The JSON object in a file that no manifest names. Raises ArtifactError, with this `fix`, for anything else."""
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


def build_again(folder: Path) -> str:
    """What to do about a folder that is damaged, or of another version: a part of something finished is not enough."""
    return f"build it again: remove all of {_whole(folder) or folder} and run the commands that made it"


def _whole(folder: Path) -> Path | None:
    """The outermost folder whose manifest names `folder` as a part, directly or through its parts; None: none does."""
    whole = None
    for parent in folder.parents:
        if (whole or folder).relative_to(parent).as_posix() in _named_parts(parent):
            whole = parent
    return whole


def _named_parts(folder: Path) -> Collection[str]:
    """The parts that the manifest of a folder names; none where there is no such manifest, or a damaged one."""
    try:
        parts = json.loads((folder / MANIFEST_NAME).read_bytes())["parts"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()
    return parts if isinstance(parts, dict) else ()


def damaged(file: Path, expected: str, got: str) -> ArtifactError:
    """Error for a file that is not what was written."""
    return ArtifactError(f"{file} is damaged: expected {expected}, got {got}; {build_again(file.parent)}")


def linked(path: Path) -> ArtifactError:
    """Error for a link inside a folder that was written: it may lead anywhere."""
    return ArtifactError(f"{path} is a link to {path.readlink()}: put what it leads to in its place")


def part_folder(folder: Path, name: str) -> Path:
    """The part `name`, such as segments/00000/corpus, of a folder; raises ArtifactError if a link is on the way."""
    for part in accumulate(name.split("/"), "{}/{}".format):
        if (folder / part).is_symlink():
            raise linked(folder / part)
    return folder / name
