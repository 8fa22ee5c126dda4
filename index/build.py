"""Build the search folder of an index: which tier, with which numbers, written with what made it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from index.approximate import build_faiss, import_faiss, write_faiss
from index.exact import finite_chunks
from index.sharded import ShardedArray
from index.store import Manifest, read_manifest, write_folder
from index.types import UserError

SEARCH_KIND = "search"
FAISS_FILE = "search.faiss"
EXACT_ROWS = 1_000_000
"""Up to so many rows the automatic tier is exact."""
TRAIN_ROWS_PER_LIST = 39
"""FAISS warns of poor centroids below this many training rows a list."""


class SearchTier(Enum):
    """How rows are searched."""

    auto = "auto"
    exact = "exact"
    faiss = "faiss"


@dataclass(kw_only=True, slots=True)
class SearchSettings:
    """How the search index is built, and how it is searched unless said otherwise at opening."""

    tier: SearchTier = SearchTier.auto
    """auto: exact up to a million rows unless `factory` is set, FAISS above; exact; faiss."""
    factory: str | None = None
    """FAISS factory string; unset: IVF with scalar quantisation to one byte a dimension, IVF{list_count},SQ8."""
    list_count: int | None = None
    """Number of inverted lists; unset: about 4 times the square root of the rows, a power of two. Not with factory."""
    probed_lists: int = 64
    """Number of inverted lists looked into for one query."""
    rerank_factor: int = 2
    """Candidates scored exactly, for each hit asked for; use about 10 with codes of one bit a dimension."""
    train_rows: int = 1 << 18
    """Number of rows sampled to train the quantiser; they are held in memory as float32."""
    seed: int = 0
    """Seed of the training sample and of k-means."""
    thread_count: int = 4
    """Number of threads of training and adding; the bytes of the index may depend on it."""

    def __post_init__(self) -> None:
        for name in ("probed_lists", "rerank_factor", "train_rows", "thread_count"):
            _check(getattr(self, name) >= 1, f"{name} is out of range", "at least 1", f"{name}={getattr(self, name)}")
        _check(0 <= self.seed < 2**31, "seed is out of range", "0 to 2147483647", f"seed={self.seed}")
        if self.list_count is not None:
            _check(self.list_count >= 1, "list_count is out of range", "at least 1", f"list_count={self.list_count}")
            got = f"factory={self.factory} list_count={self.list_count}"
            _check(self.factory is None, "factory and list_count contradict", "one of the two", got)
        if self.tier is SearchTier.exact:
            got = f"tier=exact factory={self.factory} list_count={self.list_count}"
            unset = self.factory is None and self.list_count is None
            _check(unset, "exact search has no FAISS index", "neither factory nor list_count", got)


def _check(condition: bool, problem: str, expected: str, got: str) -> None:
    if not condition:
        raise UserError(problem, expected=expected, got=got, where="search", fix="change that setting")


def automatic_tier(row_count: int) -> SearchTier:
    """EXACT up to a million rows, FAISS above."""
    return SearchTier.exact if row_count <= EXACT_ROWS else SearchTier.faiss


def automatic_list_count(row_count: int, train_rows: int) -> int:
    """The power of two nearest to 4·√rows, by exponent, with at least 39 training rows a list.

    >>> automatic_list_count(1_000_000, 1 << 18)
    4096
    """
    wanted = round(math.log2(4 * math.sqrt(max(row_count, 1))))
    most = int(math.log2(max(1, min(train_rows, row_count) // TRAIN_ROWS_PER_LIST)))
    return 1 << min(wanted, most)


def resolved_settings(settings: SearchSettings, row_count: int, dimensions: int) -> dict[str, Any]:
    """What the manifest records: every choice made, and what FAISS made it."""
    tier = settings.tier
    if tier is SearchTier.auto:
        chosen = settings.factory is not None or settings.list_count is not None
        tier = SearchTier.faiss if chosen else automatic_tier(row_count)
    resolved: dict[str, Any] = {"tier": tier.value, "row_count": row_count, "dimensions": dimensions}
    if tier is SearchTier.exact:
        return resolved
    list_count = settings.list_count or automatic_list_count(row_count, settings.train_rows)
    return resolved | {
        "factory": settings.factory or f"IVF{list_count},SQ8",
        "probed_lists": settings.probed_lists,
        "rerank_factor": settings.rerank_factor,
        "train_rows": min(settings.train_rows, row_count),
        "seed": settings.seed,
        "thread_count": settings.thread_count,
        "faiss_version": import_faiss().__version__,
    }


def build_search_folder(
    folder: Path,
    vectors: ShardedArray,
    settings: SearchSettings,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Write the search folder over `vectors` f32|f16 [n, d]; the same input and settings give the same bytes.

    The exact tier needs no file but its manifest: it searches the stored vectors themselves. `progress(rows done,
    n)` is called as rows are added. Raises ArtefactError if a vector is not finite or `folder` exists, UserError
    for a factory string that does not work, StorageError if the disk refuses.
    """
    row_count, dimensions = vectors.shape
    resolved = resolved_settings(settings, row_count, dimensions)
    with write_folder(folder, kind=SEARCH_KIND, settings=resolved) as writer:
        if resolved["tier"] == SearchTier.exact.value:
            _check_finite(vectors, progress)
        else:
            index = build_faiss(
                vectors,
                resolved["factory"],
                seed=settings.seed,
                thread_count=settings.thread_count,
                train_rows=settings.train_rows,
                progress=progress,
            )
            write_faiss(index, writer.open_binary(FAISS_FILE))
    return read_manifest(folder, kind=SEARCH_KIND)


def _check_finite(vectors: ShardedArray, progress: Callable[[int, int], None] | None) -> None:
    chunk: np.ndarray
    for start, chunk in finite_chunks(vectors):
        if progress is not None:
            progress(start + len(chunk), len(vectors))
