"""Groups of blocks to be trained on together: what a masked batch is made of."""

from __future__ import annotations

import numpy as np

from npm.corpus.store import BlockStore
from npm.types import Sequences

LEAST_SEQUENCES = 2
"""A group of one sequence has no other sequence to find its spans in."""


class BlockGroups:
    """The blocks of a store in groups of `sequences_per_group`, of one document where it is long enough.

    Out of each document come first all full groups of consecutive blocks. The remainders of all documents, and the
    documents that are shorter than a group, wait in a queue in their order; whenever it holds a group's worth, that
    becomes a group of mixed documents. The end of the queue is a smaller group if it has at least two blocks.
    Consecutive blocks without a document count as one document.
    """

    def __init__(self, store: BlockStore, *, sequences_per_group: int = 16, drop_mixed: bool = False) -> None:
        """With `drop_mixed`, groups that hold blocks of more than one document are left out."""
        if sequences_per_group < LEAST_SEQUENCES:
            raise ValueError(f"a group of {sequences_per_group} sequences: at least {LEAST_SEQUENCES} are needed")
        self._store = store
        documents = store.block_documents  # [blocks]
        first_blocks = np.flatnonzero(np.append(True, documents[1:] != documents[:-1])[: len(documents)])  # [D]
        block_counts = np.diff(np.append(first_blocks, len(documents)))  # [D]
        runs = np.repeat(np.arange(len(first_blocks)), block_counts)  # [blocks], number of the block's document
        within = np.arange(len(documents)) - first_blocks[runs]  # [blocks], number of the block in its document
        is_full = within < (block_counts // sequences_per_group * sequences_per_group)[runs]  # [blocks]
        blocks = np.concatenate([np.flatnonzero(is_full), np.flatnonzero(~is_full)])  # [blocks]
        offsets = np.append(np.arange(0, len(blocks), sequences_per_group), len(blocks))  # [G + 1]
        if len(offsets) > 1 and offsets[-1] - offsets[-2] < LEAST_SEQUENCES:
            offsets = offsets[:-1]
        last_runs, first_runs = runs[blocks[offsets[1:] - 1]], runs[blocks[offsets[:-1]]]  # [G]
        is_mixed = first_runs != last_runs  # [G]
        self.mixed_share = float(is_mixed.mean()) if len(is_mixed) else 0.0
        """Share of the groups, before any is dropped, that mix documents."""
        # A group stands where its last document ends, after the full groups of that document; the rest of the queue
        # is known to be the rest only at the very end.
        is_rest = np.diff(offsets) < sequences_per_group  # [G]
        order = np.lexsort((is_mixed, last_runs, is_rest))  # [G]
        self._order = order[~is_mixed[order]] if drop_mixed else order  # [groups kept]
        self._blocks, self._offsets = blocks, offsets

    def __len__(self) -> int:
        return len(self._order)

    def blocks(self, group: int) -> np.ndarray:
        """The block numbers of a group: i64 [sequences of the group]."""
        number = self._order[group]
        return self._blocks[self._offsets[number] : self._offsets[number + 1]]

    def __getitem__(self, group: int) -> Sequences:
        return self._store.sequences(self.blocks(group))
