"""What a training run leaves behind: settings, metrics, the latest checkpoint, and the finished encoder.

RUN/settings.json      resolved settings, SHA-256 of corpus files, fingerprint of the start; others are refused
RUN/metrics.jsonl      one line every few steps; cut back to the checkpoint when a run is resumed
RUN/checkpoints/step-00000200/   weights and optimiser state (safetensors), counters (json), generators (npy), and
                                 averages.safetensors if weights are averaged (trainer.ema_decay)
RUN/encoder/           the finished encoder, as save_pretrained writes it
RUN/best-encoder/      the one of the best evaluation, if there are evaluations
RUN/bad-batch/         the batch of a loss that was not finite
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import nn

from npm.core.artifact import MANIFEST_NAME, read_manifest, refuse_link, remove, verify_folder, write_folder
from npm.core.errors import ArtifactError, SettingError, named
from npm.core.files import read_object, replace_file
from npm.core.records import refuse_changed
from npm.models.names import is_whole_encoder
from npm.objectives.ranks import rank, world_size
from npm.training.acceleration import own_share, whole_tensor
from npm.training.loggers import read_metrics
from npm.training.model import SavedModel
from npm.training.record import OF_EACH_RUN

CHECKPOINT_KIND = "training checkpoint"
ENCODER, BEST_ENCODER = "encoder", "best-encoder"
"""Folders of a run that hold what was trained."""
SETTINGS, CHECKPOINTS, BAD_BATCH = "settings.json", "checkpoints", "bad-batch"
TEXTS, HELD_OUT = ("corpus", "sentences"), "held-out"
"""Folders of what the texts were made into, also below that of held-out text."""
METRICS, AVERAGES = "metrics.jsonl", "averages.safetensors"
PARTS = (METRICS, CHECKPOINTS, BAD_BATCH, ENCODER, BEST_ENCODER, HELD_OUT, *TEXTS)
"""What a run leaves beside its settings."""
OWN_NAMES = (SETTINGS, *PARTS, "collocations", "tensorboard", "wandb", "wandb-id.txt")
OWN_NAME = re.compile(rf"\.?({'|'.join(re.escape(name) for name in OWN_NAMES)})(\.(tmp|lock|skipped\.jsonl))?")
"""All that is written in the folder of a run, with temporary names, locks and reports."""


@dataclass(frozen=True, slots=True)
class Counters:
    """How far a run has come."""

    step: int
    seconds: float
    tokens: int
    best: dict[str, Any] = field(default_factory=dict)
    """The fields of `npm.training.trainer.EarlyStopping`."""
    gradient_scale: dict[str, Any] = field(default_factory=dict)
    """The state of the gradient scaler of float16; empty without."""
    first_step: int = 0
    """Where the schedule began: above 0 in a run that goes on from the checkpoint of another (start.from_run)."""
    first_seconds: float = 0.0

    def __post_init__(self) -> None:
        kinds: dict[str, tuple[type, ...]] = {"step": (int,), "seconds": (int, float), "tokens": (int,)}
        kinds |= {"first_step": (int,), "first_seconds": (int, float)}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if type(value) not in kind or not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value!r}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything a run needs to go on as if it had never stopped."""

    counters: Counters
    weights: dict[str, torch.Tensor]
    optimizer_tensors: dict[str, torch.Tensor]
    generators: dict[str, np.ndarray]  # u8, one of the CPU and one of the device for each rank
    averages: dict[str, torch.Tensor] = field(default_factory=dict)
    """Averaged weights, in a run that has them."""


class RunFolder:
    """The folder of one training run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics_path = path / METRICS
        self.encoder_path = path / ENCODER
        self.bad_batch_path = path / BAD_BATCH

    @property
    def has_begun(self) -> bool:
        """Whether training has left something here: metrics, a checkpoint, or the batch of a bad loss."""
        return any(path.exists() for path in (self.metrics_path, self.path / CHECKPOINTS, self.bad_batch_path))

    @property
    def is_finished(self) -> bool:
        """Whether the encoder of the end is there, and none of its files is gone."""
        return is_whole_encoder(self.encoder_path)

    def check(self) -> None:
        """Refuse, before anything is loaded, a folder that training must not write into.

        Raises ArtifactError for a link under a name of ours, which may lead anywhere; for what is no run but holds
        something; for metrics that are none; and for what is in the way of an encoder that is written.
        """
        if not self.path.is_dir():
            return
        names = sorted(path.name for path in self.path.iterdir())
        for name in filter(OWN_NAME.fullmatch, names):
            _refuse_links(self.path / name, deeply=name != "wandb")  # which makes links of its own
        self._refuse_others(names)
        if self.metrics_path.is_file():
            read_metrics(self.metrics_path)

    def _refuse_others(self, names: Sequence[str]) -> None:
        if SETTINGS in names or (MANIFEST_NAME not in names and not set(PARTS).isdisjoint(names)):
            return  # left to `start`
        others = [name for name in names if not OWN_NAME.fullmatch(name) and not _is_evaluation(self.path / name)]
        if others:
            raise ArtifactError(
                f"{self.path} is not the folder of a run: it holds {named(others)}; choose another run=DIR"
            )

    def start(self, settings: dict[str, Any]) -> None:
        """Record the settings, or refuse those that differ from what the folder was begun with (SettingError).

        Raises ArtifactError if they cannot be read, or are gone though other parts of a run are there.
        """
        file = self.path / SETTINGS
        if not file.is_file():
            if found := [name for name in PARTS if (self.path / name).exists()]:
                raise ArtifactError(
                    f"{file} is missing, but there is {named(found)} of a run: put it back, or choose another run=DIR"
                )
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

    def go_on_from(self, origin: RunFolder) -> None:
        """Begin with the newest checkpoint of another run, unless this one has a checkpoint.

        Raises SettingError if that is no run, has none, or has other settings than those in which runs may differ.
        """
        records = [read_object(run.path / SETTINGS, fix="name the folder of a run") for run in (origin, self)]
        ours, theirs = ({k: v for k, v in record.items() if not k.startswith(OF_EACH_RUN)} for record in records)
        refuse_changed(
            ours,
            theirs,
            problem=f"{origin.path} has other settings, so that this run cannot go on from it",
            where=origin.path / SETTINGS,
            fix=f"repeat the settings of that run; only those of {', '.join(OF_EACH_RUN)} may differ",
            error=SettingError,
        )
        if self._checkpoint_folders():
            return
        checkpoint = origin._checkpoint_while_training()
        if checkpoint is None:
            raise SettingError(f"start.from_run: {origin.path} has no checkpoint yet")
        done = checkpoint.counters
        begun = replace(done, first_step=done.step, first_seconds=done.seconds, best={})
        self.save_checkpoint(replace(checkpoint, counters=begun))

    def _checkpoint_while_training(self) -> Checkpoint | None:
        """The newest checkpoint of a run that may write the next one, and remove this one, while it is read."""
        while True:
            newest = self._checkpoint_folders()[-1:]
            try:
                return self.latest_checkpoint()
            except ArtifactError:
                if self._checkpoint_folders()[-1:] == newest:
                    raise

    def log(self, record: dict[str, float | int]) -> None:
        """Append one line of metrics; a number that is not finite, which JSON does not know, is null."""
        line = {name: value if math.isfinite(value) else None for name, value in record.items()}
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint whole, then remove older ones."""
        folder = self.path / CHECKPOINTS / f"step-{checkpoint.counters.step:08d}"
        if folder.exists():
            return
        counters = asdict(checkpoint.counters)
        if not checkpoint.counters.gradient_scale:
            del counters["gradient_scale"]
        with write_folder(folder, kind=CHECKPOINT_KIND, settings=counters) as writer:
            writer.open_binary("weights.safetensors").write(safetensors.torch.save(checkpoint.weights))
            writer.open_binary("optimizer.safetensors").write(safetensors.torch.save(checkpoint.optimizer_tensors))
            if checkpoint.averages:
                writer.open_binary(AVERAGES).write(safetensors.torch.save(checkpoint.averages))
            for name, state in checkpoint.generators.items():
                writer.write_array(f"generator-{name}", state)
        for other in self._checkpoint_folders():
            if other != folder:
                remove(other)
        for left in folder.parent.glob(f".step-{8 * '[0-9]'}.tmp"):  # by a run that was killed
            shutil.rmtree(left)

    def latest_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint, every byte of it checked; None in a fresh folder. Raises ArtifactError for damage."""
        folders = self._checkpoint_folders()
        if not folders:
            return None
        with self.checkpoint_errors():
            manifest = verify_folder(folders[-1], CHECKPOINT_KIND)
            averages = safetensors.torch.load_file(folders[-1] / AVERAGES) if AVERAGES in manifest.files else {}
            names = [name.removesuffix(".npy") for name in manifest.files if name.startswith("generator-")]
            return Checkpoint(
                counters=Counters(**{**manifest.settings, "best": dict(manifest.settings["best"])}),
                weights=safetensors.torch.load_file(folders[-1] / "weights.safetensors"),
                optimizer_tensors=safetensors.torch.load_file(folders[-1] / "optimizer.safetensors"),
                generators={name.removeprefix("generator-"): np.load(folders[-1] / f"{name}.npy") for name in names},
                averages=averages,
            )

    @contextmanager
    def checkpoint_errors(self) -> Iterator[None]:
        """Turn whatever is wrong in the newest checkpoint into an ArtifactError with the folder to remove."""
        folder = self._checkpoint_folders()[-1]
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except (ArtifactError, LookupError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
            reason = str(error) if isinstance(error, ArtifactError) else f"{type(error).__name__}: {error}"
            reason = reason.splitlines()[0].partition("; ")[0]  # without another thing to do
            raise ArtifactError(
                f"cannot go on from {folder}: {reason}; remove this folder alone and run the same command to begin anew"
            ) from error

    def cut_metrics(self, last_step: int) -> None:
        """Drop metrics of steps after `last_step`, which a resumed run will take again."""
        if self.metrics_path.is_file():
            kept = "".join(line for line, record in read_metrics(self.metrics_path) if record["step"] <= last_step)
            if kept.encode() != self.metrics_path.read_bytes():
                replace_file(self.metrics_path, kept.encode())

    def save_encoder(self, trained: SavedModel, name: str = ENCODER) -> None:
        """Write what was trained as the folder `name`, over an older one once complete; what else is there stays."""
        folder, temporary = self.path / name, self.path / f".{name}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)  # of a killed run
        temporary.mkdir()
        trained.save(temporary)
        if folder.is_symlink():
            folder.unlink()
        if folder.exists():
            _move_files(temporary, folder)
        else:
            temporary.rename(folder)

    def discard(self) -> None:
        """Remove what a run has left that never began."""
        for folder in (self.path / HELD_OUT, self.path):
            remove(folder, also=(SETTINGS, HELD_OUT, *TEXTS))

    def _checkpoint_folders(self) -> list[Path]:
        return sorted((self.path / CHECKPOINTS).glob("step-" + 8 * "[0-9]"))


def _refuse_links(place: Path, *, deeply: bool) -> None:
    """Raise ArtifactError if `place` is a link, or one is in it."""
    refuse_link(place)
    for folder, folders, files in os.walk(place) if deeply else ():
        for name in sorted((*folders, *files)):
            refuse_link(Path(folder) / name)


def _is_evaluation(folder: Path) -> bool:
    """Whether `folder` holds the results of an evaluation, which may go before the run that they lie in."""
    with suppress(ArtifactError):
        return read_manifest(folder).kind == "evaluation"
    return False


def _move_files(source: Path, target: Path) -> None:
    """Move all files of one folder into another, in the place of those of the same names; config.json comes last."""
    files = [path for path in source.rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: path == source / "config.json"):
        place = target / path.relative_to(source)
        place.parent.mkdir(exist_ok=True)
        path.replace(place)
    for folder in sorted((path for path in source.rglob("*")), reverse=True):
        folder.rmdir()
    source.rmdir()


def captured_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, counters: Counters, averages: dict[str, torch.Tensor]
) -> Checkpoint:
    """A checkpoint of whole tensors on the CPU; every rank has to ask, even if only one of them writes it."""
    weights, means = _kept_by_first_rank(own_weights(model)), _kept_by_first_rank(averages)
    return Checkpoint(counters, weights, optimizer_tensors(optimizer), gathered_generator_states(), means)


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
    ranks = len({name.split("-")[0] for name in checkpoint.generators})
    if ranks != world_size():
        raise SettingError(
            f"{where} was begun with {ranks} processes, got {world_size()}: start {ranks}, or choose another run=DIR"
        )
    own = own_weights(model)
    saved_shapes = {name: tuple(tensor.shape) for name, tensor in checkpoint.weights.items()}
    own_shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
    names = sorted(saved_shapes.keys() | own_shapes.keys())
    if different := [name for name in names if saved_shapes.get(name) != own_shapes.get(name)]:
        shapes = [f"{name} {saved_shapes.get(name, 'absent')} ({own_shapes.get(name, 'absent')})" for name in different]
        raise SettingError(
            f"{where / CHECKPOINTS} is of another architecture than this run: {named(shapes)}; take the encoder and"
            " the objective that it was begun with, or choose another run=DIR"
        )
    weights = {name: own_share(tensor, own[name]) for name, tensor in checkpoint.weights.items()}
    model.load_state_dict(weights, strict=False)  # the names were compared; tied ones come with their first
    load_optimizer_tensors(optimizer, checkpoint.optimizer_tensors)
    torch.set_rng_state(torch.from_numpy(checkpoint.generators[f"{rank()}-cpu"]))
    if torch.cuda.is_available() and (state := checkpoint.generators.get(f"{rank()}-cuda")) is not None:
        torch.cuda.set_rng_state(torch.from_numpy(state))


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
        parameter = parameters[int(number)]
        if tensor.dim() and tensor.shape != parameter.shape:
            raise ValueError(f"{key} of shape {tuple(tensor.shape)} for a parameter of {tuple(parameter.shape)}")
        state.setdefault(int(number), {})[name] = own_share(tensor, parameter)
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
