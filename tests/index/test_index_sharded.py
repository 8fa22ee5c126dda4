"""A sharded array is its concatenation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from index.arrays import ShardedArray

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


def test_a_slice_within_one_shard_is_not_copied() -> None:
    arrays = shards([3, 4], (2,))
    assert np.shares_memory(ShardedArray(arrays).slice(3, 7), arrays[1])


def test_memory_mapped_shards_give_plain_arrays(tmp_path: Path) -> None:
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
