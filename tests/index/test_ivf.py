"""Inverted lists: training, codes and merging against slow loops and FAISS itself; kills, damage, what does not fit."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import faiss
import numpy as np
import pytest

from index import ivf
from index.arrays import ShardedArray
from index.exact import exact_top
from index.faiss_library import split
from index.ivf import (
    TRAINED_FILE,
    Quantizer,
    RowAssigner,
    attach_lists,
    code_shard_settings,
    train_quantizer,
    write_code_shard,
    write_search_folder,
)
from index.search import open_search
from index.settings import SearchSettings, SearchTier, resolved_settings
from npm.core.errors import ArtifactError, SettingError
from npm.core.files import sha256_of_file
from tests.helpers.sample_folders import flip_byte
from tests.index.search_folders import (
    DIMENSIONS,
    ROWS,
    build_search,
    code_all,
    open_built,
    sample_queries,
    sample_vectors,
    settings_for,
)

TIERS = ("ivf_sq8", "ivf_pq")


class Stopped(Exception):
    """Stands for a kill."""


def hashes(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_of_file(path) for path in files}


def stop_after(calls: int) -> Any:
    def progress(_: str, done: float, __: float | None) -> None:
        nonlocal calls
        calls -= 1
        if calls < 0:
            raise Stopped

    return progress


@pytest.fixture
def built(tmp_path: Path) -> Path:
    build_search(tmp_path / "built", sample_vectors(), settings_for("ivf_pq"))
    return tmp_path / "built"


def trained_centroids(folder: Path) -> np.ndarray:
    lists = Quantizer.open(folder).lists
    return np.asarray(lists.quantizer.reconstruct_n(0, lists.nlist))


def without_fast_scan(lists: Any) -> Any:
    """The same trained lists and codes as FAISS keeps them one by one."""
    plain = faiss.IndexIVFPQ(lists.quantizer, lists.d, lists.nlist, lists.pq.M, 4, faiss.METRIC_INNER_PRODUCT)
    plain.pq, plain.by_residual, plain.is_trained = lists.pq, lists.by_residual, True
    return plain


@pytest.mark.parametrize(("rows", "list_count"), [(50, 3), (211, 9), (7, 1)])
def test_centroids_are_those_of_a_slow_loop(tmp_path: Path, rows: int, list_count: int) -> None:
    vectors = np.random.default_rng(rows).standard_normal((rows, 6)).astype(np.float32)
    resolved = resolved_settings(settings_for("ivf_sq8", list_count, train_iterations=4, seed=3), rows, 6)
    groups: list[tuple[int, int]] = []
    progress = lambda _, done, of: groups.append((done, of))  # noqa: E731
    train_quantizer(tmp_path / "q", ShardedArray([vectors]), None, resolved, progress=progress)
    drawn = sorted(np.random.default_rng(3).choice(rows, size=list_count, replace=False, shuffle=False))
    centroids = vectors[drawn]
    for _ in range(4):
        members: list[list[np.ndarray]] = [[] for _ in range(list_count)]
        for vector in vectors:
            distances = [float(((vector - centroid) ** 2).sum()) for centroid in centroids]
            members[distances.index(min(distances))].append(vector)
        assert all(members), "the reference knows no empty lists"
        centroids = np.array([np.mean(member, axis=0) for member in members], dtype=np.float32)
    np.testing.assert_allclose(trained_centroids(tmp_path / "q"), centroids, rtol=1e-5, atol=1e-6)
    assert groups == [(1, 2), (2, 2)]  # a group of lists, then the codec


def test_empty_lists_are_split(tmp_path: Path) -> None:
    vectors = np.repeat(np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32), 20, axis=0)
    resolved = resolved_settings(settings_for("ivf_sq8", 30, train_iterations=5), len(vectors), 4)
    train_quantizer(tmp_path / "q", ShardedArray([vectors]), None, resolved)
    assert len(np.unique(trained_centroids(tmp_path / "q"), axis=0)) > 9


def test_many_lists_are_trained_group_by_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three groups of rows far apart, of 160, 60 and 20 rows, have lists in proportion, each within its group."""
    monkeypatch.setattr(ivf, "TWO_LEVEL_LISTS", 12)
    rng = np.random.default_rng(0)
    places = rng.permutation(np.repeat([0, 100, -100], [160, 60, 20]))
    vectors = (places[:, None] + rng.standard_normal((240, 5))).astype(np.float32)
    resolved = resolved_settings(settings_for("ivf_sq8", 12, train_iterations=6), len(vectors), 5)
    groups: list[tuple[int, int]] = []
    train_quantizer(tmp_path / "q", ShardedArray([vectors]), None, resolved, progress=lambda _, *at: groups.append(at))
    centroids = trained_centroids(tmp_path / "q")
    assert [int((abs(centroids[:, 0] - place) < 10).sum()) for place in (0, 100, -100)] == [8, 3, 1]
    assert groups == [(1, 4), (2, 4), (3, 4), (4, 4)]
    np.testing.assert_allclose(centroids[centroids[:, 0] < -50][0], vectors[places == -100].mean(axis=0), rtol=1e-5)


@pytest.mark.parametrize("graph_from", [1, 100])
def test_rows_belong_to_the_nearest_centroid(monkeypatch: pytest.MonkeyPatch, graph_from: int) -> None:
    monkeypatch.setattr(ivf, "ROW_GRAPH_LISTS", graph_from)
    rng = np.random.default_rng(5)
    vectors, centroids = (rng.standard_normal((count, 8)).astype(np.float32) for count in (300, 17))
    nearest = ((vectors[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(RowAssigner(centroids).nearest(vectors), nearest)


def test_gpus_assign_rows_exactly_however_many_centroids_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[object] = []
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    # faiss-cpu has no GPU to move an index to: the index is kept where it is
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", lambda index: moved.append(index) or index, raising=False)
    monkeypatch.setattr(ivf, "ROW_GRAPH_LISTS", 2)
    generator = np.random.default_rng(0)
    centroids = generator.standard_normal((300, 8), dtype=np.float32)
    vectors = generator.standard_normal((500, 8), dtype=np.float32)
    distances = ((vectors[:, None] - centroids[None]) ** 2).sum(-1)  # [500, 300]
    np.testing.assert_array_equal(RowAssigner(centroids).nearest(vectors), distances.argmin(1))
    assert [type(each) for each in moved] == [faiss.IndexFlatL2]


def test_only_trainable_rows_are_trained_on(tmp_path: Path) -> None:
    vectors = sample_vectors()
    resolved = resolved_settings(settings_for("ivf_sq8", 4), ROWS, DIMENSIONS)
    trainable = np.arange(0, ROWS, 3)
    spoiled = np.concatenate(vectors.arrays)
    spoiled[np.setdiff1d(np.arange(ROWS), trainable)] = 1000
    first = train_quantizer(tmp_path / "a", vectors, trainable, resolved)
    assert train_quantizer(tmp_path / "b", ShardedArray([spoiled]), trainable, resolved) == first
    assert train_quantizer(tmp_path / "c", vectors, trainable[1:], resolved) != first
    with pytest.raises(SettingError, match="list_count must be at most 3"):
        train_quantizer(tmp_path / "d", vectors, trainable[:3], resolved)


def test_what_is_finished_is_kept_and_what_was_made_otherwise_is_refused(tmp_path: Path) -> None:
    vectors = sample_vectors()
    resolved = resolved_settings(settings_for("ivf_sq8", 4), ROWS, DIMENSIONS)
    manifest = train_quantizer(tmp_path / "q", vectors, None, resolved)
    assert train_quantizer(tmp_path / "q", vectors, None, resolved, progress=stop_after(0)) == manifest
    with pytest.raises(ArtifactError, match="seed"):
        train_quantizer(tmp_path / "q", vectors, None, resolved | {"seed": 4})
    quantizer, array = Quantizer.open(tmp_path / "q"), vectors.arrays[0]
    settings = code_shard_settings(quantizer, "v")
    shard = write_code_shard(tmp_path / "c", array, quantizer, settings=settings)
    unread = np.full_like(array, np.nan)  # refused as soon as they are coded again
    assert write_code_shard(tmp_path / "c", unread, quantizer, settings=settings) == shard
    with pytest.raises(ArtifactError, match="vectors"):
        write_code_shard(tmp_path / "c", array, quantizer, settings=code_shard_settings(quantizer, "w"))


def test_a_number_that_is_not_finite_is_refused_where_training_did_not_look(tmp_path: Path) -> None:
    vectors = sample_vectors()
    train_quantizer(tmp_path / "q", vectors, None, resolved_settings(settings_for("ivf_sq8", 4), ROWS, DIMENSIONS))
    quantizer, added = Quantizer.open(tmp_path / "q"), vectors.arrays[0].copy()
    added[7, 3] = np.nan
    with pytest.raises(ArtifactError, match="row 7 is not finite"):
        write_code_shard(tmp_path / "c", added, quantizer, settings=code_shard_settings(quantizer, "v"))
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("tier", TIERS)
def test_the_merged_lists_are_those_of_one_index_in_memory_bit_for_bit(tmp_path: Path, tier: str) -> None:
    vectors = sample_vectors()
    padded = ShardedArray([vectors.arrays[0], vectors.arrays[0][:0], *vectors.arrays[1:]])
    build_search(tmp_path, padded, settings_for(tier))
    trained = Quantizer.open(tmp_path / "quantizer")
    owner = plain = faiss.read_index(str(tmp_path / "quantizer" / TRAINED_FILE))
    rotation, lists = split(owner)
    added = without_fast_scan(lists) if tier == "ivf_pq" else lists
    first = 0
    for array in vectors.arrays:  # by shards, since a rotation of more rows at once differs in the last bits
        coded = array.astype(np.float32)
        numbers, _ = trained.encode(coded)
        coded = coded if rotation is None else rotation.apply(coded)
        ids = np.arange(first, first + len(array))
        added.add_core(len(array), *map(faiss.swig_ptr, (coded, ids, numbers)))
        first += len(array)
    if added is not lists:
        lists = faiss.IndexIVFPQFastScan(added)  # FAISS packs the codes
        plain = faiss.IndexPreTransform(rotation, lists)
    plain.ntotal = lists.ntotal = ROWS
    held = attach_lists(trained, tmp_path / "search")
    for number in range(8):
        size = lists.get_list_size(number)
        assert size == held.list_size(number)
        rows = [faiss.rev_swig_ptr(each.get_ids(number), size) for each in (lists.invlists, held)]
        np.testing.assert_array_equal(*rows)
        assert all(one < next_ for one, next_ in itertools.pairwise(rows[0].tolist()))
    for probed_lists in (1, 3, 8):
        found = []
        for index in (plain, trained.index):
            split(index)[1].nprobe = probed_lists
            found.append(index.search(sample_queries(), 50))
        np.testing.assert_array_equal(found[0][0], found[1][0])
        np.testing.assert_array_equal(found[0][1], found[1][1])


def test_an_index_with_one_bit_codes_of_an_earlier_version_is_searched(tmp_path: Path) -> None:
    vectors, queries = sample_vectors(), sample_queries()
    resolved = resolved_settings(settings_for("ivf_pq"), ROWS, DIMENSIONS)
    resolved |= {"tier": "ivf_rabitq", "factory": f"RR{DIMENSIONS},IVF8,RaBitQ"}
    with mock.patch("tests.index.search_folders.resolved_settings", return_value=resolved):
        build_search(tmp_path, vectors, settings_for("ivf_pq"))
    hits = open_built(tmp_path, vectors, probed_lists=8, rerank_factor=ROWS).scan(queries).top(5)
    np.testing.assert_array_equal(hits.rows, exact_top(vectors, queries, 5).rows)


@pytest.mark.parametrize("tier", TIERS)
def test_the_same_input_and_settings_give_the_same_bytes(tmp_path: Path, tier: str) -> None:
    vectors = sample_vectors(rows=3000)
    found = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        settings = SearchSettings(tier=SearchTier(tier), list_count=16, seed=seed)  # on two threads
        build_search(tmp_path / name, vectors, settings)
        found.append(hashes(tmp_path / name))
    assert found[0] == found[1]
    assert found[0]["quantizer/trained.faiss"] != found[2]["quantizer/trained.faiss"]


def test_codes_are_sorted_by_list(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ivf, "ROWS_PER_CHUNK", 64)
    quantizer, whole = Quantizer.open(built / "quantizer"), np.concatenate(sample_vectors().arrays)
    write_code_shard(tmp_path / "c", whole, quantizer, settings=code_shard_settings(quantizer, "v"))
    sizes, rows, codes = (np.load(tmp_path / "c" / f"{name}.npy") for name in ("list_sizes", "rows", "codes"))
    lists, encoded = (
        np.concatenate(arrays)
        for arrays in zip(
            *(quantizer.encode(whole[start : start + 64].astype(np.float32)) for start in range(0, ROWS, 64)),
            strict=True,
        )
    )
    np.testing.assert_array_equal(rows, np.lexsort((np.arange(ROWS), lists)))
    np.testing.assert_array_equal(sizes, np.bincount(lists, minlength=8))
    np.testing.assert_array_equal(codes, encoded[rows])


def test_folders_of_another_quantizer_other_codes_or_other_vectors_are_refused(built: Path, tmp_path: Path) -> None:
    other, vectors, settings = tmp_path / "other", sample_vectors(), settings_for("ivf_pq")
    build_search(other, vectors, settings_for("ivf_pq", seed=1))
    quantizer, resolved = Quantizer.open(built / "quantizer"), resolved_settings(settings, ROWS, DIMENSIONS)
    folders = code_all(built / "codes", vectors, quantizer)

    def merge(place: Path, codes: list[Path]) -> None:
        write_search_folder(place, resolved, vectors, quantizer=quantizer, code_folders=codes)

    with pytest.raises(ArtifactError, match="come from another quantizer"):
        merge(tmp_path / "s", [folders[0], other / "codes" / "00001", folders[2]])
    with pytest.raises(ArtifactError, match="codes"):
        merge(built / "search", folders[::-1])
    for missing in range(3):
        with pytest.raises(ArtifactError, match=f"do not make up the {ROWS} rows"):
            merge(tmp_path / "s", [*folders[:missing], *folders[missing + 1 :]])
    narrow = sample_vectors(dimensions=8)
    with pytest.raises(ArtifactError, match="16 dimensions, got 8"):
        write_code_shard(tmp_path / "s", narrow.arrays[0], quantizer, settings=code_shard_settings(quantizer, "v"))
    assert not (tmp_path / "s").exists()
    for given in (None, other / "quantizer"):
        with pytest.raises(ArtifactError, match="built with another quantizer"):
            open_search(built / "search", vectors, quantizer=given)
    with pytest.raises(ArtifactError, match="other vectors"):
        open_built(built, ShardedArray([np.ones((ROWS - 1, DIMENSIONS), dtype=np.float16)]))


OPENED = ("quantizer/trained.faiss", "quantizer/manifest.json", "search/manifest.json", "search/lists.bin")


@pytest.mark.parametrize("harm", ["flip", "truncate", "remove"])
@pytest.mark.parametrize("name", [*OPENED, "search/list_sizes.npy"])
def test_a_damaged_file_is_refused_when_the_search_is_opened(built: Path, name: str, harm: str) -> None:
    path = built / name
    if harm == "flip":
        flip_byte(path, path.stat().st_size // 2)
    elif harm == "truncate":
        os.truncate(path, path.stat().st_size - 9)
    else:
        path.unlink()
    with pytest.raises(ArtifactError) as caught:
        open_built(built, sample_vectors())
    assert path.name in str(caught.value)


@pytest.mark.parametrize("name", ["list_sizes.npy", "rows.npy", "codes.npy", "manifest.json"])
@pytest.mark.parametrize("harm", ["flip", "truncate"])
def test_a_damaged_code_shard_is_refused_when_it_is_merged(built: Path, name: str, harm: str) -> None:
    path = built / "codes" / "00002" / name
    shutil.rmtree(built / "search")
    flip_byte(path, -5) if harm == "flip" else os.truncate(path, path.stat().st_size - 9)
    with pytest.raises(ArtifactError, match=name.replace(".", r"\.")):
        build_search(built, sample_vectors(), settings_for("ivf_pq"))
