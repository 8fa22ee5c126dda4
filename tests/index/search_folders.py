"""Vectors in shards of uneven sizes, and the way from them to an opened search, in a folder as an index has it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from index.arrays import ShardedArray, stored_rows
from index.exact import ExactSearcher
from index.ivf import Quantizer, code_shard_settings, train_quantizer, write_code_shard, write_search_folder
from index.search import FaissSearcher, open_search
from index.settings import SearchSettings, SearchTier, resolved_settings
from npm.core.artifact import Manifest
from npm.core.types import Progress, silent

ROWS, DIMENSIONS, QUERIES = 700, 16, 5
SHARD_BOUNDS = (0, 300, 301, ROWS)


def sample_vectors(dtype: str = "float16", *, rows: int = ROWS, dimensions: int = DIMENSIONS) -> ShardedArray:
    """Norms spread widely, so that ranking by L2 would differ from ranking by inner product."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((rows, dimensions)) * rng.uniform(0.2, 3, (rows, 1))
    stored = stored_rows(vectors.astype(np.float32), np.dtype(dtype))
    bounds = [round(bound * rows / ROWS) for bound in SHARD_BOUNDS]
    return ShardedArray.of_vectors([stored[start:stop] for start, stop in itertools.pairwise(bounds)])


def mask_of(rows: np.ndarray, row_count: int) -> np.ndarray:
    """Mask bool [row_count] of `rows`."""
    mask = np.zeros(row_count, dtype=bool)
    mask[rows] = True
    return mask


def sample_queries(dimensions: int = DIMENSIONS) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((QUERIES, dimensions)).astype(np.float32)


def settings_for(tier: str, list_count: int = 8, **more: Any) -> SearchSettings:
    return SearchSettings(tier=SearchTier(tier), list_count=list_count, thread_count=1, **more)


def code_all(folder: Path, vectors: ShardedArray, quantizer: Quantizer) -> list[Path]:
    """Code shards of every shard of `vectors`."""
    folders = []
    for number, array in enumerate(vectors.arrays):
        folders.append(folder / f"{number:05d}")
        if not folders[-1].exists():
            settings = code_shard_settings(quantizer, f"vectors {number}")
            write_code_shard(folders[-1], ShardedArray.of_vectors([array]), quantizer, settings=settings)
    return folders


def build_search(
    root: Path, vectors: ShardedArray, settings: SearchSettings, *, progress: Progress = silent
) -> Manifest:
    """Train, code and merge under `root` what is not there yet."""
    resolved = resolved_settings(settings, *vectors.shape)
    if resolved["tier"] == "exact":
        return write_search_folder(root / "search", resolved, vectors, progress=progress)
    if not (root / "quantizer").exists():
        train_quantizer(root / "quantizer", vectors, None, resolved)
    quantizer = Quantizer.open(root / "quantizer")
    folders = code_all(root / "codes", vectors, quantizer)
    return write_search_folder(
        root / "search", resolved, vectors, quantizer=quantizer, code_folders=folders, progress=progress
    )


def open_built(root: Path, vectors: ShardedArray, **more: Any) -> ExactSearcher | FaissSearcher:
    quantizer = root / "quantizer"
    with mock.patch("index.search.fitting_device", return_value="cpu"):
        opened = open_search(root / "search", vectors, quantizer=quantizer if quantizer.exists() else None, **more)
    assert isinstance(opened, ExactSearcher | FaissSearcher)
    return opened
