"""The optimizer: trained parameters, weight decay, learning rates per layer, and the update rule.

Biases and the weights of normalizations do not decay; matrices and embeddings do (Devlin et al. 2019,
arXiv 1810.04805, appendix A.2, and its code).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from npm.core.errors import SettingError
from npm.training.settings import FrozenSettings, OptimizerKind, TrainerSettings


def freeze(model: Any, settings: FrozenSettings) -> list[str]:
    """Take parts of a Hugging Face model out of training; returns the names of the frozen parameters.

    A tied parameter is one parameter: frozen as an embedding, it is frozen as an output matrix. Raises SettingError if
    there are fewer layers, or if nothing of the model would be trained.
    """
    frozen: list[nn.Module] = []
    if settings.embeddings:
        frozen.append(embeddings_of(model))
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
    names = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    if frozen and len(names) == len(list(model.named_parameters())):
        raise SettingError(f"start.frozen leaves nothing of the encoder to train: reduce layers={settings.layers}")
    return names


def embeddings_of(model: Any) -> nn.Module:
    """The embeddings of a Hugging Face model: with positions and norm, where it has a module for all of them."""
    beside = getattr(model, "embeddings", None)
    chosen: nn.Module = beside if isinstance(beside, nn.Module) else model.get_input_embeddings()
    return chosen


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
            f"{type(model).__name__} has no layers with weights of their own: leave out start.frozen.layers,"
            " trainer.layer_decay and trainer.optimizer=muon"
        )
    return stacks


def layer_rates(network: nn.Module, decay: float) -> dict[nn.Parameter, float]:
    """The fraction of the learning rate of each parameter of layers and embeddings: decay ** layers above.

    The layers of either half of an encoder-decoder are counted separately.
    """
    stacks = layer_stacks(network)
    rates = {
        parameter: decay ** (len(stack) - 1 - number)
        for stack in stacks
        for number, layer in enumerate(stack)
        for parameter in layer.parameters()
    }
    return rates | dict.fromkeys(embeddings_of(network).parameters(), decay ** max(map(len, stacks)))


def parameter_groups(
    model: nn.Module, *, weight_decay: float, rates: Mapping[nn.Parameter, float] | None = None
) -> list[dict[str, Any]]:
    """The trained parameters as groups of an optimizer: decaying and not decaying; none is empty.

    `rates` has the fraction of the learning rate, `rate_share` of the groups, of parameters without the full one.
    """
    rates = rates or {}
    members: dict[tuple[int, float], list[nn.Parameter]] = {}
    seen: set[nn.Parameter] = set()
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad or parameter in seen:
                continue
            seen.add(parameter)
            is_bias = name.endswith("bias") or module_name.endswith("bias")  # T5's positions are a bias too
            kind = int(is_bias or is_norm(module))
            members.setdefault((kind, rates.get(parameter, 1.0)), []).append(parameter)
    if not seen:
        raise SettingError("start.frozen leaves nothing to train: freeze less")
    return [
        {"params": members[kind, rate], "weight_decay": 0.0 if kind else weight_decay, "rate_share": rate}
        for kind, rate in sorted(members)
    ]


def is_norm(module: nn.Module) -> bool:
    """Return True for a normalization module: torch's own, and those that model families define."""
    return isinstance(module, (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)) or type(module).__name__.endswith("Norm")


class MuonWithAdamW(Optimizer):
    """Two optimizers, each of a part of one model's parameters, as one: with the groups and the state of both."""

    def __init__(self, muon: Optimizer, adamw: Optimizer) -> None:
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self.parts = (muon, adamw)
        self._share()

    def _share(self) -> None:
        first = 0
        for part in self.parts:
            last = first + len(part.param_groups)
            part.param_groups, part.state = self.param_groups[first:last], self.state
            first = last

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One step of each."""
        assert closure is None, "the gradient is there"
        for part in self.parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state of both, numbered as `state_dict` numbers it."""
        super().load_state_dict(state_dict)
        self._share()


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


def make_optimizer(model: nn.Module, network: nn.Module, settings: TrainerSettings) -> Optimizer:
    """The optimizer of `model`, of which `network` has the layers; its learning rate is set before each step.

    Raises SettingError for Muon with a torch that has none, and as `layer_stacks` does where it needs layers.
    """
    rates = layer_rates(network, settings.layer_decay) if settings.layer_decay < 1 else {}
    groups = parameter_groups(model, weight_decay=settings.weight_decay, rates=rates)
    betas = (0.9, settings.adam_beta2)
    adam: dict[str, Any] = {"lr": 0.0, "betas": betas, "eps": settings.adam_epsilon, "fused": True}
    if settings.optimizer is OptimizerKind.adamw:
        return AdamW(groups, **adam)
    if settings.optimizer is OptimizerKind.lion:
        return Lion(groups)
    if not hasattr(torch.optim, "Muon"):
        raise SettingError(f"trainer.optimizer=muon needs torch 2.9 or newer, got {torch.__version__}")
    # those of linear maps: embeddings such as those of T5's relative positions are none
    modules = (module for stack in layer_stacks(network) for module in stack.modules())
    chosen = {cast(nn.Parameter, module.weight) for module in modules if isinstance(module, nn.Linear)}
    matrices, others = _chosen(groups, chosen, inside=True), _chosen(groups, chosen, inside=False)
    if not matrices:
        return AdamW(groups, **adam)
    return MuonWithAdamW(torch.optim.Muon(matrices, lr=0.0, adjust_lr_fn="match_rms_adamw"), AdamW(others, **adam))


def _chosen(groups: list[dict[str, Any]], chosen: set[nn.Parameter], *, inside: bool) -> list[dict[str, Any]]:
    """The groups with only those parameters that are among the chosen ones, or that are not; none is empty."""
    parts = [{**group, "params": [p for p in group["params"] if (p in chosen) is inside]} for group in groups]
    return [part for part in parts if part["params"]]
