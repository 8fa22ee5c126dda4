"""What is taken out of a store and stored anew is what a store of those documents alone would hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npm.core.types import Block, Document
from npm.corpus.store import BlockStore, Packed
from npm.indexing.compact import packed_documents
from tests.helpers.live_indexes import all_bytes
from tests.helpers.stores import random_packed, stored


@pytest.mark.parametrize(("seed", "share"), [(0, 0.2), (1, 0.4), (2, 0.7), (3, 1.0), (4, 1.0)])
def test_chosen_documents_of_several_segments_give_the_bytes_of_a_store_of_them_alone(
    tmp_path: Path, seed: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    packed = [random_packed(rng, count, prefix=f"s{number}-") for number, count in enumerate((30, 4, 25))]
    store = BlockStore.open(
        *(stored(tmp_path / f"{n}", own, tokens_per_shard=200).folder for n, own in enumerate(packed))
    )
    chosen = rng.random(store.document_count) < share
    numbers = iter(range(store.document_count))
    expected = [item for own in packed for item in own if chosen[next(numbers)]]
    alone = stored(tmp_path / "alone", expected, tokens_per_shard=250)
    again = stored(tmp_path / "again", list(packed_documents(store, chosen)), tokens_per_shard=250)
    assert again.block_count > 5
    assert all_bytes(again.folder) == all_bytes(alone.folder)


def test_a_mask_of_another_length_is_refused(tmp_path: Path) -> None:
    store = stored(tmp_path / "store", random_packed(np.random.default_rng(0), 5))
    with pytest.raises(ValueError, match="expected bool"):
        list(packed_documents(store, np.ones(store.document_count + 1, dtype=bool)))


def test_documents_without_blocks_keep_their_order_between_the_others(tmp_path: Path) -> None:
    block = Block(np.ones(1, np.int32), np.ones(1, np.uint8), np.zeros(1, np.uint32), np.ones(1, np.uint32))
    documents = [Document(name, "", "t") for name in "abcdef"]
    packed: list[Packed] = [(document, [block] * (document.id in "be")) for document in documents]
    store = stored(tmp_path / "store", packed)
    taken = list(packed_documents(store, np.array([True, True, False, True, True, True])))
    assert [document.id for document, _ in taken] == ["a", "b", "d", "e", "f"]
    assert [len(blocks) for _, blocks in taken] == [0, 1, 0, 1, 0]
