from __future__ import annotations

import json
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from npm.core.artifact import open_array
from npm.core.errors import ArtifactError
from npm.core.types import Document
from npm.corpus.store import BlockStore
from npm.corpus.text import Stemming, words_of
from npm.indexing.bm25 import BlockLexicon
from npm.indexing.lexicon import LEXICON_KIND, LexiconShard, count_words, finish_lexicon, write_lexicon_shard
from npm.indexing.settings import LexiconSettings
from tests.helpers.live_indexes import all_bytes
from tests.helpers.sample_folders import flip_byte
from tests.indexing.lexicons import ALPHABET, block_words, random_documents, store_of, write_lexicon


@pytest.fixture
def store(rng: np.random.Generator, tmp_path: Path) -> BlockStore:
    store = store_of(tmp_path / "store", random_documents(rng, 20), tokens_per_shard=200)
    assert len(store.shard_blocks) > 3
    return store


@pytest.mark.parametrize("title_repeats", [0, 1, 3])
@pytest.mark.parametrize("stemming", Stemming)
@pytest.mark.parametrize("keep_stopwords", [False, True])
def test_counts_equal_those_of_a_plain_count(
    title_repeats: int, stemming: Stemming, keep_stopwords: bool, rng: np.random.Generator
) -> None:
    settings = LexiconSettings(title_repeats=title_repeats, stemming=stemming, keep_stopwords=keep_stopwords)
    texts = [" ".join(rng.choice(ALPHABET, size=rng.integers(0, 9)).tolist()) for _ in range(80)]
    blocks = list(zip(texts[:40], texts[40:], strict=True))
    plain = [
        Counter(words_of(f"{title} " * title_repeats + text, stemming, keep_stopwords=keep_stopwords))
        for title, text in blocks
    ]
    counts = count_words(blocks, settings)
    assert counts.words == sorted({word for of_block in plain for word in of_block})
    assert counts.block_lengths.tolist() == [of_block.total() for of_block in plain]
    for word, start, stop in zip(counts.words, counts.posting_offsets[:-1], counts.posting_offsets[1:], strict=True):
        expected = [(block, of_block[word]) for block, of_block in enumerate(plain) if word in of_block]
        found = zip(counts.posting_blocks[start:stop].tolist(), counts.posting_counts[start:stop].tolist(), strict=True)
        assert list(found) == expected, word


@pytest.mark.parametrize(("times", "dtype"), [(255, np.uint8), (256, np.uint16), (65_536, np.uint32)])
def test_counts_take_the_bytes_that_the_largest_needs(times: int, dtype: type) -> None:
    counts = count_words([("", "oslo " * times), ("", "oslo rhine")], LexiconSettings())
    assert counts.posting_counts.dtype == dtype
    assert counts.posting_counts.tolist() == [times, 1, 1]


def test_words_stand_in_the_order_of_their_bytes_and_each_is_found(rng: np.random.Generator, tmp_path: Path) -> None:
    words = sorted({"".join(rng.choice(list("abß\u0142日𝒳z_0"), size=rng.integers(1, 4))) for _ in range(300)})
    folded = sorted({word.casefold() for word in words}, key=str.encode)
    store = store_of(tmp_path / "store", [Document(id="1", title=" ".join(words), text="oslo")])
    settings = LexiconSettings(stemming=Stemming.none, keep_stopwords=True)
    write_lexicon_shard(tmp_path / "shard", store, 0, settings)
    stored = np.load(tmp_path / "shard/words.npy", allow_pickle=False).tobytes()
    offsets = np.load(tmp_path / "shard/word_offsets.npy", allow_pickle=False).tolist()
    in_file = [stored[start:stop] for start, stop in pairwise(offsets)]
    assert in_file == [word.encode() for word in sorted([*folded, "oslo"], key=str.encode)]
    shard = LexiconShard(tmp_path / "shard")
    for word in in_file:
        assert shard.postings(word)[0].tolist() == [0]
    for absent in (b"", b"\x00", b"a" * 9, b"\xff", "日日日日".encode()):
        assert not len(shard.postings(absent)[0])


def test_a_corpus_of_function_words_alone_has_a_lexicon_that_finds_nothing(tmp_path: Path) -> None:
    store = store_of(tmp_path / "store", [Document(id="1", title="The", text="of the the of")])
    lexicon = BlockLexicon.open([write_lexicon(tmp_path / "lexicon", store)])
    assert lexicon.block_count == 1
    assert not any(len(lexicon.best_blocks(text, 2)[0]) for text in ("the <mask>", "oslo <mask>"))


def test_shards_written_in_any_order_have_the_same_bytes(store: BlockStore, tmp_path: Path) -> None:
    write_lexicon(tmp_path / "forwards", store)
    for number in reversed(range(len(store.shard_blocks) - 1)):
        write_lexicon_shard(tmp_path / f"backwards/{number:05d}", store, number, LexiconSettings())
    finish_lexicon(tmp_path / "backwards", store, LexiconSettings())
    assert all_bytes(tmp_path / "backwards") == all_bytes(tmp_path / "forwards")
    assert not [path for path in tmp_path.rglob(".*")]


def test_each_shard_holds_the_blocks_of_its_corpus_shard(store: BlockStore, tmp_path: Path) -> None:
    folder = write_lexicon(tmp_path / "lexicon", store)
    lengths = [len(words) for words in block_words(store, LexiconSettings())]
    for number, (first, stop) in enumerate(zip(store.shard_blocks[:-1], store.shard_blocks[1:], strict=True)):
        shard = LexiconShard(folder / f"{number:05d}")
        assert shard.block_count == stop - first
        assert open_array(shard.folder, "block_lengths").tolist() == lengths[first:stop]


def test_a_finished_shard_is_kept_and_a_lost_one_written_again_with_the_same_bytes(
    store: BlockStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_lexicon(tmp_path / "lexicon", store)
    before = all_bytes(folder)
    shutil.rmtree(folder / "00001")
    (folder / "manifest.json").unlink()
    (folder / ".00001.tmp").mkdir()  # as a killed job leaves it
    counted: list[int] = []

    def count(blocks: list[tuple[str, str]], settings: LexiconSettings) -> object:
        texts = list(blocks)
        counted.append(len(texts))
        return count_words(texts, settings)

    monkeypatch.setattr("npm.indexing.lexicon.count_words", count)
    write_lexicon(folder, store)
    assert counted == [int(store.shard_blocks[2] - store.shard_blocks[1])]
    assert all_bytes(folder) == before


def test_missing_shards_are_named(store: BlockStore, tmp_path: Path) -> None:
    folder = write_lexicon(tmp_path / "lexicon", store)
    (folder / "manifest.json").unlink()
    for number in (0, 2):
        shutil.rmtree(folder / f"{number:05d}")
    with pytest.raises(ArtifactError, match="00000, 00002"):
        finish_lexicon(folder, store, LexiconSettings())
    assert not (folder / "manifest.json").exists()


@pytest.mark.parametrize(
    "name",
    ["words", "word_offsets", "posting_offsets", "posting_blocks", "posting_counts", "block_lengths"],
)
def test_a_damaged_file_is_refused_wherever_it_lies(name: str, store: BlockStore, tmp_path: Path) -> None:
    folder = write_lexicon(tmp_path / "lexicon", store)
    file = folder / "00001" / f"{name}.npy"
    whole = file.read_bytes()
    for spoil in (
        lambda: flip_byte(file, len(whole) - 1),
        lambda: file.write_bytes(whole[:-1]),
        lambda: file.unlink(),
    ):
        spoil()
        with pytest.raises(ArtifactError) as caught:
            BlockLexicon.open([folder])
        assert str(file) in str(caught.value)
        with pytest.raises(ArtifactError):
            write_lexicon_shard(folder / "00001", store, 1, LexiconSettings())
        file.write_bytes(whole)
    assert BlockLexicon.open([folder]).block_count == store.block_count


def test_a_shard_of_another_build_is_refused(store: BlockStore, tmp_path: Path) -> None:
    folder, other = write_lexicon(tmp_path / "lexicon", store), write_lexicon(tmp_path / "other", store, k1=0.5)
    shutil.rmtree(folder / "00001")
    shutil.copytree(other / "00001", folder / "00001")
    with pytest.raises(ArtifactError, match="damaged") as caught:
        BlockLexicon.open([folder])
    assert "another build" in str(caught.value)


def test_a_lexicon_holds_no_pickled_objects(store: BlockStore, tmp_path: Path) -> None:
    folder = write_lexicon(tmp_path / "lexicon", store)
    arrays = list(folder.glob("*/*.npy"))
    assert len(arrays) == 6 * (len(store.shard_blocks) - 1)
    for file in arrays:
        np.load(file, allow_pickle=False)
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} == {".npy", ".json"}
    assert json.loads((folder / "manifest.json").read_bytes())["kind"] == LEXICON_KIND
