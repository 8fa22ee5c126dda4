"""How much of the evidence of the best k rows falls to each of a list of words, as the reference counts it.

Shapes: q queries, W words, n occurrences, h hits of a side that are an end of an occurrence, k hits a query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from index.row_set import RowSet
from npm.corpus.ranges import concatenated_ranges
from npm.models.similarity import scaled_similarity
from npm.retrieval.word_scores import WordScores

if TYPE_CHECKING:
    from index.types import Hits
    from npm.retrieval.occurrences import WordOccurrences
    from npm.retrieval.phrase_index import PhraseIndex
    from npm.retrieval.queries import QueryVectors


class WordHits:
    """Words with their occurrences in an index, looked for among the best rows of any number of queries."""

    def __init__(self, index: PhraseIndex, occurrences: WordOccurrences) -> None:
        self._index = index
        self.occurrences = occurrences
        row_count = len(index.rows)
        self._sides = [_Side(rows, row_count) for rows in (occurrences.start_rows, occurrences.end_rows)]

    def score(self, queries: QueryVectors, *, k: int, factor: float, one_query: bool) -> WordScores:
        """log P of each word: a softmax over all rows found, summed over those at an end of one of its occurrences.

        The start query finds k rows, whose tokens are to begin a word, the end query k rows, whose tokens are to end
        one; both go into one softmax of `factor` times their inner products, as the reference has it. With
        `one_query` the start query alone is asked. A word that no row stands for has -inf.
        """
        word_count = len(self.occurrences.words)
        shape = (len(queries.start), word_count)
        log_sums, best_logs = np.full(shape, -np.inf), np.full(shape, -np.inf)  # f64 [q, W] each
        best = np.full(shape, -1, dtype=np.int64)  # i64 [q, W]
        k = min(k, len(self._index.rows))
        sides = self._sides[:1] if one_query else self._sides
        texts_per_scan = max(1, getattr(self._index.searcher, "max_queries_per_scan", 64) // len(sides))
        for first in range(0, len(queries.start), texts_per_scan):
            piece = slice(first, first + texts_per_scan)
            asked = [queries.start[piece], queries.end[piece]][: len(sides)]  # f32 [q, d] each
            hits = self._index.searcher.scan(np.concatenate(asked), self._index.live_rows).top(k)
            count = len(asked[0])
            for number in range(count):
                numbers, logs = self._found(hits, [number + count * side for side in range(len(sides))], factor)
                row = first + number
                log_sums[row], best[row], best_logs[row] = _summed(numbers, logs, self.occurrences)
        return WordScores(log_sums=log_sums, counts=self.occurrences.counts, best=best, best_logs=best_logs)

    def _found(self, hits: Hits, queries: list[int], factor: float) -> tuple[np.ndarray, np.ndarray]:
        """The occurrences i64 [h] that the hits of one text's queries stand for, and log P of these hits f64 [h]."""
        scores = [
            scaled_similarity(hits.scores[query][hits.found[query]].astype(np.float64), factor) for query in queries
        ]
        pooled = np.concatenate(scores)  # f64 [≤ 2k]
        top = pooled.max(initial=-np.inf)
        log_total = top + np.log(np.exp(pooled - top).sum()) if len(pooled) else 0.0
        numbers, logs = [], []
        for side, query, of_side in zip(self._sides, queries, scores, strict=False):
            occurrences, which = side.occurrences(hits.rows[query][hits.found[query]])  # i64 [h] each
            numbers.append(occurrences)
            logs.append(of_side[which] - log_total)
        return np.concatenate(numbers), np.concatenate(logs)


class _Side:
    """Which occurrences have a row at this end."""

    def __init__(self, rows: np.ndarray, row_count: int) -> None:
        self._order = np.argsort(rows, kind="stable")  # i64 [n]
        self._rows = rows[self._order]  # i64 [n], ascending
        self._set = RowSet.of_rows(np.unique(rows), row_count)

    def occurrences(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The occurrences i64 [h] that have one of `rows` i64 [k], and which of them each has, i64 [h]."""
        places = np.flatnonzero(self._set.contains(rows))  # i64, the others need no search
        first = np.searchsorted(self._rows, rows[places])
        stop = np.searchsorted(self._rows, rows[places], side="right")
        return self._order[concatenated_ranges(first, stop)], np.repeat(places, stop - first)


def _summed(
    numbers: np.ndarray, logs: np.ndarray, occurrences: WordOccurrences
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log Σ P f64 [W], the best occurrence i64 [W] and its log P f64 [W], over hits of occurrences i64 [h]."""
    word_count = len(occurrences.words)
    words = np.searchsorted(occurrences.offsets, numbers, side="right") - 1  # i64 [h]
    sums = np.bincount(words, weights=np.exp(logs), minlength=word_count)  # f64 [W]
    best, best_logs = np.full(word_count, -1, dtype=np.int64), np.full(word_count, -np.inf)  # [W] each
    order = np.lexsort((-numbers, logs))  # of several for one word, the last assignment is the one that stays
    best[words[order]], best_logs[words[order]] = numbers[order], logs[order]
    return np.log(sums, out=np.full(word_count, -np.inf), where=sums > 0), best, best_logs
