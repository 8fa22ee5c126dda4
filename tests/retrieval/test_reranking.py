"""Reranking: worked by hand, equal to a loop over phrases, and what it leaves alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npm.corpus.documents import CorpusSettings
from npm.indexing.build import build_index
from npm.indexing.settings import IndexBuildSettings
from npm.models.encoder import Encoder
from npm.models.sentences import SentenceEncoder
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.reranking import RERANKED_PHRASES, filled_sentence, reranked_scores
from npm.retrieval.settings import FillSettings

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


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> PhraseFiller:
    folder = tmp_path_factory.mktemp("reranked")
    (folder / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in PASSAGES), encoding="utf-8")
    encoder = Encoder.load(dtype="float32")
    build_index(folder / "index", IndexBuildSettings(corpus=CorpusSettings(files=[str(folder / "c.jsonl")])), encoder)
    return PhraseFiller.open(folder / "index", encoder, settings=FillSettings(rerank_weight=6.0))


def test_scores_are_weighed_by_the_exponential_of_the_cosine_and_keep_their_sum() -> None:
    scores = reranked_scores(np.array([0.4, 0.2, 0.1]), np.array([0.0, 0.5, 0.5]), 2 * np.log(3))
    assert scores == pytest.approx([0.7 * 4 / 13, 0.7 * 6 / 13, 0.7 * 3 / 13])
    assert reranked_scores(np.zeros(0), np.zeros(0), 4.0).shape == (0,)
    assert reranked_scores(np.zeros(2), np.array([0.1, 0.9]), 4.0).tolist() == [0, 0]


def test_the_sentence_of_the_mask_alone_is_compared() -> None:
    assert filled_sentence(QUESTIONS[1], "Norway") == "Oslo is the capital of Norway."
    assert filled_sentence("<mask>", "Norway") == "Norway"


@pytest.mark.parametrize("k", [1, 3, 5, 12])
def test_phrases_are_reranked_as_a_plain_loop_does_it(filler: PhraseFiller, k: int) -> None:
    sentences = SentenceEncoder(filler.encoder, SentenceEncoder.load().pooler)
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
        weights = []
        for phrase in first:
            own = filled_sentence(text, phrase.phrase), phrase.occurrences[0].context
            one, other = sentences.encode(own, unit=True)
            weights.append(phrase.score * np.exp(6.0 * float(one @ other)))
        whole = sum(phrase.score for phrase in first)
        scores = [whole * weight / sum(weights) for weight in weights]
        expected = sorted(
            [*zip(scores, [phrase.phrase for phrase in first], strict=True)]
            + [(phrase.score, phrase.phrase) for phrase in before.phrases[RERANKED_PHRASES:]],
            key=lambda pair: -pair[0],
        )[:k]
        assert [phrase.phrase for phrase in after.phrases] == [phrase for _, phrase in expected]
        assert [phrase.score for phrase in after.phrases] == pytest.approx([score for score, _ in expected], rel=1e-3)
        moved += [phrase.phrase for phrase in after.phrases] != [phrase.phrase for phrase in before.phrases[:k]]
    assert moved  # else nothing was tested


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
