"""How much of the evidence of the best k rows falls to each of a list of words, as the reference counts it.

Shapes: q queries, t texts of one scan, W words, n occurrences, h pairs of a hit and an occurrence it is an end of,
k hits a query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from index.arrays import RowSet
from npm.corpus.blocks import concatenated_ranges
from npm.models.similarity import scaled_similarity
from npm.retrieval.word_scores import WordScores

if TYPE_CHECKING:
    from index.types import Hits
    from npm.retrieval.occurrences import WordOccurrences
    from npm.retrieval.phrase_index import PhraseIndex
    from npm.retrieval.queries import QueryVectors


MOST_TEXTS_PER_SCAN = 64
"""Enough for the speed of one large matrix product; more write and read again scores that no cache holds."""


class WordHits:
    """Words with their occurrences in an index, looked for among the best rows of any number of queries."""

    def __init__(self, index: PhraseIndex, occurrences: WordOccurrences) -> None:
        self._index = index
        self.occurrences = occurrences
        row_count = len(index.rows)
        self._sides = [_Side(rows, row_count) for rows in (occurrences.start_rows, occurrences.end_rows)]
        self._words = np.repeat(np.arange(len(occurrences.words)), occurrences.counts)  # i64 [n], of each occurrence

    def score(self, queries: QueryVectors, *, k: int, factor: float, one_query: bool) -> WordScores:
        """log P of each word: a softmax over all rows found, summed over those at an end of one of its occurrences.

        The start query finds k rows, whose tokens are to begin a word, the end query k rows, whose tokens are to end
        one; both go into one softmax of `factor` times their inner products, as the reference has it. With
        `one_query` the start query alone is asked. A word that no row stands for has -inf.
        """
        query_count, word_count = len(queries.start), len(self.occurrences.words)
        log_sums, best_logs = (np.full((query_count, word_count), -np.inf) for _ in range(2))  # f64 [q, W] each
        best = np.full((query_count, word_count), -1, dtype=np.int64)  # i64 [q, W]
        k = min(k, len(self._index.rows))
        sides = self._sides[:1] if one_query else self._sides
        most_queries = getattr(self._index.searcher, "max_queries_per_scan", 64)
        texts_per_scan = max(1, min(most_queries // len(sides), MOST_TEXTS_PER_SCAN))
        for first in range(0, query_count, texts_per_scan):
            piece = slice(first, first + texts_per_scan)
            asked = [queries.start[piece], queries.end[piece]][: len(sides)]  # f32 [t, d] each
            hits = self._index.searcher.scan(np.concatenate(asked), self._index.live_rows).top(k)
            found = self._found(hits, sides, factor)
            log_sums[piece], best[piece], best_logs[piece] = self._summed(*found, len(asked[0]))
        return WordScores(log_sums=log_sums, counts=self.occurrences.counts, best=best, best_logs=best_logs)

    def _found(self, hits: Hits, sides: list[_Side], factor: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What the hits [sides · t, k] of t texts stand for: texts i64 [h], occurrences i64 [h] and log P f64 [h]."""
        text_count = len(hits.rows) // len(sides)
        logs = scaled_similarity(hits.scores.astype(np.float64), factor)  # f64 [sides · t, k], -inf where none is found
        pooled = np.concatenate(np.split(logs, len(sides)), axis=1)  # f64 [t, sides · k]
        tops = pooled.max(axis=1, initial=-np.inf, keepdims=True)  # f64 [t, 1]
        has_hit = tops > -np.inf  # bool [t, 1]
        totals = np.exp(pooled - np.where(has_hit, tops, 0)).sum(axis=1, keepdims=True)  # f64 [t, 1], 0 without a hit
        log_totals = tops + np.log(totals, where=has_hit, out=np.zeros_like(totals))  # f64 [t, 1]
        columns: list[tuple[np.ndarray, ...]] = []
        for number, side in enumerate(sides):
            of_side = slice(number * text_count, (number + 1) * text_count)
            texts, places = np.nonzero(side.has(hits.rows[of_side]) & hits.found[of_side])  # i64 [hits of this side]
            occurrences, which = side.occurrences(hits.rows[of_side][texts, places])  # i64 [h] each
            texts, places = texts[which], places[which]  # i64 [h] each
            columns.append((texts, occurrences, logs[of_side][texts, places] - log_totals[texts, 0]))
        texts, occurrences, found_logs = map(np.concatenate, zip(*columns, strict=True))  # [h] each
        return texts, occurrences, found_logs

    def _summed(
        self, texts: np.ndarray, numbers: np.ndarray, logs: np.ndarray, text_count: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """log Σ P f64 [t, W], the best occurrence i64 [t, W] and its log P f64 [t, W], over hits [h] of t texts."""
        shape = text_count, len(self.occurrences.words)
        cells = texts * shape[1] + self._words[numbers]  # i64 [h], of t · W
        sums = np.bincount(cells, weights=np.exp(logs), minlength=shape[0] * shape[1])  # f64 [t · W]
        best_logs = np.full(len(sums), -np.inf)  # f64 [t · W]
        np.maximum.at(best_logs, cells, logs)
        best = np.where(best_logs > -np.inf, len(self.occurrences), -1)  # i64 [t · W], the first of equally heavy ones
        is_best = logs == best_logs[cells]  # bool [h]
        np.minimum.at(best, cells[is_best], numbers[is_best])
        log_sums = np.log(sums, out=np.full(len(sums), -np.inf), where=sums > 0)  # f64 [t · W]
        return log_sums.reshape(shape), best.reshape(shape), best_logs.reshape(shape)


class _Side:
    """Which occurrences have a row at this end."""

    def __init__(self, rows: np.ndarray, row_count: int) -> None:
        self._order = np.argsort(rows, kind="stable")  # i64 [n]
        self._rows = rows[self._order]  # i64 [n], ascending
        self._set = RowSet.of_rows(np.unique(rows), row_count)

    def has(self, rows: np.ndarray) -> np.ndarray:
        """Whether each of `rows` i64 [...] stands for an occurrence, bool [...]."""
        return self._set.contains(rows)

    def occurrences(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The occurrences i64 [h] that have one of `rows` i64 [n], and which of them each has, i64 [h]."""
        distinct, places = np.unique(rows, return_inverse=True)  # several texts find the same rows
        first = np.searchsorted(self._rows, distinct)[places]  # i64 [n]
        stop = np.searchsorted(self._rows, distinct, side="right")[places]  # i64 [n]
        return self._order[concatenated_ranges(first, stop)], np.repeat(np.arange(len(rows)), stop - first)
