"""Every FAISS tier against exact search, by values, and the folder they are stored in."""

from __future__ import annotations

import builtins
import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from omegaconf import OmegaConf
from omegaconf.errors import ValidationError

from index import approximate
from index.approximate import FaissSearcher, assert_inner_product, build_faiss
from index.build import SearchSettings, SearchTier, automatic_list_count, automatic_tier, build_search_folder
from index.exact import ExactSearcher
from index.search import open_search
from index.sharded import ShardedArray
from index.store import CountingFile, verify_folder
from index.types import ArtefactError, Hits, StorageError, UserError

ROWS, DIMENSIONS, QUERIES = 700, 16, 5
ALL = 10**6


def sample_vectors(dtype: str = "float16") -> ShardedArray:
    """Norms spread widely, so that ranking by L2 would differ from ranking by inner product."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((ROWS, DIMENSIONS)) * rng.uniform(0.2, 3, (ROWS, 1))
    vectors = vectors.astype(dtype)
    return ShardedArray([vectors[:300], vectors[300:301], vectors[301:]])


def sample_queries() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((QUERIES, DIMENSIONS)).astype(np.float32)


def build(vectors: ShardedArray, factory: str) -> Any:
    return build_faiss(vectors, factory, seed=0, thread_count=1, train_rows=ROWS)


def searcher(factory: str, *, probed_lists: int = 8, rerank_factor: int = 2) -> FaissSearcher:
    vectors = sample_vectors()
    return FaissSearcher(build(vectors, factory), vectors, probed_lists=probed_lists, rerank_factor=rerank_factor)


def assert_same_hits(hits: Hits, expected: Hits) -> None:
    np.testing.assert_array_equal(hits.found, expected.found)
    np.testing.assert_array_equal(hits.rows, expected.rows)
    np.testing.assert_allclose(hits.scores, expected.scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "factory", ["Flat", "IVF8,Flat", "IVF8_HNSW8,Flat", "RR16,IVF8,Flat", "SQfp16", "IVF8,SQ8,RFlat"]
)
@pytest.mark.parametrize("k", [1, 10, ROWS, ROWS + 5])
def test_uncompressed_indexes_with_all_lists_probed_equal_exact_search(factory: str, k: int) -> None:
    expected = ExactSearcher(sample_vectors()).scan(sample_queries()).top(k)
    assert_same_hits(searcher(factory).scan(sample_queries()).top(k), expected)


@pytest.mark.parametrize("factory", ["IVF8,SQ8", "SQ8", "RR16,IVF8,SQ8"])
def test_sq8_candidates_are_scored_exactly(factory: str) -> None:
    expected = ExactSearcher(sample_vectors()).scan(sample_queries()).top(10)
    assert_same_hits(searcher(factory, rerank_factor=4).scan(sample_queries()).top(10), expected)


def test_sq8_estimates_are_within_the_bound_of_the_quantiser() -> None:
    vectors, queries = sample_vectors("float32"), sample_queries()
    index = build(vectors, "IVF8,SQ8")
    exact = queries @ vectors.slice(0, ROWS).T  # [q, n]
    centroids = index.quantizer.reconstruct_n(0, 8)  # [lists, d]
    _, lists = index.quantizer.search(vectors.slice(0, ROWS), 1)  # [n, 1]
    residuals = vectors.slice(0, ROWS) - centroids[lists[:, 0]]  # [n, d]
    # A dimension is cut into 255 steps between the extremes of its residuals; at most one step of error each.
    step = (residuals.max(axis=0) - residuals.min(axis=0)) / 255  # [d]
    bound = np.abs(queries) @ step  # [q]
    index.nprobe = 8
    estimates, rows = index.search(queries, ROWS)  # [q, n]
    error = np.abs(estimates - np.take_along_axis(exact, rows, axis=1))  # [q, n]
    assert (error.max(axis=1) <= bound + 1e-5).all()
    assert error.max() > 0


def test_scores_of_any_tier_are_those_of_the_stored_vectors() -> None:
    vectors, queries = sample_vectors().slice(0, ROWS).astype(np.float32), sample_queries()
    scan = searcher("IVF8,SQ8", probed_lists=1).scan(queries)
    hits = scan.top(40)
    for query in range(QUERIES):
        found = hits.found[query]
        expected = vectors[hits.rows[query, found]] @ queries[query]
        np.testing.assert_allclose(hits.scores[query, found], expected, rtol=1e-5, atol=1e-5)
        assert (np.diff(hits.scores[query, found]) <= 0).all()
    rows = np.array([[600, 3, 3], [0, 699, 300]])
    np.testing.assert_allclose(scan.at(2, rows), vectors[rows] @ queries[2], rtol=1e-5, atol=1e-5)


def test_places_that_faiss_leaves_empty_are_not_found_and_never_the_last_row() -> None:
    few = searcher("IVF64,Flat", probed_lists=1)
    hits = few.scan(sample_queries()).top(300)
    assert not hits.found.all()
    assert hits.found.any(axis=1).all()
    assert (hits.rows[~hits.found] == 0).all()
    assert (hits.scores[~hits.found] == -np.inf).all()
    for query in range(QUERIES):
        rows = hits.rows[query, hits.found[query]]
        assert len(set(rows.tolist())) == len(rows)
        assert not hits.found[query, len(rows) :].any()


@pytest.mark.parametrize("factory", ["Flat", "IVF8,SQ8", "RR16,IVF8,Flat", "HNSW8", "IVF8,SQ8,RFlat", "RR16,SQ8,RFlat"])
@pytest.mark.parametrize("by_selector", [False, True])
def test_only_allowed_rows_are_found(monkeypatch: pytest.MonkeyPatch, factory: str, by_selector: bool) -> None:
    monkeypatch.setattr(approximate, "EXACT_ALLOWED_ROWS", 0 if by_selector else ALL)
    allowed = np.flatnonzero(np.random.default_rng(2).random(ROWS) < 0.3)
    hits = searcher(factory, rerank_factor=8).scan(sample_queries(), allowed).top(6)
    assert set(hits.rows[hits.found].tolist()) <= set(allowed.tolist())
    if factory != "HNSW8" or not by_selector:  # a graph cut by a selector promises no full recall
        assert_same_hits(hits, ExactSearcher(sample_vectors()).scan(sample_queries(), allowed).top(6))


@pytest.mark.parametrize("factory", ["IVF64,Flat", "RR16,IVF64,Flat", "IVF64,SQ8,RFlat", "RR16,IVF64,SQ8,RFlat"])
def test_more_probed_lists_find_more_whatever_wraps_the_lists(factory: str) -> None:
    best = ExactSearcher(sample_vectors()).scan(sample_queries()).top(20).rows  # [q, 20]
    shares = []
    for probed_lists in (1, 8, 64):
        rows = searcher(factory, probed_lists=probed_lists, rerank_factor=4).scan(sample_queries()).top(20).rows
        shares.append(np.mean([np.isin(*pair).mean() for pair in zip(best, rows, strict=True)]))
    assert shares[0] < shares[1] < shares[2] == 1


def test_an_index_of_another_metric_is_refused() -> None:
    with pytest.raises(ArtefactError, match="inner product"):
        assert_inner_product(faiss.index_factory(DIMENSIONS, "IVF8,Flat", faiss.METRIC_L2))
    quantizer = faiss.IndexFlatL2(DIMENSIONS)
    with pytest.raises(ArtefactError, match="inner product"):
        assert_inner_product(faiss.IndexIVFFlat(quantizer, DIMENSIONS, 8, faiss.METRIC_INNER_PRODUCT))
    with pytest.raises(ArtefactError, match="inner product"):
        FaissSearcher(faiss.IndexFlatL2(DIMENSIONS), sample_vectors(), probed_lists=1, rerank_factor=1)


@pytest.mark.parametrize("factory", ["Nonsense", "IVF8192,Flat", "IVF8,PQ7", "IDMap,Flat"])
def test_a_factory_string_that_does_not_work_is_the_users_mistake(factory: str) -> None:
    with pytest.raises(UserError, match="factory") as caught:
        build(sample_vectors(), factory)
    assert factory in caught.value.problem


def test_without_faiss_one_message_gives_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def no_faiss(name: str, *rest: Any, **more: Any) -> Any:
        if name == "faiss":
            raise ImportError("No module named 'faiss'")
        return real_import(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", no_faiss)
    with pytest.raises(UserError) as caught:
        build(sample_vectors(), "Flat")
    assert "npmlm[cpu]" in caught.value.fix
    assert "npmlm[gpu]" in caught.value.fix


def test_exact_search_does_not_import_faiss(tmp_path: Path) -> None:
    program = (
        "import sys, numpy as np; from pathlib import Path; from index.build import *; from index.search import *;"
        "from index.sharded import ShardedArray; v = ShardedArray([np.ones((3, 2), np.float32)]);"
        f"build_search_folder(Path({str(tmp_path / 's')!r}), v, SearchSettings());"
        f"open_search(Path({str(tmp_path / 's')!r}), v); assert 'faiss' not in sys.modules"
    )
    root = Path(approximate.__file__).parents[1]
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True)


@pytest.mark.parametrize(
    "settings",
    [
        SearchSettings(),
        SearchSettings(tier=SearchTier.faiss),
        SearchSettings(factory="Flat"),
        SearchSettings(list_count=8, probed_lists=8),
        SearchSettings(factory="RR16,IVF8,SQ8", probed_lists=8),
    ],
    ids=["exact", "faiss", "flat", "lists", "rotated"],
)
def test_a_built_folder_opens_and_finds_what_exact_search_finds(tmp_path: Path, settings: SearchSettings) -> None:
    seen: list[tuple[int, int]] = []
    manifest = build_search_folder(
        tmp_path / "search", sample_vectors(), settings, progress=lambda done, of: seen.append((done, of))
    )
    assert seen[-1] == (ROWS, ROWS)
    verify_folder(tmp_path / "search", "search")
    opened = open_search(tmp_path / "search", sample_vectors(), rerank_factor=8)
    assert isinstance(opened, ExactSearcher if manifest.settings["tier"] == "exact" else FaissSearcher)
    assert (opened.row_count, opened.dimensions) == (ROWS, DIMENSIONS)
    expected = ExactSearcher(sample_vectors()).scan(sample_queries()).top(5)
    assert_same_hits(opened.scan(sample_queries()).top(5), expected)


def test_the_same_input_and_settings_give_the_same_bytes(tmp_path: Path) -> None:
    vectors = ShardedArray([np.random.default_rng(3).standard_normal((5000, 16)).astype(np.float16)])
    settings = SearchSettings(tier=SearchTier.faiss, train_rows=2000, thread_count=2)
    first = build_search_folder(tmp_path / "a", vectors, settings)
    assert build_search_folder(tmp_path / "b", vectors, settings) == first
    other = SearchSettings(tier=SearchTier.faiss, train_rows=2000, thread_count=2, seed=1)
    assert build_search_folder(tmp_path / "c", vectors, other).files != first.files


def test_a_flipped_byte_and_other_vectors_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "search"
    build_search_folder(folder, sample_vectors(), SearchSettings(list_count=8))
    with pytest.raises(ArtefactError, match="other vectors"):
        open_search(folder, ShardedArray([np.ones((ROWS - 1, DIMENSIONS), dtype=np.float16)]))
    data = bytearray((folder / "search.faiss").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "search.faiss").write_bytes(bytes(data))
    with pytest.raises(ArtefactError, match=r"search\.faiss is damaged"):
        open_search(folder, sample_vectors())


def test_a_file_that_faiss_cannot_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "search.faiss").write_bytes(b"not an index")
    with pytest.raises(ArtefactError, match="FAISS cannot read"):
        approximate.read_faiss(tmp_path / "search.faiss")


def test_a_full_disk_while_faiss_writes_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write = CountingFile.write

    def write(self: CountingFile, data: bytes) -> int:
        if self.byte_count > 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(self, data)

    monkeypatch.setattr(CountingFile, "write", write)
    with pytest.raises(StorageError, match="disk is full"):
        build_search_folder(tmp_path / "search", sample_vectors(), SearchSettings(list_count=8))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tier", [SearchTier.exact, SearchTier.faiss])
def test_vectors_that_are_not_finite_are_refused_and_leave_nothing(tmp_path: Path, tier: SearchTier) -> None:
    vectors = np.ones((500, 4), dtype=np.float16)
    vectors[450, 2] = np.nan
    with pytest.raises(ArtefactError, match="not finite"):
        build_search_folder(tmp_path / "search", ShardedArray([vectors]), SearchSettings(tier=tier))
    assert list(tmp_path.iterdir()) == []


def test_the_automatic_tier_goes_by_the_number_of_rows() -> None:
    assert automatic_tier(1_000_000) is SearchTier.exact
    assert automatic_tier(1_000_001) is SearchTier.faiss
    assert automatic_list_count(1_000_000, 1 << 18) == 4096
    assert automatic_list_count(100_000_000, 1 << 18) == 4096  # no more than the training rows carry
    assert automatic_list_count(100_000_000, 1 << 24) == 32768
    assert automatic_list_count(10, 1 << 18) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"probed_lists": 0},
        {"rerank_factor": -1},
        {"train_rows": 0},
        {"thread_count": 0},
        {"seed": -1},
        {"list_count": 0},
        {"factory": "Flat", "list_count": 8},
        {"tier": SearchTier.exact, "factory": "Flat"},
        {"tier": SearchTier.exact, "list_count": 8},
    ],
)
def test_settings_out_of_range_or_in_contradiction_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError) as caught:
        SearchSettings(**wrong)
    for name in wrong:
        assert name in caught.value.got


def test_the_tier_is_a_setting_in_lower_case() -> None:
    schema = OmegaConf.structured(SearchSettings)
    assert OmegaConf.to_object(OmegaConf.merge(schema, {"tier": "exact"})) == SearchSettings(tier=SearchTier.exact)
    with pytest.raises(ValidationError, match="exact"):
        OmegaConf.merge(schema, {"tier": "exakt"})
