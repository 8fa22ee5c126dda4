"""A vector of each block, pooled from the token vectors of the pass that made these, and the blocks nearest to a text.

Where the encoder has a pooler, a shard `vectors/<number>` also holds `blocks.npy`, vectors of length 1 in the format of
those of tokens, [blocks of the shard, ·], and its manifest names the pooler. A text that looks for blocks goes through
`encode_sequences` of `npm.models.batches` with the same pooler.

Shapes: q texts, k blocks per text, n requested blocks, d dimensions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from index.exact import score_rows
from index.sign_codes import SignSearcher
from npm.core.artifact import MANIFEST_NAME, RecordedSettings, read_as
from npm.models.settings import LAST_LAYER_POOLERS, PoolerKind

if TYPE_CHECKING:
    from index.arrays import ShardedArray
    from index.types import Hits


BLOCKS_FILE = "blocks.npy"
POOLER_KEY = "block_pooler"
"""Setting in the manifests of vectors; absent where blocks have none."""
_POOLER_NAME = Annotated[str, Field(pattern=f"^({'|'.join(kind.name for kind in LAST_LAYER_POOLERS)})$")]


def recorded_pooler(settings: Mapping[str, Any]) -> PoolerKind | None:
    """Pooler of the block vectors of a folder whose manifest has `settings`; None without block vectors.

    Raises ArtifactError if the manifest names an unknown pooler.
    """
    if (name := settings.get(POOLER_KEY)) is None:
        return None
    file = settings.file if isinstance(settings, RecordedSettings) else Path(MANIFEST_NAME)
    return PoolerKind[read_as(_POOLER_NAME, name, file=file, key=POOLER_KEY)]


class BlockVectors:
    """The vectors of the blocks of all segments, memory-mapped. Opened by `open_vectors`."""

    def __init__(self, vectors: ShardedArray, pooler: PoolerKind) -> None:
        self.pooler = pooler
        self.vectors = vectors  # [blocks, d]
        self.block_count, self.dimensions = vectors.shape
        self._searcher = SignSearcher(vectors)
        self._live_blocks: np.ndarray | None = None  # bool [blocks], or None: all

    def with_live(self, live_blocks: np.ndarray | None) -> BlockVectors:
        """The same vectors, of which only those of live blocks, bool [blocks], are found; None: all."""
        if live_blocks is not None and live_blocks.shape != (self.block_count,):
            raise ValueError(f"live blocks {live_blocks.shape} for {self.block_count} blocks")
        live = copy.copy(self)
        live._live_blocks = live_blocks
        return live

    def best(self, queries: np.ndarray, k: int, *, allowed: np.ndarray | None = None) -> Hits:
        """The k blocks nearest to each of `queries` f32 [q, d], which have length 1; scores are cosines.

        Only blocks that are live and `allowed`, bool [blocks], are found. Ties go to the block that occurs earlier in
        the corpus. Of more than `EXACT_ROWS` blocks that are left one may be missed, as `SignSearcher` does.
        """
        masks = [mask for mask in (self._live_blocks, allowed) if mask is not None]
        among = np.logical_and.reduce(masks) if masks else None  # bool [blocks]
        return self._searcher.top(queries, k, among)

    def similarities(self, queries: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        """Cosines f32 [q, n] of `queries` f32 [q, d] of length 1 with `blocks` i64 [n], in any order, repeats allowed.

        Raises IndexError for a block that does not exist.
        """
        ascending, places = np.unique(blocks, return_inverse=True)
        if len(ascending) and not 0 <= ascending[0] <= ascending[-1] < self.block_count:
            raise IndexError(f"blocks {ascending[0]}..{ascending[-1]} of {self.block_count}")
        scores: np.ndarray = score_rows(self.vectors, queries, ascending)[:, places]  # f32 [q, n]
        return scores
