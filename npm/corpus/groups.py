"""Blocks put together for training: those of one document, any, or those that share a rare token.

Shapes: B blocks of a store, G groups, D documents, V token ids up to the largest that occurs.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import numpy as np

from npm.core.types import Sequences, TokenFlag
from npm.corpus.store import BlockStore

LEAST_SEQUENCES = 2
BLOCKS_AT_ONCE = 4096


class GroupMixing(Enum):
    """Rules by which blocks form a group."""

    document = "document"  # those of one document, where it is long enough
    random = "random"  # any
    lexical = "lexical"  # those with the same rarest token, of the tokens that stand in two blocks at least


class BlockGroups:
    """The blocks of a store in groups of `sequences_per_group`, with `mixing=document` of one where it is long enough.

    Out of each document come first all full groups of consecutive blocks. The remainders of all documents, and the
    documents that are shorter than a group, wait in a queue in their order; whenever it holds a group's worth, that
    becomes a group of mixed documents. The end of the queue is a smaller group if it has at least two blocks.
    Consecutive blocks without a document count as one document.
    """

    def __init__(
        self,
        store: BlockStore,
        *,
        sequences_per_group: int = 16,
        drop_mixed: bool = False,
        mixing: GroupMixing = GroupMixing.document,
        seed: int = 0,
    ) -> None:
        """With `drop_mixed`, groups that hold blocks of more than one document are left out."""
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
            if mixing is GroupMixing.lexical:
                blocks = blocks[np.argsort(rarest_shared_tokens(store)[blocks], kind="stable")]  # [B]
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
        """Share of the groups, before any is dropped, that mix documents."""
        order = np.arange(len(is_mixed))  # [G]
        if mixing is GroupMixing.document:
            # A group stands where its last document ends, after the full groups of that document; the rest of the queue
            # is known to be the rest only at the very end.
            is_rest = np.diff(offsets) < sequences_per_group  # [G]
            order = np.lexsort((is_mixed, of_groups[offsets[1:] - 1], is_rest))  # [G]
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


def rarest_shared_tokens(store: BlockStore) -> np.ndarray:
    """Of each block the token that stands in the fewest blocks, but in two; i64 [B], V where it has none.

    Of several the one with the lowest id. Two passes over the tokens.
    """
    block_counts = np.zeros(0, dtype=np.int64)  # [V]
    for _, tokens in _tokens_of_blocks(store):
        block_counts = _sum(block_counts, np.bincount(tokens))
    size = len(block_counts)  # V
    alone = block_counts < LEAST_SEQUENCES  # bool [V]
    ranks = np.empty(size, dtype=np.int64)  # [V], from the rarest
    order = np.lexsort((np.arange(size), block_counts, alone))  # [V], tokens of one block last
    ranks[order] = np.arange(size)
    ranks[alone] = size
    best = np.full(len(store.block_documents), size, dtype=np.int64)  # [B]
    for blocks, tokens in _tokens_of_blocks(store):
        np.minimum.at(best, blocks, ranks[tokens])
    return np.append(order, size)[best]  # [B]


def _sum(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The sum of two rows of counts, the shorter one lengthened by zeros."""
    size = max(len(left), len(right))
    return np.pad(left, (0, size - len(left))) + np.pad(right, (0, size - len(right)))


def _tokens_of_blocks(store: BlockStore) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Each different token of each block that is not special, as its block and its id, i64 [n] each."""
    count = len(store.block_documents)
    for first in range(0, count, BLOCKS_AT_ONCE):
        sequences = store.sequences(range(first, min(first + BLOCKS_AT_ONCE, count)))
        owners = np.repeat(np.arange(len(sequences)), np.diff(sequences.offsets))  # i64 [T]
        kept = (sequences.flags & np.uint8(TokenFlag.SPECIAL)) == 0  # bool [T]
        pairs = np.unique(owners[kept] << 32 | sequences.token_ids[kept].astype(np.int64))  # i64 [n]
        yield first + (pairs >> 32), pairs & 0xFFFFFFFF
