"""Several searchers over consecutive rows as one: every part is asked, and what they find is merged by score.

Shapes: q queries, k hits a query, n rows, m allowed rows, d dimensions, P parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from index.arrays import RowSet
from index.exact import allowed_rows, best_columns, checked_queries
from index.types import Hits, Scan, Searcher

Ask = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""As `map` of one iterable: the results of a function for all items, in their order."""


class PartitionedSearcher:
    """The rows of `parts`, one after the other, as one `Searcher`; a part may have no rows.

    Hits are those of one searcher over all rows where the parts search exactly. Parts that look for candidates first
    each rerank their own, so that the k-th score is at least that of one index. `ask` calls the parts: `map` one after
    the other, that of a thread pool at once. Parts that have no allowed row are not asked.
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
        """What the part takes that takes least."""
        return min(part.max_queries_per_scan for part in self.parts)

    def scan(self, queries: np.ndarray, allowed: np.ndarray | RowSet | None = None) -> PartitionedScan:
        """Start a scan of `queries` f32 [q, d] in every part with allowed rows: i64 [m], ascending, or a `RowSet`."""
        queries = checked_queries(queries, self.dimensions)
        own = self._split(allowed)
        asked = [
            number
            for number, (part, rows) in enumerate(zip(self.parts, own, strict=True))
            if part.row_count and (rows is None or len(rows))
        ]
        scans = self.ask(lambda number: self.parts[number].scan(queries, own[number]), asked)
        return PartitionedScan(self, queries, dict(zip(asked, scans, strict=True)))

    def _split(self, allowed: np.ndarray | RowSet | None) -> Sequence[np.ndarray | RowSet | None]:
        """What is allowed of each part, counted from its first row. Raises ValueError for rows of another index."""
        ranges = list(itertools.pairwise(self.first_rows.tolist()))
        rows, among = allowed_rows(allowed, self.row_count, most_gathered=-1)  # i64 [m], or the set
        if among is not None:
            return [among.between(first, stop) for first, stop in ranges]
        if rows is None:
            return [None] * len(ranges)
        pieces = np.split(rows, np.searchsorted(rows, self.first_rows[1:-1]))  # P arrays i64
        return [piece - first for piece, (first, _) in zip(pieces, ranges, strict=True)]


class PartitionedScan:
    """One batch of queries, and the scans of the parts that were asked."""

    def __init__(self, searcher: PartitionedSearcher, queries: np.ndarray, scans: dict[int, Scan]) -> None:
        self._searcher = searcher
        self._queries = queries  # f32 [q, d]
        self._scans = scans  # by the number of the part

    def top(self, k: int) -> Hits:
        """The k best of the hits of all parts of every query by (-score, row)."""
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        numbers = sorted(self._scans)
        tops = list(self._searcher.ask(lambda number: self._scans[number].top(k), numbers))  # Hits [q, k] of each
        hits = Hits.none(len(self._queries), k)
        for query in range(len(self._queries) if tops else 0):
            scores = np.concatenate([top.scores[query][top.found[query]] for top in tops])  # f32 [<= P * k]
            rows = np.concatenate(
                [
                    self._searcher.first_rows[number] + top.rows[query][top.found[query]]
                    for number, top in zip(numbers, tops, strict=True)
                ]
            )  # i64 [<= P * k]
            # Equal scores stand in the order of their rows, since every part has them so and the parts follow each
            # other: the first columns are the smaller rows.
            best = best_columns(scores, k)  # [<= k]
            hits.put(query, rows[best], scores[best])
        return hits

    def at(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Exact inner products of one query with `rows` i64 [...], any order, repeats allowed: f32 [...]."""
        rows = np.asarray(rows, dtype=np.int64)
        searcher = self._searcher
        if rows.size and (rows.min() < 0 or rows.max() >= searcher.row_count):
            raise IndexError(f"rows {rows.min()}..{rows.max()} of {searcher.row_count}")
        owners = np.searchsorted(searcher.first_rows, rows, side="right") - 1  # i64 [...]

        def scores_of(number: int) -> np.ndarray:
            scan = self._scans.get(number)
            if scan is None:  # it has no allowed rows, yet may be asked for the score of any
                scan = searcher.parts[number].scan(self._queries, np.zeros(0, dtype=np.int64))
            return scan.at(query, rows[owners == number] - searcher.first_rows[number])  # f32 [rows of the part]

        numbers = np.unique(owners).tolist()
        scores = np.empty(rows.shape, dtype=np.float32)  # [...]
        for number, found in zip(numbers, searcher.ask(scores_of, numbers), strict=True):
            scores[owners == number] = found
        return scores


def parts_of(searcher: Searcher) -> tuple[Searcher, ...]:
    """The parts of a partitioned searcher, or the one that there is."""
    return searcher.parts if isinstance(searcher, PartitionedSearcher) else (searcher,)
