"""Principal axes of a corpus's vectors: the rotation after which an index of shorter vectors keeps most of each.

The axes are those of Σ x xᵀ over the vectors x of a sample, without taking their mean away: search compares raw inner
products, and q·x − (A q)·(A x) is the part that the axes A omit, whose square is then minimal. They are computed once,
before the first vector is stored, and saved in the index as `rotation-…/axes.npy`, f32 [k, d], one axis per row,
strongest first. What is added later is rotated in the same way, as is every query.

Shapes: n vectors of the sample, m of a chunk, d dimensions of the encoder, k of the stored vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.ivf import drawn_rows
from npm.core.artifact import check_folder, folder_lock, open_array, written_once
from npm.core.errors import CorpusError, damaged
from npm.core.files import FolderWriter, read_object
from npm.core.types import Progress, silent
from npm.indexing.embed import ShardBlocks
from npm.indexing.generation import Generation
from npm.indexing.settings import Rotation

if TYPE_CHECKING:
    from npm.corpus.store import BlockStore
    from npm.models.encoder import Encoder

ROTATION_KIND = "rotation"
SAMPLE_TOKENS = 131_072
"""Tokens of the blocks that are drawn, about: half a default vector shard, some 60,000 vectors. A third of the demo
index's 21,822 vectors gave axes a tenth worse (docs/decisions.md)."""
SAMPLE_SEED = 0
ROWS_PER_CHUNK = 4096


def rotation_request(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Request that identifies axes; `recorded` are the settings of all blocks' vectors before they are rotated."""
    return {
        "method": Rotation.pca.value,
        **{name: value for name, value in recorded.items() if name not in ("tokens_per_shard", "block_pooler")},
        "sample_tokens": SAMPLE_TOKENS,
        "seed": SAMPLE_SEED,
    }


def train_rotation(
    folder: Path,
    store: BlockStore,
    encoder: Encoder,
    request: Mapping[str, Any],
    *,
    progress: Progress = silent,
    on_wait: Callable[[], None] = lambda: None,
) -> None:
    """Write the part `folder`, the axes of the `request` for the blocks in `store`, unless it is there.

    `encoder` is cut to as many numbers as there are to be axes. Whichever job comes first makes them, and the others
    wait. Raises CorpusError if the sample has fewer vectors than axes.
    """
    mean_tokens = store.token_count / store.block_count
    count = max(1, math.ceil(SAMPLE_TOKENS / mean_tokens))
    blocks = drawn_rows(store.block_count, count, seed=SAMPLE_SEED)  # i64 [blocks drawn], all of a small corpus

    def write(writer: FolderWriter) -> None:
        settings = {**request, "dtype": "float32"}  # not as they are stored
        sample = ShardBlocks(store, encoder.cut_to(None), settings, blocks=blocks)
        vectors, _ = sample.all_vectors(lambda _, done, total: progress("rotation", done, total))  # [n, d]
        refuse_few_vectors(len(vectors), encoder.dimensions)
        axes, kept_share = principal_axes(vectors, encoder.dimensions)  # f32 [k, d]
        writer.write_array("axes", axes)
        writer.write_json("facts", {"kept_share": round(kept_share, 6), "sample_rows": len(vectors)})

    with folder_lock(folder, wait=True, on_wait=on_wait):
        written_once(folder, kind=ROTATION_KIND, settings=request, write=write)


def refuse_few_vectors(count: int, dimensions: int) -> None:
    """Raise CorpusError if `count` vectors have not as many principal axes as `dimensions`."""
    if count < dimensions:
        raise CorpusError(
            f"dimensions must be at most {count}, the number of vectors, with rotation=pca, got {dimensions}"
        )


def principal_axes(vectors: np.ndarray, count: int) -> tuple[np.ndarray, float]:
    """The `count` strongest axes f32 [k, d] of `vectors` [n, d], and the share of their squared length that is kept.

    Of an axis and its opposite, which serve alike, that is taken whose largest number is positive.

    >>> axes, share = principal_axes(np.array([[3.0, 4.0], [6.0, 8.0], [4.0, -3.0]]), 1)
    >>> axes.astype(float).round(3).tolist(), round(share, 3)
    ([[0.6, 0.8]], 0.833)
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the last bits depend on how sums are divided, and jobs must write the same bytes
    try:
        moment = torch.zeros((vectors.shape[1],) * 2, dtype=torch.float64)  # [d, d]
        for start in range(0, len(vectors), ROWS_PER_CHUNK):
            chunk = torch.from_numpy(vectors[start : start + ROWS_PER_CHUNK].astype(np.float64))  # f64 [m, d]
            moment += chunk.T @ chunk
        strengths, columns = torch.linalg.eigh(moment)  # f64 [d], ascending, and [d, d], an axis a column
    finally:
        torch.set_num_threads(threads)
    axes = columns.T.flip(0)[:count]  # f64 [k, d]
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))  # f64 [k, 1]
    share = float(strengths[-count:].sum() / strengths.sum().clamp_min(torch.finfo(torch.float64).tiny))
    return (axes * largest.sign()).float().numpy(), share


def opened_axes(place: Path, shape: tuple[int | None, int]) -> np.ndarray:
    """The axes f32 [k, d] in the part `place`, of the `shape` [k, d]. Raises ArtifactError."""
    check_folder(place, kind=ROTATION_KIND).file("axes.npy")
    axes = np.array(open_array(place, "axes"))  # f32 [k, d]
    if (axes.dtype, axes.shape) != (np.float32, shape):
        raise damaged(place / "axes.npy", f"it must be float32 {list(shape)}, got {axes.dtype} {list(axes.shape)}")
    return axes


def rotation_facts(generation: Generation) -> dict[str, Any] | None:
    """Facts of the rotation of an index's vectors, as JSON values; None: not rotated."""
    manifest = generation.manifest
    if manifest.rotation_folder is None:
        return None
    place = generation.folder / manifest.rotation_folder
    check_folder(place, kind=ROTATION_KIND).file("facts.json")
    return {"method": manifest.rotation.value, **read_object(place / "facts.json", fix="build the index again")}
