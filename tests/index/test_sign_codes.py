"""Search by signs: the scan against plain sums, hits against a plain loop, and filters."""

from __future__ import annotations

import numpy as np
import pytest

from index.arrays import ShardedArray
from index.sign_codes import SignSearcher
from tests.index.search_folders import mask_of


def unit(values: np.ndarray) -> np.ndarray:
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def clustered(rng: np.random.Generator, count: int, dimensions: int) -> np.ndarray:
    """Vectors f16 [count, dimensions] of length 1 around a few centres."""
    centres = rng.standard_normal((20, dimensions))
    return unit(centres[rng.integers(0, 20, count)] + rng.standard_normal((count, dimensions))).astype(np.float16)


def plain_top(vectors: np.ndarray, query: np.ndarray, k: int, rows: list[int]) -> list[int]:
    """The k best of `rows` by a loop over all of them."""
    scores = vectors.astype(np.float32) @ query
    return sorted(rows, key=lambda row: (-scores[row], row))[:k]


@pytest.mark.parametrize("dimensions", [1, 5, 8, 20, 384])
def test_the_scan_adds_up_a_query_with_the_signs_of_each_row(dimensions: int, rng: np.random.Generator) -> None:
    vectors = rng.standard_normal((70, dimensions)).astype(np.float16)
    vectors[0, 0] = 0  # counts as negative
    query = rng.standard_normal(dimensions).astype(np.float32)
    padded = np.zeros((1, -(-dimensions // 8) * 8), dtype=np.float32)
    padded[0, :dimensions] = query
    found_scores, found_rows = SignSearcher(ShardedArray([vectors[:9], vectors[9:]]))._scanner.search(padded, 70)
    found = dict(zip(found_rows[0].tolist(), found_scores[0].tolist(), strict=True))
    for row, values in enumerate(vectors):
        plain = sum(number if value > 0 else -number for number, value in zip(query, values, strict=True))
        if row in found:
            assert found[row] == pytest.approx(plain, abs=0.02 * dimensions**0.5)  # the query is rounded
        else:  # no row can have less
            assert plain == pytest.approx(-np.abs(query).sum(), abs=0.02 * dimensions**0.5)


@pytest.mark.parametrize("shards", [1, 7])
def test_the_best_rows_are_those_of_a_plain_loop(shards: int, rng: np.random.Generator) -> None:
    values = (8 * clustered(rng, 900, 20)).round()  # whole numbers: sums are exact in any order
    values[500:503] = values[2]  # ties
    queries = np.concatenate([values[2:5], rng.integers(-8, 9, (3, 20))]).astype(np.float32)
    vectors = ShardedArray(np.array_split(values, shards))
    chosen = rng.random(900) < 0.5
    whole = SignSearcher(vectors)
    # With one candidate less than rows there is a scan, which leaves out the last row alone.
    for searcher in (whole, SignSearcher(vectors, exact_rows=0, candidates=899)):
        for allowed in (None, chosen, mask_of(np.array([3, 500]), 900), np.zeros(900, dtype=bool)):
            rows = list(range(900)) if allowed is None else np.flatnonzero(allowed).tolist()
            hits = searcher.top(queries, 4, allowed)
            for number, query in enumerate(queries):
                expected = plain_top(values, query, 4, rows)
                assert hits.rows[number][hits.found[number]].tolist() == expected
                scores = values[expected].astype(np.float32) @ query
                np.testing.assert_allclose(hits.scores[number][hits.found[number]], scores, atol=1e-5)


def test_few_candidates_hold_nearly_all_of_the_best(rng: np.random.Generator) -> None:
    values = clustered(rng, 4000, 64)
    queries = unit(values[:50] + 0.1 * rng.standard_normal((50, 64))).astype(np.float32)
    hits = SignSearcher(ShardedArray([values]), exact_rows=100, candidates=200).top(queries, 3)
    found = [
        set(rows.tolist()) & set(plain_top(values, query, 3, list(range(4000))))
        for rows, query in zip(hits.rows, queries, strict=True)
    ]
    assert sum(map(len, found)) > 0.97 * 150
    fewer = SignSearcher(ShardedArray([values]), exact_rows=100, candidates=3).top(queries, 3)
    assert (fewer.rows != hits.rows).any()


def test_the_best_of_rows_far_from_the_query_are_found_too(rng: np.random.Generator) -> None:
    """A filter that leaves out all that a query is near to, as a language may: the scan goes as deep as it takes."""
    values = clustered(rng, 3000, 64)
    query = values[:1].astype(np.float32)
    order = np.argsort(-(values.astype(np.float32) @ query[0]))
    allowed = mask_of(np.sort(order[1500:]), 3000)
    hits = SignSearcher(ShardedArray([values]), exact_rows=100, candidates=400).top(query, 5, allowed)
    assert hits.found.all()
    assert allowed[hits.rows].all()
    assert len(set(hits.rows[0].tolist()) & set(order[1500:1505].tolist())) >= 4


def test_many_hits_have_more_candidates(rng: np.random.Generator) -> None:
    values = clustered(rng, 500, 16)
    hits = SignSearcher(ShardedArray([values]), exact_rows=10, candidates=20).top(values[:1].astype(np.float32), 100)
    assert hits.found.all()
    assert len(np.unique(hits.rows)) == 100
