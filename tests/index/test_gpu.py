"""Exact search on a GPU: chosen where there is one with room, and the same hits there but for ties."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from index.exact import ExactSearcher, fitting_device
from tests.index.search_folders import mask_of, sample_queries, sample_vectors


def test_a_gpu_without_room_for_vectors_and_scores_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    assert [fitting_device(size) for size in (500, 501)] == ["cuda", "cpu"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert fitting_device(1) == "cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_finds_what_the_processor_finds_but_for_ties() -> None:
    vectors, queries = sample_vectors(rows=70_000), sample_queries()
    whole = vectors.slice(0, len(vectors)).astype(np.float32)
    for allowed in (None, np.arange(9, 70_000, 70), mask_of(np.arange(9, 70_000, 2), 70_000)):
        expected = ExactSearcher(vectors).scan(queries, allowed).top(100)
        scan = ExactSearcher(vectors, device="cuda").scan(queries, allowed)
        hits = scan.top(100)
        np.testing.assert_allclose(hits.scores, expected.scores, atol=1e-3)
        for query, row_scores in enumerate(np.take_along_axis(queries @ whole.T, hits.rows, axis=1)):
            np.testing.assert_allclose(row_scores, hits.scores[query], atol=1e-3)
            np.testing.assert_allclose(scan.at(query, hits.rows[query]), hits.scores[query], atol=1e-3)
