"""Blocks put together for training: those of one document, or any.

Shapes: B blocks of a store, G groups, D documents.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache

import numpy as np

from npm.core.types import Sequences
from npm.corpus.store import BlockStore

LEAST_SEQUENCES = 2


@lru_cache(maxsize=3)  # at each step every source needs its own: blocks, sentences, labeled rows; 8 bytes an item
def epoch_order(count: int, *, seed: int, epoch: int) -> np.ndarray:
    """The order i64 [count] in which an epoch shows the items of a source: a function of these numbers alone."""
    return np.random.default_rng([seed, epoch]).permutation(count)


class GroupMixing(Enum):
    """Rules by which blocks form a group."""

    document = "document"  # those of one document, where it is long enough
    random = "random"  # any


class BlockGroups:
    """The blocks of a store in groups of `sequences_per_group`, with `mixing=document` of one where it is long enough.

    Out of each document come first all full groups of consecutive blocks. The remainders of all documents, and the
    documents that are shorter than a group, wait in a queue in their order; whenever it holds a group's worth, that
    becomes a group of mixed documents. The end of the queue is a smaller group if it has at least two blocks.
    """

    def __init__(
        self,
        store: BlockStore,
        *,
        sequences_per_group: int = 16,
        mixing: GroupMixing = GroupMixing.document,
        seed: int = 0,
    ) -> None:
        if sequences_per_group < LEAST_SEQUENCES:
            raise ValueError(f"a group of {sequences_per_group} sequences: at least {LEAST_SEQUENCES} are needed")
        self._store = store
        documents = store.block_documents  # [B]
        first_blocks = np.flatnonzero(np.append(True, documents[1:] != documents[:-1])[: len(documents)])  # [D]
        block_counts = np.diff(np.append(first_blocks, len(documents)))  # [D]
        runs = np.repeat(np.arange(len(first_blocks)), block_counts)  # [B], number of the block's document
        if mixing is GroupMixing.document:
            within = np.arange(len(documents)) - first_blocks[runs]  # [B], number of the block in its document
            is_full = within < (block_counts // sequences_per_group * sequences_per_group)[runs]  # [B]
            blocks = np.concatenate([np.flatnonzero(is_full), np.flatnonzero(~is_full)])  # [B]
        else:
            blocks = np.random.default_rng(seed).permutation(len(documents))  # [B]
        offsets = np.append(np.arange(0, len(blocks), sequences_per_group), len(blocks))  # [G + 1]
        if len(offsets) > 1 and offsets[-1] - offsets[-2] < LEAST_SEQUENCES:
            offsets = offsets[:-1]
        of_groups = runs[blocks]  # [B]
        is_mixed = np.zeros(0, dtype=bool)  # [G]
        if len(offsets) > 1:
            grouped = of_groups[: offsets[-1]]  # [B in groups]
            extremes = [find.reduceat(grouped, offsets[:-1]) for find in (np.minimum, np.maximum)]  # [G] each
            is_mixed = extremes[0] != extremes[1]  # [G]
        self.mixed_share = float(is_mixed.mean()) if len(is_mixed) else 0.0
        """Fraction of the groups that mix documents."""
        self._order = np.arange(len(is_mixed))  # [G]
        if mixing is GroupMixing.document:
            # A group is put where its last document ends, after the full groups of that document; the rest of the queue
            # is known only at the very end.
            is_rest = np.diff(offsets) < sequences_per_group  # [G]
            self._order = np.lexsort((is_mixed, of_groups[offsets[1:] - 1], is_rest))  # [G]
        self._blocks, self._offsets = blocks, offsets

    def __len__(self) -> int:
        return len(self._order)

    def blocks(self, group: int) -> np.ndarray:
        """The block numbers of a group: i64 [sequences of the group]."""
        number = self._order[group]
        return self._blocks[self._offsets[number] : self._offsets[number + 1]]

    def __getitem__(self, group: int) -> Sequences:
        return self._store.sequences(self.blocks(group))
