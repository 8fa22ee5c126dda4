"""Search by lists with exact scores, and the choice of the tier, against exact search."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from index import search
from index.arrays import ShardedArray
from index.exact import ExactSearcher
from index.faiss_library import read_faiss
from index.ivf import Quantizer
from index.search import FaissSearcher
from index.settings import SearchSettings, SearchTier, fitting_settings, resolved_settings, search_shape
from index.types import Hits
from npm.core.artifact import verify_folder
from npm.core.errors import ArtifactError, SettingError
from tests.index.search_folders import (
    DIMENSIONS,
    QUERIES,
    ROWS,
    build_search,
    mask_of,
    open_built,
    sample_queries,
    sample_vectors,
    settings_for,
)

ALL = 10**6


def searcher(
    root: Path, tier: str, list_count: int = 8, *, probed_lists: int = 8, rerank_factor: int = 2
) -> FaissSearcher:
    vectors = sample_vectors()
    if not (root / "search").exists():
        build_search(root, vectors, settings_for(tier, list_count))
    opened = open_built(root, vectors, probed_lists=probed_lists, rerank_factor=rerank_factor)
    assert isinstance(opened, FaissSearcher)
    return opened


def assert_same_hits(hits: Hits, expected: Hits) -> None:
    np.testing.assert_array_equal(hits.found, expected.found)
    np.testing.assert_array_equal(hits.rows, expected.rows)
    np.testing.assert_allclose(hits.scores, expected.scores, rtol=1e-5, atol=1e-5)


def test_sq8_estimates_are_within_the_bound_of_the_quantizer(tmp_path: Path) -> None:
    vectors, queries = sample_vectors("float32"), sample_queries()
    build_search(tmp_path, vectors, settings_for("ivf_sq8"))
    opened = open_built(tmp_path, vectors, probed_lists=8)
    index = opened._quantizer.lists
    index.nprobe = 8
    exact = queries @ vectors.slice(0, ROWS).T  # [q, n]
    centroids = index.quantizer.reconstruct_n(0, 8)  # [lists, d]
    lists, _ = Quantizer.open(tmp_path / "quantizer").encode(vectors.slice(0, ROWS))  # [n]
    residuals = vectors.slice(0, ROWS) - centroids[lists]  # [n, d]
    # A dimension is cut into 255 steps between the extremes of its residuals; at most one step of error each.
    step = (residuals.max(axis=0) - residuals.min(axis=0)) / 255  # [d]
    bound = np.abs(queries) @ step  # [q]
    estimates, rows = index.search(queries, ROWS)  # [q, n]
    error = np.abs(estimates - np.take_along_axis(exact, rows, axis=1))  # [q, n]
    assert (error.max(axis=1) <= bound + 1e-5).all()
    assert error.max() > 0


def test_scores_of_any_tier_are_those_of_the_stored_vectors(tmp_path: Path) -> None:
    vectors, queries = sample_vectors().slice(0, ROWS).astype(np.float32), sample_queries()
    scan = searcher(tmp_path, "ivf_sq8", probed_lists=1).scan(queries)
    hits = scan.top(40)
    for query in range(QUERIES):
        found = hits.found[query]
        expected = vectors[hits.rows[query, found]] @ queries[query]
        np.testing.assert_allclose(hits.scores[query, found], expected, rtol=1e-5, atol=1e-5)
        assert (np.diff(hits.scores[query, found]) <= 0).all()
    rows = np.array([[600, 3, 3], [0, 699, 300]])
    np.testing.assert_allclose(scan.at(2, rows), vectors[rows] @ queries[2], rtol=1e-5, atol=1e-5)


def test_places_that_faiss_leaves_empty_are_not_found_and_never_the_last_row(tmp_path: Path) -> None:
    few = searcher(tmp_path, "ivf_sq8", 64, probed_lists=1)
    hits = few.scan(sample_queries()).top(300)
    assert not hits.found.all()
    assert hits.found.any(axis=1).all()
    assert (hits.rows[~hits.found] == 0).all()
    assert (hits.scores[~hits.found] == -np.inf).all()
    for query in range(QUERIES):
        rows = hits.rows[query, hits.found[query]]
        assert len(set(rows.tolist())) == len(rows)
        assert not hits.found[query, len(rows) :].any()


@pytest.mark.parametrize("tier", ["ivf_sq8", "ivf_pq"])
@pytest.mark.parametrize("by_selector", [False, True])
@pytest.mark.parametrize("as_set", [False, True])
def test_only_allowed_rows_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: str, by_selector: bool, as_set: bool
) -> None:
    monkeypatch.setattr(search, "EXACT_ALLOWED_ROWS", 0 if by_selector else ALL)
    allowed = np.flatnonzero(np.random.default_rng(2).random(ROWS) < 0.3)
    given = mask_of(allowed, ROWS) if as_set else allowed
    hits = searcher(tmp_path, tier, rerank_factor=40).scan(sample_queries(), given).top(6)
    assert set(hits.rows[hits.found].tolist()) <= set(allowed.tolist())
    assert_same_hits(hits, ExactSearcher(sample_vectors()).scan(sample_queries(), allowed).top(6))


@pytest.mark.parametrize("tier", ["ivf_sq8", "ivf_pq"])
def test_more_probed_lists_find_more(tmp_path: Path, tier: str) -> None:
    best = ExactSearcher(sample_vectors()).scan(sample_queries()).top(20).rows  # [q, 20]
    shares = []
    for probed_lists in (1, 8, 64):
        opened = searcher(tmp_path, tier, 64, probed_lists=probed_lists, rerank_factor=20)
        rows = opened.scan(sample_queries()).top(20).rows
        shares.append(np.mean([np.isin(*pair).mean() for pair in zip(best, rows, strict=True)]))
    assert shares[0] < shares[1] < shares[2] == 1


def test_a_file_that_faiss_cannot_read_or_of_another_metric_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trained.faiss"
    faiss.write_index(faiss.index_factory(DIMENSIONS, "IVF8,Flat", faiss.METRIC_L2), str(file))
    with pytest.raises(ArtifactError, match="inner product"):
        read_faiss(file)
    file.write_bytes(b"not an index")
    with pytest.raises(ArtifactError, match="cannot read"):
        read_faiss(file)


def test_exact_search_does_not_import_faiss(tmp_path: Path) -> None:
    program = (
        "import sys, numpy as np; from pathlib import Path; from index.settings import *; from index.search import *;"
        "from index.ivf import *; from index.arrays import ShardedArray;"
        "v = ShardedArray([np.ones((3, 2), np.float32)]);"
        f"p = Path({str(tmp_path / 's')!r}); write_search_folder(p, resolved_settings(SearchSettings(), 3, 2), v);"
        "open_search(p, v, quantizer=None); assert 'faiss' not in sys.modules"
    )
    root = Path(search.__file__).parents[1]
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True)


@pytest.mark.parametrize(
    "settings",
    [
        SearchSettings(),
        SearchSettings(tier=SearchTier.ivf_sq8),
        SearchSettings(tier=SearchTier.ivf_pq, list_count=4, rerank_factor=70),
        SearchSettings(list_count=8, probed_lists=8),
    ],
    ids=["exact", "sq8", "pq", "lists"],
)
def test_a_built_folder_opens_and_finds_what_exact_search_finds(tmp_path: Path, settings: SearchSettings) -> None:
    seen: list[tuple[int, int]] = []
    manifest = build_search(tmp_path, sample_vectors(), settings, progress=lambda _, done, of: seen.append((done, of)))
    assert seen[-1][0] == seen[-1][1] > 0
    assert sorted(done for done, _ in seen) == [done for done, _ in seen]
    verify_folder(tmp_path / "search", "search")
    opened = open_built(
        tmp_path, sample_vectors(), probed_lists=settings.probed_lists, rerank_factor=settings.rerank_factor or 8
    )
    assert isinstance(opened, ExactSearcher if manifest.settings["tier"] == "exact" else FaissSearcher)
    assert (opened.row_count, opened.dimensions) == (ROWS, DIMENSIONS)
    exact = ExactSearcher(sample_vectors()).scan(sample_queries())
    for k in (1, 5, ROWS, ROWS + 5):
        assert_same_hits(opened.scan(sample_queries()).top(k), exact.top(k))


@pytest.mark.parametrize("list_count", [None, 4])
def test_vectors_that_are_not_finite_are_refused_and_leave_no_folder(tmp_path: Path, list_count: int | None) -> None:
    vectors = np.ones((500, 4), dtype=np.float16)
    vectors[450, 2] = np.nan
    with pytest.raises(ArtifactError, match="row 450 is not finite"):
        build_search(tmp_path, ShardedArray([vectors]), SearchSettings(list_count=list_count))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("dimensions", "lists"),
    # 2 GiB / (39 rows · 4 bytes · dimensions) = 107,546.7, 35,848.9, 17,924.4 and 13,443.3 lists
    [(128, 65536), (384, 32768), (768, 16384), (1024, 8192)],
)
def test_the_rows_to_train_on_take_at_most_two_gibibytes(dimensions: int, lists: int) -> None:
    resolved = fitting_settings(SearchSettings(), 10**10, dimensions)
    assert resolved["list_count"] == lists
    assert resolved["train_rows"] * dimensions * 4 <= 2 << 30


@pytest.mark.parametrize(
    ("settings", "rows", "least", "message"),
    [
        ({"list_count": 11}, 10, {"list_count": 10}, "search.list_count must be at most 10, the rows to train on, got"),
        ({"list_count": 35849}, 10**9, {"list_count": 35848}, "search.list_count must be at most 35848 with 384 dim"),
        ({"tier": SearchTier.ivf_pq}, 15, None, "search.tier=ivf_pq needs at least 16 rows"),
    ],
)
def test_settings_that_cannot_be_trained_are_refused_and_the_last_that_can_are_not(
    settings: dict[str, Any], rows: int, least: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        fitting_settings(SearchSettings(**settings), rows, 384)
    last, enough = SearchSettings(**(least or settings)), rows if least else rows + 1
    assert fitting_settings(last, enough, 384) == resolved_settings(last, enough, 384)


@pytest.mark.parametrize(
    ("settings", "rows", "tier", "factory"),
    [
        (SearchSettings(), 2_000_000, "ivf_sq8", "IVF4096,SQ8"),
        (SearchSettings(), 20_000_000, "ivf_pq", "RR384,IVF16384,PQ96x4fsr"),
        (SearchSettings(list_count=8), 100, "ivf_sq8", "IVF8,SQ8"),
        (SearchSettings(tier=SearchTier.ivf_pq), 100, "ivf_pq", "RR384,IVF2,PQ96x4fsr"),
    ],
)
def test_resolved_settings_name_tier_and_factory(settings: SearchSettings, rows: int, tier: str, factory: str) -> None:
    resolved = resolved_settings(settings, rows, 384)
    assert (resolved["tier"], resolved["factory"], resolved["dimensions"]) == (tier, factory, 384)
    assert not {"probed_lists", "rerank_factor", "row_count"} & set(resolved)
    assert resolved_settings(SearchSettings(tier=SearchTier.exact), rows, 8) == {"tier": "exact", "dimensions": 8}


def test_a_limit_of_memory_takes_the_next_smaller_tier_down_to_the_smallest() -> None:
    rows, dimensions = 40_000, 64  # 4·√rows = 800: 1,024 lists of at least 39 rows each
    exact = 4 * dimensions * rows
    sq8 = rows * (dimensions + 8) + 1024 * (3.5 * dimensions + 8) + 4 * 1024 * dimensions  # rows, padding, centroids

    def searched(limit: float) -> tuple[str, float]:
        resolved = resolved_settings(SearchSettings(memory_bytes=int(limit)), rows, dimensions)
        return resolved.get("factory", "exact"), search_shape(resolved).searched_bytes(rows)

    assert searched(exact) == ("exact", exact)
    assert searched(exact - 1) == searched(sq8) == ("IVF1024,SQ8", sq8)
    two_bits, needed = searched(sq8 - 1)
    smallest, least = searched(needed - 1)
    assert (two_bits, smallest) == ("RR64,IVF1024,PQ32x4fsr", "RR64,IVF1024,PQ16x4fsr") and least < needed < sq8
    assert searched(least - 1) == (smallest, least)  # an index that grew beyond its limit
    fitting_settings(SearchSettings(memory_bytes=int(least)), rows, dimensions)
    with pytest.raises(SettingError, match=r"memory=.* 40,000 vectors"):
        fitting_settings(SearchSettings(memory_bytes=int(least) - 1), rows, dimensions)
    for many in (3_000_000, 30_000_000):  # a limit that is not reached changes nothing
        limited = resolved_settings(SearchSettings(memory_bytes=1 << 40), many, 384)
        assert limited == resolved_settings(SearchSettings(), many, 384)


@pytest.mark.parametrize(("dimensions", "codes"), [(64, 32), (191, 96), (192, 96), (193, 49), (384, 96)])
def test_two_dimensions_of_short_vectors_have_a_code_and_four_of_long_ones(dimensions: int, codes: int) -> None:
    factory = resolved_settings(SearchSettings(), 20_000_000, dimensions)["factory"]
    assert factory == f"RR{codes * (2 if dimensions <= 192 else 4)},IVF16384,PQ{codes}x4fsr"


def test_lists_with_more_rows_than_there_are_vectors_are_damaged(tmp_path: Path) -> None:
    vectors = sample_vectors()
    build_search(tmp_path, vectors, settings_for("ivf_sq8"))
    searcher = open_built(tmp_path, vectors, probed_lists=8, rerank_factor=ROWS)
    searcher.row_count = ROWS - 1
    with pytest.raises(ArtifactError, match=f"is damaged.*of {ROWS - 1}"):
        searcher.scan(sample_queries()).top(5)
