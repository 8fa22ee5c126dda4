"""Exact search: one matrix product over all stored vectors, by torch on the CPU or a GPU.

Shapes: q queries, k hits per query, n rows, m rows scanned, c rows of a chunk, d dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from index.arrays import ShardedArray, to_float32
from index.types import Hits
from npm.core.errors import ArtifactError
from npm.core.types import Progress, silent

if TYPE_CHECKING:
    import torch

SCORE_BYTES_PER_SCAN = 256 << 20
"""A scan keeps all its scores; a batch that needs more is split by the caller."""
ROWS_PER_CHUNK = 1 << 16
FEW_QUERIES = 8
"""Up to this number, vectors times queries is the faster product, on one thread 1.3 times (8) to 4 times (2)."""
GATHERED_ROWS_PER_CHUNK = 1 << 9
"""Rows gathered, converted and multiplied at once: a few MB, so that all three happen in the cache."""
GATHERED_SHARE = 0.2
"""Up to this fraction of all rows, gathering allowed rows is cheaper than scoring all."""


def max_queries(row_count: int) -> int:
    """Maximum queries per scan of `row_count` rows within `SCORE_BYTES_PER_SCAN`, at least 1."""
    return max(1, SCORE_BYTES_PER_SCAN // max(1, 4 * row_count))


def fitting_device(vector_bytes: int) -> str:
    """`cuda` if there is a GPU with space for `vector_bytes` and as much again for scores, else `cpu`."""
    import torch

    fits = torch.cuda.is_available() and 2 * vector_bytes <= torch.cuda.mem_get_info("cuda")[0]
    return "cuda" if fits else "cpu"


class ExactSearcher:
    """Scores every row: the reference for every other searcher, and the fastest one up to about a million rows.

    `vectors` [n, d] are read at the first scan of all of them, and held from then on: as float32 on the CPU, not copied
    if they already are that in memory, and on a GPU as float16 unless they are stored as float32; scores are float32.
    On a CPU a scan of some rows reads these alone, where they are stored. Raises ArtifactError if a vector holds NaN
    or infinity.
    """

    def __init__(self, vectors: np.ndarray | ShardedArray, *, device: str = "cpu") -> None:
        self._stored = vectors if isinstance(vectors, ShardedArray) else ShardedArray([vectors])
        self.row_count, self.dimensions = vectors.shape
        self._device = device

    @cached_property
    def _vectors(self) -> torch.Tensor:
        """All vectors [n, d] on the device."""
        import torch

        on_cpu, first = self._device == "cpu", self._stored.arrays[0]
        if on_cpu and len(self._stored.arrays) == 1 and first.dtype == np.float32 and first.flags.carray:
            for _ in finite_chunks(self._stored):
                pass
            return _tensor(first)  # f32 [n, d], the same memory
        dtype = torch.float32 if on_cpu or first.dtype == np.float32 else torch.float16
        vectors = torch.empty(self._stored.shape, dtype=dtype, device=self._device)  # [n, d]
        for start, chunk in finite_chunks(self._stored):
            vectors[start : start + len(chunk)] = _tensor(chunk)
        return vectors

    @property
    def max_queries_per_scan(self) -> int:
        """The largest batch that one scan of all rows takes."""
        return max_queries(self.row_count)

    def scan(self, queries: np.ndarray, allowed: np.ndarray | None = None) -> ExactScan:
        """Score `queries` f32 [q, d] with all rows, or only the allowed ones: i64 [m], ascending, or bool [n].

        Costs one pass over the vectors for the whole batch and 4·q·m bytes, at most `SCORE_BYTES_PER_SCAN`; where a
        mask holds for many rows, all n are scored and the others excluded from the hits.
        """
        queries = checked_queries(queries, self.dimensions)
        rows, mask = allowed_rows(allowed, self.row_count, most_gathered=GATHERED_SHARE * self.row_count)
        if len(queries) > (limit := max_queries(self.row_count if rows is None else len(rows))):
            raise ValueError(f"{len(queries)} queries: split the batch by at most {limit} queries")
        if rows is not None and self._device == "cpu":
            return scan_rows(self._stored, queries, rows)
        on_device = _tensor(queries).to(self._device)  # f32 [q, d]

        def score_rows_of(query: int, rows: np.ndarray) -> np.ndarray:
            return self._scores(on_device[query][None], rows.reshape(-1))[0].cpu().numpy().reshape(rows.shape)

        scores = self._scores(on_device, rows)  # f32 [q, m]
        return ExactScan(scores, score_rows_of, self.row_count, rows, mask)

    def _scores(self, queries: torch.Tensor, rows: np.ndarray | None) -> torch.Tensor:
        """Inner products of `queries` f32 [q, d] with all rows, or with `rows` i64 [m] in any order: f32 [q, m]."""
        chosen = None if rows is None else _tensor(rows).to(queries.device)  # i64 [m]
        count = self.row_count if chosen is None else len(chosen)
        scores = queries.new_empty((len(queries), count))  # f32 [q, m]
        for start in range(0, count, ROWS_PER_CHUNK):
            piece = slice(start, min(start + ROWS_PER_CHUNK, count))
            chunk = self._vectors[piece] if chosen is None else self._vectors[chosen[piece]]  # [c, d]
            scores[:, piece] = _products(queries, chunk.float())
        _check_scores(scores)
        return scores


@dataclass(frozen=True, slots=True)
class ExactScan:
    """The scores of one batch of queries with the rows scanned; `score(query, rows)` scores any rows i64 [...]."""

    scores: torch.Tensor  # f32 [q, m]
    score: Callable[[int, np.ndarray], np.ndarray]
    row_count: int
    rows: np.ndarray | None  # i64 [m] ascending, or None for all rows
    mask: np.ndarray | None = None  # bool [n]: which of all rows may be hits; None for all

    def top(self, k: int) -> Hits:
        """The k best rows scanned of every query, by (-score, row); with fewer than k rows other slots are empty."""
        hits = Hits.none(len(self.scores), k)
        mask = None if self.mask is None else _tensor(self.mask).to(self.scores.device)  # bool [n]
        most = self.scores.shape[1] if self.mask is None else int(np.count_nonzero(self.mask))
        wanted = min(k, most)
        for query, all_scores in enumerate(self.scores if wanted else []):  # f32 [m]
            scores = all_scores if mask is None else all_scores.where(mask, -math.inf)  # f32 [m]
            columns = None
            if not scores.is_cpu:  # few are copied from the device, with all that are as good as the last of them
                columns = (scores >= scores.topk(wanted).values[-1]).nonzero()[:, 0]  # i64 [>= wanted]
                scores = scores[columns]
            found = scores.cpu().numpy()
            best = best_columns(found, wanted)
            rows = best if columns is None else columns.cpu().numpy()[best]
            hits.put(query, rows if self.rows is None else self.rows[rows], found[best])
        return hits

    def at(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Exact inner products of one query with `rows` i64 [...]: f32 [...]. Rows of a scan of some are scored now."""
        rows = np.asarray(rows, dtype=np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= self.row_count):
            raise IndexError(f"rows {rows.min()}..{rows.max()} of {self.row_count}")
        if self.rows is not None:
            return self.score(query, rows)
        scores = self.scores[query]  # f32 [n]
        if scores.is_cpu:
            return np.asarray(scores.numpy()[rows])
        return scores[_tensor(rows).to(scores.device)].cpu().numpy()


def scan_rows(vectors: ShardedArray, queries: np.ndarray, rows: np.ndarray) -> ExactScan:
    """A scan of `queries` f32 [q, d] over `rows` i64 [m], ascending without repeats, of stored vectors alone."""

    def score(query: int, wanted: np.ndarray) -> np.ndarray:
        ascending, places = np.unique(wanted, return_inverse=True)  # each row is read once
        scores: np.ndarray = score_rows(vectors, queries[query][None], ascending)[0, places.reshape(wanted.shape)]
        return scores

    scores = _tensor(score_rows(vectors, queries, rows))  # f32 [q, m]
    return ExactScan(scores, score, len(vectors), rows)


def exact_top(
    vectors: np.ndarray | ShardedArray,
    queries: np.ndarray,
    k: int,
    allowed: np.ndarray | None = None,
    progress: Progress = silent,
) -> Hits:
    """The k best rows of each of `queries` f32 [q, d] by (-score, row), streaming `vectors` [n, d].

    Reads all vectors once, chunk by chunk, for any number; the reference for search at any size. `allowed` as
    in `ExactSearcher.scan`.
    """
    row_count, dimensions = vectors.shape
    queries = checked_queries(queries, dimensions)
    hits = Hits.none(len(queries), k)
    rows, mask = allowed_rows(allowed, row_count, most_gathered=-1)
    if rows is not None:
        mask = np.zeros(row_count, dtype=bool)  # [n]
        mask[rows] = True
    best = [(np.empty(0, np.float32), np.empty(0, np.int64)) for _ in queries]  # scores, rows [<= k] of each query
    worst = np.full(len(queries), -np.inf, dtype=np.float32)  # [q], of k rows that are found
    for start, chunk in finite_chunks(vectors):
        products = _products(_tensor(queries), _tensor(chunk))  # f32 [q, c]
        _check_scores(products)
        scores = products.numpy()
        better = scores > worst[:, None]  # bool [q, c]; an equal one comes later, and so is worse
        if mask is not None:
            better &= mask[start : start + len(chunk)]
        for query in np.flatnonzero(better.any(axis=1)).tolist():
            columns = np.flatnonzero(better[query])  # i64 [survivors]
            joined = np.concatenate([best[query][0], scores[query, columns]])  # f32 [k + survivors]
            kept = best_columns(joined, k)  # [<= k]; earlier rows come before later ones of equal score
            best[query] = joined[kept], np.concatenate([best[query][1], start + columns])[kept]
            worst[query] = joined[kept[-1]] if len(kept) == k else -np.inf
        progress("exact scores", start + len(chunk), row_count)
    for query, (found_scores, found_rows) in enumerate(best):
        hits.put(query, found_rows, found_scores)
    return hits


def _products(queries: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Inner products f32 [q, c] of `queries` f32 [q, d] with `vectors` f32 [c, d]."""
    if len(queries) > FEW_QUERIES or not queries.is_cpu:
        return queries @ vectors.T  # [q, c]
    # The product with one query takes another routine, half as fast as the one with two.
    at_least_two = queries.repeat(2, 1) if len(queries) == 1 else queries  # [max(2, q), d]
    return (vectors @ at_least_two.T).T[: len(queries)]  # [q, c]


def _tensor(array: np.ndarray) -> torch.Tensor:
    """`array` as a tensor on the CPU, copied only if it cannot be written to, which torch warns of."""
    import torch

    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def best_columns(scores: np.ndarray, k: int) -> np.ndarray:
    """The columns of the k largest of `scores` f32 [m], by (-score, column): i64 [min(k, m)].

    >>> best_columns(np.float32([1, 3, 2, 3]), 3).tolist()
    [1, 3, 2]
    """
    if k >= len(scores):
        return np.argsort(-scores, kind="stable")
    smallest = np.partition(scores, len(scores) - k)[len(scores) - k]
    # All columns that reach the k-th score, so that among equal scores at the border the smaller rows are kept.
    columns = np.flatnonzero(scores >= smallest)  # [>= k], ascending
    return columns[np.argsort(-scores[columns], kind="stable")[:k]]


def score_rows(vectors: ShardedArray, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Inner products of `queries` f32 [q, d] with stored `rows` i64 [m], ascending without repeats: f32 [q, m]."""
    # Sums of float64, rounded, are the same however rows and queries are cut into chunks, batches and partitions;
    # reading and converting the rows costs more.
    asked = queries.astype(np.float64)  # [q, d]
    scores = np.empty((len(queries), len(rows)), dtype=np.float32)  # [q, m]
    for start in range(0, len(rows), GATHERED_ROWS_PER_CHUNK):
        chunk = rows[start : start + GATHERED_ROWS_PER_CHUNK]
        first, last = int(chunk[0]), int(chunk[-1])
        consecutive = last - first + 1 == len(chunk)  # then a view instead of a copy
        stored = vectors.slice(first, last + 1) if consecutive else vectors.take(chunk)  # [c, d]
        np.matmul(asked, to_float32(stored).astype(np.float64).T, out=scores[:, start : start + len(chunk)])
    _check_scores(_tensor(scores))
    return scores


def _check_scores(scores: torch.Tensor) -> None:
    """Raise ArtifactError if one of `scores` [...] is not finite: a stored number is not, or is huge."""
    if not (finite := scores.isfinite()).all():
        raise ArtifactError(
            f"{int((~finite).sum())} of {scores.numel()} similarities are not finite: find the damaged "
            "files with npmlm verify, and then remove the folder and build or copy it again"
        )


def allowed_rows(
    allowed: np.ndarray | None, row_count: int, *, most_gathered: float
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The allowed rows, as rows i64 [m] to gather or as the mask bool [n] of hits; neither for all rows.

    A mask of at most `most_gathered` rows becomes these. Raises ValueError for rows of another index, or that do not
    ascend.
    """
    if allowed is None:
        return None, None
    if allowed.dtype == np.bool_:
        if allowed.shape != (row_count,):
            raise ValueError(f"allowed rows are a mask {allowed.shape} of an index of {row_count}")
        is_small = np.count_nonzero(allowed) <= most_gathered
        return (np.flatnonzero(allowed), None) if is_small else (None, allowed)
    rows = np.asarray(allowed, dtype=np.int64)
    if rows.ndim != 1 or (len(rows) > 0 and (rows[0] < 0 or rows[-1] >= row_count or (np.diff(rows) <= 0).any())):
        raise ValueError(f"allowed rows must be [m], ascend without repeats and lie in [0, {row_count})")
    return rows, None


def checked_queries(queries: np.ndarray, dimensions: int) -> np.ndarray:
    """`queries` as contiguous f32 [q, d]; ValueError for another shape or a value that is not finite."""
    queries = np.require(queries, dtype=np.float32, requirements=["C", "W"])
    if queries.ndim != 2 or queries.shape[1] != dimensions:
        raise ValueError(f"queries must be [q, {dimensions}], not {list(queries.shape)}")
    if not np.isfinite(queries).all():
        raise ValueError("queries hold NaN or infinity")
    return queries


def finite_chunks(vectors: np.ndarray | ShardedArray, rows: int | None = None) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, f32 [c, d]) of all vectors, `rows` or `ROWS_PER_CHUNK` at once.

    Raises ArtifactError at one that is not finite.
    """
    sharded = vectors if isinstance(vectors, ShardedArray) else ShardedArray([vectors])
    step = rows or ROWS_PER_CHUNK
    for start in range(0, len(sharded), step):
        stop = min(start + step, len(sharded))
        stored = sharded.slice(start, stop)  # [c, d]
        check_finite(stored, np.arange(start, stop))
        yield start, to_float32(stored)


def check_finite(vectors: np.ndarray, rows: np.ndarray) -> None:
    """Raise ArtifactError, naming the row, if one of `vectors` [c, d], which are `rows` i64 [c], is not finite."""
    # From the bits of infinity on, of either sign, no number is finite; integers are compared several times faster.
    signed, unsigned = (vectors.view(f"{kind}{vectors.itemsize}") for kind in "iu")  # [c, d] each
    infinity = np.array([np.inf, -np.inf], dtype=vectors.dtype)
    if (
        signed.max(initial=0) < infinity.view(signed.dtype)[0]
        and unsigned.max(initial=0) < infinity.view(unsigned.dtype)[1]
    ):
        return
    finite = np.isfinite(vectors).all(axis=1)  # bool [c]
    if not finite.all():
        row = int(rows[np.argmin(finite)])
        raise ArtifactError(
            f"the vector in row {row} is not finite: encode the corpus again; if it stays, use float32 vectors"
        )
