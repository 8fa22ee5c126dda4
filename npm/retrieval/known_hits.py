"""Searchers that stand in for another one: with hits that are known beforehand, or noting the hits found.

Shapes: q queries, k hits a query, n rows, d dimensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from index.exact import score_unordered_rows
from index.types import Hits

if TYPE_CHECKING:
    from index.arrays import RowSet, ShardedArray
    from index.types import Scan, Searcher


class KnownHitsSearcher:
    """A searcher of queries whose hits are known, as `index.exact.exact_top` finds them over all stored vectors.

    `queries` f32 [q, d] with their `hits` [q, k], found among the `allowed` rows of `vectors` [n, d].
    """

    def __init__(
        self, vectors: ShardedArray, queries: np.ndarray, hits: Hits, *, allowed: np.ndarray | RowSet | None = None
    ) -> None:
        self._vectors = vectors
        self._numbers = {query.tobytes(): number for number, query in enumerate(queries)}
        self._hits = hits
        self._allowed = allowed
        self.row_count, self.dimensions = vectors.shape

    def scan(self, queries: np.ndarray, allowed: np.ndarray | RowSet | None = None) -> KnownHitsScan:
        """A scan of some of the known queries. Raises ValueError for another query, or among other rows."""
        if allowed is not self._allowed:
            raise ValueError("the hits of these queries are known among other rows only")
        numbers = [self._numbers.get(query.tobytes()) for query in queries]
        if None in numbers:
            raise ValueError(f"the hits of query {numbers.index(None)} of {len(queries)} are not known")
        return KnownHitsScan(self._vectors, queries, self._hits, np.array(numbers, dtype=np.int64))


class KnownHitsScan:
    """Known hits of one batch of queries."""

    def __init__(self, vectors: ShardedArray, queries: np.ndarray, hits: Hits, numbers: np.ndarray) -> None:
        self._vectors = vectors
        self._queries = queries  # f32 [q, d]
        self._hits = hits
        self._numbers = numbers  # i64 [q], places of the queries among the hits

    def top(self, k: int) -> Hits:
        """The k best rows of every query. Raises ValueError if fewer are known."""
        if k > self._hits.rows.shape[1]:
            raise ValueError(f"{self._hits.rows.shape[1]} hits are known, not {k}")
        hits = self._hits
        return Hits(*(array[self._numbers, :k] for array in (hits.rows, hits.scores, hits.found)))  # [q, k] each

    def at(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Exact inner products f32 [n] of one query with `rows` i64 [n], from the stored vectors."""
        return score_unordered_rows(self._vectors, self._queries[query], np.asarray(rows, dtype=np.int64))


class HitRecorder:
    """Passes everything on to a searcher, and keeps the hits of the last scan."""

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher
        self.row_count, self.dimensions = searcher.row_count, searcher.dimensions
        self.hits: Hits | None = None

    def scan(self, queries: np.ndarray, allowed: np.ndarray | RowSet | None = None) -> _RecordedScan:
        """A scan of the searcher that is recorded."""
        return _RecordedScan(self, self._searcher.scan(queries, allowed))


class _RecordedScan:
    """A scan that hands its hits to the recorder."""

    def __init__(self, recorder: HitRecorder, scan: Scan) -> None:
        self._recorder = recorder
        self._scan = scan
        self.at = scan.at

    def top(self, k: int) -> Hits:
        """The k best rows of every query."""
        self._recorder.hits = self._scan.top(k)
        return self._recorder.hits
