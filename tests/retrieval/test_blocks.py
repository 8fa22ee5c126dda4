"""Which blocks a text is answered from: ranked by shared words, by block vectors, by both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from npm.core.types import MASK_TEXT
from npm.indexing.phrase_index import DocumentFilter, PhraseIndex
from npm.models.encoder import Encoder
from npm.models.settings import PoolerKind
from npm.retrieval.blocks import (
    RankedBlocks,
    choose_blocks,
    lacks_block_vectors,
    rank_blocks,
    sentence_pooler,
)
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.queries import encode_queries
from npm.retrieval.settings import FillSettings, Retrieval
from tests.helpers.tiny_models import tiny_encoder
from tests.retrieval.test_reading import TEXTS as READ_TEXTS
from tests.retrieval.test_reading import assert_same_answers, opened

WORDLESS = "zebra <mask> quagga"
"""Shares no word with any block."""
TEXTS = [*READ_TEXTS, WORDLESS]
ALL = DocumentFilter(None, None)
BOTH = FillSettings(retrieval=Retrieval.hybrid, k=20)


def pooled_encoder(kind: PoolerKind | None = PoolerKind.avg, family: str = "bert") -> Encoder:
    encoder = tiny_encoder(family)
    if kind is not None:
        encoder.sentence_pooler = kind
    return encoder


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> PhraseFiller:
    return opened(pooled_encoder(), tmp_path_factory.mktemp("blocks"), max_block_tokens=12)


def ranked(
    filler: PhraseFiller, settings: FillSettings, texts: list[str] = TEXTS, **options: Any
) -> list[RankedBlocks]:
    vectors = encode_queries(filler.encoder, texts, pooler=sentence_pooler(filler.index, settings))
    return rank_blocks(filler.index, texts, vectors.sentences, settings, **options)


def plain_ranking(
    index: PhraseIndex, text: str, sentence: np.ndarray, share: float, k: int, allowed: list[int]
) -> list[tuple[int, float]]:
    """(block, score) of every block that is found, all of them candidates, best first: loops over plain numbers."""
    assert index.block_vectors is not None
    lexical = {block: float(index.lexicon.scores(text)[block]) for block in allowed}
    vectors = index.block_vectors.vectors.slice(0, index.store.block_count).astype(np.float64)
    cosines = {block: float(sentence.astype(np.float64) @ vectors[block]) for block in allowed}
    best_word, best_cosine = max(lexical.values()), max(cosines.values())
    scores = {}
    for block in allowed:
        by_words = lexical[block] / best_word if best_word > 0 else 0.0
        by_vectors = max(0.0, cosines[block]) / best_cosine if best_cosine > 0 else 0.0
        scores[block] = (1 - share) * by_words + share * by_vectors
    found = [(block, score) for block, score in scores.items() if score > 0]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))[:k]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 1.0])
def test_ranking_by_both_equals_plain_loops(share: float, filler: PhraseFiller) -> None:
    count = filler.index.store.block_count
    assert count > 8
    vectors = encode_queries(filler.encoder, TEXTS, pooler=PoolerKind.avg)
    assert vectors.sentences is not None
    for allowed in (None, np.arange(count) % 3 != 1):
        found = ranked(filler, replace(BOTH, vector_share=share, bm25_blocks=5, literal_weight=0.0), allowed=allowed)
        numbers = np.arange(count) if allowed is None else np.flatnonzero(allowed)
        for number, text in enumerate(TEXTS):
            expected = plain_ranking(filler.index, text, vectors.sentences[number], share, 5, numbers.tolist())
            assert found[number].blocks.tolist() == [block for block, _ in expected]
            np.testing.assert_allclose(found[number].scores, [score for _, score in expected], rtol=1e-3)


def test_only_the_best_of_each_kind_are_candidates(filler: PhraseFiller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npm.retrieval.blocks.CANDIDATES_OF_A_KIND", 1)
    (best,) = ranked(filler, replace(BOTH, retrieval=Retrieval.bm25, bm25_blocks=1), TEXTS[:1])[0].blocks
    (nearest,) = ranked(filler, replace(BOTH, retrieval=Retrieval.blocks, bm25_blocks=1), TEXTS[:1])[0].blocks
    assert ranked(filler, replace(BOTH, bm25_blocks=1), TEXTS[:1])[0].blocks.tolist() in ([best], [nearest])
    # as many candidates as blocks that are looked in, at least
    assert len(ranked(filler, replace(BOTH, bm25_blocks=6), TEXTS[:1])[0].blocks) == 6


def test_a_share_of_nothing_and_an_index_without_block_vectors_rank_by_shared_words(filler: PhraseFiller) -> None:
    without = PhraseFiller(replace(filler.index, block_vectors=None), filler.encoder, BOTH)
    plain = replace(BOTH, literal_weight=0.0)
    expected = ranked(filler, replace(BOTH, retrieval=Retrieval.bm25))
    for asked, settings in ((filler, replace(plain, vector_share=0.0)), (without, plain)):
        assert sentence_pooler(asked.index, settings) is None
        for got, wanted in zip(ranked(asked, settings), expected, strict=True):
            assert got.blocks.tolist() == wanted.blocks.tolist()
            np.testing.assert_allclose(got.scores, wanted.scores / wanted.scores.max(initial=1e-9), rtol=1e-6)
    nothing = PhraseFiller(filler.index, filler.encoder, replace(BOTH, vector_share=0.0))
    assert_same_answers(nothing.fill(TEXTS), without.fill(TEXTS), exact=True)
    assert not any(answer.notes for answer in without.fill(TEXTS[:3]) if len(answer.phrases) == BOTH.k)


def test_vectors_that_were_asked_for_and_are_not_there_are_noted_where_blocks_are_ranked(filler: PhraseFiller) -> None:
    without = PhraseFiller(replace(filler.index, block_vectors=None), filler.encoder, replace(BOTH, vector_share=0.5))
    ranked_blocks, given = without.fill(TEXTS[0]), without.fill(TEXTS[0], blocks=[0])
    assert ["no block vectors" in str(answer.notes) for answer in (ranked_blocks, given)] == [True, False]


def test_blocks_looks_in_the_nearest_blocks_and_lends_them_nothing(filler: PhraseFiller) -> None:
    settings = replace(BOTH, retrieval=Retrieval.blocks)
    vectors = encode_queries(filler.encoder, TEXTS, pooler=PoolerKind.avg)
    assert filler.index.block_vectors is not None and vectors.sentences is not None
    nearest = filler.index.block_vectors.best(vectors.sentences, 3)
    for number, plan in enumerate(choose_blocks(filler.index, TEXTS, vectors, settings, allowed=ALL)):
        assert plan.blocks.tolist() == sorted(nearest.rows[number].tolist())
        assert not plan.bonuses.any()
    looked_in = [sorted(set(blocks)) for blocks in nearest.rows.tolist()]
    for text, blocks, answer in zip(TEXTS, looked_in, filler.fill(TEXTS, k=20, retrieval="blocks"), strict=True):
        assert_same_answers([answer], [filler.fill(text, k=20, blocks=blocks)])


def test_a_text_that_shares_no_word_is_answered_from_the_nearest_blocks(filler: PhraseFiller) -> None:
    vectors = encode_queries(filler.encoder, [WORDLESS], pooler=PoolerKind.avg)
    (plan,) = choose_blocks(filler.index, [WORDLESS], vectors, BOTH, allowed=ALL)
    by_vectors = replace(BOTH, retrieval=Retrieval.blocks)
    (nearest,) = choose_blocks(filler.index, [WORDLESS], vectors, by_vectors, allowed=ALL)
    assert plan.blocks.tolist() == nearest.blocks.tolist()
    assert plan.bonuses.max() == pytest.approx(BOTH.lexical_weight)
    (everywhere,) = choose_blocks(filler.index, [WORDLESS], vectors, replace(BOTH, vector_share=0.0), allowed=ALL)
    assert everywhere.is_everywhere


def test_a_text_of_nothing_but_its_mask_has_no_blocks(filler: PhraseFiller) -> None:
    vectors = encode_queries(filler.encoder, [MASK_TEXT], pooler=PoolerKind.avg)
    assert vectors.sentences is not None and not vectors.sentences.any()
    (everywhere,) = choose_blocks(filler.index, [MASK_TEXT], vectors, BOTH, allowed=ALL)
    assert everywhere.is_everywhere
    answer = filler.fill(MASK_TEXT, retrieval="blocks")
    assert answer.phrases == ()
    assert answer.notes == ("no block of the corpus can be ranked for the text",)


def test_only_documents_that_may_answer_have_blocks(filler: PhraseFiller) -> None:
    for retrieval in ("blocks", "hybrid"):
        for answer in filler.fill(TEXTS, k=20, retrieval=retrieval, documents=["d0", "d6"], occurrences=20):
            assert answer.phrases
            assert {place.document for phrase in answer.phrases for place in phrase.occurrences} <= {"d0", "d6"}


def test_an_index_without_the_block_vectors_that_its_encoder_makes_is_told_of(filler: PhraseFiller) -> None:
    without = replace(filler.index, block_vectors=None)
    assert lacks_block_vectors(without, filler.encoder, BOTH)
    assert not lacks_block_vectors(filler.index, filler.encoder, BOTH)
    assert not lacks_block_vectors(without, pooled_encoder(None), BOTH)
    for changes in ({"vector_share": 0.0}, {"vector_share": 0.5}, {"retrieval": Retrieval.dense}):
        assert not lacks_block_vectors(without, filler.encoder, replace(BOTH, **changes))
