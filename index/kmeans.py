"""K-means whose progress is kept on disk: killed at any moment, it goes on and ends in the same centroids.

Lloyd's algorithm with squared Euclidean distance and means that are not normalised. Inner product search is served
best by lists whose rows lie close to their centroid, because codes hold what is left after subtracting it.

Shapes: t training rows, c rows of a chunk, K lists, d dimensions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from index.arrays import to_float32
from index.faiss_library import import_faiss
from index.types import Report, no_report
from npm.core.artifact import check_folder, open_array, remove, write_folder
from npm.core.errors import ArtifactError

Assign = Callable[[np.ndarray], np.ndarray]
"""The nearest centroid of each vector f32 [c, d], by squared Euclidean distance: i64 [c]."""
Assigner = Callable[[np.ndarray], Assign]
"""Makes an `Assign` for centroids f32 [K, d]."""
CHECKPOINT_KIND = "k-means"
CHECKPOINT_FILES = ("manifest.json", "centroids.npy", "sums.npy", "counts.npy")
CHECKPOINT_SECONDS = 10.0
ROWS_PER_CHUNK = 1 << 14
SPLIT = 2.0**-10
"""How far apart, as a share, the two centroids are put that a list with many rows is split into."""


@dataclass(slots=True)
class KMeansState:
    """Where k-means stands: within `iteration`, the rows before `next_row` are added up."""

    iteration: int
    next_row: int
    centroids: np.ndarray  # f32 [K, d]
    sums: np.ndarray  # f64 [K, d]
    counts: np.ndarray  # i64 [K]


def faiss_assigner(centroids: np.ndarray) -> Assign:
    """Exhaustive search on the CPU, with the threads that FAISS is set to."""
    faiss = import_faiss()
    flat = faiss.IndexFlatL2(centroids.shape[1])
    flat.add(centroids)

    def assign(vectors: np.ndarray) -> np.ndarray:
        lists: np.ndarray = flat.search(vectors, 1)[1][:, 0]  # i64 [c]
        return lists

    return assign


def train_centroids(
    sample: np.ndarray,
    list_count: int,
    *,
    iterations: int,
    seed: int,
    assigner: Assigner,
    checkpoints: Path,
    progress: Report = no_report,
) -> np.ndarray:
    """Centroids f32 [K, d] of `sample` f16|f32 [t, d] after `iterations` rounds, from K of its rows drawn with `seed`.

    Keeps its state in the folder `checkpoints` at least after every round, and every `CHECKPOINT_SECONDS` within one;
    starts from what lies there, which must come from the same sample and settings: the caller sees to it.
    `progress(rounds done, rounds)` is called after each round. Raises ValueError for fewer rows than lists.
    """
    if not 1 <= list_count <= len(sample):
        raise ValueError(f"{list_count} lists from {len(sample)} rows")
    state = _read_state(checkpoints)
    if state is None:
        rows = np.sort(np.random.default_rng(seed).choice(len(sample), size=list_count, replace=False))  # i64 [K]
        state = _fresh_state(0, sample[rows].astype(np.float32))
    saved_at = time.monotonic()
    while state.iteration < iterations:
        assign = assigner(state.centroids)
        while state.next_row < len(sample):
            chunk = to_float32(sample[state.next_row : state.next_row + ROWS_PER_CHUNK])  # [c, d]
            _add_chunk(state, chunk, assign(chunk))
            if state.next_row < len(sample) and time.monotonic() - saved_at >= CHECKPOINT_SECONDS:
                _write_state(checkpoints, state)
                saved_at = time.monotonic()
        state = _fresh_state(state.iteration + 1, _means(state))
        _write_state(checkpoints, state)
        saved_at = time.monotonic()
        progress(state.iteration, iterations)
    return state.centroids


def _fresh_state(iteration: int, centroids: np.ndarray) -> KMeansState:
    sums, counts = np.zeros(centroids.shape), np.zeros(len(centroids), dtype=np.int64)  # f64 [K, d], [K]
    return KMeansState(iteration=iteration, next_row=0, centroids=centroids, sums=sums, counts=counts)


def _add_chunk(state: KMeansState, chunk: np.ndarray, lists: np.ndarray) -> None:
    """Add the vectors `chunk` f32 [c, d] of `lists` i64 [c] to the sums of their lists."""
    order = np.argsort(lists, kind="stable")  # i64 [c]
    present, starts = np.unique(lists[order], return_index=True)  # i64 [lists of the chunk]
    state.sums[present] += np.add.reduceat(chunk[order], starts, axis=0, dtype=np.float64)
    state.counts += np.bincount(lists, minlength=len(state.counts))
    state.next_row += len(chunk)


def _means(state: KMeansState) -> np.ndarray:
    """The next centroids f32 [K, d]; an empty list takes half of the list that then has most rows."""
    counts = state.counts.copy()  # i64 [K]
    means = state.sums / np.maximum(counts, 1)[:, None]  # f64 [K, d]
    step = np.where(np.arange(means.shape[1]) % 2 == 0, SPLIT, -SPLIT)  # f64 [d]
    for empty in np.flatnonzero(counts == 0).tolist():
        largest = int(np.argmax(counts))
        means[empty] = means[largest] * (1 + step)
        means[largest] *= 1 - step
        counts[empty] = counts[largest] // 2
        counts[largest] -= counts[empty]
    return means.astype(np.float32)


def _write_state(folder: Path, state: KMeansState) -> None:
    """Replace the checkpoint: two names in turn, so that one whole checkpoint is there at every moment."""
    slots = [folder / "0", folder / "1"]
    old = [slot for slot in slots if slot.exists()]
    target = next(slot for slot in slots if slot not in old)
    settings = {"iteration": state.iteration, "next_row": state.next_row}
    with write_folder(target, kind=CHECKPOINT_KIND, settings=settings) as writer:
        writer.write_array("centroids", state.centroids)
        if state.next_row:
            writer.write_array("sums", state.sums)
            writer.write_array("counts", state.counts)
    for slot in old:
        remove(slot, also=CHECKPOINT_FILES)


def _read_state(folder: Path) -> KMeansState | None:
    """The newest whole checkpoint in `folder`; what is older or damaged is removed, and its work done again."""
    newest: KMeansState | None = None
    kept: Path | None = None
    for slot in (folder / "0", folder / "1"):
        if not slot.exists():
            continue
        try:
            manifest = check_folder(slot, kind=CHECKPOINT_KIND, hash_all=True)
        except ArtifactError:
            remove(slot, also=CHECKPOINT_FILES)
            continue
        state = _fresh_state(manifest.settings["iteration"], np.array(open_array(slot, "centroids")))
        state.next_row = manifest.settings["next_row"]
        if state.next_row:
            state.sums, state.counts = np.array(open_array(slot, "sums")), np.array(open_array(slot, "counts"))
        if newest is not None and (newest.iteration, newest.next_row) >= (state.iteration, state.next_row):
            remove(slot, also=CHECKPOINT_FILES)
            continue
        if kept is not None:
            remove(kept, also=CHECKPOINT_FILES)
        newest, kept = state, slot
    return newest
