"""Recorded settings of a training run, and those that may differ when it resumes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from enum import Enum
from pathlib import Path
from typing import Any

from npm.core.artifact import flat_record
from npm.core.files import sha256_of_file
from npm.corpus.sources import Source
from npm.training.settings import TrainingSettings

OF_EACH_RUN = (
    "schedule.",
    "evaluation.",
    "start.from_run",
    "objective.reading_weight",  # a term without parameters, learned last
    *(f"trainer.{name}" for name in ("workers", "log_every_steps", "checkpoint_every_minutes", "tensorboard", "wandb")),
)
"""Beginnings of recorded settings in which a run may differ from the one whose checkpoint it continues."""


def as_record(settings: TrainingSettings, *, ranks: int) -> dict[str, Any]:
    """All settings by dotted name, and the number of ranks: they must not differ when a run resumes."""
    # a command adds its own settings, such as the path of the run
    own = {item.name: asdict(settings)[item.name] for item in fields(TrainingSettings)}
    if Path(settings.encoder).is_dir():
        own["encoder"] = Path(settings.encoder).name
    objectives = own["objective"]
    for group, name in ((objectives["block_teacher"], "encoder"), (objectives["span_supervision"], "reader")):
        if group[name] and Path(group[name]).is_dir():
            group[name] = Path(group[name]).name
    return flat_record(recorded(own)) | {"world_size": ranks}


FACTS = re.compile(
    r"(world_size|encoder|teacher|reader|collocations|packed|start\.from_run|questions|(corpus|evaluation|sentences|labeled)"
    r"\.(files|sources))([._].*)?"
)
"""Recorded names of a run's inputs."""


def settings_of_record(record: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, by dotted name, of a run on the packed text of the recorded run, with some changed.

    >>> settings_of_record({"trainer.seed": 1, "corpus.files": ["a"], "device": "cpu"}, {"trainer.seed": 2})
    {'trainer.seed': 2, 'device': 'cpu'}
    """
    return {name: value for name, value in record.items() if not FACTS.fullmatch(name)} | dict(changes)


def recorded_sources(kind: str, sources: Sequence[Source]) -> dict[str, str]:
    """The sources of text by content, one key per source; data sets of the hub by name only."""
    found: dict[str, str] = {}
    for number, source in enumerate(sources, start=1):
        digest = "" if source.format == "hub" else f" sha256:{sha256_of_file(source.file)}"
        found[f"{kind}.sources.{number}"] = source.name + digest
    return found


def recorded(value: Any, *, is_path: bool = False) -> Any:
    """A settings value as JSON: enums by name, files and folders by their last name."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        return {
            key: recorded(part, is_path=key in ("files", "questions", "vocabulary", "from_run", "packed"))
            for key, part in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [recorded(part, is_path=is_path) for part in value]
    return Path(value).name if is_path else value
