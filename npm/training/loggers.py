"""Metrics of a run: the lines of metrics.jsonl read back, and where they go besides: TensorBoard, Weights & Biases."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from npm.core.errors import ArtifactError, SettingError
from npm.training.settings import TrainerSettings


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
            line = data.decode("utf-8")
            record = json.loads(line)
            right = isfinite(record["step"]) and all(
                type(value) in (int, float, type(None)) for value in record.values()
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            right = False
        if not right:
            shown = ascii(data.strip()[:80].decode(errors="replace"))
            raise ArtifactError(f"{file}:{number}: invalid line of metrics {shown}: remove it")
        found.append((line, record))
    return found


class MetricsLogger(Protocol):
    """One further place for metrics."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of one line."""

    def close(self) -> None:
        """Write out what is still kept back."""


class TensorBoardLogger:
    """Event files in RUN/tensorboard; a resumed run takes back what it had written after its checkpoint."""

    def __init__(self, folder: Path, *, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=first_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One scalar for each metric, at `step`."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is still in memory."""
        self._writer.close()


class WandbLogger:
    """A run of Weights & Biases, continued when training is; its id is kept in RUN/wandb-id.txt."""

    def __init__(self, project: str, run: Path) -> None:
        import wandb

        file = run / "wandb-id.txt"
        before = file.read_text(encoding="utf-8").strip() if file.is_file() else None
        self._run: Any = wandb.init(project=project, name=run.name, dir=str(run), id=before, resume="allow")
        if before is None:
            file.write_text(f"{self._run.id}\n", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One point for each metric, at `step`."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Send what is still to be sent, or leave it on disk if W&B is offline."""
        self._run.finish()


def check_loggers(settings: TrainerSettings) -> None:
    """Raise SettingError, before any work, if a setting asks for a logger that is not installed."""
    for name, asked, module in (
        ("tensorboard", settings.tensorboard, "tensorboard"),
        ("wandb_project", bool(settings.wandb_project), "wandb"),
    ):
        if asked and importlib.util.find_spec(module) is None:
            raise SettingError(f"trainer.{name} needs the package {module}: pip install {module}, or leave it out")


def open_loggers(settings: TrainerSettings, run: Path, *, first_step: int) -> list[MetricsLogger]:
    """The loggers that the settings ask for; `first_step` is the first that the run will log now."""
    loggers: list[MetricsLogger] = []
    if settings.tensorboard:
        loggers.append(TensorBoardLogger(run / "tensorboard", first_step=first_step))
    if settings.wandb_project:
        loggers.append(WandbLogger(settings.wandb_project, run))
    return loggers
