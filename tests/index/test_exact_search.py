"""Exact search on every path and search by signs, against numbers by hand and slow Python loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from index import exact
from index.arrays import ShardedArray
from index.exact import ExactSearcher, best_columns, exact_top, fitting_device, score_rows
from index.sign_codes import SignSearcher
from index.types import Hits
from npm.core.errors import ArtifactError
from tests.index.search_folders import mask_of, sample_queries, sample_vectors


def small_integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Vectors whose inner products are exact in float32 and often equal, so that order among ties is tested."""
    return rng.integers(-2, 3, size=shape).astype(np.float32)


def slow_top(vectors: np.ndarray, query: np.ndarray, allowed: list[int], k: int) -> list[tuple[int, float]]:
    scored = [(row, float(sum(a * b for a, b in zip(vectors[row], query, strict=True)))) for row in allowed]
    return sorted(scored, key=lambda hit: (-hit[1], hit[0]))[:k]


def search(way: str, vectors: np.ndarray, queries: np.ndarray, allowed: np.ndarray | None, k: int) -> Hits:
    if way == "streaming":
        return exact_top(vectors, queries, k, allowed)
    return ExactSearcher(vectors).scan(queries, allowed).top(k)


def test_the_best_rows_by_hand() -> None:
    searcher = ExactSearcher(np.array([[1, 0], [0, 2], [3, 0], [1, 1]], dtype=np.float32))
    scan = searcher.scan(np.array([[1, 0], [0, -1]], dtype=np.float32))
    hits = scan.top(3)
    assert hits.rows.tolist() == [[2, 0, 3], [0, 2, 3]]
    assert hits.scores.tolist() == [[3, 1, 1], [0, 0, -1]]
    assert hits.found.all()
    assert scan.at(1, np.array([3, 1, 3])).tolist() == [-1, -2, -1]
    assert (hits.rows.dtype, hits.scores.dtype, hits.found.dtype) == (np.int64, np.float32, bool)


@pytest.mark.parametrize(("row_count", "dimensions", "query_count"), [(1, 1, 1), (37, 5, 3), (200, 3, 7), (50, 8, 0)])
@pytest.mark.parametrize("k", [1, 4, 36, 37, 60, 250])
@pytest.mark.parametrize("restricted", ["all", "rows", "consecutive", "set"])
@pytest.mark.parametrize("share", [0.04, 0.4])
@pytest.mark.parametrize("way", ["searcher", "streaming"])
def test_it_equals_a_slow_loop_with_ties_in_order_of_rows(
    monkeypatch: pytest.MonkeyPatch,
    row_count: int,
    dimensions: int,
    query_count: int,
    k: int,
    restricted: str,
    share: float,
    way: str,
) -> None:
    monkeypatch.setattr(exact, "ROWS_PER_CHUNK", 11)
    monkeypatch.setattr(exact, "GATHERED_ROWS_PER_CHUNK", 3)
    rng = np.random.default_rng(row_count)
    vectors = small_integers(rng, row_count, dimensions)
    queries = small_integers(rng, query_count, dimensions)
    allowed = np.arange(row_count) if restricted == "all" else np.flatnonzero(rng.random(row_count) < share)
    if restricted == "consecutive":
        allowed = np.arange(row_count // 4, round(row_count * (0.25 + share)))
    given = None if restricted == "all" else mask_of(allowed, row_count) if restricted == "set" else allowed
    hits = search(way, vectors, queries, given, k)
    assert hits.rows.shape == hits.scores.shape == hits.found.shape == (query_count, k)
    for query in range(query_count):
        expected = slow_top(vectors, queries[query], allowed.tolist(), k)
        found = hits.found[query]
        assert found.tolist() == [place < len(expected) for place in range(k)]
        assert list(zip(hits.rows[query, found].tolist(), hits.scores[query, found].tolist(), strict=True)) == expected
        assert (hits.rows[query, ~found] == 0).all()
        assert (hits.scores[query, ~found] == -np.inf).all()


@pytest.mark.parametrize("column_count", [1, 2, 37, 1000])
@pytest.mark.parametrize("kind", ["ties, zeros of both signs, infinity", "close together", "below the normal range"])
def test_the_best_columns_are_those_of_a_stable_sort(column_count: int, kind: str) -> None:
    rng = np.random.default_rng(column_count)
    if kind == "close together":
        scores = np.float32(-100) + rng.integers(-9, 9, column_count).astype(np.float32) * np.float32(2**-17)
    elif kind == "below the normal range":
        scores = rng.standard_normal(column_count).astype(np.float32) * np.float32(1e-42)
    else:
        scores = rng.choice(np.float32([-np.inf, -3, -1, -0.0, 0, 1, 3e38]), column_count)
    for k in {1, column_count // 3 + 1, column_count, column_count + 5}:
        expected = sorted(range(column_count), key=lambda column: (-float(scores[column]), column))[:k]
        assert best_columns(scores, k).tolist() == expected


def test_equal_rows_have_equal_scores_wherever_they_are_and_however_many_queries_there_are() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((3000, 96)).astype(np.float32)
    same = np.sort(rng.choice(3000, 400, replace=False))
    vectors[same] = vectors[0] * 2
    for query_count in (1, 2, 3, 7, 8, 9, 33):
        queries = rng.standard_normal((query_count, 96)).astype(np.float32)
        queries[-1] = vectors[0]
        assert ExactSearcher(vectors).scan(queries).top(400).rows[-1].tolist() == same.tolist()


def test_scores_at_rows_are_exact_in_any_order_scanned_or_not() -> None:
    rng = np.random.default_rng(0)
    vectors, queries = small_integers(rng, 30, 4), small_integers(rng, 2, 4)
    rows = np.array([7, 3, 29, 3, 0])
    sets = [mask_of(np.arange(0, 30, step), 30) for step in (2, 29)]
    for allowed in (None, np.array([3, 7, 8]), np.array([0, 3, 7, 29]), np.array([], dtype=np.int64), *sets):
        scan = ExactSearcher(vectors).scan(queries, allowed)
        for query in range(2):
            np.testing.assert_array_equal(scan.at(query, rows), vectors[rows] @ queries[query])
        assert scan.at(0, rows.reshape(1, 5)).shape == (1, 5)
        for row in (-1, 30):
            with pytest.raises(IndexError):
                scan.at(0, np.array([row]))


def test_half_precision_and_shards_are_searched_as_float32() -> None:
    rng = np.random.default_rng(0)
    half = rng.standard_normal((50, 6)).astype(np.float16)
    queries = rng.standard_normal((3, 6)).astype(np.float32)
    expected = queries @ half.astype(np.float32).T
    for vectors in (half, ShardedArray([half[:20], half[20:]])):
        hits = ExactSearcher(vectors).scan(queries).top(50)
        np.testing.assert_allclose(hits.scores, -np.sort(-expected, axis=1), rtol=1e-6, atol=1e-6)


def test_a_set_with_many_rows_is_searched_among_all_and_one_with_few_is_gathered() -> None:
    rng = np.random.default_rng(0)
    vectors, queries = rng.standard_normal((100, 4)).astype(np.float32), rng.standard_normal((2, 4)).astype(np.float32)
    for count, scored in ((20, 20), (21, 100)):
        allowed = mask_of(np.arange(count), 100)
        assert ExactSearcher(vectors).scan(queries, allowed).scores.shape == (2, scored)


def test_streaming_tells_how_far_it_is() -> None:
    vectors = np.ones((5, 2), dtype=np.float16)
    seen: list[tuple[int, int]] = []
    exact_top(vectors, vectors[:1], 1, None, lambda _, done, of: seen.append((done, of)))
    assert seen == [(5, 5)]


@pytest.mark.parametrize("way", ["searcher", "streaming"])
def test_what_cannot_be_searched_is_refused(way: str) -> None:
    vectors, query = np.ones((5, 2), dtype=np.float16), np.ones((1, 2), dtype=np.float32)
    for allowed in ([2, 1], [1, 1], [-1, 2], [5], [[1, 2]], mask_of(np.array([0]), 6)):
        given = np.array(allowed) if isinstance(allowed, list) else allowed
        with pytest.raises(ValueError, match="allowed rows"):
            search(way, vectors, query, given, 1)
    for queries, k, named in ((query, 0, "k must"), (np.ones((1, 3), dtype=np.float32), 1, "queries")):
        with pytest.raises(ValueError, match=named):
            search(way, vectors, queries, None, k)
    vectors[3, 1] = np.inf
    with pytest.raises(ArtifactError, match="row 3 is not finite"):
        search(way, vectors, query, None, 1)
    if way == "searcher":
        assert search(way, vectors, query, np.array([1, 2]), 2).rows.tolist() == [[1, 2]]  # other rows are not read
        with pytest.raises(ValueError, match="NaN"):
            search(way, vectors[:3], np.array([[np.nan, 0]], dtype=np.float32), None, 1)


def test_float32_in_memory_is_not_copied() -> None:
    vectors = np.ones((4, 2), dtype=np.float32)
    searcher = ExactSearcher(vectors)
    vectors[3] = 2
    assert searcher.scan(np.ones((1, 2), dtype=np.float32)).top(1).rows.tolist() == [[3]]


def test_a_batch_that_needs_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "SCORE_BYTES_PER_SCAN", 4 * 10 * 3 + 3)
    searcher = ExactSearcher(np.ones((10, 2), dtype=np.float32))
    assert searcher.max_queries_per_scan == 3
    searcher.scan(np.ones((3, 2), dtype=np.float32))
    with pytest.raises(ValueError, match="at most 3"):
        searcher.scan(np.ones((4, 2), dtype=np.float32))
    searcher.scan(np.ones((4, 2), dtype=np.float32), np.arange(5))
    monkeypatch.setattr(exact, "SCORE_BYTES_PER_SCAN", 1)
    assert searcher.max_queries_per_scan == 1


def test_scores_of_stored_vectors_have_equal_bits_however_rows_and_queries_are_cut(rng: np.random.Generator) -> None:
    vectors = ShardedArray([rng.normal(size=(n, 384)).astype(np.float16) for n in (700, 900)])
    queries, rows = rng.normal(size=(9, 384)).astype(np.float32), np.arange(0, 1600, 3)
    together = score_rows(vectors, queries, rows)  # f32 [9, 534]
    for cut in (1, 17, 533):
        pieces = [score_rows(vectors, queries[:1], piece) for piece in np.split(rows, [cut])]
        np.testing.assert_array_equal(np.concatenate(pieces, axis=1), together[:1])


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
