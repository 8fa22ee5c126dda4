"""The rows with the largest inner products among many vectors, from one bit a number: its sign.

A scan of the signs finds candidates, which are then scored by the stored vectors: memory holds a sixteenth of half
precision vectors, and those themselves stay in their mapped files. A row's score in the scan is the sum of a query's
numbers, each with the sign that the row has there: the query is not rounded to signs, as it would be for a Hamming
distance, which needs eight times as many candidates for the same recall (`benchmarks/bench_block_stage.py`).
Up to `EXACT_ROWS` rows, of all or of those allowed, are scored one and all.

Shapes: q queries, k hits a query, n rows, m candidates, d dimensions.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from index.arrays import RowSet, ShardedArray
from index.exact import best_columns, checked_queries, exact_top, max_queries, score_rows
from index.faiss_library import has_faiss, sign_scanner
from index.types import Hits

if TYPE_CHECKING:
    from index.faiss_library import FaissIndex

EXACT_ROWS = 1 << 14
"""Up to this many rows are scored in less time than the scan of a million signs takes, twice over."""
CANDIDATES = 512
"""Rows of the scan that are scored by their vectors; at least four times as many as hits are asked for."""
ROWS_PER_CHUNK = 1 << 14


def sign_codes(vectors: np.ndarray) -> np.ndarray:
    """Whether each number of `vectors` f16 [n, d] is above 0, u8 [n, ceil(d / 8)]: the first one is the lowest bit.

    >>> sign_codes(np.float16([[0.5, -1, 2, 0, -0.0], [-3, 1, -1, 1, 1]])).tolist()
    [[5], [26]]
    """
    bits = vectors.view(np.int16)  # [n, d]; as whole numbers, of the same sign and several times faster
    return np.packbits(bits > 0, axis=1, bitorder="little")


class SignSearcher:
    """Searches `vectors` f16 [n, d], of about equal length, by inner product.

    Signs are read of all vectors by the first search that needs them: a tenth of a second for a million of 384
    dimensions that are in the cache of the disk. Without FAISS every search scores all rows.
    """

    def __init__(self, vectors: ShardedArray, *, exact_rows: int = EXACT_ROWS, candidates: int = CANDIDATES) -> None:
        self._vectors = vectors
        self._exact_rows, self._candidate_count = exact_rows, candidates
        self.row_count, self.dimensions = vectors.shape

    def top(self, queries: np.ndarray, k: int, allowed: RowSet | None = None) -> Hits:
        """The k best of the `allowed` rows for each of `queries` f32 [q, d] by (-score, row); None: of all rows.

        Scores are exact; among more than `exact_rows` rows a hit may be missed. Raises ArtifactError if a vector that
        is scored is damaged.
        """
        queries = checked_queries(queries, self.dimensions)
        row_count = self.row_count if allowed is None else len(allowed)
        hits = Hits.none(len(queries), k)
        if row_count <= self._exact_rows:
            rows = np.arange(self.row_count) if allowed is None else allowed.rows()  # i64 [n]
            step = max_queries(row_count)
            for start in range(0, len(queries), step):
                scored = score_rows(self._vectors, queries[start : start + step], rows)  # f32 [≤ step, n]
                for query, scores in enumerate(scored, start):
                    best = best_columns(scores, k)  # i64 [≤ k]
                    hits.put(query, rows[best], scores[best])
        elif not has_faiss():
            hits = exact_top(self._vectors, queries, k, allowed)
        else:
            for number, query in enumerate(queries[:, None]):  # f32 [1, d] each
                rows = self._candidates(query, max(self._candidate_count, 4 * k), allowed)  # i64 [m]
                scores = score_rows(self._vectors, query, rows)[0]  # f32 [m]
                best = best_columns(scores, k)  # i64 [≤ k]
                hits.put(number, rows[best], scores[best])
        return hits

    def _candidates(self, query: np.ndarray, count: int, allowed: RowSet | None) -> np.ndarray:
        """The `count` allowed rows that the scan ranks first for `query` f32 [1, d], or all: ascending i64 [m]."""
        # A filter that has nothing to do with the query leaves its share at any depth; others may leave nothing.
        depth = count if allowed is None else 2 * count * self.row_count // len(allowed)
        while depth < self.row_count:
            rows = self._scanned(query, depth)  # i64 [≤ depth]
            if allowed is not None:
                rows = rows[allowed.contains(rows)][:count]
            if len(rows) >= count:
                return np.sort(rows)
            depth *= 8
        return np.arange(self.row_count) if allowed is None else allowed.rows()

    def _scanned(self, query: np.ndarray, depth: int) -> np.ndarray:
        """The rows i64 [≤ depth] with the best signs for `query` f32 [1, d], best first."""
        padding = -self.dimensions % 8
        _, rows = self._scanner.search(np.pad(query, ((0, 0), (0, padding))), depth)
        found: np.ndarray = rows[0][rows[0] >= 0]  # FAISS leaves out those that have the least sum possible
        return found

    @cached_property
    def _scanner(self) -> FaissIndex:
        # Straight from the files: a row is checked when it is scored, and damage here only hides a row from the scan.
        chunks = (
            array[start : start + ROWS_PER_CHUNK]
            for array in self._vectors.arrays
            for start in range(0, len(array), ROWS_PER_CHUNK)
        )
        codes = np.concatenate([sign_codes(chunk) for chunk in chunks])  # u8 [n, ceil(d / 8)]
        return sign_scanner(codes)
