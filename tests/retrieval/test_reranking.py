"""Reranking: worked by hand, equal to a loop over phrases, and what it leaves alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npm.corpus.settings import CorpusSettings
from npm.indexing.build import build_index
from npm.indexing.settings import IndexBuildSettings
from npm.models.batches import encode_sequences
from npm.models.encoder import Encoder
from npm.models.sentences import SentenceEncoder
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.reranking import (
    RERANKED_PHRASES,
    TOKEN_SHARE,
    PhraseInSentence,
    filled_sentence,
    is_name,
    own_sentence,
    phrase_vectors,
    reranked_scores,
)
from npm.retrieval.settings import FillSettings, Overlaps

QUESTIONS = [
    "Mount Etna stands on the island of <mask>.",
    "This is asked of a page. Oslo is the capital of <mask>.",
    "The ship was built in <mask> of oak.",
]
PASSAGES = [
    "Etna is a volcano on Sicily, an island south of Italy. Greek settlers came from Corinth to Sicily early on.",
    "Norway has fjords and mountains. Its capital Oslo lies in the south, near the border with Sweden.",
    "The ship Vasa sank in 1628 near Stockholm. She was built of oak from Sweden, and raised in 1961.",
]


def filler_over(folder: Path, dimensions: int | None) -> PhraseFiller:
    (folder / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in PASSAGES), encoding="utf-8")
    encoder, corpus = Encoder.load(dtype="float32"), CorpusSettings(files=[str(folder / "c.jsonl")])
    build_index(folder / "index", IndexBuildSettings(corpus=corpus, dimensions=dimensions), encoder)
    return PhraseFiller.open(
        folder / "index", encoder, settings=FillSettings(overlaps=Overlaps.keep, rerank_weight=6.0)
    )


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> PhraseFiller:
    return filler_over(tmp_path_factory.mktemp("reranked"), None)


@pytest.fixture(scope="module")
def shortened(tmp_path_factory: pytest.TempPathFactory) -> PhraseFiller:
    """Over an index of shorter vectors; sentences are compared with whole ones."""
    return filler_over(tmp_path_factory.mktemp("shortened"), 128)


def test_scores_are_weighed_by_the_exponential_of_the_evidence_and_keep_their_sum() -> None:
    scores = reranked_scores(np.array([0.4, 0.2, 0.1]), np.log([1, 3, 3]))
    assert scores == pytest.approx([0.7 * 4 / 13, 0.7 * 6 / 13, 0.7 * 3 / 13])
    assert reranked_scores(np.zeros(0), np.zeros(0)).shape == (0,)
    assert reranked_scores(np.zeros(2), np.array([0.1, 0.9])).tolist() == [0, 0]


def test_phrases_behind_the_reranked_ones_count_as_the_one_with_the_least_evidence() -> None:
    scores = reranked_scores(np.array([0.4, 0.2, 0.2, 0.1]), np.log([2, 8, 4]))
    assert scores == pytest.approx([0.8 * 8 / 32, 0.8 * 16 / 32, 0.8 * 8 / 32, 0.8 * 2 / 32])
    assert scores[:3] == pytest.approx(reranked_scores(np.array([0.4, 0.2, 0.2]), np.log([2, 8, 4])))


def test_scores_stay_numbers_where_their_products_with_the_evidence_do_not() -> None:
    assert reranked_scores(np.array([0.9, 1e-320]), np.array([0.0, 800.0])) == pytest.approx([0.0, 0.9])
    assert reranked_scores(np.array([0.9, 1e-300, 0.0]), np.array([0.0, 9e4])) == pytest.approx([0.0, 0.9, 0.0])


def test_the_sentence_of_the_mask_alone_is_compared() -> None:
    assert filled_sentence(QUESTIONS[1], "Norway") == PhraseInSentence("Oslo is the capital of Norway.", 23, 29)
    assert filled_sentence("<mask>", "Norway") == PhraseInSentence("Norway", 0, 6)


def test_the_ends_of_a_phrase_are_the_tokens_that_share_a_character_with_it() -> None:
    offsets = np.array([[0, 4], [5, 7], [7, 9], [10, 12], [12, 13]])  # "Mona Li|sa is|."
    assert PhraseInSentence("Mona Lisa is.", 0, 9).ends(offsets) == (0, 2)
    assert PhraseInSentence("Mona Lisa is.", 5, 9).ends(offsets) == (1, 2)
    assert PhraseInSentence("Mona Lisa is.", 6, 7).ends(offsets) == (1, 1)
    assert PhraseInSentence("Mona Lisa is.", 9, 10).ends(offsets) == (3, 3)  # what no token covers


def test_a_sentence_too_long_for_the_encoder_is_read_as_far_as_its_phrase(filler: PhraseFiller) -> None:
    encoder = filler.encoder
    long = PhraseInSentence("very " * 600 + "Oslo is old.", 3000, 3004)
    pooler = encoder.block_pooler
    assert pooler is not None
    room = encoder.max_input_tokens - 2
    short = PhraseInSentence("very " * (room - 1) + "Oslo", 5 * (room - 1), 5 * (room - 1) + 4)
    cut, whole = (phrase_vectors(encoder, pooler, [one], tokens_per_batch=512) for one in (long, short))
    np.testing.assert_allclose(cut[0], whole[0], atol=1e-5)
    np.testing.assert_allclose(cut[1], whole[1], atol=1e-5)


def plain_ends(encoder: Encoder, phrase: PhraseInSentence) -> np.ndarray:
    """The vectors f32 [2, d] of a phrase's first and last token, of its sentence alone."""
    encoding = encoder.tokenizer.backend_tokenizer.encode(phrase.sentence)
    inside = [place for place, (start, end) in enumerate(encoding.offsets) if start < phrase.end and phrase.start < end]
    ids, ends = np.array(encoding.ids), np.array([inside[0], inside[-1]])
    return encode_sequences(encoder, [ids], [ends], tokens_per_batch=512).vectors[0]


@pytest.mark.parametrize(("name", "k", "name_weight"), [("filler", 3, 0.0), ("shortened", 12, 2.5)])
def test_phrases_are_reranked_as_a_plain_loop_does_it(
    name: str, k: int, name_weight: float, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    filler: PhraseFiller = request.getfixturevalue(name)
    whole_encoder = filler.encoder.cut_to(None)
    monkeypatch.setattr(filler, "settings", replace(filler.settings, name_weight=name_weight))
    sentences = SentenceEncoder(whole_encoder, SentenceEncoder.load().pooler)
    as_found = replace(filler.settings, rerank_weight=0.0, k=max(k, RERANKED_PHRASES))
    with_reranking = filler.fill(QUESTIONS, k=k)
    filler.settings, reranked = as_found, filler.settings
    try:
        found = filler.fill(QUESTIONS)
    finally:
        filler.settings = reranked
    moved = 0
    for text, before, after in zip(QUESTIONS, found, with_reranking, strict=True):
        first = before.phrases[:RERANKED_PHRASES]
        factors = []
        for phrase in first:
            own = filled_sentence(text, phrase.phrase), own_sentence(phrase)
            vectors = sentences.encode([each.sentence for each in own])
            one, other = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            ours, theirs = (plain_ends(whole_encoder, each) for each in own)
            ends = whole_encoder.similarity_scale * float((ours * theirs).sum())
            evidence = 6.0 * (float(one @ other) + TOKEN_SHARE * ends) + name_weight * is_name(phrase.phrase)
            factors.append(np.exp(evidence))
        whole = sum(phrase.score for phrase in first)
        factors += [min(factors)] * (len(before.phrases) - len(first))
        weights = [phrase.score * factor for phrase, factor in zip(before.phrases, factors, strict=True)]
        scores = [whole * weight / sum(weights[: len(first)]) for weight in weights]
        pairs = zip(scores, [phrase.phrase for phrase in before.phrases], strict=True)
        expected = sorted(pairs, key=lambda pair: -pair[0])[:k]
        assert [phrase.phrase for phrase in after.phrases] == [phrase for _, phrase in expected]
        assert [phrase.score for phrase in after.phrases] == pytest.approx([score for score, _ in expected], rel=1e-3)
        moved += [phrase.phrase for phrase in after.phrases] != [phrase.phrase for phrase in before.phrases[:k]]
    assert moved  # else nothing was tested


def test_the_first_phrases_and_their_scores_are_the_same_however_many_are_asked_for(filler: PhraseFiller) -> None:
    for few, many in zip(filler.fill(QUESTIONS, k=10), filler.fill(QUESTIONS, k=30), strict=True):
        assert len(many.phrases) > RERANKED_PHRASES
        assert [phrase.phrase for phrase in many.phrases[:10]] == [phrase.phrase for phrase in few.phrases]
        assert [phrase.score for phrase in many.phrases[:10]] == pytest.approx([phrase.score for phrase in few.phrases])
        assert sorted(many.phrases, key=lambda phrase: -phrase.score) == list(many.phrases)


def test_a_text_is_answered_alike_alone_and_among_others_and_without_occurrences(filler: PhraseFiller) -> None:
    together = filler.fill(QUESTIONS, k=4)
    bare = filler.fill(QUESTIONS, k=4, occurrences=0)
    for text, answer, without in zip(QUESTIONS, together, bare, strict=True):
        alone = filler.fill(text, k=4)
        assert [phrase.phrase for phrase in alone.phrases] == [phrase.phrase for phrase in answer.phrases]
        assert [phrase.phrase for phrase in without.phrases] == [phrase.phrase for phrase in answer.phrases]
        assert not any(phrase.occurrences for phrase in without.phrases)


def test_other_retrievals_texts_with_several_masks_and_encoders_without_sentence_vectors_are_left_as_they_are(
    filler: PhraseFiller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = "Oslo is in <mask>, near <mask>."
    kept = filler.settings
    before = [filler.fill(QUESTIONS, retrieval=name) for name in ("dense", "bm25", "blocks")], filler.fill(several)
    try:
        filler.settings = replace(kept, rerank_weight=0.0)
        after = [filler.fill(QUESTIONS, retrieval=name) for name in ("dense", "bm25", "blocks")], filler.fill(several)
        plain = filler.fill(QUESTIONS)
    finally:
        filler.settings = kept
    assert before == after
    monkeypatch.setattr(type(filler.encoder), "block_pooler", None)
    assert filler.fill(QUESTIONS) == plain
