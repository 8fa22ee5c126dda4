"""The optimizer: trained parameters, weight decay, and the update rule.

Biases and the weights of normalizations do not decay; matrices and embeddings do (Devlin et al. 2019,
arXiv 1810.04805, appendix A.2, and its code).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from npm.core.errors import SettingError
from npm.training.settings import FrozenSettings, OptimizerKind, TrainerSettings


def freeze(model: Any, settings: FrozenSettings) -> None:
    """Take parts of a Hugging Face model out of training.

    A tied parameter is one parameter: frozen as an embedding, it is frozen as an output matrix. Raises SettingError if
    there are fewer layers, or if nothing of the model would be trained.
    """
    frozen: list[nn.Module] = []
    if settings.embeddings:  # with positions and norm, where the model has a module for all of them
        beside = getattr(model, "embeddings", None)
        frozen.append(beside if isinstance(beside, nn.Module) else model.get_input_embeddings())
    if settings.word_embeddings:
        frozen.append(model.get_input_embeddings())
    if settings.layers:
        for stack in layer_stacks(model):
            if settings.layers > len(stack):
                raise SettingError(
                    f"start.frozen.layers must be at most {len(stack)}, its layers, got {settings.layers}"
                )
            frozen.extend(stack[: settings.layers])
    for module in frozen:
        module.requires_grad_(False)
    if frozen and not any(parameter.requires_grad for parameter in model.parameters()):
        raise SettingError(f"start.frozen leaves nothing of the encoder to train: reduce layers={settings.layers}")


def layer_stacks(model: nn.Module) -> list[nn.ModuleList]:
    """The stacks of layers of a Hugging Face model: one of an encoder, two of an encoder-decoder.

    Raises SettingError for a model without, such as ALBERT, whose layers share their weights.
    """
    config: Any = model.config
    depths = {getattr(config, name, None) for name in ("num_hidden_layers", "num_layers", "num_decoder_layers")}
    stacks: list[nn.ModuleList] = []
    inside: set[int] = set()
    for module in model.modules():  # from the outside in
        if isinstance(module, nn.ModuleList) and id(module) not in inside and len(module) in depths:
            stacks.append(module)
            inside |= {id(part) for part in module.modules()}
    if not stacks:
        raise SettingError(
            f"{type(model).__name__} has no layers with weights of their own: leave out start.frozen.layers"
        )
    return stacks


def parameter_groups(model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """The trained parameters as groups of an optimizer: decaying and not decaying; none is empty."""
    members: dict[bool, list[nn.Parameter]] = {}
    seen: set[nn.Parameter] = set()
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad or parameter in seen:
                continue
            seen.add(parameter)
            is_bias = name.endswith("bias") or module_name.endswith("bias")  # T5's positions are a bias too
            members.setdefault(is_bias or is_norm(module), []).append(parameter)
    if not seen:
        raise SettingError("start.frozen leaves nothing to train: freeze less")
    return [
        {"params": members[is_steady], "weight_decay": 0.0 if is_steady else weight_decay}
        for is_steady in sorted(members)
    ]


def is_norm(module: nn.Module) -> bool:
    """Return True for a normalization module: torch's own, and those that model families define."""
    return isinstance(module, (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)) or type(module).__name__.endswith("Norm")


LION_BETAS = (0.9, 0.99)


class Lion(Optimizer):
    """Every weight moves by the learning rate, in the direction of the sign of an interpolated momentum.

        θ ← θ − η (sign(β₁ m + (1 − β₁) g) + λ θ),   m ← β₂ m + (1 − β₂) g

    (Chen et al. 2023, arXiv 2302.06675, algorithm 2.)
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.0, "betas": LION_BETAS})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One step of all parameters that have a gradient."""
        assert closure is None, "the gradient is there"
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                momentum = state["momentum"]
                direction = momentum.lerp(parameter.grad, 1 - first).sign_()
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=group["lr"])
                momentum.lerp_(parameter.grad, 1 - second)


def make_optimizer(model: nn.Module, settings: TrainerSettings) -> Optimizer:
    """The optimizer of `model`; its learning rate is set before each step."""
    groups = parameter_groups(model, weight_decay=settings.weight_decay)
    if settings.optimizer is OptimizerKind.lion:
        return Lion(groups)
    return AdamW(groups, lr=0.0, betas=(0.9, settings.adam_beta2), eps=settings.adam_epsilon, fused=True)
