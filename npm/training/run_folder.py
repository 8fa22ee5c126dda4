"""What a training run leaves behind: settings, metrics, the latest checkpoint, and the finished encoder.

RUN/settings.json      resolved settings, SHA-256 of corpus files, fingerprint of the start; others are refused
RUN/metrics.jsonl      one line every few steps; cut back to the checkpoint when a run is resumed
RUN/checkpoints/step-00000200/   weights and optimiser state (safetensors), counters (json), generators (npy)
RUN/encoder/           the finished encoder, as save_pretrained writes it
RUN/best-encoder/      the one of the best evaluation, if there are evaluations
RUN/bad-batch/         the batch of a loss that was not finite
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from index.files import CountingFile, made_parents, storage_errors
from index.store import verify_folder, write_folder
from npm.errors import SettingError
from npm.training.trained_model import Trained

CHECKPOINT_KIND = "training checkpoint"
ENCODER, BEST_ENCODER = "encoder", "best-encoder"
"""Folders of a run that hold what was trained."""


@dataclass(frozen=True, slots=True)
class Counters:
    """How far a run has come."""

    step: int
    seconds: float
    tokens: int
    best: dict[str, Any] = field(default_factory=dict)
    """The fields of `npm.training.early_stop.BestSoFar`."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything a run needs to go on as if it had never stopped."""

    counters: Counters
    weights: dict[str, torch.Tensor]
    optimizer_tensors: dict[str, torch.Tensor]
    generators: dict[str, np.ndarray]  # u8, one of the CPU and one of the device for each rank


class RunFolder:
    """The folder of one training run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics_path = path / "metrics.jsonl"
        self.encoder_path = path / ENCODER
        self.bad_batch_path = path / "bad-batch"

    @property
    def has_begun(self) -> bool:
        """Whether training has left something here: metrics, a checkpoint, or the batch that it stumbled over."""
        return any(path.exists() for path in (self.metrics_path, self.path / "checkpoints", self.bad_batch_path))

    def start(self, settings: dict[str, Any]) -> None:
        """Record the settings, or refuse those that differ from what the folder was begun with (SettingError)."""
        file = self.path / "settings.json"
        settings = json.loads(json.dumps(settings))  # as they read back: tuples have become lists
        if file.is_file():
            before = json.loads(file.read_text(encoding="utf-8"))
            changed = sorted(key for key in before.keys() | settings.keys() if before.get(key) != settings.get(key))
            if changed:
                raise SettingError(
                    "this run folder was begun with other settings",
                    expected="; ".join(f"{key}={before.get(key)}" for key in changed),
                    got="; ".join(f"{key}={settings.get(key)}" for key in changed),
                    where=str(file),
                    fix="repeat the old settings to continue, or choose another run=DIR",
                )
            return
        with made_parents(file):
            _write_whole(file, json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False) + "\n")

    def log(self, record: dict[str, float | int]) -> None:
        """Append one line of metrics; a number that is not finite, which JSON does not know, is null."""
        line = {name: value if math.isfinite(value) else None for name, value in record.items()}
        with storage_errors(self.metrics_path), self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint whole, then remove older ones."""
        folder = self.path / "checkpoints" / f"step-{checkpoint.counters.step:08d}"
        if folder.exists():
            return
        with write_folder(folder, kind=CHECKPOINT_KIND, settings=asdict(checkpoint.counters)) as writer:
            writer.open_binary("weights.safetensors").write(safetensors.torch.save(checkpoint.weights))
            writer.open_binary("optimizer.safetensors").write(safetensors.torch.save(checkpoint.optimizer_tensors))
            for name, state in checkpoint.generators.items():
                writer.write_array(f"generator-{name}", state)
        for other in [*self._checkpoint_folders(), *folder.parent.glob(".step-*.tmp")]:  # the latter from a killed run
            if other != folder:
                shutil.rmtree(other)

    def latest_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint, every byte of it checked; None in a fresh folder."""
        folders = self._checkpoint_folders()
        if not folders:
            return None
        manifest = verify_folder(folders[-1], CHECKPOINT_KIND)
        names = [name.removesuffix(".npy") for name in manifest.files if name.startswith("generator-")]
        return Checkpoint(
            counters=Counters(**{**manifest.settings, "best": dict(manifest.settings["best"])}),
            weights=safetensors.torch.load_file(folders[-1] / "weights.safetensors"),
            optimizer_tensors=safetensors.torch.load_file(folders[-1] / "optimizer.safetensors"),
            generators={name.removeprefix("generator-"): np.load(folders[-1] / f"{name}.npy") for name in names},
        )

    def cut_metrics(self, last_step: int) -> None:
        """Drop metrics of steps after `last_step`, which a resumed run will take again."""
        if self.metrics_path.is_file():
            lines = self.metrics_path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= last_step]
            if kept != lines:
                _write_whole(self.metrics_path, "".join(kept))

    def save_encoder(self, trained: Trained, name: str = ENCODER) -> None:
        """Write what was trained as the folder `name`; an older one gives way only when the new one is complete."""
        folder, temporary = self.path / name, self.path / f".{name}.tmp"
        with storage_errors(folder, temporary):
            shutil.rmtree(temporary, ignore_errors=True)
            trained.save(temporary)
            if folder.exists():
                shutil.rmtree(folder)
            temporary.rename(folder)

    def _checkpoint_folders(self) -> list[Path]:
        return sorted((self.path / "checkpoints").glob("step-*"))


def _write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    file = CountingFile(temporary)
    try:
        file.write(text.encode())
        file.close()
        with storage_errors(path):
            temporary.replace(path)
    finally:
        file.abandon()
        temporary.unlink(missing_ok=True)
