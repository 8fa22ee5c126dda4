"""Searchers over consecutive rows merged into one, by hand and against one searcher over all rows."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.arrays import ShardedArray
from index.exact import ExactSearcher
from index.ivf import Quantizer, write_search_folder
from index.search import PartitionedSearcher, open_search, parts_of
from index.settings import SearchSettings, resolved_settings
from index.types import Scan, Searcher
from tests.index.search_folders import (
    QUERIES,
    ROWS,
    build_search,
    code_all,
    mask_of,
    sample_queries,
    sample_vectors,
    settings_for,
)

CUTS = {
    "one": (),
    "two": (301,),
    "three, uneven": (5, 690),
    "one empty in the middle": (300, 300),
    "empty at both ends": (0, ROWS),
    "seven": (100, 150, 301, 302, 480, 640),
}


def parted(vectors: np.ndarray, cuts: Iterable[int], **more: Any) -> PartitionedSearcher:
    bounds = [0, *cuts, len(vectors)]
    return PartitionedSearcher([ExactSearcher(vectors[start:stop]) for start, stop in pairwise(bounds)], **more)


def test_hits_and_scores_by_hand() -> None:
    vectors = np.array([[1, 0], [0, 2], [3, 0], [1, 1], [3, 0]], dtype=np.float32)
    searcher = parted(vectors, (2, 2, 4))
    assert (searcher.row_count, searcher.dimensions, len(parts_of(searcher))) == (5, 2, 4)
    scan = searcher.scan(np.array([[1, 0], [0, -1]], dtype=np.float32))
    hits = scan.top(4)
    assert hits.rows.tolist() == [[2, 4, 0, 3], [0, 2, 4, 3]]  # equal scores by row, also across a border
    assert hits.scores.tolist() == [[3, 3, 1, 1], [0, 0, 0, -1]]
    assert scan.at(0, np.array([[4, 0, 4], [1, 3, 2]])).tolist() == [[3, 1, 3], [0, 1, 3]]
    assert (hits.rows.dtype, hits.scores.dtype, hits.found.dtype) == (np.int64, np.float32, bool)
    few = searcher.scan(np.array([[1, 0]], dtype=np.float32), np.array([1, 4])).top(3)
    assert (few.rows.tolist(), few.found.tolist()) == ([[4, 1, 0]], [[True, True, False]])
    assert parts_of(ExactSearcher(vectors))[0].row_count == 5


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("allowed", ["all", "rows", "set", "of one part", "none"])
def test_it_equals_one_searcher_over_all_rows(cuts: tuple[int, ...], allowed: str) -> None:
    rng = np.random.default_rng(len(cuts))
    vectors = rng.integers(-2, 3, (ROWS, 4)).astype(np.float32)  # exact products, many of them equal
    vectors[290:310] = vectors[300]  # duplicates on both sides of a border
    queries = rng.integers(-2, 3, (QUERIES, 4)).astype(np.float32)
    some = np.flatnonzero(rng.random(ROWS) < 0.4)
    given = {
        "all": None,
        "rows": some,
        "set": mask_of(some, ROWS),
        "of one part": np.arange(400, 420),
        "none": mask_of(some[:0], ROWS),
    }[allowed]
    expected = ExactSearcher(vectors).scan(queries, given)
    for ask in (map, ThreadPoolExecutor(2).map):
        scan = parted(vectors, cuts, ask=ask).scan(queries, given)
        for k in (1, 10, ROWS, ROWS + 9):
            ours, theirs = scan.top(k), expected.top(k)
            for name in ("rows", "scores", "found"):
                np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        rows = rng.integers(0, ROWS, (3, 50))  # in any order, with repeats, allowed or not
        np.testing.assert_array_equal(scan.at(2, rows), expected.at(2, rows))
        assert scan.at(0, np.zeros((2, 0), dtype=np.int64)).shape == (2, 0)


class Counting:
    """A part that counts how often it is asked to scan, and takes few queries."""

    def __init__(self, part: Searcher, most: int) -> None:
        self.row_count, self.dimensions, self.max_queries_per_scan = part.row_count, part.dimensions, most
        self.scans, self._part = 0, part

    def scan(self, queries: np.ndarray, allowed: np.ndarray | None = None) -> Scan:
        self.scans += 1
        return self._part.scan(queries, allowed)


def test_parts_without_allowed_rows_are_not_asked_but_score_any_row() -> None:
    vectors = np.eye(6, dtype=np.float32)
    parts = [Counting(ExactSearcher(vectors[start : start + 2]), most) for start, most in ((0, 9), (2, 4), (4, 7))]
    searcher = PartitionedSearcher(parts)
    assert searcher.max_queries_per_scan == 4
    scan = searcher.scan(vectors[3:4], mask_of(np.array([0, 5]), 6))
    assert [part.scans for part in parts] == [1, 0, 1]
    assert scan.top(6).rows[0, :2].tolist() == [0, 5]
    assert scan.at(0, np.array([3, 5, 2])).tolist() == [1, 0, 0]
    assert [part.scans for part in parts] == [1, 1, 1]


def test_what_does_not_fit_is_refused() -> None:
    vectors = np.eye(4, dtype=np.float32)
    searcher = parted(vectors, (2,))
    for parts in ([], [ExactSearcher(vectors), ExactSearcher(vectors[:, :3])]):
        with pytest.raises(ValueError, match="dimensions"):
            PartitionedSearcher(parts)
    scan = searcher.scan(vectors[:1])
    for row in (-1, 4):
        with pytest.raises(IndexError):
            scan.at(0, np.array([row]))
    with pytest.raises(ValueError, match="k must be"):
        scan.top(0)
    for allowed in (mask_of(np.array([1]), 5), np.array([1, 4]), np.array([2, 1])):
        with pytest.raises(ValueError, match="allowed rows"):
            searcher.scan(vectors[:1], allowed)
    with pytest.raises(ValueError, match="queries"):
        searcher.scan(vectors[:1, :3])


def cut_search(root: Path, vectors: ShardedArray, settings: SearchSettings, bounds: Iterable[int]) -> list[Path]:
    """Search folders over the vector shards between `bounds`, with the quantizer and the codes in `root`."""
    quantizer = Quantizer.open(root / "quantizer")
    codes = code_all(root / "codes", vectors, quantizer)
    folders = []
    for first, stop in pairwise(bounds):
        folders.append(root / f"search-{first}-{stop}")
        write_search_folder(
            folders[-1],
            resolved_settings(settings, *vectors.shape),
            vectors.shards(first, stop),
            quantizer=quantizer,
            code_folders=codes[first:stop],
        )
    return folders


@pytest.mark.parametrize("tier", ["ivf_sq8", "ivf_pq"])
@pytest.mark.parametrize("bounds", [(0, 1, 4), (0, 1, 2, 3, 4)], ids=["two", "four, one empty"])
def test_parts_of_lists_find_no_less_than_one_index(tier: str, bounds: tuple[int, ...], tmp_path: Path) -> None:
    first, second, third = sample_vectors().arrays
    vectors = ShardedArray([first, second, first[:0], third])
    queries, settings = sample_queries(), settings_for(tier)
    build_search(tmp_path, vectors, settings)
    folders = cut_search(tmp_path, vectors, settings, bounds)

    def opened(probed_lists: int, rerank_factor: int) -> tuple[Searcher, Searcher]:
        how = {"probed_lists": probed_lists, "rerank_factor": rerank_factor, "quantizer": tmp_path / "quantizer"}
        parts = [
            open_search(folder, vectors.shards(*pair), **how)
            for folder, pair in zip(folders, pairwise(bounds), strict=True)
        ]
        return PartitionedSearcher(parts), open_search(tmp_path / "search", vectors, **how)

    ours, theirs = (searcher.scan(queries).top(20) for searcher in opened(2, 1))
    assert (ours.scores >= theirs.scores - 1e-6).all()
    ours, theirs = (searcher.scan(queries).top(20) for searcher in opened(8, ROWS))  # everything is reranked
    np.testing.assert_array_equal(ours.rows, theirs.rows)
    np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-6)
    exact = ExactSearcher(vectors).scan(queries).top(20)
    np.testing.assert_array_equal(ours.rows, exact.rows)
    some = mask_of(np.arange(0, ROWS, 3), ROWS)
    ours, theirs = (searcher.scan(queries, some).top(20) for searcher in opened(8, ROWS))
    np.testing.assert_array_equal(ours.rows, theirs.rows)
