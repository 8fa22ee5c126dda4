"""Which groups each rank sees at each micro-step, masked and rendered: a pure function of seed and micro-step.

Nothing about the position needs to be saved but the step, so a resumed run sees exactly what an undisturbed one does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from npm.errors import SettingError
from npm.masking.contexts import Contexts, Question, draw_contexts, merge_contexts
from npm.masking.masker import Masker, mask_rng
from npm.masking.renderers import Renderer, merge_groups
from npm.types import MaskedBatch, Sequences, Spans


class Groups(Protocol):
    """Groups of sequences, such as `npm.corpus.groups.BlockGroups`."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Sequences: ...


class MaskedBatches(Dataset[MaskedBatch]):
    """Item i is the batch of micro-step i on one rank, however often the groups have been gone through."""

    def __init__(
        self,
        groups: Groups,
        masker: Masker,
        renderer: Renderer,
        *,
        seed: int,
        groups_per_device_batch: int = 1,
        context_fraction: float = 0.0,
        question: Question = Question.whole,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.groups, self.masker, self.renderer = groups, masker, renderer
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.groups_per_device_batch = groups_per_device_batch
        self.context_fraction, self.question = context_fraction, question
        self.micro_steps_per_epoch = len(groups) // (groups_per_device_batch * world_size)
        self._order: tuple[int, np.ndarray] | None = None
        if self.micro_steps_per_epoch == 0:
            raise SettingError(
                "the corpus is too small for one batch",
                expected=f"at least {groups_per_device_batch * world_size} groups of blocks",
                got=f"{len(groups)}",
                where="corpus.files, trainer.groups_per_device_batch",
                fix="give more text, fewer sequences per group, or fewer groups per device batch",
            )

    def __len__(self) -> int:
        return 1 << 62  # endless; the schedule ends the run

    def __getitem__(self, micro_step: int) -> MaskedBatch:
        epoch, place = divmod(micro_step, self.micro_steps_per_epoch)
        first = (place * self.world_size + self.rank) * self.groups_per_device_batch
        numbers = self._epoch_order(epoch)[first : first + self.groups_per_device_batch]  # i64 [groups]
        masked = [self._masked(int(number), epoch) for number in numbers]
        merged = merge_groups([(sequences, spans) for sequences, spans, _ in masked])
        if not self.context_fraction:
            return self.renderer.render(*merged)
        return self.renderer.render(*merged, merge_contexts([(sequences, own) for sequences, _, own in masked]))

    def _masked(self, number: int, epoch: int) -> tuple[Sequences, Spans, Contexts]:
        """A group, its masked spans, and which of its masked copies are questions."""
        sequences = self.groups[number]
        rng = mask_rng(self.seed, epoch, number)
        spans = self.masker.select(sequences, rng)
        # a group with too little to mask still serves as keys
        spans = spans if spans is not None else Spans(np.zeros(0, np.int64), np.zeros(0, np.int64))
        contexts = draw_contexts(
            sequences, spans, context_fraction=self.context_fraction, question=self.question, rng=rng
        )
        return sequences, spans, contexts

    def _epoch_order(self, epoch: int) -> np.ndarray:
        if self._order is None or self._order[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch])
            self._order = epoch, rng.permutation(len(self.groups))  # i64 [groups]
        return self._order[1]


class _FromMicroStep(torch.utils.data.Sampler[int]):
    def __init__(self, first_micro_step: int) -> None:
        self.first_micro_step = first_micro_step

    def __iter__(self) -> Iterator[int]:
        micro_step = self.first_micro_step
        while True:
            yield micro_step
            micro_step += 1


def iterate_batches(batches: MaskedBatches, *, first_micro_step: int, workers: int = 0) -> Iterator[MaskedBatch]:
    """Batches from `first_micro_step` on, made by `workers` background processes (0: in this one)."""
    loader: DataLoader[MaskedBatch] = DataLoader(
        batches,
        batch_size=None,
        sampler=_FromMicroStep(first_micro_step),
        num_workers=workers,
        # a loader draws a number when it starts; from the default generator it would shift a resumed run's dropout
        generator=torch.Generator(),
    )
    return iter(loader)


def span_count(batches: Sequence[MaskedBatch]) -> int:
    """Masked spans in all of `batches`."""
    return sum(len(batch.span_sequences) for batch in batches)
