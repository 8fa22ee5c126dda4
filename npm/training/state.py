"""What a run must carry over a stop: weights, optimiser state and every rank's generators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from npm.errors import SettingError
from npm.objectives.ranks import rank, world_size
from npm.training.run_folder import Checkpoint, Counters
from npm.training.sharding import own_share, whole_tensor

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
