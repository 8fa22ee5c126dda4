"""Exact search: one matrix product over all stored vectors, held in memory as float32.

Shapes: q queries, k hits a query, n rows, m rows scanned, c rows of a chunk, d dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from index.arrays import RowSet, ShardedArray, to_float32
from index.types import Hits, Report, no_report
from npm.core.errors import ArtifactError

SCORE_BYTES_PER_SCAN = 256 << 20
"""A scan keeps all its scores; a batch that needs more is split by the caller."""
ROWS_PER_CHUNK = 1 << 16
FEW_QUERIES = 32
"""Up to so many, vectors times queries is the faster product, 1.2 times (32) to 1.6 times (2) on one thread."""
GATHERED_ROWS_PER_CHUNK = 1 << 9
"""Rows gathered, converted and multiplied at once: a few MB, so that all three happen in the cache."""
SAMPLE_STEP = 16
"""The best of many scores are looked for among those that reach a good one of every so many scores: a scan and two
small partitions instead of one over all, 3 to 8 times as fast over 200,000 scores."""
SAMPLED_FROM, LEAST_SAMPLED = 32, 512
"""Scores to each one wanted from which that is done, and the least number wanted that counts."""
GATHERED_SHARE = 0.25
"""Up to this share of all rows, gathering allowed rows is cheaper than scoring all."""


def max_queries(row_count: int) -> int:
    """How many queries one scan of `row_count` rows may hold: as many as `SCORE_BYTES_PER_SCAN` takes, at least 1."""
    return max(1, SCORE_BYTES_PER_SCAN // max(1, 4 * row_count))


class ExactSearcher:
    """Scores every row: the reference for every other searcher, and the fastest one up to about a million rows.

    `vectors` f32 or f16 [n, d] are held as float32 in memory, 4·n·d bytes; an array that already is that is not
    copied. Raises ArtifactError if a vector holds NaN or infinity.
    """

    def __init__(self, vectors: np.ndarray | ShardedArray) -> None:
        self._vectors = _as_float32(vectors)  # f32 [n, d]
        self.row_count, self.dimensions = self._vectors.shape

    @property
    def max_queries_per_scan(self) -> int:
        """The largest batch that one scan of all rows takes."""
        return max_queries(self.row_count)

    def scan(self, queries: np.ndarray, allowed: np.ndarray | RowSet | None = None) -> ExactScan:
        """Score `queries` f32 [q, d] with all rows, or only the allowed ones: i64 [m], ascending, or a `RowSet`.

        Costs one pass over the vectors for the whole batch and 4·q·m bytes, at most `SCORE_BYTES_PER_SCAN`; with a
        `RowSet` that holds many rows, all n are scored and the others left out of the hits.
        """
        queries = checked_queries(queries, self.dimensions)
        rows, among = allowed_rows(allowed, self.row_count, most_gathered=GATHERED_SHARE * self.row_count)
        if rows is not None:
            check_scan_size(len(queries), len(rows))
            return ExactScan(queries, score_rows(self._vectors, queries, rows), rows=rows, vectors=self._vectors)
        check_scan_size(len(queries), self.row_count)
        scores = checked_scores(_products(queries, self._vectors))  # f32 [q, n]
        return ExactScan(queries, scores, rows=None, vectors=self._vectors, among=among)


class ExactScan:
    """The scores of one batch of queries with the rows scanned."""

    def __init__(
        self,
        queries: np.ndarray,
        scores: np.ndarray,
        *,
        rows: np.ndarray | None,
        vectors: np.ndarray | ShardedArray,
        among: RowSet | None = None,
    ) -> None:
        self._queries = queries  # f32 [q, d]
        self._scores = scores  # f32 [q, m]
        self._rows = rows  # i64 [m] ascending, or None for all rows
        self._vectors = vectors  # [n, d]
        self._among = among  # of all rows scanned, those that may be hits; None for all

    def top(self, k: int) -> Hits:
        """The k best rows scanned of every query, by (-score, row); with fewer than k rows the rest is not found."""
        hits = Hits.none(len(self._scores), k)
        outside = None if self._among is None else ~self._among.mask(0, self._among.row_count)  # bool [n]
        most = self._scores.shape[1] if self._among is None else len(self._among)
        for query, scored in enumerate(self._scores):  # f32 [m]
            columns = best_columns(scored if outside is None else np.where(outside, -np.inf, scored), k)  # [<= k]
            columns = columns[:most]  # fewer rows than k: what is left are rows outside
            hits.put(query, columns if self._rows is None else self._rows[columns], scored[columns])
        return hits

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


def exact_top(
    vectors: np.ndarray | ShardedArray,
    queries: np.ndarray,
    k: int,
    allowed: np.ndarray | RowSet | None = None,
    progress: Report = no_report,
) -> Hits:
    """The k best rows of each of `queries` f32 [q, d] by (-score, row), streaming `vectors` f16|f32 [n, d].

    Reads all vectors once, chunk by chunk, whatever their number; the reference for search at any size. `allowed` as
    in `ExactSearcher.scan`; `progress(rows done, n)`.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    row_count, dimensions = vectors.shape
    queries = checked_queries(queries, dimensions)
    rows, among = allowed_rows(allowed, row_count, most_gathered=0)
    among = among if rows is None else RowSet.of_rows(rows, row_count)
    best = [(np.empty(0, np.float32), np.empty(0, np.int64)) for _ in queries]  # scores, rows [<= k] of each query
    worst = np.full(len(queries), -np.inf, dtype=np.float32)  # [q], of k rows that are found
    for start, chunk in finite_chunks(vectors):
        scores = checked_scores(_products(queries, chunk))  # f32 [q, c]
        better = scores > worst[:, None]  # bool [q, c]; an equal one comes later, and so is worse
        if among is not None:
            better &= among.mask(start, start + len(chunk))
        for query in np.flatnonzero(better.any(axis=1)).tolist():
            columns = np.flatnonzero(better[query])  # i64 [survivors]
            joined = np.concatenate([best[query][0], scores[query, columns]])  # f32 [k + survivors]
            kept = best_columns(joined, k)  # [<= k]; earlier rows stand before later ones of equal score
            best[query] = joined[kept], np.concatenate([best[query][1], start + columns])[kept]
            worst[query] = joined[kept[-1]] if len(kept) == k else -np.inf
        progress(start + len(chunk), row_count)
    hits = Hits.none(len(queries), k)
    for query, (found_scores, found_rows) in enumerate(best):
        hits.put(query, found_rows, found_scores)
    return hits


def _products(queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Inner products f32 [q, n] of `queries` f32 [q, d] with `vectors` f32 [n, d]."""
    if len(queries) > FEW_QUERIES:
        return np.asarray(queries @ vectors.T)  # [q, n]
    scores = np.empty((len(queries), len(vectors)), dtype=np.float32)  # [q, n]
    for start in range(0, len(vectors), ROWS_PER_CHUNK):
        stop = start + ROWS_PER_CHUNK
        # a product of two queries with all vectors reads these slower than two products of one, the other way round not
        scores[:, start:stop] = (vectors[start:stop] @ queries.T).T  # [q, <= c]
    return scores


def best_columns(scores: np.ndarray, k: int) -> np.ndarray:
    """The columns of the k largest of `scores` f32 [m], by (-score, column): i64 [min(k, m)].

    >>> best_columns(np.float32([1, 3, 2, 3]), 3).tolist()
    [1, 3, 2]
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    if k >= len(scores):
        return _descending(scores)
    if len(scores) >= SAMPLED_FROM * max(k, LEAST_SAMPLED):
        sample = scores[::SAMPLE_STEP]  # f32 [m / step]
        # so many of the sample that the least of them is below the k-th score of all but by a rare chance
        wanted = int(k / SAMPLE_STEP + 6 * math.sqrt(k / SAMPLE_STEP)) + 4
        columns = np.flatnonzero(scores >= np.partition(sample, len(sample) - wanted)[len(sample) - wanted])
        if k <= len(columns) <= len(scores) // 2:
            return columns[best_columns(scores[columns], k)]  # ascending columns: equal scores stay in their order
    smallest = np.partition(scores, len(scores) - k)[len(scores) - k]
    # All columns that reach the k-th score, so that among equal scores at the border the smaller rows are kept.
    columns = np.flatnonzero(scores >= smallest)  # [>= k], ascending
    return columns[_descending(scores[columns])[:k]]


def _descending(scores: np.ndarray) -> np.ndarray:
    """The columns of `scores` f32 [m] by (-score, column), i64 [m]: a stable sort, in a fifth of the time.

    Score and column become one whole number a column, since numpy sorts numbers several times faster than it sorts
    stably by them. As whole numbers, the bits of floats ascend with the floats once those of negative ones are turned.
    """
    bits = (scores + np.float32(0)).view(np.int32)  # [m]; adding 0 makes one zero of the two
    ascending = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))  # i32 [m]
    keys = (~ascending).astype(np.int64) << 32 | np.arange(len(scores))  # i64 [m]
    keys.sort()
    return keys & 0xFFFFFFFF


def score_rows(vectors: np.ndarray | ShardedArray, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Inner products of `queries` f32 [q, d] with `rows` i64 [m], ascending without repeats: f32 [q, m].

    Those of stored vectors, a `ShardedArray`, are summed in float64.
    """
    # Reading and converting them costs more than the sums, and rounded sums of float64 are the same however rows and
    # queries are cut into chunks, batches and partitions. Vectors in memory are scored as in scans of all of them.
    dtype = np.float64 if isinstance(vectors, ShardedArray) else np.float32
    asked = queries.astype(dtype, copy=False)  # [q, d]
    scores = np.empty((len(queries), len(rows)), dtype=np.float32)  # [q, m]
    for start in range(0, len(rows), GATHERED_ROWS_PER_CHUNK):
        chunk = rows[start : start + GATHERED_ROWS_PER_CHUNK]
        gathered = to_float32(_gather_ascending(vectors, chunk)).astype(dtype, copy=False)  # [chunk, d]
        np.matmul(asked, gathered.T, out=scores[:, start : start + len(chunk)])
    return checked_scores(scores)


def checked_scores(scores: np.ndarray) -> np.ndarray:
    """`scores` f32 [...] of finite queries; ArtifactError if one is not finite: a stored number is not, or is huge."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = scores.sum()  # not finite if one score is not; or of huge ones, which are then looked at
    if not np.isfinite(total) and not np.isfinite(scores).all():
        raise ArtifactError(
            f"{np.count_nonzero(~np.isfinite(scores))} of {scores.size} similarities are not finite: find the damaged "
            "files with npmlm verify, and fetch the index again, or build it again"
        )
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


def allowed_rows(
    allowed: np.ndarray | RowSet | None, row_count: int, *, most_gathered: float
) -> tuple[np.ndarray | None, RowSet | None]:
    """What is allowed, as rows i64 [m] to be gathered or as the set that hits must lie in; neither for all rows.

    A set of at most `most_gathered` rows is gathered. Raises ValueError for rows of another index.
    """
    if not isinstance(allowed, RowSet):
        return (None if allowed is None else checked_rows(allowed, row_count)), None
    if allowed.row_count != row_count:
        raise ValueError(f"allowed rows are a set over {allowed.row_count} rows, of an index of {row_count}")
    if len(allowed) <= most_gathered:
        return allowed.rows(), None
    return None, allowed


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
    """(first row, f32 [<= ROWS_PER_CHUNK, d]) of all vectors; raises ArtifactError at one that is not finite."""
    sharded = vectors if isinstance(vectors, ShardedArray) else ShardedArray([vectors])
    for start in range(0, len(sharded), ROWS_PER_CHUNK):
        stop = min(start + ROWS_PER_CHUNK, len(sharded))
        stored = sharded.slice(start, stop)  # [c, d]
        check_finite(stored, np.arange(start, stop))
        yield start, to_float32(stored)


def check_finite(vectors: np.ndarray, rows: np.ndarray) -> None:
    """Raise ArtifactError, naming the row, if one of `vectors` [c, d], which are `rows` i64 [c], is not finite."""
    if vectors.dtype == np.float16 and vectors.size:
        # numpy looks at half precision numbers one by one; from these bits on, of either sign, none is finite.
        bits = vectors.view(np.int16)  # [c, d]
        if bits.max() < 0x7C00 and bits.view(np.uint16).max() < 0xFC00:
            return
    finite = np.isfinite(vectors).all(axis=1)  # bool [c]
    if not finite.all():
        row = int(rows[np.argmin(finite)])
        raise ArtifactError(
            f"the vector in row {row} is not finite: encode the corpus again; if it stays, use float32 vectors"
        )


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
