"""A running mean of the weights over the steps of a run (EMA), which evaluations and saved encoders have.

The mean of late steps is nearer to the middle of the valley that they cross than the last of them (Polyak and Juditsky
1992; Izmailov et al. 2018, arXiv 1803.05407). It begins with the start of the run, and forgets that quickly: after t
steps the decay is at most (1 + t) / (10 + t).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from npm.training.acceleration import own_share


class AveragedWeights:
    """The average of the trained parameters of a model, in float32 and on their device; shared out as they are."""

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
