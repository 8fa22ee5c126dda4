"""Vectors in 8 bits: numbers worked by hand, a plain loop, bounds of the error, and the same hits as their floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from index.arrays import INT8, Int8Array, ShardedArray, row_bytes, stored_rows, to_float32
from index.exact import ExactSearcher, exact_top, score_rows
from npm.core.errors import ArtifactError
from tests.index.search_folders import (
    QUERIES,
    ROWS,
    build_search,
    open_built,
    sample_queries,
    sample_vectors,
    settings_for,
)


def opened(*vectors: np.ndarray) -> ShardedArray:
    return ShardedArray.of_vectors([stored_rows(each, INT8) for each in vectors])


def test_codes_and_scale_of_a_row_are_those_worked_by_hand() -> None:
    vectors = np.float32([[127, -64, 1, 0.4], [0.25, -0.125, 0, 0.0625], [0, 0, 0, 0]])
    rows = stored_rows(vectors, INT8)
    assert rows.shape == (3, 6)
    # 0.25 / 127 = 0.00196850 has the nearest half precision number 0.00196838; 0.125 / 0.00196838 = 63.504 -> 64
    assert rows[:, :4].tolist() == [[127, -64, 1, 0], [127, -64, 0, 32], [0, 0, 0, 0]]
    assert np.ascontiguousarray(rows[:, 4:]).view(np.float16).ravel().tolist() == [1, float(np.float16(0.25 / 127)), 0]
    read = ShardedArray.of_vectors([rows]).slice(0, 3)
    assert read.dtype == np.float32
    assert read[0].tolist() == [127, -64, 1, 0]
    assert read[1].tolist() == [code * float(np.float16(0.25 / 127)) for code in (127, -64, 0, 32)]
    assert not read[2].any()


@pytest.mark.parametrize("size", [1e-7, 1e-4, 1, 1e4, 8e6])
def test_no_number_is_further_away_than_half_a_step(size: float, rng: np.random.Generator) -> None:
    vectors = (rng.standard_normal((200, 24)) * size / 6).astype(np.float32)
    read = opened(vectors).slice(0, 200)
    steps = np.abs(vectors).max(axis=1) / 127  # f32 [200]
    smallest = 2.0**-24  # half precision has no smaller number than this
    assert (np.abs(read - vectors) <= (0.5 * (1 + 2**-10) * steps + 127 * smallest)[:, None]).all()


def test_it_is_its_rows_one_after_the_other(rng: np.random.Generator) -> None:
    pieces = [rng.standard_normal((length, 3)).astype(np.float32) for length in (0, 5, 2, 4)]
    stored = [stored_rows(piece, INT8) for piece in pieces]
    plain = []
    for rows in stored:
        for row in rows:
            scale = float(np.frombuffer(row[3:].tobytes(), dtype="<f2")[0])
            plain.append([int(code) * scale for code in row[:3]])
    whole = ShardedArray.of_vectors(stored)
    assert isinstance(whole, Int8Array)
    assert (whole.shape, whole.dtype, len(whole)) == ((11, 3), np.float32, 11)
    for start in range(12):
        for stop in range(start, 12):
            assert whole.slice(start, stop).tolist() == plain[start:stop]
            assert whole.within(start, stop).slice(0, stop - start).tolist() == plain[start:stop]
    indices = np.array([[10, 0], [3, 3]])
    assert whole.take(indices).tolist() == [[plain[10], plain[0]], [plain[3], plain[3]]]
    assert whole.shards(2, 4).slice(0, 6).tolist() == plain[5:]
    with pytest.raises(IndexError):
        whole.take(np.array([11]))


def test_a_number_takes_a_byte_and_a_row_two_more_and_what_is_not_stored_nothing() -> None:
    vectors = np.ones((7, 384), dtype=np.float32)
    assert stored_rows(vectors, INT8).nbytes == 7 * row_bytes(384, INT8) == 7 * 386
    for name, size in (("float16", 768), ("float32", 1536)):
        stored = stored_rows(vectors, np.dtype(name))
        assert stored.nbytes == 7 * row_bytes(384, stored.dtype) == 7 * size
    assert row_bytes(0, INT8) == 0  # vectors that are not stored
    nowhere = [np.empty((count, 0), dtype=name) for count, name in ((3, "float16"), (2, "float32"))]
    assert ShardedArray.of_vectors(nowhere).shape == (5, 0)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e9])
def test_a_vector_that_does_not_fit_is_found(value: float) -> None:
    vectors, query = np.ones((6, 3), dtype=np.float32), np.ones((1, 3), dtype=np.float32)
    vectors[4, 1] = value
    stored = opened(vectors[:3], vectors[3:])
    for search in (lambda: ExactSearcher(stored).scan(query), lambda: exact_top(stored, query, 2)):
        with pytest.raises(ArtifactError, match="row 4 is not finite"):
            search()


def test_hits_and_scores_are_those_of_the_numbers_read() -> None:
    stored, queries = sample_vectors("int8"), sample_queries()
    plain = stored.slice(0, ROWS)  # f32 [n, d]
    for allowed in (None, np.arange(3, ROWS, 7)):
        expected = ExactSearcher(plain).scan(queries, allowed).top(20)
        for hits in (ExactSearcher(stored).scan(queries, allowed).top(20), exact_top(stored, queries, 20, allowed)):
            np.testing.assert_array_equal(hits.rows, expected.rows)
            np.testing.assert_allclose(hits.scores, expected.scores, rtol=1e-6)
    some = np.arange(0, ROWS, 3)
    np.testing.assert_allclose(score_rows(stored, queries, some), queries @ plain[some].T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("tier", "rerank_factor"), [("ivf_sq8", 4), ("ivf_pq", 30)])
def test_lists_over_8_bits_find_what_exact_search_finds(tier: str, rerank_factor: int, tmp_path: Path) -> None:
    stored, queries = sample_vectors("int8"), sample_queries()
    build_search(tmp_path, stored, settings_for(tier))
    hits = open_built(tmp_path, stored, probed_lists=8, rerank_factor=rerank_factor).scan(queries).top(10)
    np.testing.assert_array_equal(hits.rows, ExactSearcher(stored).scan(queries).top(10).rows)


def test_the_best_rows_are_those_of_half_precision() -> None:
    queries = sample_queries(dimensions=256)
    half, short = (sample_vectors(name, rows=5000, dimensions=256) for name in ("float16", "int8"))
    best = ExactSearcher(half).scan(queries).top(100)
    found = ExactSearcher(short).scan(queries).top(100)
    shared = [len(set(a) & set(b)) for a, b in zip(best.rows.tolist(), found.rows.tolist(), strict=True)]
    assert sum(shared) >= 0.97 * 100 * QUERIES
    whole = to_float32(half.slice(0, 5000))  # f32 [n, d]
    cosines = (whole * short.slice(0, 5000)).sum(axis=1) / np.prod(
        [np.linalg.norm(each, axis=1) for each in (whole, short.slice(0, 5000))], axis=0
    )
    assert cosines.min() > 0.9999
