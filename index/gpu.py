"""Work on a GPU with torch: the nearest centroids of k-means, and exact search.

The hits are those of `index.exact`, but for ties within the rounding of float32.

Shapes: q queries, k hits a query, n rows, m rows scanned, c rows of a chunk, d dimensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from index.arrays import RowSet, ShardedArray
from index.exact import allowed_rows, check_scan_size, checked_queries, finite_chunks, max_queries
from index.types import Hits

if TYPE_CHECKING:
    from index.kmeans import Assign, Assigner

SCORES_PER_CHUNK = 1 << 28
"""Distances held on the device at once, 1 GiB of them."""
GATHERED_SHARE = 0.05
"""Up to this share of all rows, gathering allowed rows is cheaper than scoring all."""
ROWS_PER_CHUNK = 1 << 20


def cuda_device() -> str | None:
    """`cuda` if torch finds a GPU, else None."""
    return "cuda" if torch.cuda.is_available() else None


def torch_assigner(device: str) -> Assigner:
    """Makes functions that find nearest centroids by Euclidean distance with torch on `device`, in float32.

    The nearest x maximises ⟨v, x⟩ − |x|²/2; among equal ones the first is taken.
    """

    def assigner(centroids: np.ndarray) -> Assign:
        held = torch.from_numpy(np.ascontiguousarray(centroids, dtype=np.float32)).to(device)  # [K, d]
        half_norms = held.square().sum(dim=1) / 2  # [K]
        rows_at_once = max(1, SCORES_PER_CHUNK // len(held))

        def assign(vectors: np.ndarray) -> np.ndarray:
            lists = np.empty(len(vectors), dtype=np.int64)  # [n]
            for start in range(0, len(vectors), rows_at_once):
                chunk = torch.from_numpy(vectors[start : start + rows_at_once]).to(device)  # [c, d]
                nearest = (chunk @ held.T - half_norms).argmax(dim=1)  # [c]
                lists[start : start + len(chunk)] = nearest.cpu().numpy()
            return lists

        return assign

    return assigner


def fitting_device(vector_bytes: int) -> str | None:
    """The GPU, if there is one with room for `vector_bytes` and as much again for scores; else None."""
    device = cuda_device()
    if device is None:
        return None
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return device if 2 * vector_bytes <= free_bytes else None


class TorchExactSearcher:
    """Holds `vectors` f16|f32 [n, d] on `device` as they are stored, and scores them in float32.

    Raises ArtifactError if a vector holds NaN or infinity.
    """

    def __init__(self, vectors: np.ndarray | ShardedArray, *, device: str) -> None:
        dtype = torch.float16 if vectors.dtype == np.float16 else torch.float32
        self._vectors = torch.empty(tuple(vectors.shape), dtype=dtype, device=device)  # [n, d]
        for start, chunk in finite_chunks(vectors):
            self._vectors[start : start + len(chunk)] = torch.from_numpy(chunk).to(device, dtype)
        self.row_count, self.dimensions = vectors.shape
        self.device = device

    @property
    def max_queries_per_scan(self) -> int:
        """The largest batch that one scan of all rows takes."""
        return max_queries(self.row_count)

    def scan(self, queries: np.ndarray, allowed: np.ndarray | RowSet | None = None) -> TorchExactScan:
        """Score `queries` f32 [q, d] with all rows, or only the allowed ones: i64 [m], ascending, or a `RowSet`."""
        queries = checked_queries(queries, self.dimensions)
        rows, among = allowed_rows(allowed, self.row_count, most_gathered=GATHERED_SHARE * self.row_count)
        check_scan_size(len(queries), self.row_count if rows is None else len(rows))
        on_device = torch.from_numpy(queries).to(self.device)  # [q, d]
        gathered = None if rows is None else torch.from_numpy(rows).to(self.device)  # i64 [m]
        scores = self._score(on_device, gathered)  # f32 [q, m]
        return TorchExactScan(self, on_device, scores, rows=gathered, among=among)

    def _score(self, queries: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        """Inner products of `queries` f32 [q, d] with all rows, or with `rows` i64 [m] in any order: f32 [q, m]."""
        count = self.row_count if rows is None else len(rows)
        scores = torch.empty((len(queries), count), device=self.device)  # [q, m]
        for start in range(0, count, ROWS_PER_CHUNK):
            stop = min(start + ROWS_PER_CHUNK, count)
            chunk = self._vectors[start:stop] if rows is None else self._vectors[rows[start:stop]]  # [c, d]
            scores[:, start:stop] = queries @ chunk.float().T
        return scores


class TorchExactScan:
    """The scores of one batch of queries with the rows scanned, on the device."""

    def __init__(
        self,
        searcher: TorchExactSearcher,
        queries: torch.Tensor,
        scores: torch.Tensor,
        *,
        rows: torch.Tensor | None,
        among: RowSet | None,
    ) -> None:
        self._searcher = searcher
        self._queries = queries  # f32 [q, d]
        self._scores = scores  # f32 [q, m]
        self._rows = rows  # i64 [m] ascending, or None for all rows
        self._among = among  # of all rows scanned, those that may be hits; None for all

    def top(self, k: int) -> Hits:
        """The k best rows scanned of every query, by (-score, row); with fewer than k rows the rest is not found."""
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        query_count, scanned = self._scores.shape
        hits = Hits.none(query_count, k)
        inside = None
        if self._among is not None:
            mask = self._among.mask(0, self._among.row_count)  # bool [n]
            inside = torch.from_numpy(mask).to(self._scores.device)
        most = min(k, scanned if self._among is None else len(self._among))
        for query in range(query_count if most else 0):
            scored = self._scores[query]  # f32 [m]
            if inside is not None:
                scored = torch.where(inside, scored, -torch.inf)
            smallest = torch.topk(scored, most).values[-1]
            # All columns that reach the k-th score, so that among equal ones the smaller rows are kept.
            columns = torch.nonzero(scored >= smallest)[:, 0]  # i64 [>= most], ascending
            columns = columns[torch.argsort(scored[columns], descending=True, stable=True)[:most]]  # i64 [most]
            rows = columns if self._rows is None else self._rows[columns]
            hits.put(query, rows.cpu().numpy(), scored[columns].cpu().numpy())
        return hits

    def at(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Exact inner products of one query with `rows` i64 [...], any order, repeats allowed: f32 [...]."""
        rows = np.asarray(rows, dtype=np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= self._searcher.row_count):
            raise IndexError(f"rows {rows.min()}..{rows.max()} of {self._searcher.row_count}")
        wanted = torch.from_numpy(np.ascontiguousarray(rows).reshape(-1)).to(self._scores.device)  # i64 [m]
        if self._rows is None:
            scores = self._scores[query][wanted]  # f32 [m]
        else:
            scores = self._searcher._score(self._queries[query][None], wanted)[0]  # f32 [m]
        result: np.ndarray = scores.cpu().numpy().reshape(rows.shape)
        return result
