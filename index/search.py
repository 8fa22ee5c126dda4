"""Search by inverted lists with exact scores, the opening of a search folder, and several searchers as one.

Shapes: q queries, k hits per query, n rows, m allowed rows, d dimensions, P parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.arrays import ShardedArray
from index.exact import ExactScan, ExactSearcher, allowed_rows, best_columns, checked_queries, fitting_device, scan_rows
from index.settings import SearchTier
from index.types import SEARCH_KIND, Hits, Scan, Searcher
from npm.core.artifact import check_folder, read_manifest
from npm.core.errors import ArtifactError, damaged

if TYPE_CHECKING:
    from index.ivf import Quantizer

EXACT_ALLOWED_ROWS = 200_000
"""Up to this many allowed rows are all scored exactly: FAISS would skip most of what its probed lists hold."""


class FaissSearcher:
    """Candidates from the lists in `folder`, coded by `quantizer`, and scores from the stored vectors.

    `probed_lists` is the number of inverted lists searched for a query; for k hits, k times `rerank_factor`
    candidates are scored exactly. Raises ArtifactError if the lists are not those of the quantizer and the vectors.
    """

    max_queries_per_scan = 256

    def __init__(
        self, folder: Path, quantizer: Quantizer, vectors: ShardedArray, *, probed_lists: int, rerank_factor: int
    ) -> None:
        from index.ivf import attach_lists

        self._held = attach_lists(quantizer, folder)
        self._quantizer, self._index = quantizer, quantizer.index
        if (self._index.ntotal, self._index.d) != vectors.shape:
            got = [self._index.ntotal, self._index.d]
            raise damaged(folder, f"lists of {got[0]} rows with {got[1]} dimensions for vectors {list(vectors.shape)}")
        self.vectors = vectors
        self.probed_lists = probed_lists
        self.rerank_factor = rerank_factor
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
            return scan_rows(self.vectors, queries, rows)
        return FaissScan(self, queries, mask)

    def candidates(self, queries: np.ndarray, allowed: np.ndarray | None, count: int) -> list[np.ndarray]:
        """For each query, the rows that the lists find, ascending: i64 [<= count]."""
        from index.faiss_library import import_faiss

        faiss = import_faiss()
        chosen = {}
        if allowed is not None:
            # The selector points into the bits, and C++ code keeps no reference to either.
            bits = np.packbits(allowed, bitorder="little")  # u8 [n / 8]
            chosen["sel"] = faiss.IDSelectorBitmap(bits)
        parameters = faiss.SearchParametersIVF(nprobe=self.probed_lists, **chosen)
        if isinstance(self._index, faiss.IndexPreTransform):
            parameters = faiss.SearchParametersPreTransform(index_params=parameters)
        _, ids = self._index.search(queries, min(count, self.row_count), params=parameters)  # i64 [q, count]
        if ids.max(initial=-1) >= self.row_count:
            raise damaged("the index", f"its lists name row {ids.max()} of {self.row_count}")
        return [np.sort(found[found >= 0]) for found in ids]  # FAISS fills slots without a hit with -1


@dataclass(frozen=True, slots=True)
class FaissScan:
    """One batch of queries; nothing is searched before `top` sets the number of hits."""

    searcher: FaissSearcher
    queries: np.ndarray  # f32 [q, d]
    allowed: np.ndarray | None  # bool [n], or None

    def top(self, k: int) -> Hits:
        """The k best of the candidates of every query by (-exact score, row); rows missed by FAISS are not found."""
        hits = Hits.none(len(self.queries), k)
        wanted = k * self.searcher.rerank_factor
        for query, candidates in enumerate(self.searcher.candidates(self.queries, self.allowed, wanted)):
            best = scan_rows(self.searcher.vectors, self.queries[query][None], candidates).top(k)  # [1, k]
            hits.put(query, best.rows[best.found], best.scores[best.found])
        return hits

    def at(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Exact inner products of one query with `rows` i64 [...], from the stored vectors: f32 [...]."""
        return scan_rows(self.searcher.vectors, self.queries, np.zeros(0, dtype=np.int64)).at(query, rows)


def searches_exactly(folder: Path) -> bool:
    """Return True if `folder` was built for exact search.

    Raises ArtifactError if its manifest is missing or damaged.
    """
    return bool(read_manifest(folder, kind=SEARCH_KIND).settings["tier"] == SearchTier.exact.value)


def open_search(
    folder: Path,
    vectors: ShardedArray,
    *,
    quantizer: Path | None,
    probed_lists: int | None = None,
    rerank_factor: int | None = None,
) -> ExactSearcher | FaissSearcher:
    """The searcher that `folder` was built for, over the stored `vectors` [n, d].

    Exact search reads all vectors into memory (of a GPU, if torch finds one with enough) at the first scan of all
    of them. The other tiers need the folder of their `quantizer`, map the lists and the
    vectors, and read what a query asks for: of these, lists over 64 MB are hashed by `verify_folder` only.
    `probed_lists` and `rerank_factor` replace the recorded ones; exact search has neither. Raises ArtifactError
    if the folder is damaged, or was built over other vectors or with another quantizer.
    """
    settings = check_folder(folder, kind=SEARCH_KIND).settings
    built_over = (settings.typed("row_count", int), settings.typed("dimensions", int))
    if built_over != vectors.shape:
        raise ArtifactError(
            f"{folder} was built over other vectors: expected {list(built_over)}, got {list(vectors.shape)}; "
            "remove this folder and build the search index again"
        )
    if settings["tier"] == SearchTier.exact.value:
        number_bytes = 4 if vectors.arrays[0].dtype == np.float32 else 2  # on a GPU
        vector_bytes = vectors.shape[0] * vectors.shape[1] * number_bytes
        return ExactSearcher(vectors, device=fitting_device(vector_bytes))
    from index.ivf import Quantizer  # not needed by exact search

    opened = None if quantizer is None else Quantizer.open(quantizer)
    if opened is None or opened.digest != settings["quantizer"]:
        raise ArtifactError(
            f"{folder} was built with another quantizer than {quantizer}: "
            "code and merge again (stage=code, stage=merge)"
        )
    return FaissSearcher(
        folder,
        opened,
        vectors,
        probed_lists=probed_lists or settings.typed("probed_lists", int),
        rerank_factor=rerank_factor or settings.typed("rerank_factor", int),
    )


Ask = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""As `map` of one iterable: the results of a function for all items, in their order."""


class PartitionedSearcher:
    """The rows of `parts`, one after the other, as one `Searcher`; a part may have no rows.

    Hits are those of one searcher over all rows where the parts search exactly. Parts that first search candidates
    each rerank their own, so that the k-th score is at least that of one index. `ask` calls the parts: `map` one after
    the other, that of a thread pool at once. Parts that have no allowed row are not searched.
    """

    def __init__(self, parts: Sequence[Searcher], *, ask: Ask = map) -> None:
        if len({part.dimensions for part in parts}) != 1:
            raise ValueError(f"parts of {[part.dimensions for part in parts]} dimensions: one number, of at least one")
        self.parts = tuple(parts)
        self.ask = ask
        self.first_rows = np.cumsum([0, *(part.row_count for part in parts)])  # i64 [P + 1]
        self.row_count, self.dimensions = int(self.first_rows[-1]), parts[0].dimensions

    @property
    def max_queries_per_scan(self) -> int:
        """Minimum over the parts."""
        return min(part.max_queries_per_scan for part in self.parts)

    def scan(self, queries: np.ndarray, allowed: np.ndarray | None = None) -> PartitionedScan:
        """Start a scan of `queries` f32 [q, d] in every part with allowed rows: i64 [m], ascending, or bool [n]."""
        rows, mask = allowed_rows(allowed, self.row_count, most_gathered=-1)  # i64 [m], or bool [n]
        own: dict[int, np.ndarray | None] = {}  # allowed rows of each part that has any, counted from its first row
        for number, (first, stop) in enumerate(itertools.pairwise(self.first_rows.tolist())):
            if first < stop and rows is None and (mask is None or mask[first:stop].any()):
                own[number] = None if mask is None else mask[first:stop]
            elif rows is not None and len(inside := rows[slice(*np.searchsorted(rows, [first, stop]))]):
                own[number] = inside - first
        scans = self.ask(lambda number: self.parts[number].scan(queries, own[number]), own)
        return PartitionedScan(self, queries, dict(zip(own, scans, strict=True)))


@dataclass(frozen=True, slots=True)
class PartitionedScan:
    """One batch of queries, and the scans of the parts that were searched."""

    searcher: PartitionedSearcher
    queries: np.ndarray  # f32 [q, d]
    scans: dict[int, Scan]  # by the index of the part

    def top(self, k: int) -> Hits:
        """The k best of the hits of all parts of every query by (-score, row)."""
        hits = Hits.none(len(self.queries), k)
        tops = list(self.searcher.ask(lambda number: self.scans[number].top(k), self.scans))  # Hits [q, k] of each
        if not tops:
            return hits
        firsts = self.searcher.first_rows[list(self.scans)].tolist()
        rows = np.concatenate([first + top.rows for first, top in zip(firsts, tops, strict=True)], axis=1)  # [q, P k]
        scores = np.concatenate([top.scores for top in tops], axis=1)  # f32 [q, P k], -inf where nothing is found
        for query, scored in enumerate(scores):
            # Equal scores are in the order of their rows, since every part has them so and the parts follow each
            # other: the first columns are the smaller rows.
            best = best_columns(scored, k)  # i64 [<= k]
            best = best[scored[best] > -np.inf]
            hits.put(query, rows[query, best], scored[best])
        return hits

    def at(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Exact inner products of one query with `rows` i64 [...], any order, repeats allowed: f32 [...]."""
        rows = np.asarray(rows, dtype=np.int64)
        searcher = self.searcher
        owners = np.searchsorted(searcher.first_rows, rows, side="right") - 1  # i64 [...]

        def scores_of(number: int) -> np.ndarray:
            scan = self.scans.get(number)
            if scan is None:  # it has no allowed rows, but the score of any may be requested
                scan = searcher.parts[number].scan(self.queries, np.zeros(0, dtype=np.int64))
            return scan.at(query, rows[owners == number] - searcher.first_rows[number])  # f32 [rows of the part]

        numbers = np.unique(owners).tolist()
        scores = np.empty(rows.shape, dtype=np.float32)  # [...]
        for number, found in zip(numbers, searcher.ask(scores_of, numbers), strict=True):
            scores[owners == number] = found
        return scores


def parts_of(searcher: Searcher) -> tuple[Searcher, ...]:
    """The parts of a partitioned searcher, or the single searcher."""
    return searcher.parts if isinstance(searcher, PartitionedSearcher) else (searcher,)
