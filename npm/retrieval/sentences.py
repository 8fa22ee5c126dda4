"""Sentences for a text: those of its best blocks, ranked as blocks are, by shared words and by vectors together.

A sentence scores

    (1 − share) · bm25 / max bm25 + share · cos / max cos + block score / best block score + Σ phrase scores,

with the words of the sentence, its vector and that of the text without the mask, the block it is in, and the phrases of
the answer whose best occurrence it contains.

Shapes: n sentences of one text's blocks, d dimensions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from npm.core.errors import SettingError
from npm.core.types import Sentence
from npm.corpus.markup import HIDDEN, shown, visible
from npm.corpus.text import code_points, lexical_query, sentence_bounds
from npm.indexing.lexicon import term_saturation
from npm.models.batches import encode_pooled
from npm.retrieval.blocks import fused_scores

if TYPE_CHECKING:
    from npm.core.types import Answer, Document, Phrase
    from npm.indexing.lexicon import BlockHits
    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.encoder import Encoder
    from npm.models.settings import PoolerKind

SENTENCE_BLOCKS = 10
"""Best blocks whose sentences are ranked."""
SENTENCE_PHRASES = 5
"""Best phrases of the answer that count for the sentence they occur in, however many sentences are asked for."""


def check_sentences(index: PhraseIndex) -> None:
    """Raise SettingError for an index without text."""
    if index.lexicon is None:
        raise SettingError("output=sentences needs an index with text: choose output=table or output=json")


def ranked_sentences(
    index: PhraseIndex,
    encoder: Encoder,
    answers: Sequence[Answer],
    hits: BlockHits,
    vectors: np.ndarray | None,
    *,
    pooler: PoolerKind | None,
    share: float,
    k: int,
) -> list[tuple[Sentence, ...]]:
    """The k best sentences for each text, with the phrases of its answer that occur in them.

    `hits` are the best blocks of each text; `vectors` f32 [texts, d] those of the texts where there is a `pooler`.
    """
    found: list[tuple[Sentence, ...]] = []
    for number, answer in enumerate(answers):
        blocks = hits.blocks[number][hits.found[number]]
        of_blocks = [_sentences(index, int(block)) for block in blocks]
        places = np.repeat(np.arange(len(blocks)), [len(own) for own in of_blocks])  # i64 [n]
        sentences = [sentence for own in of_blocks for sentence in own]
        texts = [visible(document.text[first:stop]) for document, first, stop in sentences]
        lexical = _bm25(index, answer.text, texts)  # f64 [n]
        cosines = np.zeros(len(texts))  # [n]
        if pooler is not None and vectors is not None:
            cosines = _sentence_vectors(encoder, texts, pooler) @ vectors[number]  # f32 [n]
        of_block = hits.scores[number][places] / max(float(hits.scores[number].max(initial=0)), 1e-9)  # f32 [n]
        inside = [_phrases_inside(*sentence, answer) for sentence in sentences]
        of_phrases = [sum(phrase.score for phrase in own) for own in inside]
        scores = fused_scores(lexical, cosines, share) + of_block + of_phrases  # f64 [n]
        best = np.argsort(-scores, kind="stable")[:k].tolist()
        found.append(tuple(_sentence(sentences[place], float(scores[place]), inside[place]) for place in best))
    return found


def _sentences(index: PhraseIndex, block: int) -> list[tuple[Document, int, int]]:
    """The document of a block, with the first and the past-the-last character of each sentence in the block."""
    store = index.store
    document = store.document(int(store.block_documents[block]))
    first, stop = store.block_offsets[block : block + 2].tolist()
    assert store.start_chars is not None and store.end_chars is not None, "ranked blocks have text"
    begin = int(store.start_chars.slice(first, stop)[0])
    end = int(store.end_chars.slice(first, stop)[-1])
    text = document.text[begin:end]
    places = np.append(np.flatnonzero(code_points(text) != ord(HIDDEN)), len(text)) + begin  # i64 [visible + 1]
    bounds = sentence_bounds(visible(text))  # i64 [sentences, 2]
    return [(document, int(places[start]), int(places[last - 1]) + 1) for start, last in bounds.tolist()]


def _bm25(index: PhraseIndex, question: str, texts: Sequence[str]) -> np.ndarray:
    """BM25 of each of n texts, f64 [n], with the weights of words in the index."""
    assert index.lexicon is not None, "ranked blocks have a lexicon"
    settings = index.lexicon.settings
    asked = Counter(index.lexicon.counted_words(lexical_query(question)))
    counts = [Counter(index.lexicon.counted_words(text)) for text in texts]
    lengths = np.array([own.total() for own in counts], dtype=np.float64)  # [n]
    scores = np.zeros(len(texts))  # [n]
    for word, times in asked.items():
        occurrences = np.array([own[word] for own in counts])  # i64 [n]
        relative = lengths / max(lengths.mean(), 1.0) if len(lengths) else lengths  # f64 [n]
        saturation = term_saturation(occurrences, relative, k1=settings.k1, b=settings.b)  # f64 [n]
        scores += times * index.lexicon.form_weight(word) * saturation
    return scores


def _sentence_vectors(encoder: Encoder, texts: Sequence[str], pooler: PoolerKind) -> np.ndarray:
    """The vectors of n sentences, f32 [n, d]."""
    if not texts:
        return np.zeros((0, encoder.dimensions), dtype=np.float32)
    room = encoder.max_input_tokens - len(encoder.prefix_ids) - len(encoder.suffix_ids)
    ids = encoder.tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False)[
        "input_ids"
    ]
    sequences = [np.array([*encoder.prefix_ids, *own[:room], *encoder.suffix_ids], dtype=np.int64) for own in ids]
    nowhere = [np.zeros(0, dtype=np.int64)] * len(sequences)
    pooled = encode_pooled(encoder, sequences, nowhere, pooler, tokens_per_batch=8192).pooled
    assert pooled is not None, "a pooler was given"
    return pooled


def _phrases_inside(document: Document, first: int, stop: int, answer: Answer) -> list[Phrase]:
    """The phrases of an answer whose best occurrence is within the characters [first, stop) of a document."""
    placed = [(phrase, phrase.occurrences[0]) for phrase in answer.phrases if phrase.occurrences]
    return [
        phrase
        for phrase, place in placed
        if place.document == document.id and first <= place.start_char and place.end_char <= stop
    ]


def _sentence(place: tuple[Document, int, int], score: float, phrases: Sequence[Phrase]) -> Sentence:
    document, first, stop = place
    context, names = shown(document.text[first:stop]), tuple(phrase.phrase for phrase in phrases)
    return Sentence(document.id, document.title, first, stop, context, score, names)
