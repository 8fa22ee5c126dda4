"""The model and its optimiser made ready for the device, the number format and the ranks of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from npm.errors import SettingError
from npm.models.encoder import ComputeDtype, choose_device, choose_dtype
from npm.training.parameter_groups import parameter_groups
from npm.training.sharding import average_whole_gradients, clip_shared_gradients, shard
from npm.training.trained_model import Trained, TrainedModel
from npm.training.trainer_settings import Sharding, TrainerSettings
from npm.types import Term, TrainingBatch


def make_accelerator(settings: TrainerSettings) -> Any:
    """An `accelerate.Accelerator` on the chosen device in the chosen precision."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import GradientAccumulationPlugin

    device = choose_device(settings.device)
    dtype = choose_dtype(ComputeDtype(settings.precision.value), device)
    AcceleratorState._reset_state()  # else a process could not train twice in different precisions
    return Accelerator(
        mixed_precision="bf16" if dtype is torch.bfloat16 else "no",
        cpu=device.type == "cpu",
        # given, because the launcher's number would divide our gradients a second time
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
    )


def make_optimizer(model: nn.Module, settings: TrainerSettings) -> torch.optim.Optimizer:
    """AdamW with weight decay on matrices and embeddings only."""
    betas = (settings.adam_beta1, settings.adam_beta2)
    groups = parameter_groups(model, weight_decay=settings.weight_decay)
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=settings.adam_epsilon, fused=True)


class PreparedModel:
    """A `TrainedModel` and its optimiser: compiled, checkpointed and spread over ranks as the settings say."""

    def __init__(self, model: TrainedModel, kept: Trained, settings: TrainerSettings, accelerator: Any) -> None:
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

    def __call__(self, batch: TrainingBatch) -> dict[str, Term]:
        """The terms of one micro-batch that lies on the accelerator's device."""
        with self.accelerator.autocast() if self.is_sharded else contextlib.nullcontext():
            terms: dict[str, Term] = self.wrapped(batch)
        return terms

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of one micro-batch."""
        self.accelerator.backward(loss)

    def gathering(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        """Around a micro-batch: gradients are averaged over ranks in the `last` one of a window only."""
        if self.is_sharded:
            self.wrapped.set_requires_gradient_sync(last)
            return contextlib.nullcontext()
        unsynced: contextlib.AbstractContextManager[None] = self.accelerator.no_sync(self.wrapped)
        return contextlib.nullcontext() if last else unsynced

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Within it, parts of the model may be called by themselves. Every rank has to enter it."""
        if self.is_sharded:
            self.wrapped.unshard()
        yield
        if self.is_sharded:
            self.wrapped.reshard()

    def clip(self) -> float:
        """Shorten the gradient of a whole window to its longest allowed length; returns its length before."""
        if self.is_sharded:
            average_whole_gradients(self.wrapped)
            return clip_shared_gradients(self.wrapped, self.max_gradient_norm)
        return float(self.accelerator.clip_grad_norm_(self.wrapped.parameters(), self.max_gradient_norm))


def keep_few_activations(network: Any) -> None:
    """Gradient checkpointing by the network's own class. Raises SettingError if that has none."""
    if not getattr(network, "supports_gradient_checkpointing", False):
        raise SettingError(
            "this kind of model has no gradient checkpointing",
            expected="a transformers model that supports it",
            got=type(network).__name__,
            where="trainer.gradient_checkpointing",
            fix="leave it at false; trainer.rows_per_pass saves memory with every model",
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
