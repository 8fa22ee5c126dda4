"""Several searchers over consecutive rows as one: every part is searched, and their hits are merged by score.

Shapes: q queries, k hits per query, n rows, m allowed rows, d dimensions, P parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from index.exact import allowed_rows, best_columns
from index.types import Hits, Scan, Searcher

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
