"""Hits of the queries of a mask in the index, and weights of the spans grown from them.

Shapes: n rows, m candidate spans of one mask, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npm.retrieval.scoring import ScoringSettings, occurrence_shares, reference_weights

if TYPE_CHECKING:
    from index.types import Scan
    from npm.indexing.phrase_index import PhraseIndex
    from npm.retrieval.blocks import Restriction
    from npm.retrieval.spans import CandidateSpans

Similarities = Callable[[int, np.ndarray], np.ndarray]
"""Scaled similarities f64 [n] of the start (0) or end (1) query of a text with rows i64 [n]."""


@dataclass(frozen=True, slots=True)
class Search:
    """Hits of the two queries of one mask, and the exact similarity of each to any row scanned for them."""

    index: PhraseIndex
    scans: Sequence[Scan]  # of all rows it may need; none where stored vectors do not count
    queries: tuple[int, int]  # the numbers of the start and the end query in a scan
    hits: tuple[np.ndarray, np.ndarray | None]  # rows i64 [n] by the start and by the end query; None: the same
    factors: tuple[float, float]  # factor of an inner product, and of a similarity of the joint pass
    restriction: Restriction | None = None

    def similarities(self, side: int, rows: np.ndarray) -> np.ndarray:
        """Scaled similarities f64 [n] of the start (0) or end (1) query with rows i64 [n]."""
        query = self.queries[side]
        if self.restriction is None:
            return self.scans[0].at(query, rows).astype(np.float64) * self.factors[0]
        # In `hybrid` all similarities in a block are raised by the same bonus, so that within a block the vectors alone
        # decide, and between blocks their BM25 scores count.
        positions = self.index.rows.positions(rows)  # i64 [n]
        blocks = self.index.store.block_of(positions)  # i64 [n]
        places = np.searchsorted(self.restriction.blocks, blocks)  # i64 [n], in the restriction
        products = self.scans[0].at(query, rows).astype(np.float64) if self.scans else np.zeros(len(rows))  # f64 [n]
        similarities = products * self.factors[0] + self.restriction.bonuses[places]  # f64 [n]
        if self.restriction.joint is not None:
            slots = positions - self.index.store.block_offsets[blocks]  # i64 [n], within their blocks
            for number in np.unique(places).tolist():
                here = np.flatnonzero(places == number)
                similarities[here] += self.factors[1] * self.restriction.joint[number][side, slots[here]]
        return similarities


def candidate_weights(
    similarities: Similarities,
    candidates: CandidateSpans,
    sides: tuple[np.ndarray, np.ndarray],
    scoring: ScoringSettings,
) -> np.ndarray:
    """Weight of each candidate, f64 [m]; `sides` are the rows i64 [n] that the start and the end query hit."""
    start = similarities(0, candidates.start_rows)  # f64 [m]
    end = similarities(1, candidates.end_rows)  # f64 [m]
    if not scoring.reference:
        return occurrence_shares(start, end, candidates.lengths, scoring.length_exponent)
    # As in the reference, a span found from its other end adds its own end to the candidates of this side.
    all_starts = similarities(0, np.union1d(sides[0], candidates.start_rows))  # f64 [n]
    all_ends = similarities(1, np.union1d(sides[1], candidates.end_rows))  # f64 [n]
    return reference_weights(start, end, candidates.lengths, scoring.length_exponent, (all_starts, all_ends))
