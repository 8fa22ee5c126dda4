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
import torch.distributed as dist
from torch import nn

from index.files import CountingFile, made_parents, storage_errors
from index.store import verify_folder, write_folder
from npm.errors import SettingError
from npm.objectives.ranks import rank, world_size
from npm.training.acceleration import own_share, whole_tensor
from npm.training.model import SavedModel

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
    """The fields of `npm.training.trainer.EarlyStopping`."""


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

    def save_encoder(self, trained: SavedModel, name: str = ENCODER) -> None:
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


_NAMED_AT_MOST = 4
"""Weights that a message tells by name."""


def captured_state(model: nn.Module, optimizer: torch.optim.Optimizer, counters: Counters) -> Checkpoint:
    """A checkpoint of whole tensors on the CPU; every rank has to ask, even if only one of them writes it."""
    weights = _kept_by_first_rank(own_weights(model))
    return Checkpoint(counters, weights, optimizer_tensors(optimizer), gathered_generator_states())


def own_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Weights and saved buffers of this rank by name; one that stands under several names by its first."""
    unique = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    return {name: tensor for name, tensor in model.state_dict().items() if name in unique}


def _kept_by_first_rank(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Whole tensors on the CPU of the first rank, nothing on the others; one is whole at a time."""
    kept: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        whole = whole_tensor(tensor.detach())
        if rank() == 0:
            kept[name] = whole.cpu().contiguous()
    return kept


def restore_state(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer, *, where: Path) -> None:
    """Put weights, optimiser state and generators back where they were.

    Raises SettingError for a checkpoint of another number of processes or of another architecture.
    """
    if (ranks := rank_count(checkpoint.generators)) != world_size():
        raise SettingError(
            "this run was begun with another number of processes",
            expected=f"{ranks} processes",
            got=str(world_size()),
            where=str(where),
            fix=f"start {ranks} processes to continue exactly, or choose another run=DIR",
        )
    own = own_weights(model)
    _refuse_another_architecture(checkpoint.weights, own, where)
    weights = {name: own_share(tensor, own[name]) for name, tensor in checkpoint.weights.items()}
    model.load_state_dict(weights, strict=False)  # the names were compared; tied ones come with their first
    load_optimizer_tensors(optimizer, checkpoint.optimizer_tensors)
    restore_generators(checkpoint.generators)


def _refuse_another_architecture(saved: dict[str, torch.Tensor], own: dict[str, torch.Tensor], where: Path) -> None:
    saved_shapes = {name: tuple(tensor.shape) for name, tensor in saved.items()}
    own_shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
    different = [
        name
        for name in sorted(saved_shapes.keys() | own_shapes.keys())
        if saved_shapes.get(name) != own_shapes.get(name)
    ]
    if different:
        shown = different[:_NAMED_AT_MOST]
        more = f" and {len(different) - len(shown)} more" if len(different) > len(shown) else ""
        raise SettingError(
            "the checkpoint is of another architecture",
            expected=", ".join(f"{name} {own_shapes.get(name, 'absent')}" for name in shown) + more,
            got=", ".join(f"{name} {saved_shapes.get(name, 'absent')}" for name in shown) + more,
            where=str(where / "checkpoints"),
            fix="continue with the encoder and the objective that the run was begun with, or choose another run=DIR",
        )


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimiser's state as flat named whole tensors: `<parameter number>.<name>`."""
    state = optimizer.state_dict()["state"]
    named = {f"{number}.{name}": tensor for number, values in state.items() for name, tensor in values.items()}
    return _kept_by_first_rank(named)


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """The inverse of `optimizer_tensors`."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = own_share(tensor, parameters[int(number)])
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def gathered_generator_states() -> dict[str, np.ndarray]:
    """Every rank's random generator states, u8, by `<rank>-cpu` and `<rank>-cuda`."""
    own = {f"{rank()}-cpu": torch.get_rng_state().numpy()}
    if torch.cuda.is_available():
        own[f"{rank()}-cuda"] = torch.cuda.get_rng_state().numpy()
    if world_size() == 1:
        return own
    parts: list[dict[str, np.ndarray] | None] = [None] * world_size()
    dist.all_gather_object(parts, own)
    return {name: state for part in parts if part is not None for name, state in part.items()}


def restore_generators(states: dict[str, np.ndarray]) -> None:
    """Put this rank's generators back where they were."""
    if (state := states.get(f"{rank()}-cpu")) is not None:
        torch.set_rng_state(torch.from_numpy(state))
    if torch.cuda.is_available() and (state := states.get(f"{rank()}-cuda")) is not None:
        torch.cuda.set_rng_state(torch.from_numpy(state))


def rank_count(states: dict[str, np.ndarray]) -> int:
    """How many ranks' generators are in `states`.

    >>> rank_count({"0-cpu": np.zeros(0), "0-cuda": np.zeros(0), "1-cpu": np.zeros(0)})
    2
    """
    return len({name.split("-")[0] for name in states})
