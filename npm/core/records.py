"""Content of a manifest: files by size and hash, and settings, read by type and compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from npm.core.errors import ArtifactError, UserError, damaged, named

OTHER_SETTINGS = "choose another folder, repeat the settings of before, or remove this folder"
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and hash of a file."""

    bytes: Annotated[int, Field(ge=0, lt=2**63)]
    sha256: Digest


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
