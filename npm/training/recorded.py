"""What a run folder records of its settings and of its input, so that another run is refused there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from enum import Enum
from pathlib import Path
from typing import Any

from index.files import sha256_of_file
from npm.corpus.sources import Source
from npm.objectives.ranks import world_size
from npm.training.settings import TrainingSettings

NOT_RECORDED = ("run", "debug")


def recorded_settings(settings: TrainingSettings) -> dict[str, Any]:
    """All settings by dotted name, and the number of ranks: what must not differ when a run goes on."""
    flat: dict[str, Any] = {}

    def visit(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for key, part in value.items():
                visit(f"{prefix}.{key}" if prefix else key, part)
        else:
            flat[prefix] = value

    # a command adds settings of its own, such as where the run lies
    own = {item.name: asdict(settings)[item.name] for item in fields(TrainingSettings)}
    if Path(settings.encoder).is_dir():
        own["encoder"] = Path(settings.encoder).name
    visit("", recorded(own))
    flat["world_size"] = world_size()
    return flat


def recorded_sources(kind: str, sources: Sequence[Source]) -> dict[str, str]:
    """Where text comes from, by content, with one key for each source; data sets of the hub by name only."""
    found: dict[str, str] = {}
    for number, source in enumerate(sources, start=1):
        digest = "" if source.format == "hub" else f" sha256:{sha256_of_file(Path(source.path))}"
        found[f"{kind}.sources.{number}"] = source.name + digest
    return found


def recorded(value: Any) -> Any:
    """A settings value as JSON: enums by name, files and folders by their last name."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        return {key: _names(part) if key in ("files", "vocabulary") else recorded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [recorded(part) for part in value]
    return value


def _names(files: list[str] | str) -> list[str] | str:
    return Path(files).name if isinstance(files, str) else [Path(file).name for file in files]
