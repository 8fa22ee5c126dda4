"""Sentences for a text: those of its best blocks, ranked as blocks are, by shared words and by vectors together.

A sentence scores

    (1 − share) · bm25 / max bm25 + share · cos / max cos + block score / best block score + Σ phrase scores,

with the words of the sentence, its vector and that of the text without the mask, the block it is in, and the phrases of
the answer whose best occurrence it contains.

Shapes: n sentences of one text's blocks, d dimensions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from npm.core.errors import SettingError
from npm.core.types import Sentence
from npm.corpus.markup import HIDDEN, shown, visible
from npm.corpus.text import code_points, lexical_query, sentence_bounds
from npm.indexing.bm25 import term_saturation
from npm.retrieval.blocks import fused_scores, rank_blocks, sentence_pooler, vector_share
from npm.retrieval.queries import encode_queries
from npm.retrieval.reranking import PhraseInSentence, phrase_vectors

if TYPE_CHECKING:
    from npm.core.types import Answer, Document, Phrase
    from npm.indexing.bm25 import BlockLexicon
    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.encoder import Encoder
    from npm.retrieval.settings import FillSettings

SENTENCE_BLOCKS = 10
"""Best blocks whose sentences are ranked."""
SENTENCE_PHRASES = 5
"""Best phrases of the answer that count for the sentence they occur in, for any number of requested sentences."""


def sentences_for(
    index: PhraseIndex,
    encoder: Encoder,
    texts: Sequence[str],
    settings: FillSettings,
    allowed: np.ndarray | None,
    fill_encoded: Callable[..., list[Answer]],
) -> list[tuple[Sentence, ...]]:
    """The k best sentences for each of the checked `texts`, with the phrases of its answer that occur in them.

    They are of blocks in the mask `allowed` bool [blocks], all if None. Raises SettingError for an index without text.
    """
    if index.lexicon is None:
        raise SettingError("output=sentences needs an index with text: choose output=table or output=json")
    wider = replace(settings, bm25_blocks=max(settings.bm25_blocks, SENTENCE_BLOCKS))
    pooler = sentence_pooler(index, wider)
    vectors = encode_queries(encoder, texts, pooler=pooler, tokens_per_batch=settings.tokens_per_batch)
    answers = fill_encoded(texts, vectors, settings=replace(settings, k=SENTENCE_PHRASES, occurrences=1))
    ranked = rank_blocks(index, texts, vectors.sentences, wider, allowed=allowed)
    found: list[tuple[Sentence, ...]] = []
    for number, answer in enumerate(answers):
        blocks, block_scores, _ = ranked[number]  # i64 [blocks], f32 [blocks]
        of_blocks = [_sentences(index, block) for block in blocks.tolist()]
        places = np.repeat(np.arange(len(blocks)), [len(own) for own in of_blocks])  # i64 [n]
        sentences = [sentence for own in of_blocks for sentence in own]
        plain = [visible(document.text[first:stop]) for document, first, stop in sentences]
        cosines = np.zeros(len(plain))  # [n]
        if plain and pooler is not None and vectors.sentences is not None:
            alone = [PhraseInSentence(text, 0, 0) for text in plain]
            pooled, _ = phrase_vectors(encoder, pooler, alone, tokens_per_batch=settings.tokens_per_batch)  # f32 [n, d]
            cosines = pooled @ vectors.sentences[number]  # f32 [n]
        of_block = block_scores[places] / max(float(block_scores.max(initial=0)), 1e-9)  # f32 [n]
        inside = [_phrases_inside(*sentence, answer) for sentence in sentences]
        of_phrases = [sum(phrase.score for phrase in own) for own in inside]
        lexical = _bm25(index.lexicon, answer.text, plain)  # f64 [n]
        scores = fused_scores(lexical, cosines, vector_share(index, wider)) + of_block + of_phrases  # f64 [n]
        best = []
        for place in np.argsort(-scores, kind="stable")[: settings.k].tolist():
            document, first, stop = sentences[place]
            names, score = tuple(phrase.phrase for phrase in inside[place]), float(scores[place])
            context = shown(document.text[first:stop])
            best.append(Sentence(document.id, document.title, first, stop, context, score, names))
        found.append(tuple(best))
    return found


def _sentences(index: PhraseIndex, block: int) -> list[tuple[Document, int, int]]:
    """The document of a block, with the first and the past-the-last character of each sentence in the block."""
    store = index.store
    document = store.document(int(store.block_documents[block]))
    assert store.start_chars is not None, "ranked blocks have text"
    begin, text = int(store.start_chars.take(store.block_offsets[[block]])[0]), store.block_text(block)
    places = np.append(np.flatnonzero(code_points(text) != ord(HIDDEN)), len(text)) + begin  # i64 [visible + 1]
    bounds = sentence_bounds(visible(text))  # i64 [sentences, 2]
    return [(document, int(places[start]), int(places[last - 1]) + 1) for start, last in bounds.tolist()]


def _bm25(lexicon: BlockLexicon, question: str, texts: Sequence[str]) -> np.ndarray:
    """BM25 of each of n texts, f64 [n], with the weights of words in the index."""
    settings = lexicon.settings
    counts = [Counter(lexicon.counted_words(text)) for text in texts]
    lengths = np.array([own.total() for own in counts], dtype=np.float64)  # [n]
    relative = lengths / max(lengths.mean(), 1.0) if len(lengths) else lengths  # f64 [n]
    scores = np.zeros(len(texts))  # [n]
    for word, times in Counter(lexicon.counted_words(lexical_query(question))).items():
        occurrences = np.array([own[word] for own in counts])  # i64 [n]
        saturation = term_saturation(occurrences, relative, k1=settings.k1, b=settings.b)  # f64 [n]
        scores += times * lexicon.form_weight(word) * saturation
    return scores


def _phrases_inside(document: Document, first: int, stop: int, answer: Answer) -> list[Phrase]:
    """The phrases of an answer whose best occurrence is within the characters [first, stop) of a document."""
    placed = [(phrase, phrase.occurrences[0]) for phrase in answer.phrases if phrase.occurrences]
    return [
        phrase
        for phrase, place in placed
        if place.document == document.id and first <= place.start_char and place.end_char <= stop
    ]
