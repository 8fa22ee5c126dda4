"""How well each of a list of words fits a masked position: the evidence of all its occurrences.

Exact over all occurrences: every vector at an end of one is multiplied with every query, chunk by chunk, so that
millions of occurrences and thousands of queries fit in memory. Nothing is searched, and nothing is left out.

Shapes: q queries, W words, n occurrences, m occurrences of one kind, c occurrences of a chunk, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from index.arrays import to_float32
from npm.models.similarity import scaled_similarity
from npm.retrieval.occurrences import WordOccurrences
from npm.retrieval.scoring import Combination

if TYPE_CHECKING:
    from index.arrays import ShardedArray
    from npm.retrieval.phrase_index import PhraseIndex
    from npm.retrieval.queries import QueryVectors

KEPT_BYTES = 256 << 20
"""Vectors of occurrences up to this size are kept as float32 from one call to the next."""
SCORES_PER_CHUNK = 1 << 21
MOST_OCCURRENCES_PER_CHUNK = 8192


@dataclass(frozen=True, slots=True)
class WordScores:
    """The evidence of each word at each masked position, in logarithms; -inf for a word without any."""

    log_sums: np.ndarray  # f64 [q, W], log of the sum over its occurrences
    counts: np.ndarray  # i64 [W], its occurrences
    best: np.ndarray  # i64 [q, W], number of its heaviest occurrence; -1 without one
    best_logs: np.ndarray  # f64 [q, W], log of what that one weighs


class _RowVectors:
    """The vectors of given rows in their order, kept as float32 if told so."""

    def __init__(self, vectors: ShardedArray, rows: np.ndarray, *, kept: bool) -> None:
        self._vectors = vectors
        self._rows = rows  # i64 [m]
        self._kept = to_float32(vectors.take(rows)) if kept else None  # f32 [m, d]

    def slice(self, start: int, stop: int) -> np.ndarray:
        """Those of rows [start, stop), f32 [c, d]."""
        if self._kept is not None:
            return self._kept[start:stop]
        return to_float32(self._vectors.take(self._rows[start:stop]))


class WordScorer:
    """Words with their occurrences in an index, scored for any number of queries."""

    def __init__(self, index: PhraseIndex, occurrences: WordOccurrences) -> None:
        """Raises ValueError for an index whose vectors are known to its searcher alone."""
        if index.vectors is None:
            raise ValueError("an index without stored vectors cannot score words")
        self.occurrences = occurrences
        starts, ends = occurrences.start_rows, occurrences.end_rows  # i64 [n] each
        is_single = starts == ends  # bool [n]
        self._singles, self._pairs = np.flatnonzero(is_single), np.flatnonzero(~is_single)  # occurrence numbers
        needed = len(self._singles) + 2 * len(self._pairs)
        kept = 4 * needed * index.vectors.shape[1] <= KEPT_BYTES
        self._single_vectors = _RowVectors(index.vectors, starts[self._singles], kept=kept)
        self._start_vectors = _RowVectors(index.vectors, starts[self._pairs], kept=kept)
        self._end_vectors = _RowVectors(index.vectors, ends[self._pairs], kept=kept)

    def score(self, queries: QueryVectors, *, factor: float, combination: Combination) -> WordScores:
        """log Σ e^(s + t) (product) or log Σ (e^s + e^t) (sum) over each word's occurrences.

        s and t are `factor` times the inner products of the start query with the first token's vector and of the end
        query with the last one's (Min et al. 2022, arXiv 2212.01349, §3); `factor` is the similarity scale divided by
        the temperature.
        """
        start, end = (scaled_similarity(side, factor) for side in (queries.start, queries.end))  # f32 [q, d] each
        is_product = combination is Combination.product
        # With one vector k at both ends, s + t is one product with the sum of the queries: half the work.
        sides = [start + end] if is_product else [start, end]
        sums = _RunningSums(len(start), self.occurrences)
        for first, stop in _chunks(len(self._singles), len(start)):
            vectors = self._single_vectors.slice(first, stop)  # f32 [c, d]
            sums.add(self._singles[first:stop], [side @ vectors.T for side in sides])  # f32 [q, c] each
        for first, stop in _chunks(len(self._pairs), len(start)):
            s = start @ self._start_vectors.slice(first, stop).T  # f32 [q, c]
            t = end @ self._end_vectors.slice(first, stop).T  # f32 [q, c]
            sums.add(self._pairs[first:stop], [s + t] if is_product else [s, t])
        return sums.finished()


def _chunks(count: int, query_count: int) -> Iterator[tuple[int, int]]:
    """Ranges [first, stop) of at most as many occurrences as have `SCORES_PER_CHUNK` scores."""
    step = min(max(SCORES_PER_CHUNK // max(query_count, 1), 1), MOST_OCCURRENCES_PER_CHUNK)
    for first in range(0, count, step):
        yield first, min(first + step, count)


class _RunningSums:
    """Sums of exponentials that grow chunk by chunk, each relative to the largest exponent so far."""

    def __init__(self, query_count: int, occurrences: WordOccurrences) -> None:
        self._occurrences = occurrences
        shape = (query_count, len(occurrences.words))
        self._tops = np.full(shape, -np.inf)  # f64 [q, W], largest exponent so far
        self._sums = np.zeros(shape)  # f64 [q, W], relative to it
        self._best = np.full(shape, -1, dtype=np.int64)  # i64 [q, W]
        self._best_logs = np.full(shape, -np.inf)  # f64 [q, W]

    def add(self, numbers: np.ndarray, exponents: list[np.ndarray]) -> None:
        """Add occurrences `numbers` i64 [c], ascending; each weighs Σ e^x over the `exponents` x f32 [q, c]."""
        bounds = np.searchsorted(numbers, self._occurrences.offsets)  # i64 [W + 1], in the chunk
        for word in np.flatnonzero(np.diff(bounds)).tolist():
            here = slice(*bounds[word : word + 2].tolist())
            of_word = [each[:, here] for each in exponents]  # f32 [q, occurrences of the word] each
            tops = np.maximum.reduce([each.max(axis=1) for each in of_word])  # f32 [q]
            weights = np.exp(of_word[0] - tops[:, None])  # f32 [q, occurrences of the word]
            for each in of_word[1:]:
                weights += np.exp(each - tops[:, None])
            heaviest = weights.argmax(axis=1)  # i64 [q]
            top_weights = np.take_along_axis(weights, heaviest[:, None], axis=1)[:, 0]  # f32 [q]
            self._merge(word, tops.astype(np.float64), weights.sum(axis=1, dtype=np.float64))
            logs = tops + np.log(top_weights, dtype=np.float64)  # f64 [q]
            better = logs > self._best_logs[:, word]  # bool [q]
            self._best[better, word] = numbers[here][heaviest[better]]
            self._best_logs[better, word] = logs[better]

    def _merge(self, word: int, tops: np.ndarray, sums: np.ndarray) -> None:
        """Add to a word's sums `sums` f64 [q], relative to `tops` f64 [q]."""
        higher = np.maximum(self._tops[:, word], tops)  # f64 [q]
        ours = self._sums[:, word] * np.exp(self._tops[:, word] - higher)  # f64 [q]
        self._sums[:, word] = ours + sums * np.exp(tops - higher)
        self._tops[:, word] = higher

    def finished(self) -> WordScores:
        """The logarithms of all sums."""
        logs = np.log(self._sums, out=np.full(self._sums.shape, -np.inf), where=self._sums > 0)  # f64 [q, W]
        return WordScores(
            log_sums=np.where(self._sums > 0, self._tops + logs, -np.inf),
            counts=self._occurrences.counts,
            best=self._best,
            best_logs=self._best_logs,
        )
