"""Preparation of the model, its optimizer and its average for the device, the number format and the ranks of a run.

`fully_shard` (FSDP2) replaces each parameter by the rank's shard of it. The entire model is one unit: its weights are
gathered before a micro-batch and its gradient is sharded after the last of a window. Layers are not separate
units, because they would be gathered at every pass of the encoder, and ranks differ in the number of their passes (long
masked copies, `rows_per_pass`), so that they would wait for each other forever.

`fully_shard` is called here and not through Accelerate's plugin, which takes no notice of it on a CPU (accelerate 1.15,
`state.py`), so that it could not be tested there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import GradientAccumulationPlugin
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from npm.core.errors import SettingError
from npm.masking.batches import TrainingBatch
from npm.models.stored import choose_device, choose_dtype
from npm.objectives.combine import Term
from npm.training.model import SavedModel, TrainedModel
from npm.training.optimizer import make_optimizer
from npm.training.settings import Sharding, TrainerSettings, TrainingSettings


def shard(model: nn.Module, kept: Iterable[nn.Module]) -> None:
    """Shard `model` over the ranks, in place.

    Modules of `kept` that hold a parameter of `model` without being part of it, as a language model around the network
    get the same shard. Raises SettingError without a process group.
    """
    if not dist.is_initialized():
        raise SettingError("trainer.sharding=full needs several processes: start them with accelerate launch")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    places = [
        (module, key, names[id(parameter)])
        for root in kept
        for module in root.modules()
        for key, parameter in module._parameters.items()
        if parameter is not None and id(parameter) in names
    ]
    fully_shard(model, reshard_after_forward=False)
    sharded = dict(model.named_parameters())
    for module, key, name in places:
        module._parameters[key] = sharded[name]


def whole_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The full tensor from the shards of all ranks; an unsharded tensor unchanged. Every rank has to call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_share(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a full tensor, if `like` is sharded and of the same shape."""
    if isinstance(like, DTensor) and tensor.shape == like.shape:
        return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)
    return tensor


@contextmanager
def whole_parameters(roots: Iterable[nn.Module]) -> Iterator[None]:
    """Context in which every parameter of `roots` is a full one on the CPU. Every rank has to enter it."""
    replaced: list[tuple[nn.Module, str, nn.Parameter]] = []
    gathered: dict[int, nn.Parameter] = {}  # a tied parameter stays one
    try:
        for module in (module for root in roots for module in root.modules()):
            for key, parameter in module._parameters.items():
                if isinstance(parameter, DTensor):
                    if id(parameter) not in gathered:
                        full = whole_tensor(parameter.detach()).cpu()
                        gathered[id(parameter)] = nn.Parameter(full, requires_grad=parameter.requires_grad)
                    replaced.append((module, key, cast(nn.Parameter, parameter)))
        for module, key, parameter in replaced:
            module._parameters[key] = gathered[id(parameter)]
        yield
    finally:
        for module, key, parameter in replaced:
            module._parameters[key] = parameter


def make_accelerator(settings: TrainingSettings) -> Any:
    """An `accelerate.Accelerator` on the chosen device in the chosen precision."""
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.precision, device)
    AcceleratorState._reset_state()  # else a process could not train twice in different precisions
    try:
        return Accelerator(
            mixed_precision={torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "no"),
            cpu=device.type == "cpu",
            # given, because the launcher's number would divide our gradients a second time
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        )
    except (ValueError, RuntimeError) as error:
        if launched_ranks() == 1:
            raise
        raise SettingError(
            f"the {launched_ranks()} ranks of WORLD_SIZE did not meet ({str(error).splitlines()[0]}): start them with "
            "accelerate launch or torchrun, or unset WORLD_SIZE to train in one process"
        ) from error


def launched_ranks() -> int:
    """Processes that a launcher says it starts, before they have met; 1 without a launcher."""
    count = os.environ.get("WORLD_SIZE", "1")
    if not (count.isascii() and count.isdecimal() and int(count)):
        raise SettingError(f"WORLD_SIZE must be a number of processes, got {count}; unset it to train in one process")
    return int(count)


class PreparedModel:
    """A `TrainedModel` and its optimizer: compiled, checkpointed and distributed over ranks as the settings say."""

    def __init__(self, model: TrainedModel, kept: SavedModel, settings: TrainerSettings, accelerator: Any) -> None:
        self.accelerator, self.max_gradient_norm = accelerator, settings.max_gradient_norm
        self.bare = model
        self.is_sharded = settings.sharding is Sharding.full
        network: Any = model.encoder_model
        if settings.gradient_checkpointing:
            keep_few_activations(network)
        if settings.compile:
            network.compile(dynamic=True)  # in place: names of weights stay, and batches differ in length
        if self.is_sharded:
            model.to(accelerator.device)
            shard(model, kept_modules(kept))
            self.wrapped: Any = model
            self.optimizer: Any = make_optimizer(model, settings)
        else:
            self.wrapped, prepared = accelerator.prepare(model, make_optimizer(model, settings))
            self.optimizer = prepared.optimizer
        self.scaler: torch.amp.GradScaler | None = accelerator.scaler  # of float16 alone

    def __call__(self, batch: TrainingBatch) -> dict[str, Term]:
        """The terms of one micro-batch on the accelerator's device."""
        with self.accelerator.autocast() if self.is_sharded else contextlib.nullcontext():
            terms: dict[str, Term] = self.wrapped(batch)
        return terms

    def gathering(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        """Context of a micro-batch: gradients are averaged over ranks in the `last` one of a window only."""
        if self.is_sharded:
            self.wrapped.set_requires_gradient_sync(last)
            return contextlib.nullcontext()
        unsynced: contextlib.AbstractContextManager[None] = self.accelerator.no_sync(self.wrapped)
        return contextlib.nullcontext() if last else unsynced

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Context in which parts of the model may be called separately. Every rank has to enter it."""
        if self.is_sharded:
            self.wrapped.unshard()
        yield
        if self.is_sharded:
            self.wrapped.reshard()

    def clip(self) -> float:
        """Clip the gradient of an entire window to its maximum norm; returns its norm before."""
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        length = nn.utils.clip_grad_norm_(self.wrapped.parameters(), self.max_gradient_norm)
        return float(whole_tensor(length))

    def step(self) -> None:
        """Change the weights; with a scaler not by a gradient that is not finite, which lowers the scale instead."""
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)


def keep_few_activations(network: Any) -> None:
    """Gradient checkpointing by the network's own class. Raises SettingError if that has none."""
    if not getattr(network, "supports_gradient_checkpointing", False):
        raise SettingError(
            f"trainer.gradient_checkpointing is not supported by {type(network).__name__};"
            " trainer.rows_per_pass saves memory with every model"
        )
    # one method under its new and its old name
    enable = getattr(network, "activation_checkpointing_enable", None) or network.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def kept_modules(kept: Any) -> list[nn.Module]:
    """The modules that something keeps as attributes, such as a network and the language model around it.

    Also those of the model that it keeps, where it adds to another one.
    """
    modules: list[nn.Module] = []
    for part in vars(kept).values():
        if isinstance(part, nn.Module):
            modules.append(part)
        elif hasattr(part, "weights_changed"):
            modules.extend(kept_modules(part))
    return modules


class AveragedWeights:
    """A running mean of the trained parameters over the steps (EMA), which evaluations and saved encoders have.

    The mean of late steps is nearer to the middle of the valley that they cross than the last of them (Polyak and
    Juditsky 1992; Izmailov et al. 2018, arXiv 1803.05407). It begins with the start of the run, and forgets that
    quickly: after t steps the decay is at most (1 + t) / (10 + t). In float32, on their device, shared out as they are.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self._means = {name: value.detach().float().clone() for name, value in self._parameters.items()}

    def update(self, step: int) -> None:
        """Take in the weights after step 1, 2, …"""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, mean in self._means.items():
            mean.lerp_(self._parameters[name].detach().float(), 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context in which the model has the average; afterwards it has its former weights, bit for bit."""
        own = {name: value.detach().clone() for name, value in self._parameters.items()}
        try:
            self._put(self._means)
            yield
        finally:
            self._put(own)

    def state(self) -> dict[str, torch.Tensor]:
        """The average by the names of parameters, as each rank holds it."""
        return dict(self._means)

    def restore(self, saved: dict[str, torch.Tensor]) -> None:
        """Continue an average of full tensors."""
        for name, mean in self._means.items():
            mean.copy_(own_share(saved[name], mean))

    def _put(self, values: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(values[name])
