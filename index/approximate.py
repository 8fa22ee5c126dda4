"""Approximate search with FAISS, its candidates scored exactly with the stored vectors. Only this file imports FAISS.

Shapes: q queries, k hits a query, n rows, m allowed rows, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from index.exact import (
    ExactScan,
    best_columns,
    check_scan_size,
    checked_queries,
    checked_rows,
    finite_chunks,
    score_rows,
    score_unordered_rows,
)
from index.files import CountingFile
from index.sharded import ShardedArray
from index.types import ArtefactError, Hits, UserError

EXACT_ALLOWED_ROWS = 200_000
"""Up to so many allowed rows are all scored exactly: FAISS would skip most of what its probed lists hold."""
FaissIndex = Any
"""A `faiss.Index`; FAISS has no types and is imported late."""


def import_faiss() -> Any:
    """The module `faiss`; raises UserError with the install line if there is none."""
    try:
        import faiss
    except ImportError as error:
        raise UserError(
            "approximate search needs FAISS, which is not installed",
            expected="the module faiss, from faiss-cpu or faiss-gpu",
            got=str(error),
            where="this Python environment",
            fix="pip install 'npmlm[cpu]' (or 'npmlm[gpu]' with an NVIDIA GPU), or search exactly",
        ) from error
    return faiss


def build_faiss(
    vectors: ShardedArray,
    factory: str,
    *,
    seed: int,
    thread_count: int,
    train_rows: int,
    progress: Callable[[int, int], None] | None = None,
) -> FaissIndex:
    """An inner product index over all rows of `vectors` f32|f16 [n, d]; the id of a vector is its row.

    Trained on a sample of at most `train_rows` rows drawn with `seed`. K-means adds up in an order that depends on
    the number of threads, so the same bytes need the same `thread_count`. `progress(rows done, n)` is called after
    each chunk added. Raises UserError if FAISS does not know `factory` or has too few rows to train it.
    """
    faiss = import_faiss()
    row_count, dimensions = vectors.shape
    try:
        index = faiss.index_factory(dimensions, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise _factory_error(factory, f"FAISS says: {_last_line(error)}") from error
    assert_inner_product(index)
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None:
        ivf.cp.seed = seed
        if ivf.nlist > min(row_count, train_rows):
            raise _factory_error(factory, f"{ivf.nlist} lists, {min(row_count, train_rows)} rows to train them on")
    with _threads(faiss, thread_count):
        if not index.is_trained:
            try:
                index.train(_training_sample(vectors, seed=seed, train_rows=train_rows))
            except RuntimeError as error:
                raise _factory_error(factory, f"training failed: {_last_line(error)}") from error
        for start, chunk in finite_chunks(vectors):
            try:
                index.add(chunk)
            except RuntimeError as error:
                raise _factory_error(factory, f"adding failed: {_last_line(error)}") from error
            if progress is not None:
                progress(start + len(chunk), row_count)
    return index


def _training_sample(vectors: ShardedArray, *, seed: int, train_rows: int) -> np.ndarray:
    """At most `train_rows` rows drawn with `seed`, in their order: f32 [<= train_rows, d], all finite."""
    if train_rows >= len(vectors):
        rows = np.arange(len(vectors))  # [n]
    else:
        rng = np.random.default_rng(seed)
        rows = np.sort(rng.choice(len(vectors), size=train_rows, replace=False, shuffle=False))  # [train_rows]
    sample = vectors.take(rows).astype(np.float32)  # f32 [<= train_rows, d]
    if not np.isfinite(sample).all():
        for _ in finite_chunks(vectors):  # raises, naming the row
            pass
    return sample


def assert_inner_product(index: FaissIndex) -> None:
    """FAISS falls back to L2 where a metric is not given or a wrapper drops it; the ranks would then be wrong."""
    faiss = import_faiss()
    ivf = faiss.try_extract_index_ivf(index)
    for part in (index, ivf, None if ivf is None else ivf.quantizer):
        if part is not None and part.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise ArtefactError(
                "a FAISS index does not search by inner product",
                expected=f"metric {faiss.METRIC_INNER_PRODUCT} (inner product)",
                got=f"metric {part.metric_type} in {type(part).__name__}",
                where="the search index",
                fix="choose another factory string, or build the search index again",
            )


def write_faiss(index: FaissIndex, file: CountingFile) -> None:
    """Stream `index` into `file`, without a second copy of it in memory."""
    faiss = import_faiss()
    faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))


def read_faiss(path: Path) -> FaissIndex:
    """The index stored in `path`, memory-mapped; raises ArtefactError if FAISS cannot read it."""
    faiss = import_faiss()
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise ArtefactError(
            f"FAISS cannot read {path}",
            expected=f"an index that FAISS {faiss.__version__} knows",
            got=_last_line(error),
            where=str(path),
            fix="build the search index again, or install the FAISS version that its manifest names",
        ) from error
    assert_inner_product(index)
    return index


class FaissSearcher:
    """Candidates from a FAISS index, scores from the stored vectors.

    `probed_lists` is the number of inverted lists looked into for a query (indexes without lists take no notice);
    for k hits, k times `rerank_factor` candidates are scored exactly.
    """

    max_queries_per_scan = 256

    def __init__(self, index: FaissIndex, vectors: ShardedArray, *, probed_lists: int, rerank_factor: int) -> None:
        assert_inner_product(index)
        if (index.ntotal, index.d) != vectors.shape:
            raise ValueError(f"index of {index.ntotal} x {index.d}, stored vectors {vectors.shape}")
        if probed_lists < 1 or rerank_factor < 1:
            raise ValueError(f"probed_lists {probed_lists} and rerank_factor {rerank_factor} must be at least 1")
        self._index = index
        self._vectors = vectors
        self._probed_lists = probed_lists
        ivf = import_faiss().try_extract_index_ivf(index)
        if ivf is not None:
            ivf.nprobe = probed_lists  # whatever wraps it; parameters of a search reach some wrappers only
        self._rerank_factor = rerank_factor
        self.row_count, self.dimensions = vectors.shape

    def scan(self, queries: np.ndarray, allowed_rows: np.ndarray | None = None) -> FaissScan | ExactScan:
        """Search `queries` f32 [q, d] among all rows, or only `allowed_rows` i64 [m], ascending without repeats.

        Up to `EXACT_ALLOWED_ROWS` allowed rows are scored exactly, all of them.
        """
        queries = checked_queries(queries, self.dimensions)
        if len(queries) > self.max_queries_per_scan:
            raise ValueError(f"{len(queries)} queries: split the batch by at most {self.max_queries_per_scan}")
        rows = None if allowed_rows is None else checked_rows(allowed_rows, self.row_count)
        if rows is not None and len(rows) <= EXACT_ALLOWED_ROWS:
            check_scan_size(len(queries), len(rows))
            return ExactScan(queries, score_rows(self._vectors, queries, rows), rows=rows, vectors=self._vectors)
        return FaissScan(self, queries, rows)

    def candidates(self, queries: np.ndarray, allowed_rows: np.ndarray | None, count: int) -> list[np.ndarray]:
        """For each query, the rows FAISS finds, ascending: i64 [<= count]."""
        faiss = import_faiss()
        count = min(count, self.row_count)
        # The selector and its bitmap are read by C++ code that keeps no reference to them.
        bitmap = None if allowed_rows is None else _bitmap(allowed_rows, self.row_count)  # u8 [n / 8]
        selector = None if bitmap is None else faiss.IDSelectorBitmap(bitmap)
        parameters = _search_parameters(self._index, self._probed_lists, selector)
        _, ids = self._index.search(queries, count, params=parameters)  # i64 [q, count]
        # FAISS fills places without a hit with -1, which must never be used as a row.
        return [np.sort(found[found >= 0]) for found in ids]

    def score(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Exact inner products of `query` f32 [d] with `rows` i64 [...] in any order: f32 [...]."""
        return score_unordered_rows(self._vectors, query, rows)

    @property
    def rerank_factor(self) -> int:
        """Candidates scored exactly for each hit asked for."""
        return self._rerank_factor


class FaissScan:
    """One batch of queries; nothing is searched before `top` says how many hits are wanted."""

    def __init__(self, searcher: FaissSearcher, queries: np.ndarray, allowed_rows: np.ndarray | None) -> None:
        self._searcher = searcher
        self._queries = queries  # f32 [q, d]
        self._allowed_rows = allowed_rows  # i64 [m] or None

    def top(self, k: int) -> Hits:
        """The k best of the candidates of every query by (-exact score, row); what FAISS did not find is not found."""
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        query_count = len(self._queries)
        rows = np.zeros((query_count, k), dtype=np.int64)  # [q, k]
        scores = np.full((query_count, k), -np.inf, dtype=np.float32)  # [q, k]
        found = np.zeros((query_count, k), dtype=bool)  # [q, k]
        wanted = k * self._searcher.rerank_factor
        for query, candidates in enumerate(self._searcher.candidates(self._queries, self._allowed_rows, wanted)):
            exact = self._searcher.score(self._queries[query], candidates)  # [<= wanted]
            best = best_columns(exact, k)  # [<= k]
            rows[query, : len(best)] = candidates[best]
            scores[query, : len(best)] = exact[best]
            found[query, : len(best)] = True
        return Hits(rows=rows, scores=scores, found=found)

    def at(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Exact inner products of one query with `rows` i64 [...], from the stored vectors: f32 [...]."""
        rows = np.asarray(rows, dtype=np.int64)
        return self._searcher.score(self._queries[query], rows)


def _bitmap(rows: np.ndarray, row_count: int) -> np.ndarray:
    allowed = np.zeros(row_count, dtype=bool)  # [n]
    allowed[rows] = True
    return np.packbits(allowed, bitorder="little")  # u8 [n / 8]


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


@contextmanager
def _threads(faiss: Any, thread_count: int) -> Iterator[None]:
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(thread_count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]


def _factory_error(factory: str, got: str) -> UserError:
    return UserError(
        f"no FAISS index can be made from factory={factory}",
        expected="a FAISS factory string that suits the number of rows, such as Flat or IVF1024,SQ8",
        got=got,
        where="setting factory",
        fix="leave factory and list_count unset to have them chosen, or give other values",
    )
