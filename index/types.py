"""Types of the search index: hits, scans and searchers.

Shapes: q queries, k hits per query, n rows, d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

SEARCH_KIND = "search"
"""Kind of the folder that a searcher opens."""


@dataclass(frozen=True, slots=True)
class Hits:
    """The best rows of each query, best first; slots without a hit have `found` False, row 0 and score -inf."""

    rows: np.ndarray  # i64 [q, k]
    scores: np.ndarray  # f32 [q, k], raw inner products
    found: np.ndarray  # bool [q, k]

    @classmethod
    def none(cls, query_count: int, k: int) -> Hits:
        """No hit anywhere yet. Raises ValueError for a k below 1."""
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        rows, scores = np.zeros((query_count, k), dtype=np.int64), np.full((query_count, k), -np.inf, dtype=np.float32)
        return cls(rows, scores, found=np.zeros((query_count, k), dtype=bool))

    def put(self, query: int, rows: np.ndarray, scores: np.ndarray) -> None:
        """Make `rows` i64 [<= k] with `scores` f32 [<= k], best first, the hits of one query."""
        self.rows[query, : len(rows)], self.scores[query, : len(rows)] = rows, scores
        self.found[query, : len(rows)] = True


class Scan(Protocol):
    """One batch of queries against one index: its best rows, and its exact score at any row."""

    def top(self, k: int) -> Hits:
        """The k best rows of every query among the rows scanned; ties go to the smaller row."""

    def at(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Exact inner products f32 [n] of one query with `rows` i64 [n] (any order, repeats allowed)."""


class Searcher(Protocol):
    """An opened index of stored vectors."""

    row_count: int
    dimensions: int

    @property
    def max_queries_per_scan(self) -> int:
        """Queries that one scan may hold."""

    def scan(self, queries: np.ndarray, allowed: np.ndarray | None = None) -> Scan:
        """Start a scan of `queries` f32 [q, d] over all rows, or the allowed ones: i64 [m] ascending, or bool [n]."""
