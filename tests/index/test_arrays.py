"""A sharded array is its concatenation; numbers that are not finite are refused; all half precision numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from index import arrays
from index.arrays import ShardedArray, to_float32
from index.exact import ExactSearcher, check_finite, exact_top
from index.search import open_search
from npm.core.artifact import read_manifest
from npm.core.errors import ArtifactError
from tests.helpers.sample_folders import rewrite_manifest
from tests.index.search_folders import DIMENSIONS, QUERIES, ROWS, build_search, sample_vectors, settings_for

LENGTHS = [[6], [3, 1, 4], [0, 5, 0, 2, 0]]


def shards(lengths: list[int], trailing: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((length, *trailing)).astype(np.float16) for length in lengths]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("trailing", [(), (3,), (2, 2)])
def test_take_equals_indexing_the_concatenation(lengths: list[int], trailing: tuple[int, ...]) -> None:
    arrays = shards(lengths, trailing)
    whole, sharded = np.concatenate(arrays), ShardedArray(arrays)
    assert (len(sharded), sharded.shape, sharded.dtype) == (len(whole), whole.shape, whole.dtype)
    rng = np.random.default_rng(1)
    for shape in [(0,), (1,), (50,), (4, 5), ()]:
        indices = rng.integers(0, len(whole), size=shape)
        np.testing.assert_array_equal(sharded.take(indices), whole[indices])


@pytest.mark.parametrize("lengths", LENGTHS)
def test_every_slice_equals_that_of_the_concatenation(lengths: list[int]) -> None:
    arrays = shards(lengths, (2,))
    whole, sharded = np.concatenate(arrays), ShardedArray(arrays)
    for start in range(len(whole) + 1):
        for stop in range(start, len(whole) + 1):
            np.testing.assert_array_equal(sharded.slice(start, stop), whole[start:stop])


def test_a_slice_within_one_shard_is_not_copied_and_mapped_shards_give_plain_arrays(tmp_path: Path) -> None:
    arrays = shards([3, 4], (2,))
    assert np.shares_memory(ShardedArray(arrays).slice(3, 7), arrays[1])
    np.save(tmp_path / "a.npy", np.arange(5.0))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    taken = ShardedArray([mapped, mapped]).take(np.array([9, 0]))
    assert type(taken) is np.ndarray
    assert taken.tolist() == [4.0, 0.0]


@pytest.mark.parametrize("lengths", LENGTHS)
def test_rows_outside_are_refused_negative_ones_too(lengths: list[int]) -> None:
    sharded = ShardedArray(shards(lengths, ()))
    for row in (-1, len(sharded)):
        with pytest.raises(IndexError):
            sharded.take(np.array([0, row]))
    for start, stop in [(-1, 2), (0, len(sharded) + 1), (2, 1)]:
        with pytest.raises(IndexError):
            sharded.slice(start, stop)


def test_shards_of_different_form_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ShardedArray([])
    with pytest.raises(ValueError, match="shard 1"):
        ShardedArray([np.zeros((2, 3)), np.zeros((2, 4))])
    with pytest.raises(ValueError, match="shard 1"):
        ShardedArray([np.zeros(2, dtype=np.int32), np.zeros(2, dtype=np.int64)])


def test_lists_of_another_number_of_rows_are_refused(tmp_path: Path) -> None:
    build_search(tmp_path, sample_vectors(), settings_for("ivf_sq8"))
    fewer = sample_vectors(rows=ROWS - 1)
    settings = dict(read_manifest(tmp_path / "search", kind="search").settings)
    rewrite_manifest(tmp_path / "search", settings=settings | {"row_count": ROWS - 1})
    with pytest.raises(ArtifactError, match=f"lists of {ROWS} rows"):
        open_search(tmp_path / "search", fewer, quantizer=tmp_path / "quantizer")


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


def test_half_precision_numbers_have_the_bits_of_casting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "NUMBERS_PER_PIECE", 1000)
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    assert len(finite) == 2 * 31 * 1024
    np.testing.assert_array_equal(to_float32(finite).view(np.uint32), finite.astype(np.float32).view(np.uint32))


def test_shapes_are_kept_and_single_precision_is_not_copied() -> None:
    vectors = np.arange(24, dtype=np.float16).reshape(4, 6)
    np.testing.assert_array_equal(to_float32(vectors[::2, 1:]), vectors[::2, 1:].astype(np.float32))
    single = vectors.astype(np.float32)
    assert to_float32(single) is single
    assert to_float32(vectors[:0]).shape == (0, 6)
    with pytest.raises(ValueError, match="float64"):
        to_float32(np.zeros(3))
