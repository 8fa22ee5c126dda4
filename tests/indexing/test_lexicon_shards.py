from __future__ import annotations

import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from npm.core.errors import ArtifactError
from npm.core.types import Document
from npm.corpus.store import BlockStore
from npm.corpus.text import Stemming, words_of
from npm.indexing.bm25 import BlockLexicon
from npm.indexing.lexicon import LexiconShard, count_words, finish_lexicon, write_lexicon_shard
from npm.indexing.settings import LexiconSettings
from tests.helpers.live_indexes import all_bytes
from tests.indexing.lexicons import ALPHABET, random_documents, store_of, write_lexicon


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
