"""The record of a training run: its settings, which may hardly differ when it resumes, and its metrics.

Metrics are lines of metrics.jsonl, with copies for TensorBoard and Weights & Biases.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, fields
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any

from npm.core.artifact import flat_record
from npm.core.errors import ArtifactError, SettingError
from npm.core.files import sha256_of_file
from npm.corpus.sources import Source
from npm.training.settings import TrainerSettings, TrainingSettings

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


Log = Callable[[int, Mapping[str, float]], None]
"""Takes the metrics of one line, and the step they are of."""


def read_metrics(file: Path) -> list[tuple[str, dict[str, Any]]]:
    """The lines of metrics.jsonl, each as written and as its numbers by name; null is one that is not finite.

    A last line that is still being written, or was when a run was killed, does not count. Raises ArtifactError for
    another object.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    for number, data in enumerate(file.read_bytes().splitlines(keepends=True), start=1):
        if data.startswith(b"{") and not data.endswith(b"\n"):
            break
        try:
            record = json.loads(data)
            if not all(type(value) in (int, float, type(None)) for value in record.values()):
                raise ValueError("metrics are numbers")
            if not isfinite(record["step"]):
                raise ValueError("step is not finite")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            shown = ascii(data.strip()[:80].decode(errors="replace"))
            raise ArtifactError(f"{file}:{number}: invalid line of metrics {shown}: remove it") from None
        found.append((data.decode(), record))
    return found


def check_loggers(settings: TrainerSettings) -> None:
    """Raise SettingError, before any work, if a setting asks for a logger that is not installed."""
    for name, module in (("tensorboard", "tensorboard"), ("wandb_project", "wandb")):
        if getattr(settings, name) and importlib.util.find_spec(module) is None:
            raise SettingError(f"trainer.{name} needs the package {module}: pip install {module}, or leave it out")


@contextmanager
def open_loggers(settings: TrainerSettings, run: Path, *, first_step: int) -> Iterator[list[Log]]:
    """The loggers that the settings ask for; `first_step` is the first that the run will log now."""
    loggers: list[Log] = []
    with ExitStack() as stack:
        if settings.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            # a resumed run drops the events written after its checkpoint
            writer: Any = stack.enter_context(closing(SummaryWriter(str(run / "tensorboard"), purge_step=first_step)))

            def write(step: int, metrics: Mapping[str, float]) -> None:
                for name, value in metrics.items():
                    writer.add_scalar(name, value, step)

            loggers.append(write)
        if settings.wandb_project:
            import wandb

            file = run / "wandb-id.txt"
            before = file.read_text(encoding="utf-8").strip() if file.is_file() else None
            project = settings.wandb_project
            sent: Any = wandb.init(project=project, name=run.name, dir=str(run), id=before, resume="allow")
            stack.callback(sent.finish)
            if before is None:
                file.write_text(f"{sent.id}\n", encoding="utf-8")
            loggers.append(lambda step, metrics: sent.log(dict(metrics), step=step))
        yield loggers
