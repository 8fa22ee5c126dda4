"""BM25 over some blocks in memory, for the makers of questions.

Shapes: B blocks, v words, n postings, q texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse

from npm.corpus.text import words_of
from npm.indexing.bm25 import count_words, term_saturation
from npm.indexing.settings import LexiconSettings

COMMON, TEXTS_AT_ONCE = 0.02, 1000
"""Words in more than such a fraction of the blocks do not count."""


class WordSearch:
    """Blocks of a title and a text. Scores of two searches compare roughly: each has its own word frequencies."""

    def __init__(self, blocks: Sequence[tuple[str, str]]) -> None:
        self._settings = settings = LexiconSettings()
        counts = count_words(blocks, settings)
        holders = np.diff(counts.posting_offsets)  # i64 [v], blocks with each word
        idf = np.log(1 + (len(blocks) - holders + 0.5) / (holders + 0.5))  # f64 [v]
        idf[holders > max(COMMON * len(blocks), 10)] = 0
        lengths = counts.block_lengths[counts.posting_blocks] / counts.block_lengths.mean()  # f64 [n]
        saturation = term_saturation(counts.posting_counts, lengths, k1=settings.k1, b=settings.b)  # f64 [n]
        parts = (saturation * np.repeat(idf, holders), counts.posting_blocks.astype(np.int64), counts.posting_offsets)
        self._weights = scipy.sparse.csr_array(parts, shape=(len(idf), len(blocks)))  # f64 [v, B]
        self._weights.eliminate_zeros()
        self._numbers = {word: place for place, word in enumerate(counts.words)}

    def best(self, texts: Sequence[str], most: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Numbers i64 and scores f64 of at most so many blocks with a word of each text, best first."""
        settings, number = self._settings, self._numbers
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            some = texts[start : start + TEXTS_AT_ONCE]
            found = (words_of(text, settings.stemming, keep_stopwords=settings.keep_stopwords) for text in some)
            words = [[number[word] for word in own if word in number] for own in found]
            columns = np.concatenate([*map(np.array, words), []]).astype(np.int64)
            questions = (np.ones(len(columns)), columns, np.cumsum([0, *map(len, words)]))
            shape = (len(some), len(number))
            scores = scipy.sparse.csr_array(questions, shape=shape) @ self._weights  # f64 [q, B]
            for first, stop in zip(scores.indptr, scores.indptr[1:], strict=False):
                own_blocks, own_scores = scores.indices[first:stop], scores.data[first:stop]
                order = np.lexsort((own_blocks, -own_scores))[:most]  # i64
                yield own_blocks[order].astype(np.int64), own_scores[order]
