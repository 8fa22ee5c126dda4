"""Exact search: one matrix product over all stored vectors, held in memory as float32.

Shapes: q queries, k hits a query, n rows, m rows scanned, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from index.sharded import ShardedArray
from index.types import ArtefactError, Hits

SCORE_BYTES_PER_SCAN = 256 << 20
"""A scan keeps all its scores; a batch that needs more is split by the caller."""
ROWS_PER_CHUNK = 1 << 16


def max_queries(row_count: int) -> int:
    """How many queries one scan of `row_count` rows may hold: as many as `SCORE_BYTES_PER_SCAN` takes, at least 1."""
    return max(1, SCORE_BYTES_PER_SCAN // max(1, 4 * row_count))


class ExactSearcher:
    """Scores every row: the reference for every other searcher, and the fastest one up to about a million rows.

    `vectors` f32 or f16 [n, d] are held as float32 in memory, 4·n·d bytes; an array that already is that is not
    copied. Raises ArtefactError if a vector holds NaN or infinity.
    """

    def __init__(self, vectors: np.ndarray | ShardedArray) -> None:
        self._vectors = _as_float32(vectors)  # f32 [n, d]
        self.row_count, self.dimensions = self._vectors.shape

    @property
    def max_queries_per_scan(self) -> int:
        """The largest batch that one scan of all rows takes."""
        return max_queries(self.row_count)

    def scan(self, queries: np.ndarray, allowed_rows: np.ndarray | None = None) -> ExactScan:
        """Score `queries` f32 [q, d] with all rows, or only with `allowed_rows` i64 [m], ascending without repeats.

        Costs one pass over the vectors for the whole batch and 4·q·m bytes, at most `SCORE_BYTES_PER_SCAN`.
        """
        queries = checked_queries(queries, self.dimensions)
        if allowed_rows is None:
            check_scan_size(len(queries), self.row_count)
            return ExactScan(queries, queries @ self._vectors.T, rows=None, vectors=self._vectors)  # scores [q, n]
        rows = checked_rows(allowed_rows, self.row_count)
        check_scan_size(len(queries), len(rows))
        return ExactScan(queries, score_rows(self._vectors, queries, rows), rows=rows, vectors=self._vectors)


class ExactScan:
    """The scores of one batch of queries with the rows scanned."""

    def __init__(
        self,
        queries: np.ndarray,
        scores: np.ndarray,
        *,
        rows: np.ndarray | None,
        vectors: np.ndarray | ShardedArray,
    ) -> None:
        self._queries = queries  # f32 [q, d]
        self._scores = scores  # f32 [q, m]
        self._rows = rows  # i64 [m] ascending, or None for all rows
        self._vectors = vectors  # [n, d]

    def top(self, k: int) -> Hits:
        """The k best rows scanned of every query, by (-score, row); with fewer than k rows the rest is not found."""
        query_count = len(self._scores)
        rows = np.zeros((query_count, k), dtype=np.int64)  # [q, k]
        scores = np.full((query_count, k), -np.inf, dtype=np.float32)  # [q, k]
        found = np.zeros((query_count, k), dtype=bool)  # [q, k]
        found[:, : self._scores.shape[1]] = True
        for query in range(query_count):
            columns = best_columns(self._scores[query], k)  # [<= k]
            rows[query, : len(columns)] = columns if self._rows is None else self._rows[columns]
            scores[query, : len(columns)] = self._scores[query, columns]
        return Hits(rows=rows, scores=scores, found=found)

    def at(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Exact inner products of one query with `rows` i64 [...]: f32 [...]. Rows not scanned are scored now."""
        rows = np.asarray(rows, dtype=np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= len(self._vectors)):
            raise IndexError(f"rows {rows.min()}..{rows.max()} of {len(self._vectors)}")
        if self._rows is None:
            return self._scores[query, rows]
        if len(self._rows) == 0:
            return score_unordered_rows(self._vectors, self._queries[query], rows)
        columns = np.minimum(np.searchsorted(self._rows, rows), len(self._rows) - 1)  # [...]
        scanned = self._rows[columns] == rows  # [...]
        if scanned.all():
            return self._scores[query, columns]
        scores = np.empty(rows.shape, dtype=np.float32)  # [...]
        scores[scanned] = self._scores[query, columns[scanned]]
        scores[~scanned] = score_unordered_rows(self._vectors, self._queries[query], rows[~scanned])
        return scores


def best_columns(scores: np.ndarray, k: int) -> np.ndarray:
    """The columns of the k largest of `scores` f32 [m], by (-score, column): i64 [min(k, m)].

    >>> best_columns(np.float32([1, 3, 2, 3]), 3).tolist()
    [1, 3, 2]
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    if k >= len(scores):
        return np.argsort(-scores, kind="stable")
    smallest = np.partition(scores, len(scores) - k)[len(scores) - k]
    # All columns that reach the k-th score, so that among equal scores at the border the smaller rows are kept.
    columns = np.flatnonzero(scores >= smallest)  # [>= k], ascending
    return columns[np.argsort(-scores[columns], kind="stable")[:k]]


def score_rows(vectors: np.ndarray | ShardedArray, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Inner products of `queries` f32 [q, d] with `rows` i64 [m], ascending without repeats: f32 [q, m]."""
    scores = np.empty((len(queries), len(rows)), dtype=np.float32)  # [q, m]
    for start in range(0, len(rows), ROWS_PER_CHUNK):
        chunk = rows[start : start + ROWS_PER_CHUNK]
        gathered = _gather_ascending(vectors, chunk).astype(np.float32, copy=False)  # [chunk, d]
        np.matmul(queries, gathered.T, out=scores[:, start : start + len(chunk)])
    return scores


def score_unordered_rows(vectors: np.ndarray | ShardedArray, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Inner products of `query` f32 [d] with `rows` i64 [...] in any order, f32 [...]; reads each once, ascending."""
    ascending, places = np.unique(rows, return_inverse=True)
    return score_rows(vectors, query[None], ascending)[0, places.reshape(rows.shape)]


def _gather_ascending(vectors: np.ndarray | ShardedArray, rows: np.ndarray) -> np.ndarray:
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):  # consecutive: a view instead of a copy
        return vectors.slice(first, last + 1) if isinstance(vectors, ShardedArray) else vectors[first : last + 1]
    return vectors.take(rows) if isinstance(vectors, ShardedArray) else vectors[rows]


def checked_queries(queries: np.ndarray, dimensions: int) -> np.ndarray:
    """`queries` as contiguous f32 [q, d]; ValueError for another shape or a value that is not finite."""
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    if queries.ndim != 2 or queries.shape[1] != dimensions:
        raise ValueError(f"queries must be [q, {dimensions}], not {list(queries.shape)}")
    if not np.isfinite(queries).all():
        raise ValueError("queries hold NaN or infinity")
    return queries


def checked_rows(rows: np.ndarray, row_count: int) -> np.ndarray:
    """`rows` as i64 [m]; ValueError unless they ascend without repeats within [0, row_count)."""
    rows = np.asarray(rows, dtype=np.int64)
    if rows.ndim != 1 or (len(rows) > 0 and (rows[0] < 0 or rows[-1] >= row_count or (np.diff(rows) <= 0).any())):
        raise ValueError(f"allowed rows must be [m], ascend without repeats and lie in [0, {row_count})")
    return rows


def check_scan_size(query_count: int, row_count: int) -> None:
    """Refuse a scan that would keep more than `SCORE_BYTES_PER_SCAN` of scores."""
    if query_count > (limit := max_queries(row_count)):
        raise ValueError(f"{query_count} queries over {row_count} rows: split the batch by at most {limit} queries")


def finite_chunks(vectors: np.ndarray | ShardedArray) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, f32 [<= ROWS_PER_CHUNK, d]) of all vectors; raises ArtefactError at one that is not finite."""
    sharded = vectors if isinstance(vectors, ShardedArray) else ShardedArray([vectors])
    for start in range(0, len(sharded), ROWS_PER_CHUNK):
        stop = min(start + ROWS_PER_CHUNK, len(sharded))
        chunk = np.ascontiguousarray(sharded.slice(start, stop), dtype=np.float32)  # [chunk, d]
        if not np.isfinite(chunk).all():
            row = start + int(np.flatnonzero(~np.isfinite(chunk).all(axis=1))[0])
            raise ArtefactError(
                "a stored vector is not finite",
                expected="finite numbers",
                got=f"NaN or infinity in row {row}",
                where=f"row {row} of {len(sharded)}",
                fix="encode the corpus again; if it stays, the encoder overflows: use float32 vectors",
            )
        yield start, chunk


def _as_float32(vectors: np.ndarray | ShardedArray) -> np.ndarray:
    if len(vectors.shape) != 2 or vectors.dtype not in (np.float32, np.float16):
        raise ValueError(f"vectors must be f32 or f16 [n, d], not {vectors.dtype} {list(vectors.shape)}")
    if (
        isinstance(vectors, np.ndarray)
        and not isinstance(vectors, np.memmap)
        and vectors.dtype == np.float32
        and vectors.flags.c_contiguous
    ):
        for _ in finite_chunks(vectors):
            pass
        return vectors
    converted = np.empty(vectors.shape, dtype=np.float32)  # [n, d]
    for start, chunk in finite_chunks(vectors):
        converted[start : start + len(chunk)] = chunk
    return converted
