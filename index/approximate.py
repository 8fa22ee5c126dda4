"""Approximate search with FAISS, its candidates scored exactly with the stored vectors.

Shapes: q queries, k hits a query, n rows, m allowed rows, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from index.exact import (
    ExactScan,
    best_columns,
    check_scan_size,
    checked_queries,
    checked_rows,
    score_rows,
    score_unordered_rows,
)
from index.faiss_library import (
    QUERY_BITS,
    FaissIndex,
    assert_inner_product,
    import_faiss,
    inverted_file,
)
from index.row_set import RowSet
from index.sharded import ShardedArray
from index.types import Hits

EXACT_ALLOWED_ROWS = 200_000
"""Up to so many allowed rows are all scored exactly: FAISS would skip most of what its probed lists hold."""


class FaissSearcher:
    """Candidates from a FAISS index, scores from the stored vectors.

    `probed_lists` is the number of inverted lists looked into for a query (indexes without lists take no notice);
    for k hits, k times `rerank_factor` candidates are scored exactly. `query_bits` is how finely queries are rounded
    before they are compared with codes of one bit a dimension. `held` are objects that `index` reads from.
    """

    max_queries_per_scan = 256

    def __init__(
        self,
        index: FaissIndex,
        vectors: ShardedArray,
        *,
        probed_lists: int,
        rerank_factor: int,
        query_bits: int = QUERY_BITS,
        held: Sequence[Any] = (),
    ) -> None:
        assert_inner_product(index)
        if (index.ntotal, index.d) != vectors.shape:
            raise ValueError(f"index of {index.ntotal} x {index.d}, stored vectors {vectors.shape}")
        if probed_lists < 1 or rerank_factor < 1:
            raise ValueError(f"probed_lists {probed_lists} and rerank_factor {rerank_factor} must be at least 1")
        self._index = index
        self._held = held
        self._vectors = vectors
        self.probed_lists = probed_lists
        self.rerank_factor = rerank_factor
        _prepare(index, probed_lists, query_bits)
        self.row_count, self.dimensions = vectors.shape

    def scan(self, queries: np.ndarray, allowed: np.ndarray | RowSet | None = None) -> FaissScan | ExactScan:
        """Search `queries` f32 [q, d] among all rows, or only the allowed ones: i64 [m], ascending, or a `RowSet`.

        Up to `EXACT_ALLOWED_ROWS` allowed rows are scored exactly, all of them.
        """
        queries = checked_queries(queries, self.dimensions)
        if len(queries) > self.max_queries_per_scan:
            raise ValueError(f"{len(queries)} queries: split the batch by at most {self.max_queries_per_scan}")
        if isinstance(allowed, RowSet):
            if allowed.row_count != self.row_count:
                raise ValueError(f"a set over {allowed.row_count} rows, an index of {self.row_count}")
        elif allowed is not None:
            allowed = checked_rows(allowed, self.row_count)
        if allowed is not None and len(allowed) <= EXACT_ALLOWED_ROWS:
            rows = allowed.rows() if isinstance(allowed, RowSet) else allowed  # i64 [m]
            check_scan_size(len(queries), len(rows))
            return ExactScan(queries, score_rows(self._vectors, queries, rows), rows=rows, vectors=self._vectors)
        if isinstance(allowed, np.ndarray):
            allowed = RowSet.of_rows(allowed, self.row_count)
        return FaissScan(self, queries, allowed)

    def candidates(self, queries: np.ndarray, allowed: RowSet | None, count: int) -> list[np.ndarray]:
        """For each query, the rows FAISS finds, ascending: i64 [<= count]."""
        faiss = import_faiss()
        count = min(count, self.row_count)
        # The selector points into the bits, and C++ code keeps no reference to either.
        bits = None if allowed is None else np.ascontiguousarray(allowed.bits)  # u8 [n / 8]
        selector = None if bits is None else faiss.IDSelectorBitmap(bits)
        parameters = _search_parameters(self._index, self.probed_lists, selector)
        _, ids = self._index.search(queries, count, params=parameters)  # i64 [q, count]
        # FAISS fills places without a hit with -1, which must never be used as a row.
        return [np.sort(found[found >= 0]) for found in ids]

    def score(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Exact inner products of `query` f32 [d] with `rows` i64 [...] in any order: f32 [...]."""
        return score_unordered_rows(self._vectors, query, rows)

    def score_ascending(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Exact inner products of `query` f32 [d] with `rows` i64 [m], ascending without repeats: f32 [m]."""
        return score_rows(self._vectors, query[None], rows)[0]


class FaissScan:
    """One batch of queries; nothing is searched before `top` says how many hits are wanted."""

    def __init__(self, searcher: FaissSearcher, queries: np.ndarray, allowed: RowSet | None) -> None:
        self._searcher = searcher
        self._queries = queries  # f32 [q, d]
        self._allowed = allowed

    def top(self, k: int) -> Hits:
        """The k best of the candidates of every query by (-exact score, row); what FAISS did not find is not found."""
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        query_count = len(self._queries)
        rows = np.zeros((query_count, k), dtype=np.int64)  # [q, k]
        scores = np.full((query_count, k), -np.inf, dtype=np.float32)  # [q, k]
        found = np.zeros((query_count, k), dtype=bool)  # [q, k]
        wanted = k * self._searcher.rerank_factor
        for query, candidates in enumerate(self._searcher.candidates(self._queries, self._allowed, wanted)):
            exact = self._searcher.score_ascending(self._queries[query], candidates)  # [<= wanted]
            best = best_columns(exact, k)  # [<= k]
            rows[query, : len(best)] = candidates[best]
            scores[query, : len(best)] = exact[best]
            found[query, : len(best)] = True
        return Hits(rows=rows, scores=scores, found=found)

    def at(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Exact inner products of one query with `rows` i64 [...], from the stored vectors: f32 [...]."""
        rows = np.asarray(rows, dtype=np.int64)
        return self._searcher.score(self._queries[query], rows)


def _prepare(index: FaissIndex, probed_lists: int, query_bits: int) -> None:
    """Set on the lists themselves what parameters of a search reach in some wrappers only."""
    faiss = import_faiss()
    lists = inverted_file(index)
    if lists is None:
        return
    lists.nprobe = probed_lists
    if hasattr(lists, "qb"):
        lists.qb = query_bits
    quantizer = faiss.downcast_index(lists.quantizer)
    if isinstance(quantizer, faiss.IndexHNSW):  # a graph that visits no more than it returns misses lists
        quantizer.hnsw.efSearch = max(quantizer.hnsw.efSearch, 2 * probed_lists)


def _search_parameters(index: FaissIndex, probed_lists: int, selector: Any | None) -> Any | None:
    """Search parameters of the class that this kind of index asks for."""
    faiss = import_faiss()
    selection = {} if selector is None else {"sel": selector}
    if isinstance(index, faiss.IndexPreTransform):
        inner = _search_parameters(faiss.downcast_index(index.index), probed_lists, selector)
        return None if inner is None else faiss.SearchParametersPreTransform(index_params=inner)
    if isinstance(index, faiss.IndexRefine):
        inner = _search_parameters(faiss.downcast_index(index.base_index), probed_lists, selector)
        refined = {} if inner is None else {"base_index_params": inner}
        return faiss.IndexRefineSearchParameters(k_factor=index.k_factor, **refined)
    if isinstance(index, faiss.IndexIVF):
        return faiss.SearchParametersIVF(nprobe=probed_lists, **selection)
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(efSearch=index.hnsw.efSearch, **selection) if selection else None
    return faiss.SearchParameters(**selection) if selection else None
