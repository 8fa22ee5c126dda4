"""Several stores read as one store of all their documents; kept fields and document keys on disk."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm.core.errors import ArtifactError
from npm.core.types import Block, Document
from npm.corpus.conditions import matching_documents, parse_conditions
from npm.corpus.store import BlockStore, Packed
from tests.helpers.stores import random_packed, stored, stored_documents, token_places


def segments(tmp_path: Path, seed: int) -> tuple[list[list[Packed]], BlockStore]:
    rng = np.random.default_rng(seed)
    packed = [random_packed(rng, count, prefix=f"s{number}-") for number, count in enumerate((17, 9, 40))]
    folders = [stored(tmp_path / f"{number}", own, tokens_per_shard=100).folder for number, own in enumerate(packed)]
    return packed, BlockStore.open(*folders)


@pytest.mark.parametrize("seed", range(3))
def test_segments_read_as_one_equal_one_store_of_all_documents(tmp_path: Path, seed: int) -> None:
    packed, store = segments(tmp_path, seed)
    whole = stored(tmp_path / "whole", [item for own in packed for item in own], tokens_per_shard=10_000)
    assert (store.document_count, store.block_count, store.token_count) == (
        whole.document_count,
        whole.block_count,
        whole.token_count,
    )
    assert store.max_block_tokens == whole.max_block_tokens
    assert store.block_offsets.tolist() == whole.block_offsets.tolist()
    assert store.block_documents.tolist() == whole.block_documents.tolist()
    assert np.array_equal(token_places(store), token_places(whole))
    for name in ("token_ids", "flags"):
        everything = np.arange(whole.token_count)
        assert np.array_equal(getattr(store, name).take(everything), getattr(whole, name).take(everything)), name
    numbers = range(whole.document_count)
    assert [store.document(number) for number in numbers] == [whole.document(number) for number in numbers]
    assert store.document_ids(numbers) == [whole.document(number).id for number in numbers]


def test_each_segment_and_shard_begins_where_the_one_before_ends(tmp_path: Path) -> None:
    packed, store = segments(tmp_path, seed=5)
    documents = list(map(len, packed))
    blocks = [sum(len(blocks) for _, blocks in own) for own in packed]
    for starts, counts in ((store.segment_documents, documents), (store.segment_blocks, blocks)):
        assert starts.tolist() == [sum(counts[:number]) for number in range(4)]
    shards = [BlockStore.open(tmp_path / f"{number}") for number in range(3)]
    for name in ("shard_documents", "shard_blocks"):
        of_shards = np.concatenate([np.diff(getattr(own, name)) for own in shards])
        assert np.diff(getattr(store, name)).tolist() == of_shards.tolist()
        assert len(of_shards) > 4, "several shards a segment"


def test_the_digest_of_several_stores_tells_them_and_their_order_apart(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    first, second = (stored(tmp_path / name, random_packed(rng, 5, prefix=name)) for name in ("a", "b"))
    digests = [
        BlockStore.open(*folders).digest
        for folders in ((first.folder,), (second.folder,), (first.folder, second.folder), (second.folder, first.folder))
    ]
    assert digests[0] == first.digest
    assert len(set(digests)) == 4


def test_stores_that_do_not_go_together_are_refused_by_name(tmp_path: Path) -> None:
    packed = random_packed(np.random.default_rng(0), 5)
    first = stored(tmp_path / "first", packed).folder
    other = stored(tmp_path / "other", packed, tokenizer_fingerprint="g", vocabulary_size=70_000).folder
    with pytest.raises(ArtifactError, match="tokenizer_fingerprint=g, vocabulary_size=70000"):
        BlockStore.open(first, first, other)


def test_an_opened_store_reads_on_after_its_folder_was_removed(tmp_path: Path) -> None:
    packed, store = segments(tmp_path, seed=1)
    for number in range(3):
        shutil.rmtree(tmp_path / f"{number}")
    documents = [document for own in packed for document, _ in own]
    assert [store.document(number) for number in range(store.document_count)] == documents
    assert store.find_documents([documents[-1].id]).tolist() == [len(documents) - 1]
    assert len(store.sequences(range(store.block_count)).token_ids) == store.token_count
    assert matching_documents(store, parse_conditions(["parity=odd"])).tolist() == [
        document.fields.get("parity") == "odd" for document in documents
    ]


def open_descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_descriptor_is_left_when_a_store_is_let_go(tmp_path: Path) -> None:
    folder = stored(tmp_path / "store", random_packed(np.random.default_rng(0), 30)).folder
    before = open_descriptors()
    store = BlockStore.open(folder)
    assert open_descriptors() > before
    del store
    assert open_descriptors() == before


def test_documents_are_found_by_id_and_unknown_ids_are_told(tmp_path: Path) -> None:
    _, store = segments(tmp_path, seed=2)
    ids = [store.document(number).id for number in range(store.document_count)]
    order = np.random.default_rng(0).permutation(len(ids))
    asked = ["nobody", *(ids[number] for number in order), "", ids[0]]
    assert store.find_documents(asked).tolist() == [-1, *order.tolist(), -1, 0]
    assert store.find_documents(["half a pair \ud800"]).tolist() == [-1]
    assert store.find_documents([]).tolist() == []


def test_of_two_documents_with_one_id_the_last_among_those_allowed_is_found(tmp_path: Path) -> None:
    first = stored_documents(tmp_path / "first", [{}] * 4)
    second = stored_documents(tmp_path / "second", [{}] * 2)
    store = BlockStore.open(first.folder, second.folder)
    assert store.find_documents(["d0", "d1", "d3"]).tolist() == [4, 5, 3]
    among = np.array([True, False, True, False, False, True])
    assert store.find_documents(["d0", "d1", "d3", "d2"], among).tolist() == [0, 5, -1, 2]
    with pytest.raises(ValueError, match=r"bool \[6\]"):
        store.find_documents(["d0"], among[:5])


def test_two_ids_with_one_key_are_told_apart_by_the_ids_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("shards", "store"):
        monkeypatch.setattr(f"npm.corpus.{place}.document_key", lambda identifier: len(identifier))
    store = stored_documents(tmp_path / "store", [{}] * 8)
    assert store.find_documents(["d5", "d2", "x2", "d7"]).tolist() == [5, 2, -1, 7]
    assert store.repeated_documents() is None


@pytest.mark.parametrize(
    "identifier", ['"', "\\", 'a"b, "title": "', "é" * 300, "x" * 504, "x" * 505, "x" * 2000, "\n", "😀"]
)
def test_an_id_of_any_characters_and_length_is_read_without_its_text(tmp_path: Path, identifier: str) -> None:
    block = Block(*(np.zeros(1, dtype=dtype) for dtype in (np.int32, np.uint8, np.uint32, np.uint32)))
    documents = [Document(name, "", "t" * 3000) for name in ("a", identifier, "b")]
    store = stored(tmp_path / "store", [(document, [block]) for document in documents])
    assert store.document_ids([2, 1, 0, 1]) == ["b", identifier, "a", identifier]
    assert store.find_documents([identifier]).tolist() == [1]


def test_the_blocks_of_chosen_documents(tmp_path: Path) -> None:
    _, store = segments(tmp_path, seed=3)
    chosen = np.random.default_rng(0).random(store.document_count) < 0.5
    assert store.blocks_of_documents(chosen).tolist() == [bool(chosen[number]) for number in store.block_documents]
    with pytest.raises(ValueError, match="expected bool"):
        store.blocks_of_documents(chosen[1:])


def columns_on_disk(store: BlockStore, shard: int) -> tuple[dict[str, list[Any]], list[list[int]]]:
    folder = store.folder / f"{shard:05d}"
    return json.loads(np.load(folder / "field_values.npy").tobytes()), np.load(folder / "field_codes.npy").tolist()


def test_each_distinct_value_stands_once_in_the_order_of_its_first_document(tmp_path: Path) -> None:
    fields: list[dict[str, Any]] = [
        {},
        {"year": 3, "lang": "en"},
        {"lang": "de"},
        {"year": None, "lang": "en"},
        {"tags": ["b", "a"]},
        {},
    ]
    store = stored_documents(tmp_path / "store", fields, documents_per_shard=6)
    assert columns_on_disk(store, 0) == (
        {"lang": ["en", "de"], "tags": [["b", "a"]], "year": [3]},
        [[-1, 0, 1, 0, -1, -1], [-1, -1, -1, -1, 0, -1], [-1, 0, -1, -1, -1, -1]],
    )
    assert store.document(3).fields == {"year": None, "lang": "en"}


def test_values_that_are_equal_in_python_but_not_in_json_stay_apart(tmp_path: Path) -> None:
    values = [1, 1.0, True, "1", [1], {"b": 1, "a": 2}, {"a": 2, "b": 1}, 1]
    store = stored_documents(tmp_path / "store", [{"n": value} for value in values], documents_per_shard=9)
    stored_values, codes = columns_on_disk(store, 0)
    assert json.dumps(stored_values["n"]) == '[1, 1.0, true, "1", [1], {"a": 2, "b": 1}]'
    assert codes == [[0, 1, 2, 3, 4, 5, 5, 0]]
