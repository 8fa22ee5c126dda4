from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.store import read_manifest
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.store import BlockStore, build_block_store
from npm.errors import ArtefactError, SettingError
from npm.retrieval.lexical import LEXICON_KIND, BlockLexicon, LexiconSettings, Stemming, lexical_query, words_of
from npm.types import Document
from tests.index.sample_folders import rewrite_manifest
from tests.tiny_models import SENTENCES, wordpiece_tokenizer


@pytest.fixture
def store(tmp_path: Path) -> BlockStore:
    documents = [Document(id=str(n), title=f"Title{n}", text=text) for n, text in enumerate(SENTENCES)]
    packer = BlockPacker(wordpiece_tokenizer(), BlockSettings(max_block_tokens=16))
    return build_block_store(tmp_path / "store", documents, packer, settings={})


def plain_bm25(store: BlockStore, query: str, settings: LexiconSettings) -> list[float]:
    """Lucene's BM25 as it is written down: idf · tf / (tf + k1 (1 − b + b · length / mean length))."""
    blocks = []
    for block in range(store.block_count):
        title = store.document(int(store.block_documents[block])).title
        blocks.append(
            words_of(
                f"{title} " * settings.title_repeats + store.block_text(block),
                settings.stemming,
                keep_stopwords=settings.keep_stopwords,
            )
        )
    mean_length = sum(map(len, blocks)) / len(blocks)
    scores = []
    for words in blocks:
        counts, score = Counter(words), 0.0
        for word in words_of(query, settings.stemming, keep_stopwords=settings.keep_stopwords):
            frequency = sum(word in other for other in blocks)
            idf = math.log(1 + (len(blocks) - frequency + 0.5) / (frequency + 0.5))
            tf = counts[word]
            score += idf * tf / (tf + settings.k1 * (1 - settings.b + settings.b * len(words) / mean_length))
        scores.append(score)
    return scores


@pytest.mark.parametrize(
    "settings",
    [LexiconSettings(), LexiconSettings(k1=1.5, b=0.75, stemming=Stemming.none, keep_stopwords=True, title_repeats=1)],
)
def test_scores_equal_those_of_the_formula(settings: LexiconSettings, store: BlockStore, tmp_path: Path) -> None:
    BlockLexicon.build(store, tmp_path / "lexicon", settings=settings)
    lexicon = BlockLexicon.open(tmp_path / "lexicon")
    text = "Which capitals lie on the coast of Iceland, the capital Reykjavík or the river <mask>"
    expected = plain_bm25(store, lexical_query(text), settings)
    np.testing.assert_allclose(lexicon.scores(text), expected, rtol=1e-4)
    hits = lexicon.best_blocks([text, "xyzzy <mask>"], 3)
    assert hits.blocks[0].tolist() == sorted(range(len(expected)), key=lambda block: -expected[block])[:3]
    assert hits.found.tolist() == [[True] * 3, [False] * 3]


def test_more_blocks_than_there_are_give_those_that_share_a_word(store: BlockStore, tmp_path: Path) -> None:
    BlockLexicon.build(store, tmp_path / "lexicon", settings=LexiconSettings())
    hits = BlockLexicon.open(tmp_path / "lexicon").best_blocks(["Cervantes <mask>"], 1000)
    sharing = sum("cervantes" in store.block_text(block).casefold() for block in range(store.block_count))
    assert hits.found.sum() == sharing > 0


def test_a_lexicon_holds_no_pickled_objects(store: BlockStore, tmp_path: Path) -> None:
    BlockLexicon.build(store, tmp_path / "lexicon", settings=LexiconSettings())
    for file in (tmp_path / "lexicon").glob("*.npy"):
        np.load(file, allow_pickle=False)
    assert json.loads((tmp_path / "lexicon" / "vocabulary.json").read_bytes())


def test_a_question_before_the_mask_is_what_is_looked_up() -> None:
    assert lexical_query("Who wrote Don Quixote? The answer is: <mask>.") == "Who wrote Don Quixote?"
    assert words_of(lexical_query("Don Quixote was written by <mask> in Madrid.")) == [
        *("don", "quixote", "was", "written", "by", "in", "madrid")
    ]


def test_weights_out_of_range_are_refused() -> None:
    for wrong in ({"k1": -1.0}, {"b": 1.5}, {"title_repeats": -1}):
        with pytest.raises(SettingError, match="out of range"):
            LexiconSettings(**wrong)


def opened_lexicon(store: BlockStore, folder: Path, **settings: Any) -> BlockLexicon:
    BlockLexicon.build(store, folder, settings=LexiconSettings(**settings))
    return BlockLexicon.open(folder)


def test_a_title_counts_as_often_as_it_is_repeated(store: BlockStore, tmp_path: Path) -> None:
    scores = [
        opened_lexicon(store, tmp_path / f"{repeats}", title_repeats=repeats, b=0.0).scores("title3 <mask>")
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
    without = opened_lexicon(store, tmp_path / "without")
    assert not without.best_blocks([question], 3).found.any()
    kept = opened_lexicon(store, tmp_path / "kept", keep_stopwords=True)
    assert kept.best_blocks([question], 3).found.all()
    # a content word is found either way, and decides alone only where the others do not count
    assert np.flatnonzero(without.scores(f"Cervantes {question}")).tolist() == [
        block for block in range(store.block_count) if "cervantes" in store.block_text(block).casefold()
    ]


def test_a_lexicon_written_before_a_setting_was_recorded_is_told(store: BlockStore, tmp_path: Path) -> None:
    BlockLexicon.build(store, tmp_path / "lexicon", settings=LexiconSettings())
    settings = dict(read_manifest(tmp_path / "lexicon", kind=LEXICON_KIND).settings)
    for name in ("title_repeats", "stemming", "block_count"):
        rewrite_manifest(tmp_path / "lexicon", settings={key: value for key, value in settings.items() if key != name})
        with pytest.raises(ArtefactError, match="another version of this program") as caught:
            BlockLexicon.open(tmp_path / "lexicon")
        assert name in caught.value.expected
        assert "build it again" in caught.value.fix
