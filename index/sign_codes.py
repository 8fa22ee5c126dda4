"""The rows with the largest inner products among many vectors, from one bit per dimension: its sign.

A scan of the signs finds candidates, which are then scored by the stored vectors: memory holds a bit per number, and
the vectors themselves stay in their mapped files. A row's score in the scan is the sum of a query's
values, each with the sign of the row there: the query is not rounded to signs, as it would be for a Hamming
distance, which needs eight times as many candidates for the same recall (docs/results/scale.md).

Shapes: q queries, k hits per query, n rows, m candidates, d dimensions.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from index.arrays import ShardedArray
from index.exact import scan_rows
from index.faiss_library import FaissIndex, import_faiss
from index.types import Hits

EXACT_ROWS = 1 << 10
"""Up to this many rows are all scored: from about a thousand on, the scan of their signs is faster."""
CANDIDATES = 512
"""Rows of the scan that are scored by their vectors; at least four times the number of requested hits."""
ROWS_PER_CHUNK = 1 << 14


class SignSearcher:
    """Searches `vectors` [n, d], of about equal length, by inner product.

    Signs are read of all vectors by the first search that needs them: a tenth of a second for a million of 384
    dimensions that are in the cache of the disk.
    """

    def __init__(self, vectors: ShardedArray, *, exact_rows: int = EXACT_ROWS, candidates: int = CANDIDATES) -> None:
        self._vectors = vectors
        self._exact_rows, self._candidate_count = exact_rows, candidates
        self.row_count, self.dimensions = vectors.shape

    def top(self, queries: np.ndarray, k: int, allowed: np.ndarray | None = None) -> Hits:
        """The k best rows, of those that `allowed` bool [n] names, for each of `queries` f32 [q, d] by (-score, row).

        Scores are exact; among more than `exact_rows` rows a hit may be missed.
        """
        rows = np.arange(self.row_count) if allowed is None else np.flatnonzero(allowed)  # i64 [n]
        if len(rows) <= self._exact_rows:
            return scan_rows(self._vectors, queries, rows).top(k)
        hits = Hits.none(len(queries), k)
        for number, query in enumerate(queries[:, None]):  # f32 [1, d] each
            candidates = self._candidates(query, max(self._candidate_count, 4 * k), rows, allowed)  # i64 [m]
            best = scan_rows(self._vectors, query, candidates).top(k)  # [1, k]
            hits.put(number, best.rows[best.found], best.scores[best.found])
        return hits

    def _candidates(self, query: np.ndarray, count: int, rows: np.ndarray, allowed: np.ndarray | None) -> np.ndarray:
        """The `count` allowed `rows` i64 [n] that the scan ranks first for `query` f32 [1, d]: ascending i64 [m]."""
        padded = np.pad(query, ((0, 0), (0, -self.dimensions % 8)))
        # A filter unrelated to the query leaves its fraction at any depth; others may leave nothing.
        depth = count if allowed is None else 2 * count * self.row_count // len(rows)
        while depth < self.row_count:
            found = self._scanner.search(padded, depth)[1][0]  # i64 [depth]
            found = found[found >= 0]  # FAISS omits those that have the least sum possible
            if allowed is not None:
                found = found[allowed[found]][:count]
            if len(found) >= count:
                return np.sort(found)
            depth *= 8
        return rows

    @cached_property
    def _scanner(self) -> FaissIndex:
        """Scans rows of signs by inner product.

        A product quantizer that needs no training: each four dimensions have sixteen patterns of signs,
        which are its centroids. So its fast scan (André et al., "Quicker ADC", 2019) adds up a query's numbers, rounded
        to 8 bits, with the signs of 32 rows at a time, out of registers.
        """
        faiss = import_faiss()
        # As integers the bits of half precision numbers have the same sign and are compared several times faster.
        signed = f"i{self._vectors.arrays[0].itemsize}"
        pieces = (
            np.packbits(array[start : start + ROWS_PER_CHUNK, : self.dimensions].view(signed) > 0, 1, "little")
            for array in self._vectors.arrays
            for start in range(0, len(array), ROWS_PER_CHUNK)
        )
        codes = np.concatenate(list(pieces))  # u8 [n, ceil(d / 8)]
        row_count, code_bytes = codes.shape
        quantized = faiss.IndexPQ(8 * code_bytes, 2 * code_bytes, 4, faiss.METRIC_INNER_PRODUCT)
        patterns = np.where(np.arange(16)[:, None] >> np.arange(4) & 1, 1, -1).astype(np.float32)  # f32 [16, 4]
        faiss.copy_array_to_vector(np.tile(patterns, (2 * code_bytes, 1)).reshape(-1), quantized.pq.centroids)
        faiss.copy_array_to_vector(codes.reshape(-1), quantized.codes)
        quantized.is_trained, quantized.ntotal = True, row_count
        return faiss.IndexPQFastScan(quantized)  # copies all of it, in the order of its scan
