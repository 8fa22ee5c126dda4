"""The batch of every micro-step, put together from the views that sources make: a pure function of seed and micro-step.

Nothing about the position needs to be saved but the step, so a resumed run sees exactly what an undisturbed one does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from npm.types import TrainingBatch, View


class BatchSource(Protocol):
    """Training text of one kind, as views of batches."""

    rank: int
    world_size: int
    micro_steps_per_epoch: int
    """Micro-steps after which all of it was seen once."""

    def views(self, micro_step: int) -> dict[str, View]:
        """What this rank sees of it at `micro_step`, by the names of the views."""


class TrainingBatches(Dataset[TrainingBatch]):
    """Item i is the batch of micro-step i on one rank, however often the sources have been gone through."""

    def __init__(self, sources: Sequence[BatchSource]) -> None:
        assert sources, "no source of batches"
        places = {(source.rank, source.world_size) for source in sources}
        assert len(places) == 1, f"sources of several ranks: {places}"
        self.sources = tuple(sources)
        self.rank, self.world_size = places.pop()
        self.micro_steps_per_epoch = max(source.micro_steps_per_epoch for source in self.sources)

    def __len__(self) -> int:
        return 1 << 62  # endless; the schedule ends the run

    def __getitem__(self, micro_step: int) -> TrainingBatch:
        views: dict[str, View] = {}
        token_count = 0
        for source in self.sources:
            made = source.views(micro_step)
            assert views.keys().isdisjoint(made), f"two sources make the views {views.keys() & made.keys()}"
            views |= made
            token_count += max(view.token_count for view in made.values())  # all of them show the same text
        return TrainingBatch(views, token_count)


class _FromMicroStep(torch.utils.data.Sampler[int]):
    def __init__(self, first_micro_step: int) -> None:
        self.first_micro_step = first_micro_step

    def __iter__(self) -> Iterator[int]:
        micro_step = self.first_micro_step
        while True:
            yield micro_step
            micro_step += 1


def iterate_batches(batches: TrainingBatches, *, first_micro_step: int, workers: int = 0) -> Iterator[TrainingBatch]:
    """Batches from `first_micro_step` on, made by `workers` background processes (0: in this one)."""
    loader: DataLoader[TrainingBatch] = DataLoader(
        batches,
        batch_size=None,
        sampler=_FromMicroStep(first_micro_step),
        num_workers=workers,
        # a loader draws a number when it starts; from the default generator it would shift a resumed run's dropout
        generator=torch.Generator(),
    )
    return iter(loader)
