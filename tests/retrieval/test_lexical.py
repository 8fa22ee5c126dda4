from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.store import BlockStore, build_block_store
from npm.errors import SettingError
from npm.retrieval.lexical import BlockLexicon, LexiconSettings, Stemming, lexical_query, words_of
from npm.types import Document
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
    for wrong in ({"k1": -1.0}, {"b": 1.5}):
        with pytest.raises(SettingError, match="out of range"):
            LexiconSettings(**wrong)
