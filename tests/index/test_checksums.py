"""Damage in large files is found where it is read: rows of vectors, row numbers, numbers that are not finite."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pytest

from index import checksums
from index.arrays import ShardedArray
from index.checksums import ShardChecks, StoredShard, row_checksums, write_checked_rows
from index.exact import ExactSearcher, check_finite, exact_top
from index.faiss_library import inverted_file
from index.files import NPY_HEADER_BYTES
from index.manifest import read_manifest
from index.search import FaissSearcher, open_search
from index.store import write_folder
from npm.core.errors import ArtifactError
from tests.helpers.sample_folders import flip_byte, rewrite_manifest
from tests.index.search_folders import (
    DIMENSIONS,
    QUERIES,
    ROWS,
    build_search,
    open_built,
    sample_queries,
    sample_vectors,
    settings_for,
)

FACTORIES = ("IVF8,SQ8", "RR16,IVF8,RaBitQ")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """All files count as large."""
    monkeypatch.setattr("index.store.HASHED_AT_OPENING_BYTES", 1)
    monkeypatch.setattr(checksums, "CHECKSUMMED_FROM_BYTES", 1)


def write_shards(folder: Path, vectors: ShardedArray) -> list[Path]:
    places = [folder / f"{number:05d}" for number in range(len(vectors.arrays))]
    for place, array in zip(places, vectors.arrays, strict=True):
        with write_folder(place, kind="shard", settings={}) as writer:
            write_checked_rows(writer, "vectors", array.dtype, array.shape, np.array_split(array, 3))
    return places


def open_shards(places: list[Path]) -> ShardedArray:
    shards = [StoredShard.open(place, "vectors.npy", read_manifest(place, kind="shard")) for place in places]
    return ShardedArray([shard.array for shard in shards], ShardChecks(shards))


def row_byte(row: int, vectors: ShardedArray) -> int:
    """Where a row of a shard begins in its file."""
    return NPY_HEADER_BYTES + row * vectors.arrays[0][:1].nbytes


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("dimensions", [1, 3, 16])
def test_a_flipped_bit_is_refused_wherever_its_row_is_read_and_nowhere_else(
    tmp_path: Path, dtype: str, dimensions: int
) -> None:
    vectors = sample_vectors(dtype, dimensions=dimensions)
    places = write_shards(tmp_path, vectors)
    whole = np.concatenate(vectors.arrays)
    start = row_byte(5, vectors)
    flip_byte(places[2] / "vectors.npy", start + whole[:1].nbytes - 1)
    damaged, opened = 301 + 5, open_shards(places)
    others = np.random.default_rng(0).permutation(np.setdiff1d(np.arange(ROWS), damaged))
    np.testing.assert_array_equal(opened.take(others), whole[others])
    np.testing.assert_array_equal(opened.slice(0, damaged), whole[:damaged])
    np.testing.assert_array_equal(opened.slice(damaged + 1, ROWS), whole[damaged + 1 :])
    for read in (
        lambda: opened.take(np.array([[3, damaged], [0, 4]])),
        lambda: opened.slice(damaged, damaged + 1),
        lambda: opened.slice(0, ROWS),
        lambda: open_shards(places[2:]).take(np.array([9, 5])),
    ):
        stop = start + whole[:1].nbytes
        with pytest.raises(ArtifactError, match=rf"00002/vectors\.npy is damaged.* {start} to {stop - 1};"):
            read()


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("harm", ["zeros everywhere", "another row", "words of a row exchanged", "all bits set"])
def test_what_disks_and_copies_do_to_a_file_is_found(tmp_path: Path, harm: str) -> None:
    vectors = sample_vectors()
    place = write_shards(tmp_path, vectors)[0]
    rows = np.array(vectors.arrays[0])
    if harm == "zeros everywhere":
        rows[:] = 0
        values = (place / "vectors.checksums.npy").read_bytes()
        zeros = values[:NPY_HEADER_BYTES] + bytes(len(values) - NPY_HEADER_BYTES)
        (place / "vectors.checksums.npy").write_bytes(zeros)
    elif harm == "another row":
        rows[7] = rows[6]
    elif harm == "words of a row exchanged":
        rows[7] = np.roll(rows[7], 4)
    else:
        rows.view(np.uint8)[:] = 0xFF
    header = (place / "vectors.npy").read_bytes()[:NPY_HEADER_BYTES]
    (place / "vectors.npy").write_bytes(header + rows.tobytes())
    with pytest.raises(ArtifactError, match=r"vectors\.npy is damaged"):
        open_shards([place]).take(np.array([7]))


def test_the_checksum_of_a_row_depends_on_every_bit() -> None:
    rng = np.random.default_rng(0)
    for row_bytes in (1, 6, 8, 768, 5000):
        row = rng.integers(0, 256, (1, row_bytes), dtype=np.uint8)
        for bit in rng.integers(8 * row_bytes, size=40).tolist():
            changed = row.copy()
            changed[0, bit // 8] ^= 1 << bit % 8
            assert row_checksums(changed) != row_checksums(row)


def test_a_small_file_has_no_checksums_and_is_hashed_when_it_is_first_read(tmp_path: Path) -> None:
    vectors = sample_vectors()
    places = write_shards(tmp_path, vectors)
    assert sorted(path.name for path in places[0].iterdir()) == ["manifest.json", "vectors.npy"]
    flip_byte(places[2] / "vectors.npy", -1)
    opened = open_shards(places)
    shutil.rmtree(places[0])  # what was opened stays readable
    np.testing.assert_array_equal(opened.slice(0, 301), np.concatenate(vectors.arrays[:2]))
    with pytest.raises(ArtifactError, match=r"vectors\.npy is damaged: expected SHA-256"):
        opened.take(np.array([0, 400]))


@pytest.mark.usefixtures("large")
def test_an_older_index_without_checksums_is_read_but_its_numbers_must_be_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for dtype in ("float16", "float32"):
        vectors = sample_vectors(dtype)
        with monkeypatch.context() as older:
            older.setattr(checksums, "CHECKSUMMED_FROM_BYTES", 1 << 30)
            places = write_shards(tmp_path / dtype, vectors)
        opened = open_shards(places)
        np.testing.assert_array_equal(opened.slice(0, ROWS), np.concatenate(vectors.arrays))
        file = places[0] / "vectors.npy"
        spoiled = np.array(vectors.arrays[0])
        spoiled[7, 3] = np.nan
        file.write_bytes(file.read_bytes()[:NPY_HEADER_BYTES] + spoiled.tobytes())
        search = tmp_path / f"search-{dtype}"
        build_search(search, vectors, settings_for("IVF8,SQ8"))
        searcher = open_built(search, open_shards(places), probed_lists=8, rerank_factor=100)
        with pytest.raises(ArtifactError, match="not finite"):
            searcher.scan(sample_queries()).top(ROWS)
        with pytest.raises(ArtifactError, match="not finite"):
            searcher.scan(sample_queries()).at(0, np.array([9, 7]))
        with pytest.raises(ArtifactError, match="not finite"):
            searcher.scan(sample_queries(), allowed=np.array([3, 7, 9]))


@pytest.mark.usefixtures("large")
def test_checksums_of_another_number_of_rows_are_refused(tmp_path: Path) -> None:
    places = write_shards(tmp_path, sample_vectors())
    shutil.copy(places[2] / "vectors.checksums.npy", places[0])
    with pytest.raises(ArtifactError, match=r"uint32 \[300\], got uint32 \[399\]"):
        open_shards(places)


def test_rows_that_no_index_has_are_refused_where_lists_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = sample_vectors()
    build_search(tmp_path, vectors, settings_for("IVF8,SQ8"))
    monkeypatch.setattr("index.store.HASHED_AT_OPENING_BYTES", 1)  # as a large file of an older index
    file = tmp_path / "search" / "00000" / "lists.bin"
    data = np.frombuffer(file.read_bytes(), dtype=np.int64).copy()
    data[(data >= 0) & (data < ROWS)] += 1 << 40
    file.write_bytes(data.tobytes())
    with pytest.raises(ArtifactError, match=f"index is damaged.*of {ROWS}"):
        open_built(tmp_path, vectors).scan(sample_queries()).top(5)


@pytest.mark.parametrize("factory", FACTORIES)
def test_the_rows_of_every_list_ascend(tmp_path: Path, factory: str) -> None:
    vectors = sample_vectors()
    build_search(tmp_path, vectors, settings_for(factory))
    opened = open_built(tmp_path, vectors)
    assert isinstance(opened, FaissSearcher)
    lists = inverted_file(opened._index).invlists
    sizes = [lists.list_size(number) for number in range(8)]
    assert sum(sizes) == ROWS
    for number, size in enumerate(sizes):
        rows = faiss.rev_swig_ptr(lists.get_ids(number), size)
        assert all(one < next_ for one, next_ in itertools.pairwise(rows.tolist()))


def test_lists_of_another_number_of_rows_are_refused(tmp_path: Path) -> None:
    build_search(tmp_path, sample_vectors(), settings_for("IVF8,SQ8"))
    fewer = sample_vectors(rows=ROWS - 1)
    settings = dict(read_manifest(tmp_path / "search", kind="search").settings)
    rewrite_manifest(tmp_path / "search", settings=settings | {"row_count": ROWS - 1})
    with pytest.raises(ArtifactError, match=f"8 lists with {ROWS - 1} rows, got 8 lists with {ROWS} rows"):
        open_search(tmp_path / "search", fewer, quantiser=tmp_path / "quantiser")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, -np.nan])
def test_each_number_that_is_not_finite_is_found(dtype: str, value: float) -> None:
    for rest in (-1.0, 1.0):  # also where it is the largest, or the smallest, of all bit patterns
        vectors = np.full((3, 4), rest, dtype=dtype)
        check_finite(vectors, np.arange(3))
        vectors[1, 2] = value
        with pytest.raises(ArtifactError, match="row 11 is not finite"):
            check_finite(vectors, np.arange(10, 13))


def test_similarities_too_large_for_single_precision_are_refused() -> None:
    huge = np.full((4, DIMENSIONS), 3e38, dtype=np.float32)
    read: list[Callable[[], object]] = [
        lambda: ExactSearcher(huge).scan(np.ones((QUERIES, DIMENSIONS), dtype=np.float32)),
        lambda: exact_top(huge, np.ones((QUERIES, DIMENSIONS), dtype=np.float32), 2),
    ]
    for search in read:
        with pytest.raises(ArtifactError, match="not finite"), np.errstate(over="ignore"):
            search()
