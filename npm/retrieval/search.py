"""Hits of the queries of each mask in the index, and weights of the spans grown from them.

Shapes: n masks of all texts or rows of one, m candidate spans of one mask, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npm.retrieval.literal import with_literal_evidence

if TYPE_CHECKING:
    from index.types import Scan
    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.encoder import Encoder
    from npm.retrieval.blocks import BlockPlan
    from npm.retrieval.queries import QueryVectors
    from npm.retrieval.settings import FillSettings, ScoringSettings
    from npm.retrieval.spans import CandidateSpans

Similarities = Callable[[int, np.ndarray], np.ndarray]
"""Scaled similarities f64 [n] of the start (0) or end (1) query of a text with rows i64 [n]."""


@dataclass(frozen=True, slots=True)
class Search:
    """Rows that the two queries of one mask hit, and the exact similarity of each to any row scanned for them."""

    index: PhraseIndex
    plan: BlockPlan
    scan: Scan | None  # of all rows it may need; None where stored vectors do not count
    queries: tuple[int, int]  # the numbers of the start and the end query in the scan
    start_rows: np.ndarray  # i64 [n], ascending
    end_rows: np.ndarray  # i64 [n], ascending; all rows of blocks are hit by both queries
    factors: tuple[float, float]  # factor of an inner product, and of a similarity of the joint pass

    def similarities(self, side: int, rows: np.ndarray) -> np.ndarray:
        """Scaled similarities f64 [n] of the start (0) or end (1) query with rows i64 [n]."""
        found = np.zeros(len(rows))  # f64 [n]
        if self.scan is not None:
            found = self.scan.at(self.queries[side], rows).astype(np.float64) * self.factors[0]  # f64 [n]
        if self.plan.is_everywhere:
            return found
        # In `hybrid` all similarities in a block are raised by the same bonus, so that within a block the vectors alone
        # decide, and between blocks their BM25 scores count.
        positions = self.index.rows.positions(rows)  # i64 [n]
        blocks = self.index.store.block_of(positions)  # i64 [n]
        places = np.searchsorted(self.plan.blocks, blocks)  # i64 [n], in the plan
        found = found + self.plan.bonuses[places]  # f64 [n]
        if self.plan.joint:
            slots = positions - self.index.store.block_offsets[blocks]  # i64 [n], within their blocks
            for number in np.unique(places).tolist():
                here = np.flatnonzero(places == number)
                found[here] += self.factors[1] * self.plan.joint[number][side, slots[here]]
        return found


def search(
    index: PhraseIndex,
    vectors: QueryVectors,
    plans: Sequence[BlockPlan],
    settings: FillSettings,
    *,
    allowed: np.ndarray | None,
    factor: float,
) -> Iterator[tuple[int, Search]]:
    """The number of each of n masks that has rows to search, by its plan, and the hits of its two queries.

    Everywhere only rows in the mask `allowed` bool [rows] count, all if None. `factor` is that of an inner product.
    """
    everywhere = [number for number, plan in enumerate(plans) if plan.is_everywhere]
    masks_per_scan = max(1, index.searcher.max_queries_per_scan // 2)
    wanted = min(settings.candidates_per_side or index.candidates_per_side, len(index.rows))
    for first in range(0, len(everywhere), masks_per_scan):
        batch = everywhere[first : first + masks_per_scan]
        scan = index.searcher.scan(np.concatenate([vectors.start[batch], vectors.end[batch]]), allowed)
        hits = scan.top(wanted)  # of [2 * batch] queries
        best = [np.sort(rows[found]) for rows, found in zip(hits.rows, hits.found, strict=True)]  # i64 [hits] each
        for start, number in enumerate(batch):
            end = len(batch) + start
            yield number, Search(index, plans[number], scan, (start, end), best[start], best[end], (factor, 0.0))
    offsets = index.store.block_offsets
    for number, plan in enumerate(plans):
        rows = index.rows.rows_within(offsets[plan.blocks], offsets[plan.blocks + 1])  # i64 [rows]
        if not len(rows):  # or everywhere
            continue
        share = (settings.joint_share if index.stores_tokens else 1.0) if plan.joint else 0.0
        pair = np.stack([vectors.start[number], vectors.end[number]])  # f32 [2, d]
        own_scan = index.searcher.scan(pair, rows) if share < 1 else None
        factors = (1 - share) * factor, share / settings.scoring.temperature
        yield number, Search(index, plan, own_scan, (0, 1), rows, rows, factors)


def similarity_factor(encoder: Encoder, scoring: ScoringSettings) -> float:
    """Factor of an inner product, from the scale of the encoder and the temperature.

    The one query of a single mask is that of both ends, and e^(s + t) would count it twice: halved, a word of one
    token weighs e^s, as it was trained.
    """
    counts_twice = encoder.query_masks == 1 and not scoring.reference
    return encoder.similarity_scale / scoring.temperature / (2 if counts_twice else 1)


def weigh(
    found: Search, candidates: CandidateSpans, settings: FillSettings, limits: tuple[int, int | None]
) -> tuple[CandidateSpans, np.ndarray]:
    """The candidates of one mask, with those of literal evidence within the `limits`, and their weights f64 [m].

    The other end of a span, which may be no hit, is scored from its stored vector: weights are exact for the
    candidates there are, however roughly the hits were searched.
    """
    hits = found.start_rows, found.end_rows
    weights = candidate_weights(found.similarities, candidates, hits, settings.scoring)  # f64 [m]
    if not found.plan.gaps:
        return candidates, weights
    return with_literal_evidence(
        candidates, weights, found.plan.gaps, settings.literal_weight, store=found.index.store, limits=limits
    )


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


def occurrence_shares(start: np.ndarray, end: np.ndarray, lengths: np.ndarray, length_exponent: float) -> np.ndarray:
    """Fraction of every candidate span in the evidence of all of them, n^α e^(s+t) / Σ n^α e^(s+t): f64 [m].

    `start` s and `end` t are f64 [m], `lengths` n in tokens (design, decision 4; the sum over occurrences is that of
    Min et al. 2022, arXiv 2212.01349, §3).

    >>> import numpy as np
    >>> sides = np.log([1.0, 3.0])
    >>> occurrence_shares(sides, sides, np.ones(2), 0).round(6).tolist()
    [0.1, 0.9]
    """
    joint = start + end  # [m]
    if np.isneginf(joint).all():  # a reader that could read none of it
        return np.zeros(len(joint))
    weights = np.exp(joint - joint.max(initial=-np.inf)) * lengths.astype(np.float64) ** length_exponent  # [m]
    return weights / weights.sum()


def reference_weights(
    start: np.ndarray,
    end: np.ndarray,
    lengths: np.ndarray,
    length_exponent: float,
    all_sides: tuple[np.ndarray, np.ndarray],
) -> np.ndarray:
    """n^α (p_s + p_e) of every candidate span, f64 [m], with a partition function on either side.

    p_s = e^s / Σ over all starts f64 [n]; p_e likewise (what the reference implementation of that paper computes).

    >>> import numpy as np
    >>> side = np.log([1.0, 3.0])
    >>> reference_weights(side[1:], side[:1], np.ones(1), 0, (side, side)).round(6).tolist()
    [1.0]
    """
    p_start, p_end = (
        np.exp(own - np.logaddexp.reduce(every)) for own, every in zip((start, end), all_sides, strict=True)
    )  # [m] each
    weights: np.ndarray = (p_start + p_end) * lengths.astype(np.float64) ** length_exponent
    return weights
