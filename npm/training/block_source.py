"""Groups of blocks as training text: which groups each rank sees at each micro-step, in every view of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from npm.errors import SettingError
from npm.masking.masker import mask_rng
from npm.masking.rendering import VIEW_NUMBERS, ViewMaker
from npm.types import Sequences, View


class Groups(Protocol):
    """Groups of sequences, such as `npm.corpus.store.BlockGroups`."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Sequences: ...


class BlockSource:
    """Groups in an order drawn anew for every epoch; each rank takes its own of those of a micro-step."""

    def __init__(
        self,
        groups: Groups,
        makers: Mapping[str, ViewMaker],
        *,
        seed: int,
        groups_per_device_batch: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """`makers` makes the views, by name. Raises SettingError if the groups do not suffice for one micro-step."""
        self.groups, self.makers = groups, dict(makers)
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.groups_per_device_batch = groups_per_device_batch
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

    def views(self, micro_step: int) -> dict[str, View]:
        """All views of this rank's groups at `micro_step`."""
        epoch, place = divmod(micro_step, self.micro_steps_per_epoch)
        first = (place * self.world_size + self.rank) * self.groups_per_device_batch
        numbers = self._epoch_order(epoch)[first : first + self.groups_per_device_batch].tolist()
        groups = [self.groups[number] for number in numbers]
        return {
            name: maker.view(groups, [mask_rng(self.seed, epoch, number, VIEW_NUMBERS[name]) for number in numbers])
            for name, maker in self.makers.items()
        }

    def _epoch_order(self, epoch: int) -> np.ndarray:
        if self._order is None or self._order[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch])
            self._order = epoch, rng.permutation(len(self.groups))  # i64 [groups]
        return self._order[1]
