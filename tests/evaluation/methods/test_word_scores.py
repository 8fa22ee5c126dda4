from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index import exact
from index.arrays import ShardedArray
from npm.evaluation.methods import occurrences as occurrences_module
from npm.evaluation.methods.occurrences import WordOccurrences, WordScores, find_occurrences, hit_scores, scan_scores
from npm.retrieval.queries import QueryVectors
from npm.retrieval.settings import Combination
from tests.evaluation.methods.word_indexes import WordIndex, random_words, word_index
from tests.helpers.random_indexes import random_queries

FACTOR = 0.7


def one_word(rows: list[tuple[int, int]]) -> WordOccurrences:
    """A word with occurrences at the given start and end rows."""
    start_rows, end_rows = np.array(rows).T
    numbers = np.arange(len(rows))
    return WordOccurrences(
        words=("word",),
        offsets=np.array([0, len(rows)]),
        starts=numbers,
        lengths=np.ones(len(rows), dtype=np.int64),
        start_rows=start_rows,
        end_rows=end_rows,
        total_counts=np.array([len(rows)]),
    )


def plain_scores(
    here: WordIndex, found: WordOccurrences, queries: QueryVectors, combination: Combination
) -> list[list[tuple[float, int]]]:
    """log Σ and best occurrence by query and word, one exponential after the other."""
    vectors = here.corpus.vectors.astype(np.float64)
    table = []
    for start_query, end_query in zip(queries.start, queries.end, strict=True):
        row = []
        for word in range(len(found.words)):
            weights = {}
            for number in range(found.offsets[word], found.offsets[word + 1]):
                s = FACTOR * float(start_query @ vectors[found.start_rows[number]])
                t = FACTOR * float(end_query @ vectors[found.end_rows[number]])
                is_sum = combination is Combination.sum
                weights[number] = math.exp(s) + math.exp(t) if is_sum else math.exp(s + t)
            best = max(weights, key=lambda number: weights[number]) if weights else -1
            row.append((math.log(sum(weights.values())) if weights else -math.inf, best))
        table.append(row)
    return table


def assert_scores(scores: WordScores, plain: list[list[tuple[float, int]]]) -> None:
    assert np.allclose(scores.log_sums, [[log for log, _ in row] for row in plain], rtol=1e-5, atol=1e-5)
    assert scores.best.tolist() == [[best for _, best in row] for row in plain]


def test_evidence_of_two_occurrences_by_hand(tmp_path: Path, rng: np.random.Generator) -> None:
    here = word_index(tmp_path, rng)
    vectors = np.zeros((len(here.index.rows), 5), dtype=np.float32)
    vectors[0, 0], vectors[1, 0], vectors[2, 0] = math.log(2), math.log(3), math.log(5)
    index = replace(here.index, vectors=ShardedArray([vectors]))
    unit = np.eye(1, 5, dtype=np.float32)  # [1, 5], the first coordinate
    queries = QueryVectors(start=unit, end=unit, cut=np.zeros(1, dtype=bool))
    occurrences = one_word([(0, 0), (1, 2)])
    product = scan_scores(index, occurrences, queries, factor=1.0, combination=Combination.product)
    assert math.exp(product.log_sums[0, 0]) == pytest.approx(2 * 2 + 3 * 5)
    assert (product.best[0, 0], math.exp(product.best_logs[0, 0])) == (1, pytest.approx(15))
    added = scan_scores(index, occurrences, queries, factor=1.0, combination=Combination.sum)
    assert math.exp(added.log_sums[0, 0]) == pytest.approx(2 + 2 + 3 + 5)
    assert (added.best[0, 0], math.exp(added.best_logs[0, 0])) == (1, pytest.approx(8))


@pytest.mark.parametrize("combination", list(Combination))
@pytest.mark.parametrize("scores_per_chunk", [1 << 21, 9, 20])
def test_scores_equal_plain_loops_however_they_are_cut(
    combination: Combination,
    scores_per_chunk: int,
    tmp_path: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(occurrences_module, "SCORES_PER_CHUNK", scores_per_chunk)
    here = word_index(tmp_path, rng)
    found = find_occurrences(here.index, here.encoder, random_words(rng, 9))
    for query_count in (1, 6):
        queries = random_queries(rng, query_count)
        scores = scan_scores(here.index, found, queries, factor=FACTOR, combination=combination)
        assert_scores(scores, plain_scores(here, found, queries, combination))
        assert scores.counts.tolist() == found.counts.tolist()
        assert np.isneginf(scores.log_sums[:, -1]).all()


def test_very_large_and_very_small_exponents_neither_overflow_nor_vanish(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    here = word_index(tmp_path, rng)
    found = find_occurrences(here.index, here.encoder, ["a", "b", "c"])
    queries = random_queries(rng, 3)
    scores = scan_scores(here.index, found, queries, factor=1e4, combination=Combination.product)
    assert np.isfinite(scores.log_sums).all()
    assert (np.abs(scores.log_sums) > 1000).any()
    assert (scores.log_sums >= scores.best_logs - 1e-6).all()


@pytest.mark.parametrize("one_query", [False, True])
@pytest.mark.parametrize("k", [1, 15, 10_000])
@pytest.mark.parametrize("queries_per_scan", [2, 4, 64])
def test_shares_of_the_best_rows_equal_plain_loops(
    queries_per_scan: int,
    k: int,
    one_query: bool,
    tmp_path: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for turn in range(3):
        here = word_index(tmp_path / str(turn), rng)
        monkeypatch.setattr(exact, "SCORE_BYTES_PER_SCAN", 4 * len(here.index.rows) * queries_per_scan)
        found = find_occurrences(here.index, here.encoder, random_words(rng, 9))
        queries = random_queries(rng, 5)
        scores = hit_scores(here.index, found, queries, k=k, factor=FACTOR, one_query=one_query)
        for query in range(5):
            asked = [queries.start[query], queries.end[query]][: 2 - one_query]
            hits = plain_hits(here, found, asked, k)
            for word in range(len(found.words)):
                of_word = [(share, -number) for share, number in hits if is_of_word(found, word, number)]
                total = sum(share for share, _ in of_word)
                assert np.exp(scores.log_sums[query, word]) == pytest.approx(total, rel=1e-5, abs=1e-12)
                assert scores.best[query, word] == (-max(of_word)[1] if of_word else -1)
                largest = max(of_word, default=(0.0, 0))[0]
                assert np.exp(scores.best_logs[query, word]) == pytest.approx(largest, rel=1e-5, abs=1e-12)


def is_of_word(found: WordOccurrences, word: int, number: int) -> bool:
    return bool(found.offsets[word] <= number < found.offsets[word + 1])


def plain_hits(here: WordIndex, found: WordOccurrences, asked: list[np.ndarray], k: int) -> list[tuple[float, int]]:
    """P and number of every occurrence at a hit: the k best live rows of each query, one softmax over them all."""
    corpus = here.corpus
    live = [row for row, at in enumerate(corpus.row_positions) if here.live_blocks[corpus.block_of(at)]]
    pooled = []
    for side, query in enumerate(asked):
        ranked = sorted(live, key=lambda row: (-float(query @ corpus.vectors[row]), row))[:k]
        pooled += [(side, row, math.exp(FACTOR * float(query @ corpus.vectors[row]))) for row in ranked]
    total = sum(weight for _, _, weight in pooled)
    hits = []
    for side, row, weight in pooled:
        rows = [found.start_rows, found.end_rows][side]
        hits += [(weight / total, number) for number in np.flatnonzero(rows == row).tolist()]
    return hits
