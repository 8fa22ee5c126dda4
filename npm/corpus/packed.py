"""Documents and blocks taken out of a store as they went in, to be stored anew without those no longer wanted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from npm.types import Block

if TYPE_CHECKING:
    from npm.corpus.store import BlockStore, Packed


def packed_documents(store: BlockStore, chosen: np.ndarray) -> Iterator[Packed]:
    """The documents `chosen` bool [documents] of `store` in order, each with its blocks, for `write_block_store`.

    One document is in memory at a time. Blocks without a document come one by one, in their place. A chosen document
    without blocks comes before the next that has some, or at the end of its shard.
    """
    if chosen.shape != (store.document_count,):
        raise ValueError(f"expected bool [{store.document_count}], got {chosen.dtype} {list(chosen.shape)}")
    for shard in range(len(store.shard_blocks) - 1):
        reader = _ShardReader(store, shard)
        next_document, last_document = store.shard_documents[shard : shard + 2].tolist()
        for document, first_block, stop_block in _runs(store, shard):
            if document < 0:
                yield from ((None, [block]) for block in reader.blocks(first_block, stop_block))
                continue
            yield from ((store.document(n), []) for n in range(next_document, document) if chosen[n])
            if chosen[document]:
                yield store.document(document), list(reader.blocks(first_block, stop_block))
            next_document = document + 1
        yield from ((store.document(n), []) for n in range(next_document, last_document) if chosen[n])


def _runs(store: BlockStore, shard: int) -> Iterator[tuple[int, int, int]]:
    """The document, or -1, and the blocks [first, stop) of each run of blocks of a shard that have it in common."""
    first, stop = store.shard_blocks[shard : shard + 2].tolist()
    documents = store.block_documents[first:stop]  # [blocks of the shard]
    starts = first + np.flatnonzero(np.diff(documents, prepend=-2))  # [runs]
    stops = np.append(starts[1:], stop)[: len(starts)]  # [runs]
    return zip(store.block_documents[starts].tolist(), starts.tolist(), stops.tolist(), strict=True)


class _ShardReader:
    """Cuts blocks out of the arrays of one shard, without looking for their shard each time."""

    def __init__(self, store: BlockStore, shard: int) -> None:
        self._offsets = store.block_offsets
        self._first_token = int(store.block_offsets[store.shard_blocks[shard]])
        self._token_ids = store.token_ids.arrays[shard]  # u16 or i32 [T of the shard]
        self._flags = store.flags.arrays[shard]  # u8 [T of the shard]
        self._start_chars = None if store.start_chars is None else store.start_chars.arrays[shard]  # u32 [T]
        self._end_chars = None if store.end_chars is None else store.end_chars.arrays[shard]  # u32 [T]

    def blocks(self, first: int, stop: int) -> Iterator[Block]:
        """The blocks [first, stop) of the store, which lie in this shard."""
        bounds = (self._offsets[first : stop + 1] - self._first_token).tolist()
        for start_token, stop_token in pairwise(bounds):
            tokens = slice(start_token, stop_token)
            yield Block(
                token_ids=self._token_ids[tokens].astype(np.int32),  # [T of the block]
                flags=self._flags[tokens],
                start_chars=None if self._start_chars is None else self._start_chars[tokens],
                end_chars=None if self._end_chars is None else self._end_chars[tokens],
            )
