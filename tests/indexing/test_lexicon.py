from __future__ import annotations

import math
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pytest

from npm.core.errors import ArtifactError
from npm.core.types import Document
from npm.corpus.folding import folded
from npm.corpus.store import BlockStore
from npm.corpus.text import Stemming, lexical_query, words_of
from npm.indexing.bm25 import BlockLexicon, LexiconShard, count_words, write_lexicon_shard
from npm.indexing.settings import LexiconSettings
from tests.helpers.live_indexes import all_bytes
from tests.helpers.tiny_models import SENTENCES
from tests.indexing.lexicons import (
    ALPHABET,
    block_words,
    finish_lexicon,
    opened_lexicon,
    plain_bm25,
    random_documents,
    store_of,
    write_lexicon,
)

QUERIES = (
    "Which river flows through the city of Oslo? <mask>",
    "rivers <mask> rivers Łódź, the",
    "hydrogen element 1605 <mask>",
    "<mask> xyzzy",
)


SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"k1": 1.5, "b": 0.75, "stemming": Stemming.none, "keep_stopwords": True, "title_repeats": 1},
    {"k1": 0.0, "b": 1.0, "title_repeats": 0},
)


@pytest.fixture
def store(tmp_path: Path) -> BlockStore:
    documents = [Document(id=str(n), title=f"Title{n}", text=text) for n, text in enumerate(SENTENCES)]
    return store_of(tmp_path / "store", documents)


def query_words(text: str, settings: LexiconSettings) -> list[str]:
    return words_of(lexical_query(text), settings.stemming, keep_stopwords=settings.keep_stopwords)


def test_scores_are_those_worked_out_by_hand(tmp_path: Path) -> None:
    texts = ("Oslo Oslo Rhine", "Rhine", "Paulo Paulo Paulo Paulo Paulo")
    documents = [Document(id=str(n), title="", text=text) for n, text in enumerate(texts)]
    lexicon = opened_lexicon(tmp_path / "lexicon", store_of(tmp_path / "store", documents), k1=1.0, b=0.5)
    # 3 blocks of 3, 1 and 5 words: mean 3; with k1 = 1 and b = 0.5 a block of L words saturates at 0.5 + L / 6
    oslo, rhine = math.log(1 + 2.5 / 1.5), math.log(1 + 1.5 / 2.5)
    np.testing.assert_allclose(lexicon.scores("Oslo <mask>"), [oslo * 2 / (2 + 1), 0, 0], rtol=1e-6)
    np.testing.assert_allclose(
        lexicon.scores("Oslo on the Rhine <mask>"), [oslo * 2 / 3 + rhine / 2, rhine / (1 + 2 / 3), 0], rtol=1e-6
    )
    # without the first block Oslo is gone, Rhine is in one of two blocks, and the mean length is 3 still
    rest = lexicon.with_live(np.array([False, True, True]))
    np.testing.assert_allclose(
        rest.scores("Oslo on the Rhine <mask>"), [0, math.log(1 + 1.5 / 1.5) / (1 + 2 / 3), 0], rtol=1e-6
    )


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("tokens_per_shard", [1 << 20, 100])
def test_scores_equal_those_of_the_formula_and_of_bm25s_on_one_shard_and_on_several(
    settings: dict[str, Any], tokens_per_shard: int, rng: np.random.Generator, tmp_path: Path
) -> None:
    store = store_of(tmp_path / "store", random_documents(rng, 20), tokens_per_shard=tokens_per_shard)
    assert (len(store.shard_blocks) > 4) == (tokens_per_shard == 100)
    lexicon, chosen = opened_lexicon(tmp_path / "lexicon", store, **settings), LexiconSettings(**settings)
    blocks = block_words(store, chosen)
    reference = bm25s.BM25(k1=chosen.k1, b=chosen.b, method="lucene", dtype="float64", backend="numpy")
    reference.index(blocks, show_progress=False)
    for text in QUERIES:
        words = query_words(text, chosen)
        np.testing.assert_allclose(lexicon.scores(text), plain_bm25(blocks, words, chosen), rtol=1e-6)
        if not settings and text != QUERIES[3]:
            np.testing.assert_allclose(lexicon.scores(text), reference.get_scores(words), rtol=1e-6)


def test_shards_and_segments_change_neither_a_score_nor_the_ranking(rng: np.random.Generator, tmp_path: Path) -> None:
    documents = random_documents(rng, 24)
    whole = opened_lexicon(tmp_path / "whole", store_of(tmp_path / "whole_store", documents))
    sharded_store = store_of(tmp_path / "sharded_store", documents, tokens_per_shard=100)
    assert len(sharded_store.shard_blocks) > 5
    segments = [
        write_lexicon(tmp_path / f"{number}", store_of(tmp_path / f"{number}_store", part, tokens_per_shard=150))
        for number, part in enumerate((documents[:15], documents[15:16], documents[16:]))
    ]
    for other in (opened_lexicon(tmp_path / "sharded", sharded_store), BlockLexicon.open(segments)):
        for text in QUERIES:
            np.testing.assert_array_equal(other.scores(text), whole.scores(text))
            for ours, theirs in zip(other.best_blocks(text, 7), whole.best_blocks(text, 7), strict=True):
                np.testing.assert_array_equal(ours, theirs)


def test_after_documents_were_deleted_it_scores_as_if_they_had_never_been_there(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    documents = random_documents(rng, 24)
    store = store_of(tmp_path / "store", documents, tokens_per_shard=100)
    all_blocks = opened_lexicon(tmp_path / "lexicon", store)
    for round_number in range(3):
        kept = rng.random(len(documents)) < 0.6  # bool [documents]
        live = kept[store.block_documents]  # bool [blocks]
        remaining = store_of(
            tmp_path / f"remaining{round_number}", [documents[number] for number in np.flatnonzero(kept)]
        )
        fresh = opened_lexicon(tmp_path / f"fresh{round_number}", remaining)
        lexicon = all_blocks.with_live(live)
        numbers = np.flatnonzero(live)  # i64 [live blocks]
        for text in QUERIES:
            hits, expected = lexicon.best_blocks(text, 9), fresh.best_blocks(text, 9)
            np.testing.assert_array_equal(hits[1], expected[1])
            np.testing.assert_array_equal(hits[0], numbers[expected[0]])
            np.testing.assert_array_equal(lexicon.scores(text)[live], fresh.scores(text))
            assert not lexicon.scores(text)[~live].any()
            for word in text.split():
                assert lexicon.word_weight(word) == fresh.word_weight(word)
    # a generation is a view: the lexicon it came from is as it was, and so is what becomes of it
    for text in QUERIES:
        np.testing.assert_array_equal(lexicon.with_live(None).scores(text), all_blocks.scores(text))


def test_allowed_blocks_narrow_the_result_and_not_the_scores(rng: np.random.Generator, tmp_path: Path) -> None:
    store = store_of(tmp_path / "store", random_documents(rng, 24), tokens_per_shard=100)
    live = rng.random(store.block_count) < 0.8  # bool [blocks]
    lexicon = opened_lexicon(tmp_path / "lexicon", store).with_live(live)
    allowed = rng.random(store.block_count) < 0.3  # bool [blocks], some of them not live
    nowhere, found = np.zeros(store.block_count, dtype=bool), 0
    for text in QUERIES:
        hits, scores = lexicon.best_blocks(text, 5, allowed=allowed), lexicon.scores(text)
        possible = [block for block in np.flatnonzero(allowed & live) if scores[block] > 0]
        best = sorted(possible, key=lambda block: (-scores[block], block))[:5]
        assert hits[0].tolist() == best
        assert hits[1].tolist() == scores[best].tolist()
        assert not len(lexicon.best_blocks(text, 5, allowed=nowhere)[0])
        found += len(best)
    assert found


@pytest.mark.parametrize("count", [1, 4, 6, 11, 12, 50])
def test_ties_go_to_the_earlier_block_in_whatever_shard(count: int, tmp_path: Path) -> None:
    texts = ["Oslo", "Oslo Oslo"] * 6
    documents = [Document(id=str(n), title="", text=text) for n, text in enumerate(texts)]
    store = store_of(tmp_path / "store", documents, tokens_per_shard=5)
    assert len(store.shard_blocks) > 3
    hits, _ = opened_lexicon(tmp_path / "lexicon", store, b=0.0).best_blocks("Oslo <mask>", count)
    assert hits.tolist() == [1, 3, 5, 7, 9, 11, 0, 2, 4, 6, 8, 10][:count]


def test_more_blocks_than_there_are_give_those_that_share_a_word(store: BlockStore, tmp_path: Path) -> None:
    lexicon = opened_lexicon(tmp_path / "lexicon", store)
    sharing = sum("cervantes" in store.block_text(block).casefold() for block in range(store.block_count))
    found = [len(lexicon.best_blocks(text, 1000)[0]) for text in ("Cervantes <mask>", "xyzzy <mask>")]
    assert found == [sharing, 0]
    assert sharing > 0
    dead = lexicon.with_live(np.zeros(store.block_count, dtype=bool))
    assert not len(dead.best_blocks("Cervantes <mask>", 3)[0])
    with pytest.raises(ValueError, match="live blocks"):
        lexicon.with_live(np.ones(store.block_count + 1, dtype=bool))


def test_a_word_repeated_in_the_question_counts_as_often(store: BlockStore, tmp_path: Path) -> None:
    lexicon = opened_lexicon(tmp_path / "lexicon", store)
    once, thrice = lexicon.scores("Poland <mask>"), lexicon.scores("Poland <mask> poland POLAND")
    assert once.any()
    np.testing.assert_allclose(thrice, 3 * once, rtol=1e-6)


def test_a_question_before_the_mask_is_what_is_looked_up_and_masks_are_no_words() -> None:
    assert lexical_query("Who wrote Don Quixote? The answer is: <mask>.") == "Who wrote Don Quixote?"
    assert lexical_query("Who painted what? <mask> painted <mask>.") == "Who painted what?"
    words = words_of(lexical_query("Don Quixote was written by <mask> in Madrid."))
    assert words == ["don", "quixote", "was", "written", "by", "in", "madrid"]
    assert words_of(lexical_query("<mask> painted the <mask> in <mask>.")) == ["painted", "the", "in"]


def test_blocks_with_all_words_of_a_phrase_are_found_by_their_titles_too_and_while_they_live(tmp_path: Path) -> None:
    texts = ("Bank of America", "America has a bank.", "banks of the Seine", "In America.", "Nothing.")
    titles = ("", "", "", "", "The Bank, America")
    documents = [Document(id=text, title=title, text=text) for title, text in zip(titles, texts, strict=True)]
    store = store_of(tmp_path / "store", documents)
    lexicon = opened_lexicon(tmp_path / "lexicon", store)

    def found(phrase: str, lexicon: BlockLexicon = lexicon) -> list[int]:
        blocks = lexicon.blocks_with(phrase)
        assert blocks is not None
        return blocks.tolist()

    assert found("Bank of America") == [0, 1, 4]  # whatever the order
    assert found("the BANK") == [0, 1, 2, 4]  # by their stems
    assert found("Bank of Spain") == []
    assert lexicon.blocks_with("of the") is None and lexicon.blocks_with("…") is None
    assert found("Bank of America", lexicon.with_live(np.array([False, True, True, True, True]))) == [1, 4]
    assert found("America", opened_lexicon(tmp_path / "untitled", store, title_repeats=0)) == [0, 1, 3]


def test_the_share_of_a_question_that_blocks_cover_worked_by_hand(tmp_path: Path) -> None:
    """Of four blocks one has "Oslo", two have "Rhine"; "Seine", in none, weighs as what stands in one."""
    documents = [Document(id=text, title="", text=text) for text in ("Oslo, Rhine", "Rhine", "Paulo", "Bergen")]
    lexicon = opened_lexicon(tmp_path / "lexicon", store_of(tmp_path / "store", documents))
    one, two = math.log(1 + 3.5 / 1.5), math.log(1 + 2.5 / 2.5)
    shares = [lexicon.covered_share("Oslo and Seine on the Rhine", np.array(blocks)) for blocks in ([0], [1, 2], [3])]
    assert shares == pytest.approx([(one + two) / (2 * one + two), two / (2 * one + two), 0])
    assert lexicon.covered_share("of the <mask>", np.array([0])) == 1


def test_a_title_counts_as_often_as_it_is_repeated(store: BlockStore, tmp_path: Path) -> None:
    scores = [
        opened_lexicon(tmp_path / f"{repeats}", store, title_repeats=repeats, b=0.0).scores("title3 <mask>")
        for repeats in range(3)
    ]
    of_third = store.block_documents == 3  # bool [blocks]
    assert not scores[0].any()
    for repeated in scores[1:]:
        np.testing.assert_array_equal(repeated > 0, of_third)
    # without length normalisation a word that stands n times weighs n / (n + k1)
    np.testing.assert_allclose(scores[2][of_third] / scores[1][of_third], (2 / 2.9) / (1 / 1.9), rtol=1e-5)


def test_function_words_find_something_only_if_they_are_kept(store: BlockStore, tmp_path: Path) -> None:
    question = "It is in the <mask> of its"
    without = opened_lexicon(tmp_path / "without", store)
    assert not len(without.best_blocks(question, 3)[0])
    kept = opened_lexicon(tmp_path / "kept", store, keep_stopwords=True)
    assert len(kept.best_blocks(question, 3)[0]) == 3
    # a content word is found either way, and decides alone only where the others do not count
    assert np.flatnonzero(without.scores(f"Cervantes {question}")).tolist() == [
        block for block in range(store.block_count) if "cervantes" in store.block_text(block).casefold()
    ]


def test_segments_that_count_words_in_different_ways_are_not_opened_together(store: BlockStore, tmp_path: Path) -> None:
    folders = [
        write_lexicon(tmp_path / "plural", store),
        write_lexicon(tmp_path / "none", store, stemming=Stemming.none, k1=0.5),
    ]
    with pytest.raises(ArtifactError, match="other settings") as caught:
        BlockLexicon.open(folders)
    assert all(part in str(caught.value) for part in ("k1=0.9", "k1=0.5", "stemming=none", str(folders[1])))


def test_every_word_of_every_shard_is_found_and_no_other(rng: np.random.Generator, tmp_path: Path) -> None:
    store = store_of(tmp_path / "store", random_documents(rng, 20), tokens_per_shard=100)
    lexicon = opened_lexicon(tmp_path / "lexicon", store, stemming=Stemming.none, keep_stopwords=True)
    words = block_words(store, LexiconSettings(stemming=Stemming.none, keep_stopwords=True))
    asked = {word for of_block in words for word in of_block} | {"", "zzz", "rive", "riverss", "\u0142", "日本"}
    assert {word.casefold() for word in ALPHABET} <= asked
    for word in sorted(asked):
        expected = [block for block, of_block in enumerate(words) if word in of_block]
        assert np.flatnonzero(lexicon.scores(f"{word} <mask>")).tolist() == expected, word


@pytest.fixture
def sharded_store(rng: np.random.Generator, tmp_path: Path) -> BlockStore:
    sharded_store = store_of(tmp_path / "sharded_store", random_documents(rng, 20), tokens_per_shard=200)
    assert len(sharded_store.shard_blocks) > 3
    return sharded_store


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
    counted = {folded(word) for word in words}
    sharded_store = store_of(tmp_path / "sharded_store", [Document(id="1", title=" ".join(words), text="oslo")])
    settings = LexiconSettings(stemming=Stemming.none, keep_stopwords=True)
    write_lexicon_shard(tmp_path / "shard", sharded_store, 0, settings)
    stored = np.load(tmp_path / "shard/words.npy", allow_pickle=False).tobytes()
    offsets = np.load(tmp_path / "shard/word_offsets.npy", allow_pickle=False).tolist()
    in_file = [stored[start:stop] for start, stop in pairwise(offsets)]
    assert in_file == [word.encode() for word in sorted([*counted, "oslo"], key=str.encode)]
    shard = LexiconShard.open(tmp_path / "shard")
    for word in in_file:
        assert shard.postings(word)[0].tolist() == [0]
    for absent in (b"", b"\x00", b"a" * 9, b"\xff", "日日日日".encode()):
        assert not len(shard.postings(absent)[0])


def test_a_corpus_of_function_words_alone_has_a_lexicon_that_finds_nothing(tmp_path: Path) -> None:
    sharded_store = store_of(tmp_path / "sharded_store", [Document(id="1", title="The", text="of the the of")])
    lexicon = BlockLexicon.open([write_lexicon(tmp_path / "lexicon", sharded_store)])
    assert lexicon.block_count == 1
    assert not any(len(lexicon.best_blocks(text, 2)[0]) for text in ("the <mask>", "oslo <mask>"))


def test_a_finished_shard_is_kept_and_a_lost_one_written_again_with_the_same_bytes(
    sharded_store: BlockStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_lexicon(tmp_path / "lexicon", sharded_store)
    before = all_bytes(folder)
    shutil.rmtree(folder / "00001")
    (folder / "manifest.json").unlink()
    (folder / ".00001.tmp").mkdir()  # as a killed job leaves it
    counted: list[int] = []

    def count(blocks: list[tuple[str, str]], settings: LexiconSettings) -> object:
        texts = list(blocks)
        counted.append(len(texts))
        return count_words(texts, settings)

    monkeypatch.setattr("npm.indexing.bm25.count_words", count)
    write_lexicon(folder, sharded_store)
    assert counted == [int(sharded_store.shard_blocks[2] - sharded_store.shard_blocks[1])]
    assert all_bytes(folder) == before


def test_missing_shards_are_named(sharded_store: BlockStore, tmp_path: Path) -> None:
    folder = write_lexicon(tmp_path / "lexicon", sharded_store)
    (folder / "manifest.json").unlink()
    for number in (0, 2):
        shutil.rmtree(folder / f"{number:05d}")
    with pytest.raises(ArtifactError, match="00000, 00002"):
        finish_lexicon(folder, sharded_store, LexiconSettings())
    assert not (folder / "manifest.json").exists()
