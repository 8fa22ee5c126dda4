"""Search through FAISS with exact scores, and the opening of a search folder: the way from an index to a searcher.

Shapes: q queries, k hits a query, n rows, m allowed rows, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import ShardedArray
from index.exact import ExactScan, ExactSearcher, allowed_rows, checked_queries, fitting_device, scan_rows
from index.faiss_library import QUERY_BITS, FaissIndex, assert_inner_product, import_faiss, inverted_file, read_faiss
from index.lists import FAISS_FILE, FAISS_FOLDER, FAISS_KIND, SEARCH_KIND, attach_lists
from index.quantiser import Quantiser
from index.settings import SearchTier
from index.types import Hits
from npm.core.artifact import Manifest, check_folder, read_manifest
from npm.core.errors import ArtifactError, damaged

EXACT_ALLOWED_ROWS = 200_000
"""Up to this many allowed rows are all scored exactly: FAISS would skip most of what its probed lists hold."""


class FaissSearcher:
    """Candidates from a FAISS index, scores from the stored vectors.

    `probed_lists` is the number of inverted lists looked into for a query (indexes without lists take no notice);
    for k hits, k times `rerank_factor` candidates are scored exactly. `held` are objects that `index` reads from.
    """

    max_queries_per_scan = 256

    def __init__(
        self,
        index: FaissIndex,
        vectors: ShardedArray,
        *,
        probed_lists: int,
        rerank_factor: int,
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
        faiss, lists = import_faiss(), inverted_file(index)
        if (
            lists is not None
        ):  # some wrappers pass parameters of a search on, others do not: set on the lists themselves
            lists.nprobe = probed_lists
            if hasattr(lists, "qb"):
                lists.qb = QUERY_BITS
            quantizer = faiss.downcast_index(lists.quantizer)
            if isinstance(quantizer, faiss.IndexHNSW):  # a graph that visits no more than it returns misses lists
                quantizer.hnsw.efSearch = max(quantizer.hnsw.efSearch, 2 * probed_lists)
        self.row_count, self.dimensions = vectors.shape

    def scan(self, queries: np.ndarray, allowed: np.ndarray | None = None) -> FaissScan | ExactScan:
        """Search `queries` f32 [q, d] among all rows, or only the allowed ones: i64 [m], ascending, or bool [n].

        Up to `EXACT_ALLOWED_ROWS` allowed rows are scored exactly, all of them.
        """
        queries = checked_queries(queries, self.dimensions)
        if len(queries) > self.max_queries_per_scan:
            raise ValueError(f"{len(queries)} queries: split the batch by at most {self.max_queries_per_scan}")
        rows, mask = allowed_rows(allowed, self.row_count, most_gathered=EXACT_ALLOWED_ROWS)
        if rows is not None and len(rows) > EXACT_ALLOWED_ROWS:
            mask = np.zeros(self.row_count, dtype=bool)  # [n]
            mask[rows] = True
        elif rows is not None:
            return scan_rows(self._vectors, queries, rows)
        return FaissScan(self, queries, mask)

    def candidates(self, queries: np.ndarray, allowed: np.ndarray | None, count: int) -> list[np.ndarray]:
        """For each query, the rows FAISS finds, ascending: i64 [<= count]."""
        faiss = import_faiss()
        count = min(count, self.row_count)
        # The selector points into the bits, and C++ code keeps no reference to either.
        bits = None if allowed is None else np.packbits(allowed, bitorder="little")  # u8 [n / 8]
        selector = None if bits is None else faiss.IDSelectorBitmap(bits)
        parameters = _search_parameters(self._index, self.probed_lists, selector)
        _, ids = self._index.search(queries, count, params=parameters)  # f32, i64 [q, count]
        # FAISS fills places without a hit with -1, which must never be used as a row.
        if ids.max(initial=-1) >= self.row_count:
            raise damaged("the index", f"its lists name row {ids.max()} of {self.row_count}")
        return [np.sort(found[found >= 0]) for found in ids]

    def scan_rows(self, queries: np.ndarray, rows: np.ndarray) -> ExactScan:
        """An exact scan of `rows` i64 [m] alone, ascending without repeats."""
        return scan_rows(self._vectors, queries, rows)


class FaissScan:
    """One batch of queries; nothing is searched before `top` says how many hits are wanted."""

    def __init__(self, searcher: FaissSearcher, queries: np.ndarray, allowed: np.ndarray | None) -> None:
        self._searcher = searcher
        self._queries = queries  # f32 [q, d]
        self._allowed = allowed  # bool [n], or None

    def top(self, k: int) -> Hits:
        """The k best of the candidates of every query by (-exact score, row); what FAISS did not find is not found."""
        hits = Hits.none(len(self._queries), k)
        wanted = k * self._searcher.rerank_factor
        for query, candidates in enumerate(self._searcher.candidates(self._queries, self._allowed, wanted)):
            best = self._searcher.scan_rows(self._queries[query][None], candidates).top(k)  # [1, k]
            hits.put(query, best.rows[best.found], best.scores[best.found])
        return hits

    def at(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Exact inner products of one query with `rows` i64 [...], from the stored vectors: f32 [...]."""
        return self._searcher.scan_rows(self._queries[query][None], np.zeros(0, dtype=np.int64)).at(0, rows)


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


def searches_exactly(folder: Path) -> bool:
    """Whether `folder` was built for exact search, which reads all vectors into memory when it is opened.

    Raises ArtifactError if its manifest is missing or damaged.
    """
    return bool(read_manifest(folder, kind=SEARCH_KIND).settings["tier"] == SearchTier.exact.value)


def open_search(
    folder: Path,
    vectors: ShardedArray,
    *,
    quantiser: Path | None,
    probed_lists: int | None = None,
    rerank_factor: int | None = None,
) -> ExactSearcher | FaissSearcher:
    """The searcher that `folder` was built for, over the stored `vectors` f32|f16 [n, d].

    Exact search reads all vectors into memory (that of a GPU, where torch finds one with room), so they are best
    hashed before, whatever their size. The other tiers need the folder of their `quantiser`, map the lists and the
    vectors, and read what a query asks for: of these, lists over 64 MB are hashed by `verify_folder` only.
    `probed_lists` and `rerank_factor` replace the recorded ones; exact search has neither. Raises ArtifactError
    if the folder is damaged, or was built over other vectors or with another quantiser.
    """
    manifest = check_folder(folder, kind=SEARCH_KIND)
    settings = manifest.settings
    built_over = (settings.typed("row_count", int), settings.typed("dimensions", int))
    if built_over != vectors.shape:
        raise ArtifactError(
            f"{folder} was built over other vectors: expected {list(built_over)}, got {list(vectors.shape)}; "
            "remove this folder and build the search index again"
        )
    if settings["tier"] == SearchTier.exact.value:
        vector_bytes = vectors.shape[0] * vectors.shape[1] * vectors.dtype.itemsize
        return ExactSearcher(vectors, device=fitting_device(vector_bytes))
    held: list[Any] = []
    if FAISS_FOLDER in manifest.parts:
        check_folder(folder / FAISS_FOLDER, kind=FAISS_KIND)
        index = read_faiss(folder / FAISS_FOLDER / FAISS_FILE)
    else:
        trained = _recorded_quantiser(quantiser, manifest, folder)
        index, parts = trained.index, [folder / name for name in manifest.parts]
        held = attach_lists(index, parts, quantiser_digest=trained.digest, row_count=len(vectors))
    return FaissSearcher(
        index,
        vectors,
        probed_lists=probed_lists or settings.typed("probed_lists", int),
        rerank_factor=rerank_factor or settings.typed("rerank_factor", int | None),
        held=held,
    )


def _recorded_quantiser(path: Path | None, manifest: Manifest, folder: Path) -> Quantiser:
    """The quantiser in `path`, which must be the one that the search folder was built with."""
    expected = manifest.settings["quantiser"]
    opened = None if path is None else Quantiser.open(path)
    if opened is None or opened.digest != expected:
        raise ArtifactError(
            f"{folder} was built with another quantizer, got {path}: code and merge again (stage=code, stage=merge)"
        )
    return opened
