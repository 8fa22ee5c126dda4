"""Whether a part of a build that is there already may be kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from index.store import MANIFEST_NAME, Manifest, check_folder, read_manifest
from npm.errors import ArtefactError


def keeps_finished(folder: Path, *, kind: str, settings: Mapping[str, Any]) -> Manifest | None:
    """The manifest of a finished folder made with exactly `settings`; None if there is none yet.

    Raises ArtefactError if it was made with others, or is damaged.
    """
    if not (folder / MANIFEST_NAME).is_file():
        return None
    refuse_differences(folder, made_with=read_manifest(folder, kind=kind).settings, wanted=settings)
    return check_folder(folder, kind=kind)


def refuse_differences(folder: Path, *, made_with: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise ArtefactError, naming what differs, unless `folder` was made with the settings wanted."""
    ours, theirs = _flat(wanted), _flat(made_with)
    names = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    if names:
        raise ArtefactError(
            f"{folder} was made with other settings",
            expected=_named(ours, names),
            got=_named(theirs, names),
            where=str(folder),
            fix="choose another folder with index=…, give the same settings as before, or delete this folder",
        )


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings by dotted name, values as JSON, so that a message can name the one that differs."""
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return flat


def _named(settings: Mapping[str, str], names: list[str]) -> str:
    return ", ".join(f"{name}={settings[name]}" for name in names if name in settings) or "nothing of the kind"
