"""What a run must carry over a stop besides its weights: optimiser state and every rank's generators."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

from npm.objectives.gather import rank, world_size


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimiser's state as flat named tensors: `<parameter number>.<name>`."""
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": tensor.detach().cpu().contiguous()
        for number, values in state.items()
        for name, tensor in values.items()
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """The inverse of `optimizer_tensors`."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = tensor
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
