"""K-means by hand, against a slow loop, and stopped at every place where it can be stopped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from index import kmeans
from index.gpu import torch_assigner
from index.kmeans import Assign, faiss_assigner, train_centroids
from tests.helpers.sample_folders import flip_byte


class Stopped(Exception):
    """Stands for a kill."""


def sample(rows: int, dimensions: int = 6) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, dimensions)).astype(np.float16)


def slow_centroids(vectors: np.ndarray, list_count: int, iterations: int, seed: int) -> np.ndarray:
    vectors = vectors.astype(np.float64)
    rows = sorted(np.random.default_rng(seed).choice(len(vectors), size=list_count, replace=False))
    centroids = vectors[rows].astype(np.float32)
    for _ in range(iterations):
        members: list[list[np.ndarray]] = [[] for _ in range(list_count)]
        for vector in vectors:
            distances = [float(((vector - centroid) ** 2).sum()) for centroid in centroids]
            members[distances.index(min(distances))].append(vector)
        assert all(members), "the reference knows no empty lists"
        centroids = np.array([np.mean(member, axis=0) for member in members], dtype=np.float32)
    return centroids


@pytest.mark.parametrize(("rows", "list_count"), [(50, 3), (211, 9), (20, 20), (7, 1)])
@pytest.mark.parametrize("assigner", [faiss_assigner, torch_assigner("cpu")], ids=["faiss", "torch"])
def test_it_equals_a_slow_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, list_count: int, assigner: kmeans.Assigner
) -> None:
    monkeypatch.setattr(kmeans, "ROWS_PER_CHUNK", 16)
    vectors = sample(rows)
    rounds: list[tuple[int, int]] = []
    centroids = train_centroids(
        vectors,
        list_count,
        iterations=4,
        seed=3,
        assigner=assigner,
        checkpoints=tmp_path / "checkpoints",
        progress=lambda done, of: rounds.append((done, of)),
    )
    assert centroids.dtype == np.float32
    np.testing.assert_allclose(centroids, slow_centroids(vectors, list_count, 4, 3), rtol=1e-5, atol=1e-6)
    assert rounds == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_an_empty_list_takes_half_of_the_largest(tmp_path: Path) -> None:
    vectors = np.array([[1, 0]] * 4 + [[0, 8]] * 2, dtype=np.float32)  # two points, three lists
    state = kmeans.KMeansState(
        iteration=0,
        next_row=6,
        centroids=np.zeros((3, 2), np.float32),
        sums=np.array([[4.0, 0], [0, 0], [0, 16]]),
        counts=np.array([4, 0, 2]),
    )
    step = 2.0**-10
    expected = [[1 - step, 0], [1 + step, 0], [0, 8]]
    np.testing.assert_allclose(kmeans._means(state), np.float32(expected), rtol=1e-6)
    centroids = train_centroids(
        vectors, 3, iterations=3, seed=0, assigner=faiss_assigner, checkpoints=tmp_path / "checkpoints"
    )
    assert np.isfinite(centroids).all()
    assert len(np.unique(centroids, axis=0)) == 3


def test_stopped_after_any_chunk_it_goes_on_and_ends_in_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kmeans, "ROWS_PER_CHUNK", 30)
    vectors = sample(100)

    def train(name: str, most_chunks: int, checkpoint_seconds: float) -> tuple[np.ndarray | None, int]:
        """The centroids, or None if stopped after so many chunks; and how many chunks were assigned."""
        chunks = 0

        def stopping(centroids: np.ndarray) -> Assign:
            assign = faiss_assigner(centroids)

            def counted(chunk: np.ndarray) -> np.ndarray:
                nonlocal chunks
                if chunks == most_chunks:
                    raise Stopped
                chunks += 1
                return assign(chunk)

            return counted

        monkeypatch.setattr(kmeans, "CHECKPOINT_SECONDS", checkpoint_seconds)
        try:
            centroids = train_centroids(
                vectors,
                5,
                iterations=3,
                seed=1,
                assigner=stopping,
                checkpoints=tmp_path / name,
            )
        except Stopped:
            return None, chunks
        return centroids, chunks

    whole, all_chunks = train("whole", 1000, 1e9)
    assert whole is not None and all_chunks == 12
    for stop in range(12):
        # with a checkpoint after every chunk nothing is repeated, with one after every round up to a round
        for seconds, most_repeated in ((0.0, 0), (1e9, 3)):
            name = f"{stop}-{seconds}"
            assert train(name, stop, seconds)[0] is None
            again, chunks = train(name, 1000, seconds)
            assert again is not None
            np.testing.assert_array_equal(again, whole)
            assert stop + chunks - all_chunks <= most_repeated


def test_a_damaged_checkpoint_is_not_used(tmp_path: Path) -> None:
    vectors, folder = sample(60), tmp_path / "checkpoints"

    def train(iterations: int) -> np.ndarray:
        return train_centroids(vectors, 4, iterations=iterations, seed=1, assigner=faiss_assigner, checkpoints=folder)

    train(2)
    (slot,) = folder.iterdir()
    flip_byte(slot / "centroids.npy", -1)
    resumed = train(5)
    np.testing.assert_array_equal(
        resumed,
        train_centroids(vectors, 4, iterations=5, seed=1, assigner=faiss_assigner, checkpoints=tmp_path / "other"),
    )


def test_more_lists_than_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="4 lists from 3 rows"):
        train_centroids(sample(3), 4, iterations=1, seed=0, assigner=faiss_assigner, checkpoints=tmp_path / "c")


def test_torch_and_faiss_choose_the_same_lists() -> None:
    rng = np.random.default_rng(5)
    vectors, centroids = (rng.standard_normal((count, 8)).astype(np.float32) for count in (300, 17))
    nearest = ((vectors[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
    for assigner in (faiss_assigner, torch_assigner("cpu")):
        np.testing.assert_array_equal(assigner(centroids)(vectors), nearest)
