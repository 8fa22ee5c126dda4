"""The manifest of a folder: what it holds, what made it, and how to tell that it is whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from index.files import FileRecord, digest_of, json_bytes
from index.types import ArtefactError

FORMAT_VERSION = 2
MANIFEST_NAME = "manifest.json"
REBUILD = "do not use it: remove this folder and run the command that made it again"


class RecordedSettings(dict[str, Any]):
    """What made a folder, by name; asking for a setting that its manifest does not record raises ArtefactError.

    A folder written before a setting was recorded is told as such, wherever in the program the setting is needed.
    """

    def __init__(self, settings: Mapping[str, Any], *, file: Path, prefix: str = "") -> None:
        inner = {
            name: RecordedSettings(value, file=file, prefix=f"{prefix}{name}.") if isinstance(value, Mapping) else value
            for name, value in settings.items()
        }
        super().__init__(inner)
        self._file, self._prefix = file, prefix

    def __missing__(self, name: str) -> Any:
        raise ArtefactError(
            f"{self._file.parent} was written by another version of this program",
            expected=f"a manifest that records {self._prefix}{name}",
            got="a manifest without it",
            where=str(self._file),
            fix="build it again: remove this folder and run the command that made it again",
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a folder; `digest` is the SHA-256 of all the rest of it."""

    kind: str
    settings: dict[str, Any]
    files: dict[str, FileRecord]
    parts: dict[str, str]
    digest: str
    format_version: int = FORMAT_VERSION


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

    Raises ArtefactError if the folder or its manifest is missing, the manifest is damaged, of another kind, or
    written by a newer or an older version.
    """
    manifest = read_any_manifest(path)
    if manifest.kind != kind:
        raise ArtefactError(
            f"{path} holds something else",
            expected=f"a folder of kind {kind!r}",
            got=f"a folder of kind {manifest.kind!r}",
            where=str(path),
            fix=f"give the path of a folder of kind {kind!r}",
        )
    return manifest


def read_any_manifest(path: Path) -> Manifest:
    """The manifest of folder `path` of whatever kind; raises ArtefactError as `read_manifest` does."""
    file = path / MANIFEST_NAME
    try:
        _require_file(file)
        data = file.read_bytes()
    except OSError as error:
        raise ArtefactError(
            f"{path} cannot be read",
            expected="a folder that may be read",
            got=error.strerror or str(error),
            where=str(file),
            fix="check the path and its permissions",
        ) from error
    try:
        content = json.loads(data)
        version = content["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(file, "a JSON manifest", f"{type(error).__name__}: {error}") from error
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ArtefactError(
            f"{path} was written by a newer version of this program",
            expected=f"format version {FORMAT_VERSION}",
            got=f"format version {version}",
            where=str(file),
            fix="install a newer version of npmlm, or build the folder again with this one",
        )
    if version < FORMAT_VERSION:
        raise ArtefactError(
            f"{path} was written by an older version of this program",
            expected=f"format version {FORMAT_VERSION}",
            got=f"format version {version}",
            where=str(file),
            fix="build it again: remove this folder and run the command that made it again",
        )
    recorded = content.pop("digest", None)
    if recorded != (digest := digest_of(content)):
        raise damaged(file, f"a manifest with digest {recorded}", f"digest {digest}")
    files = {name: FileRecord(**record) for name, record in content.pop("files").items()}
    settings = RecordedSettings(content.pop("settings"), file=file)
    return Manifest(settings=settings, files=files, digest=recorded, **content)


def _require_file(file: Path) -> None:
    folder, expected = file.parent, "a finished folder with its manifest"
    if not folder.is_dir():
        got = "a file" if folder.exists() else "nothing there"
        raise ArtefactError(
            f"no folder {folder}",
            expected=expected,
            got=got,
            where=str(folder),
            fix="check the path, or build it first",
        )
    if not file.is_file():
        raise ArtefactError(
            f"{folder} has no manifest: its build did not finish, or it is not a folder of this program",
            expected=expected,
            got=f"no {MANIFEST_NAME}",
            where=str(file),
            fix="if it is an unfinished build, run the same build command again, it continues; else check the path",
        )


def damaged(file: Path, expected: str, got: str) -> ArtefactError:
    """The refusal of a file that is not what was written."""
    return ArtefactError(f"{file} is damaged", expected=expected, got=got, where=str(file), fix=REBUILD)
