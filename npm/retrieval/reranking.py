"""The first phrases of an answer weighed once more, by whether the text that they make says what their sentence says.

A phrase v of score s is put in the place of the mask, and the sentence of the text that holds it is compared with the
sentence x of the corpus in which v stands best, by the cosine of their sentence vectors:

    s' = s · e^(w cos(text with v, x)) / Z,   Z such that the scores of the reranked phrases add up to what they did.

The vectors of the mask know what kind of phrase is wanted, and each block has been read; which of the phrases of one
block the sentence is about is what they tell least well (docs/results/quality.md).

Shapes: n phrases, S sentences, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from npm.corpus.text import sentence_around
from npm.models.batches import encode_pooled
from npm.retrieval.settings import FillSettings, Retrieval
from npm.types import MASK_TEXT, Phrase

if TYPE_CHECKING:
    from npm.models.encoder import Encoder
    from npm.models.settings import PoolerKind

RERANKED_PHRASES = 5
"""Twice as many gave the same answers (development half of the demo and 1,000 article questions)."""


def rerank_pooler(settings: FillSettings, encoder: Encoder) -> PoolerKind | None:
    """What makes the vectors of sentences that phrases are reranked by; None: they are not reranked."""
    if settings.retrieval is not Retrieval.hybrid or settings.rerank_weight == 0:
        return None
    return encoder.block_pooler


def before_reranking(settings: FillSettings) -> FillSettings:
    """How a text is filled whose phrases are then reranked: with enough of them, and their best sentences."""
    return replace(settings, k=max(settings.k, RERANKED_PHRASES), occurrences=max(settings.occurrences, 1))


def rerank(
    encoder: Encoder,
    pooler: PoolerKind,
    texts: Sequence[str],
    found: Sequence[tuple[Phrase, ...]],
    settings: FillSettings,
) -> list[tuple[Phrase, ...]]:
    """The phrases `found` for each text with one mask, the first ones reranked; as many as `settings` ask for."""
    pairs = [
        (filled_sentence(text, phrase.phrase), phrase.occurrences[0].context)
        for text, phrases in zip(texts, found, strict=True)
        for phrase in phrases[:RERANKED_PHRASES]
    ]
    sentences = list(dict.fromkeys(sentence for pair in pairs for sentence in pair))  # S, each encoded once
    number = {sentence: place for place, sentence in enumerate(sentences)}
    vectors = sentence_vectors(encoder, pooler, sentences, tokens_per_batch=settings.tokens_per_batch)  # f32 [S, d]
    cosines = np.array([float(vectors[number[text]] @ vectors[number[own]]) for text, own in pairs])  # f64 [all n]
    reranked: list[tuple[Phrase, ...]] = []
    done = 0
    for phrases in found:
        first, behind = phrases[:RERANKED_PHRASES], phrases[RERANKED_PHRASES:]
        scores = np.array([phrase.score for phrase in first])  # f64 [n]
        scores = reranked_scores(scores, cosines[done : done + len(first)], settings.rerank_weight)
        done += len(first)
        again = [replace(phrase, score=score) for phrase, score in zip(first, scores.tolist(), strict=True)]
        ordered = sorted([*again, *behind], key=lambda phrase: -phrase.score)[: settings.k]
        reranked.append(
            tuple(replace(phrase, occurrences=phrase.occurrences[: settings.occurrences]) for phrase in ordered)
        )
    return reranked


def filled_sentence(text: str, phrase: str) -> str:
    """The sentence of `text` that holds its one mask, with `phrase` in the mask's place.

    >>> filled_sentence("It is old. Iceland is governed from <mask>. Why?", "Reykjavík")
    'Iceland is governed from Reykjavík.'
    """
    start = text.index(MASK_TEXT)
    filled = text.replace(MASK_TEXT, phrase)
    first, stop = sentence_around(filled, start, start + len(phrase))
    return filled[first:stop]


def reranked_scores(scores: np.ndarray, cosines: np.ndarray, weight: float) -> np.ndarray:
    """s e^(w c) / Z for scores and cosines f64 [n]; their sum stays as it was.

    >>> import numpy as np
    >>> reranked_scores(np.array([0.4, 0.2]), np.array([0.0, 1.0]), np.log(4)).round(6).tolist()
    [0.2, 0.4]
    """
    weights = scores * np.exp(weight * (cosines - cosines.max(initial=-1.0)))  # f64 [n]
    return scores.sum() / weights.sum() * weights if weights.any() else scores


def sentence_vectors(
    encoder: Encoder, pooler: PoolerKind, sentences: Sequence[str], *, tokens_per_batch: int
) -> np.ndarray:
    """The vectors f32 [S, d] of length 1 of S sentences, each cut to what the encoder takes."""
    if not sentences:
        return np.zeros((0, encoder.dimensions), dtype=np.float32)
    room = encoder.max_input_tokens - len(encoder.prefix_ids) - len(encoder.suffix_ids)
    encoded = encoder.tokenizer(
        list(sentences), add_special_tokens=False, split_special_tokens=True, return_attention_mask=False, verbose=False
    )["input_ids"]
    sequences = [
        np.array([*encoder.prefix_ids, *ids[:room], *encoder.suffix_ids], dtype=np.int64)  # i64 [tokens]
        for ids in encoded
    ]
    nowhere = [np.zeros(0, dtype=np.int64)] * len(sequences)
    pooled = encode_pooled(encoder, sequences, nowhere, pooler, tokens_per_batch=tokens_per_batch).pooled
    assert pooled is not None
    return pooled  # f32 [S, d]
