"""The store on disk: what goes in comes out, also after the build was killed at any moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from npm.core.errors import ArtifactError, CorpusError
from npm.core.types import Document
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.store import BlockStore, build_block_store, read_counts
from tests.helpers.live_indexes import all_bytes
from tests.helpers.stores import spelled, stored

CORPUS_WORDS = "Reykjavík is the capital of Iceland . A dog has a long river 中国 😀"
SETTINGS = {"input": "sha-256 of the files"}


class Killed(BaseException):
    """Stands for the process being stopped."""


def corpus(count: int, seed: int = 0) -> list[Document]:
    rng = np.random.default_rng(seed)
    words = np.array(CORPUS_WORDS.split())
    return [
        Document(f"d{n}", f"Title {n}", " ".join(words[rng.integers(0, len(words), 5 + 7 * (n % 9))]), {"n": n})
        for n in range(count)
    ]


@pytest.fixture
def packer(wordpiece: PreTrainedTokenizerFast) -> BlockPacker:
    return BlockPacker(wordpiece, BlockSettings(max_block_tokens=16))


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npm.corpus.store.DOCUMENTS_PER_BATCH", 4)


def test_every_block_and_document_comes_back_through_all_shards(
    tmp_path: Path, packer: BlockPacker, small_batches: None
) -> None:
    documents = corpus(40)
    store = build_block_store(tmp_path / "store", documents, packer, settings=SETTINGS, tokens_per_shard=300)
    packed = packer.pack_many(documents)
    blocks = [(number, block) for number, own in enumerate(packed) for block in own]
    assert len(list((tmp_path / "store").glob("0*"))) > 3
    assert (store.document_count, store.block_count) == (40, len(blocks))
    assert store.token_count == len(store.token_ids) == sum(len(block.token_ids) for _, block in blocks)
    assert store.max_block_tokens == max(len(block.token_ids) for _, block in blocks)
    assert store.block_documents.tolist() == [number for number, _ in blocks]
    for number, (document, block) in enumerate(blocks):
        start, stop = store.block_offsets[number : number + 2].tolist()
        for name in ("token_ids", "flags"):
            assert np.array_equal(getattr(store, name).slice(start, stop), getattr(block, name))
        assert np.array_equal(store.block_places(number), (block.start_chars, block.end_chars))
        assert store.block_of(np.array([start, stop - 1])).tolist() == [number, number]
        text = documents[document].text[block.start_chars[0] : block.end_chars[-1]]
        assert store.block_text(number) == text
    assert [store.document(number) for number in (39, 0, *range(40))] == [documents[39], documents[0], *documents]


def test_sequences_of_any_blocks_in_any_order_are_gathered(
    tmp_path: Path, packer: BlockPacker, small_batches: None
) -> None:
    documents = corpus(20)
    store = build_block_store(tmp_path / "store", documents, packer, settings=SETTINGS, tokens_per_shard=200)
    blocks = [block for own in packer.pack_many(documents) for block in own]
    chosen = np.random.default_rng(1).integers(0, len(blocks), 50)
    for numbers in (chosen, range(3, 9), np.empty(0, dtype=np.int64)):
        sequences = store.sequences(numbers)
        assert len(sequences) == len(numbers)
        assert sequences.token_ids.dtype == np.int32 and sequences.flags.dtype == np.uint8
        for place, number in enumerate(numbers):
            part = slice(sequences.offsets[place], sequences.offsets[place + 1])
            assert np.array_equal(sequences.token_ids[part], blocks[number].token_ids)
            assert np.array_equal(sequences.flags[part], blocks[number].flags)


def killed_after(documents: list[Document], count: int) -> Iterator[Document]:
    yield from documents[:count]
    raise Killed


@pytest.mark.parametrize("tokens_per_shard", [40, 150, 100_000])
def test_a_build_killed_again_and_again_ends_in_the_same_bytes(
    tmp_path: Path, packer: BlockPacker, small_batches: None, tokens_per_shard: int
) -> None:
    documents = corpus(30)

    def build(name: str, source: list[Document] | Iterator[Document]) -> None:
        build_block_store(tmp_path / name, source, packer, settings=SETTINGS, tokens_per_shard=tokens_per_shard)

    build("undisturbed", documents)
    for count in (0, 1, 7, 8, 22, 30):
        with pytest.raises(Killed):
            build("killed", killed_after(documents, count))
        assert not BlockStore.is_finished(tmp_path / "killed")
    build("killed", documents)
    assert all_bytes(tmp_path / "killed") == all_bytes(tmp_path / "undisturbed")
    assert BlockStore.open(tmp_path / "killed").digest == BlockStore.open(tmp_path / "undisturbed").digest


def test_documents_of_finished_shards_are_not_tokenized_again(
    tmp_path: Path, packer: BlockPacker, small_batches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = corpus(30)
    with pytest.raises(Killed):
        build_block_store(
            tmp_path / "store", killed_after(documents, 25), packer, settings=SETTINGS, tokens_per_shard=150
        )
    kept = sum(read_counts(shard)["sources"] for shard in (tmp_path / "store").glob("0*"))
    seen: list[str] = []
    pack_many = packer.pack_many
    monkeypatch.setattr(packer, "pack_many", lambda batch: seen.extend(d.id for d in batch) or pack_many(batch))
    reported: list[float] = []
    store = build_block_store(
        tmp_path / "store",
        documents,
        packer,
        settings=SETTINGS,
        tokens_per_shard=150,
        progress=lambda stage, tokens, total: reported.append(tokens),
    )
    assert kept > 10
    assert dict.fromkeys(seen) == dict.fromkeys(document.id for document in documents[kept:])
    assert reported[-1] == store.token_count and reported == sorted(reported)
    seen.clear()
    build_block_store(tmp_path / "store", documents, packer, settings=SETTINGS, tokens_per_shard=150)
    assert seen == []


def test_other_settings_are_refused_whether_the_build_is_finished_or_not(
    tmp_path: Path, packer: BlockPacker, wordpiece: PreTrainedTokenizerFast
) -> None:
    documents = corpus(5)
    build_block_store(tmp_path / "store", documents, packer, settings=SETTINGS)
    other = BlockPacker(wordpiece, BlockSettings(max_block_tokens=17))
    for _ in range(2):
        with pytest.raises(ArtifactError, match="max_block_tokens=17"):
            build_block_store(tmp_path / "store", documents, other, settings=SETTINGS)
        (tmp_path / "store" / "manifest.json").unlink(missing_ok=True)


@pytest.mark.parametrize("texts", [[], ["\x00\u200b", "\x01"]])
def test_a_corpus_without_a_token_is_refused_and_leaves_nothing(
    tmp_path: Path, packer: BlockPacker, texts: list[str]
) -> None:
    documents = [Document(f"d{n}", "", text) for n, text in enumerate(texts)]
    with pytest.raises(CorpusError, match="no text"):
        build_block_store(tmp_path / "store", documents, packer, settings=SETTINGS)
    assert list(tmp_path.iterdir()) == []


def test_a_document_without_tokens_keeps_its_number(tmp_path: Path, packer: BlockPacker) -> None:
    documents = [Document("a", "", "\x00"), Document("b", "", "the dog"), Document("c", "", "\x00")]
    store = build_block_store(tmp_path / "store", documents, packer, settings=SETTINGS, tokens_per_shard=1)
    assert store.block_documents.tolist() == [1]
    assert [store.document(number).id for number in range(3)] == ["a", "b", "c"]


@pytest.mark.parametrize(("vocabulary_size", "dtype"), [(65_536, np.uint16), (65_537, np.int32)])
def test_token_ids_take_two_bytes_where_the_vocabulary_allows(
    tmp_path: Path, vocabulary_size: int, dtype: type
) -> None:
    packed = [spelled(np.array([0, 65_535], dtype=np.int32), np.zeros(2, dtype=np.uint8), ["a", "b"])]
    store = stored(tmp_path / "store", packed, vocabulary_size=vocabulary_size)
    assert store.token_ids.dtype == dtype
    assert store.sequences(range(1)).token_ids.tolist() == [0, 65_535]
