from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from index.arrays import ShardedArray
from npm.indexing.rows import RowMap, gather, pack_kept
from tests.helpers.random_indexes import packed_kept


def row_map(shards: Sequence[np.ndarray]) -> RowMap:
    """The rows of shards that are each given as bool [T]."""
    return RowMap([pack_kept(shard) for shard in shards], [len(shard) for shard in shards])


def test_rows_and_positions_are_each_others_inverse() -> None:
    rows = RowMap([packed_kept(np.array([1, 4, 5, 9]), 12)], [12])
    assert len(rows) == 4
    assert rows.positions(np.array([2, 0, 2])).tolist() == [5, 1, 5]
    found_rows, found = rows.rows_at(np.array([9, 0, 4, 11]))
    assert found.tolist() == [True, False, True, False]
    assert found_rows[found].tolist() == [3, 1]
    assert rows.rows_within(np.array([4, 0]), np.array([10, 3])).tolist() == [0, 1, 2, 3]
    assert rows.rows_before(np.array([0, 1, 2, 9, 10, 12])).tolist() == [0, 0, 1, 3, 4, 4]


def test_bits_are_packed_from_the_lowest_on() -> None:
    assert packed_kept(np.array([0, 3, 8]), 10).tolist() == [0b1001, 0b1]
    assert RowMap([np.array([0b1001, 0b1], dtype=np.uint8)], [10]).positions(np.arange(3)).tolist() == [0, 3, 8]


def random_shards(rng: np.random.Generator) -> list[np.ndarray]:
    """Some shards bool [T] of any length, most of them not whole bytes, kept in shares from none to all."""
    lengths = rng.choice([0, 1, 5, 7, 8, 9, 63, 64, 65, 300, 5000], size=rng.integers(1, 7))
    return [rng.random(length) < rng.choice([0.0, 0.02, 0.5, 0.97, 1.0]) for length in lengths]


@pytest.mark.parametrize("seed", range(40))
def test_any_shards_say_what_plain_lists_and_dicts_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shards = random_shards(rng)
    kept = np.concatenate(shards).tolist()
    positions = [at for at, is_kept in enumerate(kept) if is_kept]
    row_of = {at: row for row, at in enumerate(positions)}
    rows = row_map(shards)
    assert len(rows) == len(positions)

    asked = rng.permutation(len(positions))
    np.testing.assert_array_equal(rows.positions(asked), np.array(positions, dtype=np.int64)[asked])
    places = rng.integers(0, len(kept), 200 if kept else 0)
    found_rows, found = rows.rows_at(places)
    assert found.tolist() == [at in row_of for at in places.tolist()]
    assert found_rows[found].tolist() == [row_of[at] for at in places.tolist() if at in row_of]
    bounds = rng.integers(0, len(kept) + 1, 50)
    assert rows.rows_before(bounds).tolist() == [sum(kept[:stop]) for stop in bounds.tolist()]

    cuts = np.sort(rng.choice(len(kept) + 1, size=min(8, (len(kept) + 1) // 2 * 2), replace=False)).reshape(-1, 2)
    ranges = cuts[rng.permutation(len(cuts))]
    within = [row for start, stop in cuts.tolist() for row, at in enumerate(positions) if start <= at < stop]
    assert rows.rows_within(ranges[:, 0], ranges[:, 1]).tolist() == within


def test_rows_far_apart_and_close_together_are_found(rng: np.random.Generator) -> None:
    kept = np.zeros(2_000_000, dtype=bool)  # [T]
    kept[:3000] = True
    kept[rng.integers(900_000, 901_000, 700)] = True
    kept[-1] = True
    positions = np.flatnonzero(kept)
    rows = row_map([kept[:123_457], kept[123_457:]])
    np.testing.assert_array_equal(rows.positions(np.arange(len(rows))), positions)
    found_rows, found = rows.rows_at(positions)
    assert found.all()
    np.testing.assert_array_equal(found_rows, np.arange(len(rows)))


def test_nothing_is_found_where_no_token_has_a_vector() -> None:
    rows = row_map([np.zeros(100, dtype=bool), np.zeros(0, dtype=bool)])
    assert len(rows) == 0
    assert rows.positions(np.zeros(0, dtype=np.int64)).tolist() == []
    assert not rows.rows_at(np.arange(100))[1].any()
    assert rows.rows_within(np.array([0]), np.array([100])).tolist() == []


def test_the_map_takes_less_than_two_bits_a_token(rng: np.random.Generator) -> None:
    token_count = 1 << 20
    rows = row_map([rng.random(token_count) < 0.9])
    held_bytes = sum(value.nbytes for value in vars(rows).values() if isinstance(value, np.ndarray))
    assert held_bytes * 8 < 2 * token_count


def test_rows_and_positions_that_do_not_exist_are_refused() -> None:
    rows = row_map([np.ones(10, dtype=bool)])
    for wrong in (-1, 10):
        with pytest.raises(IndexError, match="rows"):
            rows.positions(np.array([0, wrong]))
        with pytest.raises(IndexError, match="positions"):
            rows.rows_at(np.array([0, wrong]))
    with pytest.raises(IndexError, match="positions"):
        rows.rows_before(np.array([11]))


@pytest.mark.parametrize("bits", [[255], [255, 3, 0], [255, 4]])
def test_bits_of_another_number_of_tokens_are_refused(bits: list[int]) -> None:
    with pytest.raises(ValueError, match="shard 0"):
        RowMap([np.array(bits, dtype=np.uint8)], [10])


def test_gathering_is_taking_from_one_shard_or_several(rng: np.random.Generator) -> None:
    values = rng.integers(0, 1000, 50)
    indices = rng.integers(0, 50, 20)
    for arrays in ([values], [values[:13], values[13:]]):
        assert gather(ShardedArray(arrays), indices).tolist() == values[indices].tolist()
        with pytest.raises(IndexError):
            gather(ShardedArray(arrays), np.array([50]))
