"""Metrics of a run: the lines of metrics.jsonl read back, and their copies for TensorBoard and Weights & Biases."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

from npm.core.errors import ArtifactError, SettingError
from npm.training.settings import TrainerSettings

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
