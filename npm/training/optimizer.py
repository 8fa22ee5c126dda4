"""Which parameters are trained, and which of them decay.

Biases and the weights of normalisations do not decay, nor do single numbers such as a learned scale; matrices and
embeddings do (Devlin et al. 2019, arXiv 1810.04805, appendix A.2, and the code that came with it).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from npm.errors import SettingError, check_range
from npm.training.settings import FrozenSettings


def freeze(model: Any, settings: FrozenSettings) -> list[str]:
    """Take parts of a Hugging Face model out of training; returns the names of the frozen parameters.

    A tied parameter is one parameter: frozen as an embedding, it is frozen as an output matrix. Raises SettingError if
    there are fewer layers, or if nothing of the model would be trained.
    """
    frozen: list[nn.Module] = []
    if settings.embeddings:
        # positions and the norm stand beside the token embeddings, where a model has a module for all of them
        beside = getattr(model, "embeddings", None)
        frozen.append(beside if isinstance(beside, nn.Module) else model.get_input_embeddings())
    if settings.layers:
        for stack in layer_stacks(model):
            check_range(
                settings.layers <= len(stack),
                "start.frozen.layers",
                expected=f"at most {len(stack)}, the layers of this encoder",
                got=settings.layers,
            )
            frozen.extend(stack[: settings.layers])
    for module in frozen:
        module.requires_grad_(False)
    names = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    if frozen and len(names) == len(list(model.named_parameters())):
        raise SettingError(
            "nothing of the encoder is left to train",
            expected="at least one layer that is trained",
            got=f"layers={settings.layers}, embeddings={settings.embeddings}",
            where="start.frozen",
            fix="freeze fewer layers",
        )
    return names


def layer_stacks(model: nn.Module) -> list[nn.ModuleList]:
    """The stacks of layers of a Hugging Face model: one of an encoder, two of an encoder-decoder."""
    config: Any = model.config
    depths = {getattr(config, name, None) for name in ("num_hidden_layers", "num_layers", "num_decoder_layers")}
    stacks: list[nn.ModuleList] = []
    inside: set[int] = set()
    for module in model.modules():  # from the outside in
        if isinstance(module, nn.ModuleList) and id(module) not in inside and len(module) in depths:
            stacks.append(module)
            inside |= {id(part) for part in module.modules()}
    assert stacks, f"no stack of {depths} layers in {type(model).__name__}"
    return stacks


def parameter_groups(model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """The trained parameters as groups of an optimiser: decaying, not decaying, single numbers; none is empty.

    Single numbers have a group of their own because they are not sharded, and an optimiser's fused step takes either
    sharded parameters or whole ones.
    """
    decaying: list[nn.Parameter] = []
    steady: list[nn.Parameter] = []
    scalars: list[nn.Parameter] = []
    seen: set[int] = set()
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            is_bias = name.endswith("bias") or module_name.endswith("bias")  # T5's positions are a bias too
            members = steady if is_bias or is_norm(module) else decaying
            (scalars if parameter.ndim == 0 else members).append(parameter)
    if not seen:
        raise SettingError(
            "nothing is left to train",
            expected="at least one parameter that is not frozen",
            got="0",
            where="start.frozen",
            fix="freeze less",
        )
    groups = ((decaying, weight_decay), (steady, 0.0), (scalars, 0.0))
    return [{"params": members, "weight_decay": decay} for members, decay in groups if members]


def is_norm(module: nn.Module) -> bool:
    """Whether a module normalises: torch's own norms, and those that model families define for themselves."""
    return isinstance(module, (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)) or type(module).__name__.endswith("Norm")
