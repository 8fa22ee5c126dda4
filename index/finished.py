"""Whether a folder that is there already may be kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from index.store import MANIFEST_NAME, Manifest, check_folder
from index.types import ArtefactError


def finished_folder(folder: Path, *, kind: str, settings: Mapping[str, Any], stage: str) -> Manifest | None:
    """The manifest of a folder finished with exactly `settings`; None if there is none yet.

    Raises ArtefactError if it was made with others, naming those that differ, or is damaged.
    """
    if not (folder / MANIFEST_NAME).exists():
        return None
    kept = check_folder(folder, kind=kind)
    names = sorted(name for name in settings.keys() | kept.settings.keys() if not _same(name, settings, kept.settings))
    if names:
        raise ArtefactError(
            f"{folder} was made from something else, or with other settings",
            expected=_named(settings, names),
            got=_named(kept.settings, names),
            where=str(folder),
            fix=f"give the same settings as before, or remove this folder and run stage={stage} again",
        )
    return kept


def _same(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    return name in ours and name in theirs and bool(ours[name] == theirs[name])


def _named(settings: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name}={settings.get(name, 'not recorded')}" for name in names)
