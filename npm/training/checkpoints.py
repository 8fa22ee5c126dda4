"""The folder of a training run: settings, metrics, the latest checkpoint, and the finished encoder.

RUN/settings.json      resolved settings, SHA-256 of corpus files, fingerprint of the start; others are refused
RUN/metrics.jsonl      one line every few steps; cut back to the checkpoint when a run is resumed
RUN/checkpoints/step-00000200/   manifest with counters; weights, optimizer state, generators of all ranks, and averages
                                 if weights are averaged (trainer.ema_decay), each a .safetensors
RUN/encoder/           the finished encoder, as save_pretrained writes it
RUN/best-encoder/      the one of the best evaluation, if there are evaluations
RUN/bad-batch/         the batch of a loss that was not finite

torch.distributed.checkpoint.state_dict is not used: before the first step it makes an optimizer step to learn what the
state is, which moves Adam's counter, and a run that is evaluated at step 0 would differ from one that is not.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
from pydantic import NonNegativeFloat, NonNegativeInt
from safetensors import SafetensorError
from torch import nn

from npm.core.artifact import MANIFEST_NAME, read_as, refuse_changed, refuse_link, verify_folder, write_folder
from npm.core.errors import ArtifactError, SettingError, named
from npm.core.files import read_object, replace_file, sync, sync_all
from npm.core.settings import Settings
from npm.models.names import is_whole_encoder
from npm.models.stored import save_tensors
from npm.objectives.ranks import rank, world_size
from npm.training.acceleration import own_share, whole_tensor
from npm.training.model import SavedModel
from npm.training.record import OF_EACH_RUN, read_metrics

CHECKPOINT_KIND = "training checkpoint"
ENCODER, BEST_ENCODER = "encoder", "best-encoder"
"""Folders of a run with trained models."""
SETTINGS, CHECKPOINTS, BAD_BATCH, METRICS = "settings.json", "checkpoints", "bad-batch", "metrics.jsonl"
HELD_OUT = "held-out"
"""Folder of the packed held-out text."""
Tensors = dict[str, torch.Tensor]


class Counters(Settings):
    """Progress of a run."""

    step: NonNegativeInt
    seconds: NonNegativeFloat
    tokens: NonNegativeInt
    best: dict[str, Any] = field(default_factory=dict)
    """The fields of `npm.training.trainer.EarlyStopping`."""
    gradient_scale: dict[str, Any] = field(default_factory=dict)
    """The state of the gradient scaler of float16; empty without."""
    first_step: NonNegativeInt = 0
    """Step at which the schedule began: above 0 in a run that continues the checkpoint of another (start.from_run)."""
    first_seconds: NonNegativeFloat = 0.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything a run needs to continue as if it had never stopped."""

    counters: Counters
    tensors: dict[str, Tensors]
    """Of `weights`, `optimizer`, `averages` and `generators`, those of each rank and device."""


class RunFolder:
    """The folder of one training run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics_path = path / METRICS
        self.encoder_path = path / ENCODER
        self.bad_batch_path = path / BAD_BATCH

    @property
    def has_begun(self) -> bool:
        """Return True if training has left something: metrics, a checkpoint, or the batch of a bad loss."""
        return any(path.exists() for path in (self.metrics_path, self.path / CHECKPOINTS, self.bad_batch_path))

    @property
    def is_finished(self) -> bool:
        """Return True if all files of the finished encoder exist."""
        return is_whole_encoder(self.encoder_path)

    def check(self) -> None:
        """Refuse, before anything is loaded, a folder that training must not write into.

        Raises ArtifactError for a link in it, which may lead anywhere, for a folder that holds something and no
        settings of a run, and for damaged metrics.
        """
        if not self.path.is_dir():
            return
        for path in sorted(self.path.rglob("*")):
            if path.is_symlink() and "wandb" not in path.relative_to(self.path).parts:  # which makes links of its own
                refuse_link(path)
        others = sorted(path.name for path in self.path.iterdir() if not path.name.startswith("."))
        if others and not (self.path / SETTINGS).is_file():
            raise ArtifactError(
                f"{self.path} is not the folder of a run: it holds {named(others)} and no {SETTINGS}; put that back, or"
                " choose another run=DIR"
            )
        if self.metrics_path.is_file():
            read_metrics(self.metrics_path)

    def start(self, settings: dict[str, Any]) -> None:
        """Record the settings, or refuse settings other than those recorded (SettingError)."""
        file = self.path / SETTINGS
        if not file.is_file():
            self.check()
            data = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
            replace_file(file, data.encode())
            return
        refuse_changed(
            read_object(file, fix="put it back from a copy, or choose another run=DIR"),
            settings,
            problem=f"{self.path} was begun with other settings",
            where=file,
            fix="repeat the old settings to continue, or choose another run=DIR",
            error=SettingError,
        )

    def continue_from(self, origin: RunFolder) -> None:
        """Begin with the newest checkpoint of another run, unless this one has a checkpoint.

        Raises SettingError if that is not a run, has no checkpoint, or differs in settings that must be equal.
        """
        records = [read_object(run.path / SETTINGS, fix="name the folder of a run") for run in (origin, self)]
        ours, theirs = ({k: v for k, v in record.items() if not k.startswith(OF_EACH_RUN)} for record in records)
        refuse_changed(
            ours,
            theirs,
            problem=f"{origin.path} has other settings, so that this run cannot continue it",
            where=origin.path / SETTINGS,
            fix=f"repeat the settings of that run; only those of {', '.join(OF_EACH_RUN)} may differ",
            error=SettingError,
        )
        if self._checkpoints():
            return
        checkpoint = None
        while newest := origin._checkpoints()[-1:]:
            try:
                checkpoint = origin.latest_checkpoint()
                break
            except ArtifactError:  # a run that still trains may have removed it for the next one
                if origin._checkpoints()[-1:] == newest:
                    raise
        if checkpoint is None:
            raise SettingError(f"start.from_run: {origin.path} has no checkpoint yet")
        done = checkpoint.counters
        begun = replace(done, first_step=done.step, first_seconds=done.seconds, best={})
        self.save_checkpoint(replace(checkpoint, counters=begun))

    def log(self, record: dict[str, float | int]) -> None:
        """Append one line of metrics; a number that is not finite, which JSON does not know, is null."""
        line = {name: value if math.isfinite(value) else None for name, value in record.items()}
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def cut_metrics(self, last_step: int) -> None:
        """Drop metrics of steps after `last_step`, which a resumed run will log again."""
        if self.metrics_path.is_file():
            kept = "".join(line for line, record in read_metrics(self.metrics_path) if record["step"] <= last_step)
            if kept.encode() != self.metrics_path.read_bytes():
                replace_file(self.metrics_path, kept.encode())

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then remove older ones."""
        folder = self.path / CHECKPOINTS / f"step-{checkpoint.counters.step:08d}"
        if folder.exists():
            return
        with write_folder(folder, kind=CHECKPOINT_KIND, settings=asdict(checkpoint.counters)) as writer:
            for name, tensors in checkpoint.tensors.items():
                if tensors:
                    save_tensors(writer.folder / f"{name}.safetensors", tensors)
        for other in self._checkpoints():
            if other != folder:
                other.unlink() if other.is_symlink() else shutil.rmtree(other)
        for left in folder.parent.glob(f".step-{8 * '[0-9]'}.tmp"):  # by a run that was killed
            shutil.rmtree(left)

    def latest_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint, every byte of it checked; None in a fresh folder. Raises ArtifactError for damage."""
        folders = self._checkpoints()
        if not folders:
            return None
        with self.checkpoint_errors():
            manifest = verify_folder(folders[-1], CHECKPOINT_KIND)
            counters = read_as(Counters, manifest.settings, file=folders[-1] / MANIFEST_NAME)
            files = {name: safetensors.torch.load_file(folders[-1] / name) for name in manifest.files}
            tensors = {name.removesuffix(".safetensors"): each for name, each in files.items()}
            return Checkpoint(counters, {"averages": {}, "weights": tensors["weights"], **tensors})

    @contextmanager
    def checkpoint_errors(self) -> Iterator[None]:
        """Turn any error in the newest checkpoint into an ArtifactError with the folder to remove."""
        folder = self._checkpoints()[-1]
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except (ArtifactError, LookupError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
            reason = str(error) if isinstance(error, ArtifactError) else f"{type(error).__name__}: {error}"
            reason = reason.splitlines()[0].partition("; ")[0]  # without another thing to do
            raise ArtifactError(
                f"cannot continue {folder}: {reason}; remove this folder alone and run the same command to begin again"
            ) from error

    def save_encoder(self, trained: SavedModel, name: str = ENCODER) -> None:
        """Write the trained model as the folder `name`, over an older one once complete; other files there stay."""
        folder, temporary = self.path / name, self.path / f".{name}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)  # of a killed run
        temporary.mkdir()
        trained.save(temporary)
        sync_all(temporary)
        if not folder.exists():
            temporary.rename(folder)
            sync(self.path)
            return
        files = [path for path in temporary.rglob("*") if path.is_file()]
        for path in sorted(files, key=lambda path: path == temporary / "config.json"):  # last
            place = folder / path.relative_to(temporary)
            place.parent.mkdir(exist_ok=True)
            path.replace(place)
        sync_all(folder)
        shutil.rmtree(temporary)

    def _checkpoints(self) -> list[Path]:
        return sorted((self.path / CHECKPOINTS).glob("step-" + 8 * "[0-9]"))


def captured_state(model: nn.Module, optimizer: torch.optim.Optimizer, averages: Tensors) -> dict[str, Tensors]:
    """Full tensors on the CPU of the first rank; every rank has to call it, even if only one of them writes."""
    state = optimizer.state_dict()["state"]
    flat = {f"{number}.{name}": tensor for number, values in state.items() for name, tensor in values.items()}
    parts = {"weights": own_weights(model), "optimizer": flat, "averages": averages}
    own = {f"{rank()}-cpu": torch.get_rng_state()}  # u8
    if torch.cuda.is_available():
        own[f"{rank()}-cuda"] = torch.cuda.get_rng_state()
    of_ranks: list[Tensors] = [own]
    if world_size() > 1:
        of_ranks = [{}] * world_size()
        dist.all_gather_object(of_ranks, own)
    kept: dict[str, Tensors] = {"generators": {name: state for each in of_ranks for name, state in each.items()}}
    for part, tensors in parts.items():
        kept[part] = {}
        for name, tensor in tensors.items():
            full = whole_tensor(tensor.detach())  # one at a time
            if rank() == 0:
                kept[part][name] = full.cpu().contiguous()
    return kept


def own_weights(model: nn.Module) -> Tensors:
    """Weights and saved buffers of this rank by name; one that has several names by its first."""
    unique = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    return {name: tensor for name, tensor in model.state_dict().items() if name in unique}


def restore_state(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer, *, where: Path) -> None:
    """Put weights, optimizer state and generators back where they were.

    Raises SettingError for a checkpoint of another number of processes or of another architecture.
    """
    generators, saved = checkpoint.tensors["generators"], checkpoint.tensors["weights"]
    ranks = len({name.split("-")[0] for name in generators})
    if ranks != world_size():
        raise SettingError(
            f"{where} was begun with {ranks} processes, got {world_size()}: start {ranks}, or choose another run=DIR"
        )
    own = own_weights(model)
    shapes = [{name: tuple(tensor.shape) for name, tensor in part.items()} for part in (saved, own)]
    if different := sorted(dict(shapes[0].items() ^ shapes[1].items())):
        raise SettingError(
            f"{where / CHECKPOINTS} is of another architecture than this run: {named(different)}; use the encoder and"
            " the objectives that it was begun with, or choose another run=DIR"
        )
    # the names were compared; tied ones come with their first
    model.load_state_dict({name: own_share(tensor, own[name]) for name, tensor in saved.items()}, strict=False)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, Tensors] = {}
    for key, tensor in checkpoint.tensors.get("optimizer", {}).items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = own_share(tensor, parameters[int(number)])
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    torch.set_rng_state(generators[f"{rank()}-cpu"])
    if torch.cuda.is_available() and (own_state := generators.get(f"{rank()}-cuda")) is not None:
        torch.cuda.set_rng_state(own_state)
