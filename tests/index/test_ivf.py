"""Inverted lists: training, codes and merging against slow loops and FAISS itself; kills, damage, what does not fit."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from index import ivf
from index.arrays import ShardedArray
from index.ivf import (
    TRAINED_FILE,
    Quantizer,
    RowAssigner,
    attach_lists,
    code_shard_settings,
    split,
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

TIERS = ("ivf_sq8", "ivf_rabitq")


class Stopped(Exception):
    """Stands for a kill."""


def hashes(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_of_file(path) for path in files}


def stop_after(calls: int) -> Any:
    def progress(done: int, of: int) -> None:
        nonlocal calls
        calls -= 1
        if calls < 0:
            raise Stopped

    return progress


@pytest.fixture
def built(tmp_path: Path) -> Path:
    build_search(tmp_path / "built", sample_vectors(), settings_for("ivf_rabitq"))
    return tmp_path / "built"


def trained_centroids(folder: Path) -> np.ndarray:
    lists = Quantizer.open(folder).lists
    return np.asarray(lists.quantizer.reconstruct_n(0, lists.nlist))


@pytest.mark.parametrize(("rows", "list_count"), [(50, 3), (211, 9), (7, 1)])
def test_centroids_are_those_of_a_slow_loop(tmp_path: Path, rows: int, list_count: int) -> None:
    vectors = np.random.default_rng(rows).standard_normal((rows, 6)).astype(np.float32)
    resolved = resolved_settings(settings_for("ivf_sq8", list_count, train_iterations=4, seed=3), rows, 6)
    rounds: list[tuple[int, int]] = []
    progress = lambda done, of: rounds.append((done, of))  # noqa: E731
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
    assert rounds == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_rounds_one_by_one_are_those_of_one_call_and_empty_lists_are_split(tmp_path: Path) -> None:
    vectors = np.repeat(np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32), 20, axis=0)
    resolved = resolved_settings(settings_for("ivf_sq8", 30, train_iterations=5), len(vectors), 4)
    train_quantizer(tmp_path / "q", ShardedArray([vectors]), None, resolved)
    drawn = np.sort(np.random.default_rng(0).choice(len(vectors), size=30, replace=False, shuffle=False))
    whole = faiss.Kmeans(4, 30, niter=5, seed=0, min_points_per_centroid=1, max_points_per_centroid=len(vectors))
    whole.train(vectors, init_centroids=vectors[drawn])
    np.testing.assert_array_equal(trained_centroids(tmp_path / "q"), whole.centroids)
    assert len(np.unique(whole.centroids, axis=0)) > 9


@pytest.mark.parametrize("graph_from", [1, 100])
def test_rows_belong_to_the_nearest_centroid(monkeypatch: pytest.MonkeyPatch, graph_from: int) -> None:
    monkeypatch.setattr(ivf, "ROW_GRAPH_LISTS", graph_from)
    rng = np.random.default_rng(5)
    vectors, centroids = (rng.standard_normal((count, 8)).astype(np.float32) for count in (300, 17))
    nearest = ((vectors[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(RowAssigner(centroids).nearest(vectors), nearest)


def test_a_training_stopped_after_any_round_resumes_and_ends_in_the_same_bytes(tmp_path: Path) -> None:
    vectors = sample_vectors()
    resolved = resolved_settings(settings_for("ivf_rabitq", train_iterations=4), ROWS, DIMENSIONS)
    whole = train_quantizer(tmp_path / "whole", vectors, None, resolved)
    for stop in range(4):
        folder = tmp_path / f"stopped{stop}" / "quantizer"
        with pytest.raises(Stopped):
            train_quantizer(folder, vectors, None, resolved, progress=stop_after(stop))
        assert [path.name for path in folder.parent.iterdir()] == [".quantizer.partial"]
        rounds: list[int] = []
        progress = lambda done, _, rounds=rounds: rounds.append(done)  # noqa: E731
        assert train_quantizer(folder, vectors, None, resolved, progress=progress) == whole
        assert rounds == list(range(stop + 2, 5))
        assert hashes(folder) == hashes(tmp_path / "whole")
        assert [path.name for path in folder.parent.iterdir()] == ["quantizer"]


@pytest.mark.parametrize("harm", ["other settings", "damage"])
def test_rounds_of_other_settings_and_damaged_ones_are_not_used(tmp_path: Path, harm: str) -> None:
    vectors = sample_vectors()
    first, second = (
        resolved_settings(settings_for("ivf_sq8", seed=seed), ROWS, DIMENSIONS) for seed in (int(harm != "damage"), 0)
    )
    with pytest.raises(Stopped):
        train_quantizer(tmp_path / "q", vectors, None, first, progress=stop_after(3))
    if harm == "damage":
        flip_byte(tmp_path / ".q.partial", -1)
    continued = train_quantizer(tmp_path / "q", vectors, None, second)
    assert continued == train_quantizer(tmp_path / "fresh", vectors, None, second)


def test_only_trainable_rows_are_trained_on(tmp_path: Path) -> None:
    vectors = sample_vectors()
    resolved = resolved_settings(settings_for("ivf_sq8", 4, train_rows=100), ROWS, DIMENSIONS)
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
    (tmp_path / ".q.partial").touch()  # as a kill between the last two steps leaves it
    assert train_quantizer(tmp_path / "q", vectors, None, resolved, progress=stop_after(0)) == manifest
    assert [path.name for path in tmp_path.iterdir()] == ["q"]
    with pytest.raises(ArtifactError, match="seed"):
        train_quantizer(tmp_path / "q", vectors, None, resolved | {"seed": 4})
    quantizer, array = Quantizer.open(tmp_path / "q"), vectors.arrays[0]
    settings = code_shard_settings(quantizer, "v")
    shard = write_code_shard(tmp_path / "c", array, quantizer, settings=settings)
    unread = np.full_like(array, np.nan)  # refused as soon as they are coded again
    assert write_code_shard(tmp_path / "c", unread, quantizer, settings=settings) == shard
    with pytest.raises(ArtifactError, match="vectors"):
        write_code_shard(tmp_path / "c", array, quantizer, settings=code_shard_settings(quantizer, "w"))


@pytest.mark.parametrize("tier", TIERS)
def test_the_merged_lists_are_those_of_one_index_in_memory_bit_for_bit(tmp_path: Path, tier: str) -> None:
    vectors = sample_vectors()
    padded = ShardedArray([vectors.arrays[0], vectors.arrays[0][:0], *vectors.arrays[1:]])
    build_search(tmp_path, padded, settings_for(tier))
    trained = Quantizer.open(tmp_path / "quantizer")
    plain = faiss.read_index(str(tmp_path / "quantizer" / TRAINED_FILE))
    rotation, lists = split(plain)
    first = 0
    for array in vectors.arrays:  # by shards, since a rotation of more rows at once differs in the last bits
        coded = array.astype(np.float32)
        numbers, _ = trained.encode(coded)
        coded = coded if rotation is None else rotation.apply(coded)
        ids = np.arange(first, first + len(array))
        lists.add_core(len(array), *map(faiss.swig_ptr, (coded, ids, numbers)))
        first += len(array)
    plain.ntotal = ROWS
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


@pytest.mark.parametrize("tier", TIERS)
def test_the_same_input_and_settings_give_the_same_bytes(tmp_path: Path, tier: str) -> None:
    vectors = sample_vectors(rows=3000)
    found = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        settings = SearchSettings(tier=SearchTier(tier), list_count=16, train_rows=2000, seed=seed)  # on two threads
        build_search(tmp_path / name, vectors, settings)
        found.append(hashes(tmp_path / name))
    assert found[0] == found[1]
    assert found[0]["quantizer/trained.faiss"] != found[2]["quantizer/trained.faiss"]


def test_codes_are_sorted_by_list_and_equal_those_of_the_quantizer(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    other, vectors, settings = tmp_path / "other", sample_vectors(), settings_for("ivf_rabitq")
    build_search(other, vectors, settings_for("ivf_rabitq", seed=1))
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
        build_search(built, sample_vectors(), settings_for("ivf_rabitq"))
