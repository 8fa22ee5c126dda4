"""Where tokens are in their documents: as a shard stores it, in which types, and read back after every change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npm.core.errors import ArtifactError
from npm.core.types import Block, Document
from npm.corpus.blocks import BlockPacker
from npm.corpus.shards import stored_places
from npm.corpus.store import BlockStore
from npm.indexing.compact import compact_index
from npm.indexing.generation import Generation
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import CompactSettings
from npm.models.encoder import Encoder
from npm.retrieval.filler import PhraseFiller
from tests.helpers.live_indexes import added, built, part_of, record
from tests.helpers.stores import spelled, stored, token_places

LONG = "x" * 300
PLAIN, LONG_TOKEN, WIDE_BLOCK = (
    record(0),
    record(1, text=f"A dog {LONG} has a long river."),
    record(2, text="A dog" + " \n" * 40_000 + "has a long river."),
)


def block_at(starts: list[int], ends: list[int]) -> Block:
    return Block(
        token_ids=np.arange(len(starts), dtype=np.int32),
        flags=np.zeros(len(starts), dtype=np.uint8),
        start_chars=np.array(starts, dtype=np.uint32),
        end_chars=np.array(ends, dtype=np.uint32),
    )


def test_a_shard_has_the_first_character_of_each_block_and_offsets_and_lengths_of_its_tokens(tmp_path: Path) -> None:
    title = block_at([1000, 1000, 1000, 1004], [1000, 1000, 1003, 1300])  # two tokens that are not in the text
    last = block_at([4_000_000_000, 4_000_000_001], [4_000_000_001, 4_000_000_007])
    store = stored(tmp_path / "store", [(Document("d", "", "t"), [title, last])])
    shard = tmp_path / "store" / "00000"
    arrays = {name: np.load(shard / f"{name}.npy") for name in ("first_chars", "char_offsets", "char_lengths")}
    assert {name: (each.tolist(), each.dtype) for name, each in arrays.items()} == {
        "first_chars": ([1000, 4_000_000_000], np.uint32),
        "char_offsets": ([0, 0, 0, 4, 0, 1], np.uint16),
        "char_lengths": ([0, 0, 3, 296, 1, 6], np.uint16),
    }
    for number, block in enumerate((title, last)):
        assert np.array_equal(store.block_places(number), (block.start_chars, block.end_chars))
        assert store.block_chars(number) == (block.start_chars[0], block.end_chars[-1])


@pytest.mark.parametrize(
    ("end", "offsets", "lengths"),
    [
        (255, np.uint8, np.uint8),
        (256, np.uint16, np.uint16),
        (65_535, np.uint16, np.uint16),
        (65_536, np.uint32, np.uint32),
    ],
)
def test_types_are_the_smallest_that_hold_every_token_and_its_end(end: int, offsets: type, lengths: type) -> None:
    places = stored_places([block_at([7, 9], [8, 10]), block_at([3], [3 + end])])
    assert (places["char_offsets"].dtype, places["char_lengths"].dtype) == (offsets, lengths)
    far = stored_places([block_at([3, 3 + end - 1], [4, 3 + end])])
    assert (far["char_offsets"].dtype, far["char_lengths"].dtype) == (offsets, np.uint8)
    assert far["char_offsets"].tolist() == [0, end - 1]


def test_a_token_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ValueError, match="ends before it starts"):
        stored_places([block_at([5, 7], [6, 6])])


def test_a_shard_takes_wide_types_without_changing_those_of_the_others(tmp_path: Path) -> None:
    documents = [spelled(np.ones(3, np.int32), np.ones(3, np.uint8), ["a", middle, "b"]) for middle in ("x", LONG, "y")]
    store = stored(tmp_path / "store", documents, tokens_per_shard=3)
    assert [each.dtype for each in store.char_lengths.arrays] == [np.uint8, np.uint16, np.uint8]
    assert token_places(store)[0].tolist() == [0, 2, 4, 0, 2, 303, 0, 2, 4]
    assert store.char_lengths.take(np.array([7, 4, 1, 4])).tolist() == [1, 300, 1, 300]
    assert store.char_lengths.slice(3, 9).tolist() == [1, 300, 1, 1, 1, 1]


def packed_places(encoder: Encoder, index: Path) -> list[np.ndarray]:
    """First and past-the-last characters of all tokens of an index's documents, cut into blocks again."""
    packer = BlockPacker(encoder.tokenizer, Generation.read(index).manifest.blocks)
    store = PhraseIndex.open(index).store
    blocks = [block for number in range(store.document_count) for block in packer.pack(store.document(number))]
    return [np.concatenate([getattr(block, name) for block in blocks]) for name in ("start_chars", "end_chars")]


def test_long_tokens_and_wide_blocks_are_read_back_after_a_build_an_add_and_a_compact(
    encoder: Encoder, tmp_path: Path
) -> None:
    index = built(tmp_path / "index", [PLAIN, LONG_TOKEN], encoder)
    added(index, [WIDE_BLOCK], encoder)
    added(index, [record(3)], encoder, name="last")
    folders = [part_of(index, "corpus", segment) for segment in range(3)]
    types = [BlockStore.open(each).char_offsets.dtype.itemsize for each in folders]
    assert types == [2, 4, 1]
    expected = packed_places(encoder, index)
    assert (expected[1] - expected[0]).max() == len(LONG)
    np.testing.assert_array_equal(token_places(PhraseIndex.open(index).store), expected)
    compact_index(index, CompactSettings())
    np.testing.assert_array_equal(token_places(PhraseIndex.open(index).store), expected)
    answer = PhraseFiller.open(index, encoder).fill("A dog has a <mask>", k=100, occurrences=100)
    places = [place for phrase in answer.phrases for place in phrase.occurrences if place.document == "d2"]
    assert any(place.start_char > 80_000 for place in places)
    for place in places:
        assert place.parts[1].split() == WIDE_BLOCK["text"][place.start_char : place.end_char].split()


def test_an_index_of_the_format_before_is_refused_in_a_sentence(encoder: Encoder, tmp_path: Path) -> None:
    index = built(tmp_path / "index", [PLAIN], encoder)
    for folder in (part_of(index, "corpus"), index):
        manifest = folder / "manifest.json"
        manifest.write_bytes(manifest.read_bytes().replace(b'"format_version": 4', b'"format_version": 3'))
        with pytest.raises(ArtifactError, match=r"another version of this program: expected format 4, got 3; remove"):
            PhraseIndex.open(index)
