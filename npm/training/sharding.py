"""Weights, gradients and optimiser state shared out among the ranks, and put together again to be saved.

`fully_shard` (FSDP2) replaces each parameter by the rank's share of it. The whole model is one unit: its weights are
gathered before a micro-batch and its gradient is shared out after the last of a window. Layers are no units of their
own, because they would be gathered at every pass of the encoder, and ranks differ in the number of their passes (long
masked copies, `rows_per_pass`), so that they would wait for each other for ever.

`fully_shard` is called here and not through Accelerate's plugin, which takes no notice of it on a CPU (accelerate 1.15,
`state.py`), so that it could not be tested there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from npm.errors import SettingError
from npm.objectives.ranks import world_size


def shard(model: nn.Module, kept: Iterable[nn.Module]) -> None:
    """Share `model` out among the ranks, in place.

    Modules of `kept` that hold a parameter
    of `model` without being part of it, as a language model around the network does, get the same share. Parameters
    without a dimension stay whole on each rank. Raises SettingError without a process group.
    """
    from torch.distributed.fsdp import fully_shard

    if not dist.is_initialized():
        raise SettingError(
            "there are no ranks to share the weights out among",
            expected="several processes",
            got="one process",
            where="trainer.sharding",
            fix="start them with accelerate launch, or leave trainer.sharding at none",
        )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    places = [
        (module, key, names[id(parameter)])
        for root in kept
        for module in root.modules()
        for key, parameter in module._parameters.items()
        if parameter is not None and id(parameter) in names
    ]
    whole = {parameter for parameter in model.parameters() if parameter.ndim == 0}
    fully_shard(model, ignored_params=whole, reshard_after_forward=False)
    sharded = dict(model.named_parameters())
    for module, key, name in places:
        module._parameters[key] = sharded[name]


def whole_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """All ranks' shares of a tensor together; a tensor that is not shared out as it is. Every rank has to ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_share(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The share that this rank holds of a whole tensor, where `like` is shared out and of the same shape."""
    if isinstance(like, DTensor) and tensor.shape == like.shape:
        return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)
    return tensor


@contextmanager
def whole_parameters(roots: Iterable[nn.Module]) -> Iterator[None]:
    """Within it, every parameter of `roots` is a whole one on the CPU. Every rank has to enter it."""
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


def average_whole_gradients(model: nn.Module) -> None:
    """Average over the ranks the gradients of parameters that are not shared out, as is done for those that are."""
    for parameter in model.parameters():
        if parameter.requires_grad and not isinstance(parameter, DTensor):
            gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            dist.all_reduce(gradient)
            parameter.grad = gradient / world_size()


def clip_shared_gradients(model: nn.Module, max_norm: float) -> float:
    """Shorten the gradient of the whole model to `max_norm`; returns its length before."""
    shares: list[Any] = []
    others: list[Any] = []
    for parameter in model.parameters():
        if parameter.grad is not None:
            (shares if isinstance(parameter, DTensor) else others).append(parameter)
    norms = [
        whole_tensor(nn.utils.get_total_norm([parameter.grad for parameter in members])).float()
        for members in (shares, others)
        if members
    ]
    total = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    for members in (shares, others):
        nn.utils.clip_grads_with_norm_(members, max_norm, total)
    return float(total)
