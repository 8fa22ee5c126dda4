"""Exact search with torch: chosen where there is a GPU, and the same hits there but for ties."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from index import gpu
from index.exact import ExactSearcher
from index.gpu import TorchExactSearcher, cuda_device, fitting_device, torch_assigner
from index.search import open_search
from index.settings import SearchSettings
from tests.index.search_folders import build_search, sample_queries, sample_vectors


def test_a_gpu_with_room_is_chosen_unless_a_device_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = sample_vectors()
    build_search(tmp_path, vectors, SearchSettings())
    asked: list[int] = []

    def one_with_room(vector_bytes: int) -> str:
        asked.append(vector_bytes)
        return "cpu:0"

    monkeypatch.setattr(gpu, "fitting_device", one_with_room)
    opened = open_search(tmp_path / "search", vectors, quantiser=None)
    assert isinstance(opened, TorchExactSearcher)
    assert asked == [2 * vectors.shape[0] * vectors.shape[1]]
    expected = ExactSearcher(vectors).scan(sample_queries()).top(9)
    hits = opened.scan(sample_queries()).top(9)
    np.testing.assert_array_equal(hits.rows, expected.rows)
    np.testing.assert_allclose(hits.scores, expected.scores, atol=1e-3)


def test_a_gpu_without_room_for_vectors_and_scores_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "cuda_device", lambda: "cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    assert fitting_device(500) == "cuda"
    assert fitting_device(501) is None
    monkeypatch.setattr(gpu, "cuda_device", lambda: None)
    assert fitting_device(1) is None


@pytest.mark.skipif(cuda_device() is None, reason="needs a GPU")
def test_a_gpu_finds_what_the_processor_finds_but_for_ties() -> None:
    vectors, queries = sample_vectors(rows=70_000), sample_queries()
    expected = ExactSearcher(vectors).scan(queries).top(100)
    hits = TorchExactSearcher(vectors, device="cuda").scan(queries).top(100)
    np.testing.assert_allclose(hits.scores, expected.scores, atol=1e-3)
    whole = vectors.slice(0, len(vectors)).astype(np.float32)
    for query, row_scores in enumerate(np.take_along_axis(queries @ whole.T, hits.rows, axis=1)):
        np.testing.assert_allclose(row_scores, hits.scores[query], atol=1e-3)
    nearest = torch_assigner("cpu")(whole[:50])(whole)
    assert (torch_assigner("cuda")(whole[:50])(whole) == nearest).mean() > 0.999
