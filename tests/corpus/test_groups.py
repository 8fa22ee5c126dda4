"""Groups of blocks for training: by hand, and against a plain queue."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npm.core.types import Block, Document
from npm.corpus.groups import BlockGroups, GroupMixing
from npm.corpus.store import BlockStore, write_block_store


def store_of(folder: Path, block_counts: list[int]) -> BlockStore:
    """A store with that many blocks a document; block b holds b + 1 tokens, all of them b."""
    numbers = iter(range(sum(block_counts)))

    def blocks(count: int) -> list[Block]:
        own = [next(numbers) for _ in range(count)]
        return [Block(np.full(b + 1, b, dtype=np.int32), np.zeros(b + 1, dtype=np.uint8)) for b in own]

    packed = [(Document(f"d{n}", "", "t"), blocks(count)) for n, count in enumerate(block_counts)]
    return write_block_store(folder / "store", packed, settings={}, tokenizer_fingerprint="f", tokens_per_shard=50)


def listed(groups: BlockGroups) -> list[list[int]]:
    return [groups.blocks(number).tolist() for number in range(len(groups))]


def test_full_groups_come_first_out_of_a_document_and_remainders_are_joined(tmp_path: Path) -> None:
    store = store_of(tmp_path, [2, 7, 1, 4])  # blocks 0-1, 2-8, 9, 10-13
    groups = BlockGroups(store, sequences_per_group=3)
    assert listed(groups) == [[2, 3, 4], [5, 6, 7], [0, 1, 8], [10, 11, 12], [9, 13]]
    assert groups.mixed_share == 2 / 5


def test_a_single_block_left_over_makes_no_group(tmp_path: Path) -> None:
    assert listed(BlockGroups(store_of(tmp_path, [4]), sequences_per_group=3)) == [[0, 1, 2]]


def test_a_store_of_one_block_has_no_group(tmp_path: Path) -> None:
    groups = BlockGroups(store_of(tmp_path, [1]))
    assert (len(groups), groups.mixed_share) == (0, 0.0)


def test_a_group_is_the_sequences_of_its_blocks(tmp_path: Path) -> None:
    groups = BlockGroups(store_of(tmp_path, [2, 7, 1, 4]), sequences_per_group=3)
    sequences = groups[2]
    assert sequences.offsets.tolist() == [0, 1, 3, 12]
    assert sequences.token_ids.tolist() == [0] + [1] * 2 + [8] * 9


def plain_groups(block_counts: list[int], size: int) -> list[list[int]]:
    """The groups as told: document by document, with a queue."""
    groups, queue, first = [], list[int](), 0
    for count in block_counts:
        blocks = list(range(first, first + count))
        first += count
        while len(blocks) >= size:
            groups.append(blocks[:size])
            blocks = blocks[size:]
        queue += blocks
        if len(queue) >= size:
            groups.append(queue[:size])
            queue = queue[size:]
    return [*groups, queue] if len(queue) >= 2 else groups


@pytest.mark.parametrize("seed", range(5))
def test_groups_equal_those_of_a_plain_queue(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    block_counts = rng.integers(0, 12, 25).tolist()
    size = int(rng.integers(2, 7))
    assert listed(BlockGroups(store_of(tmp_path, block_counts), sequences_per_group=size)) == plain_groups(
        block_counts, size
    )


def test_random_groups_hold_every_block_once_and_follow_the_seed(tmp_path: Path) -> None:
    store = store_of(tmp_path, [9, 9, 9])
    first, again, other = (
        BlockGroups(store, sequences_per_group=4, mixing=GroupMixing.random, seed=seed) for seed in (1, 1, 2)
    )
    assert listed(first) == listed(again) != listed(other)
    assert sorted(block for group in listed(first) for block in group) == list(range(27))
    assert [len(group) for group in listed(first)] == [4] * 6 + [3]
    assert first.mixed_share == np.mean([len({block // 9 for block in group}) > 1 for group in listed(first)])
