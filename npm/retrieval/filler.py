"""The evidence of one text for its candidate spans: similarities of its two queries with rows, made into weights.

Shapes: m candidate spans of one text, n rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npm.models.similarity import scaled_similarity
from npm.retrieval.scoring import Normalisation, ScoringSettings, occurrence_shares, reference_weights

if TYPE_CHECKING:
    from index.types import Scan
    from npm.indexing.phrase_index import PhraseIndex
    from npm.retrieval.queries import Restriction
    from npm.retrieval.spans import CandidateSpans


Similarities = Callable[[int, np.ndarray], np.ndarray]
"""Scaled similarities f64 [n] of the start (0) or end (1) query of a text with rows i64 [n]."""


@dataclass(frozen=True, slots=True)
class ScannedSimilarities:
    """The similarities of one text with the rows that were scanned for it, each with the bonus of its block."""

    index: PhraseIndex
    scans: Sequence[Scan]  # one for all rows, or one for each block of the restriction
    queries: tuple[int, int]  # the numbers of the start and the end query in a scan
    factor: float  # what an inner product is multiplied with
    restriction: Restriction | None

    def __call__(self, side: int, rows: np.ndarray) -> np.ndarray:
        """f64 [n] for the start (0) or end (1) query and rows i64 [n]."""
        query = self.queries[side]
        if self.restriction is None:
            return scaled_similarity(self.scans[0].at(query, rows).astype(np.float64), self.factor)
        blocks = self.index.store.block_of(self.index.rows.positions(rows))  # i64 [n]
        places = np.searchsorted(self.restriction.blocks, blocks)  # i64 [n], in the restriction
        products = np.empty(len(rows))  # f64 [n]
        scan_of = places if len(self.scans) > 1 else np.zeros(len(rows), dtype=np.int64)  # i64 [n]
        for number in np.unique(scan_of).tolist():
            here = np.flatnonzero(scan_of == number)
            products[here] = self.scans[number].at(query, rows[here])
        return scaled_similarity(products, self.factor) + self.restriction.bonuses[places]


def candidate_weights(
    similarities: Similarities,
    candidates: CandidateSpans,
    sides: tuple[np.ndarray, np.ndarray],
    scoring: ScoringSettings,
) -> np.ndarray:
    """What each candidate counts, f64 [m]; `sides` are the rows i64 [n] that the start and the end query hit."""
    start = similarities(0, candidates.start_rows)  # f64 [m]
    end = similarities(1, candidates.end_rows)  # f64 [m]
    if scoring.normalisation is Normalisation.candidates:
        return occurrence_shares(
            start,
            end,
            candidates.lengths,
            combination=scoring.combination,
            length_exponent=scoring.length_exponent,
        )
    # As in the reference, a span found from its other end adds its own end to the candidates of this side.
    all_starts = similarities(0, np.union1d(sides[0], candidates.start_rows))  # f64 [n]
    all_ends = similarities(1, np.union1d(sides[1], candidates.end_rows))  # f64 [n]
    return reference_weights(
        start,
        end,
        candidates.lengths,
        all_starts=all_starts,
        all_ends=all_ends,
        combination=scoring.combination,
        length_exponent=scoring.length_exponent,
    )
