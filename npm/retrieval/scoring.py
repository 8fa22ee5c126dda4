"""How much one occurrence of a phrase counts: our formula and the reference's.

Shapes: m candidate spans of one query, n stored vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from npm.core.settings import Settings
from npm.models.similarity import scaled_similarity

if TYPE_CHECKING:
    from index.types import Scan
    from npm.indexing.phrase_index import PhraseIndex
    from npm.retrieval.blocks import Restriction
    from npm.retrieval.spans import CandidateSpans

LEAST_TEMPERATURE = 1e-3
"""Below it the best occurrence alone would count, and similarities soon be more than floats hold."""
Similarities = Callable[[int, np.ndarray], np.ndarray]
"""Scaled similarities f64 [n] of the start (0) or end (1) query of a text with rows i64 [n]."""


class Combination(Enum):
    """How the start and the end of an occurrence are combined."""

    sum = "sum"
    product = "product"


class ScoringSettings(Settings):
    """How candidate spans are allowed, weighed and put together; the defaults are ours."""

    reference: bool = False
    """The rules of the implementation of arXiv 2212.01349 instead of ours: an occurrence weighs p_s + p_e, softmaxes
    over all start and all end positions, not e^(s + t) over its sum over all candidates; phrases are the same if their
    tokens are, not their text up to case and spaces; they contain no stop-words and no punctuation, not of, the, and,
    's as names do; and they may run on into the next clause."""
    length_exponent: Annotated[float, Field(ge=-10, le=10)] = -1.0
    """α: an occurrence of n tokens weighs n^α times as much."""
    temperature: Annotated[float, Field(ge=LEAST_TEMPERATURE)] = 1.0
    """Divides the scaled similarities s and t; at least 0.001."""
    cut_expressions: bool = False
    """Whether a phrase may begin or end inside a number, a date, a quantity, a hyphenated word or an abbreviation."""
    exclude_query_phrases: bool = True
    """Whether phrases whose words, function words aside, all occur in the question are omitted."""

    @property
    def combination(self) -> Combination:
        """How the two ends of an occurrence are combined."""
        return Combination.sum if self.reference else Combination.product


@dataclass(frozen=True, slots=True)
class Search:
    """What the two queries of one mask hit, and the exact similarity of each with any row that was scanned for them."""

    index: PhraseIndex
    scans: Sequence[Scan]  # one for all rows, or one for each block of the restriction
    queries: tuple[int, int]  # the numbers of the start and the end query in a scan
    hits: tuple[np.ndarray, np.ndarray | None]  # rows i64 [n] by the start and by the end query; None: the same
    factors: tuple[float, float]  # what an inner product is multiplied with, and a similarity of the joint pass
    restriction: Restriction | None = None

    def similarities(self, side: int, rows: np.ndarray) -> np.ndarray:
        """Scaled similarities f64 [n] of the start (0) or end (1) query with rows i64 [n]."""
        query = self.queries[side]
        if self.restriction is None:
            return scaled_similarity(self.scans[0].at(query, rows).astype(np.float64), self.factors[0])
        # In `hybrid` all similarities in a block are raised by the same bonus, so that within a block the vectors alone
        # decide, and between blocks their BM25 scores have a say.
        positions = self.index.rows.positions(rows)  # i64 [n]
        blocks = self.index.store.block_of(positions)  # i64 [n]
        places = np.searchsorted(self.restriction.blocks, blocks)  # i64 [n], in the restriction
        products = np.empty(len(rows))  # f64 [n]
        scan_of = places if len(self.scans) > 1 else np.zeros_like(places)  # i64 [n]
        for number in np.unique(scan_of).tolist():
            here = np.flatnonzero(scan_of == number)
            products[here] = self.scans[number].at(query, rows[here])
        similarities = scaled_similarity(products, self.factors[0]) + self.restriction.bonuses[places]  # f64 [n]
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
    """What each candidate counts, f64 [m]; `sides` are the rows i64 [n] that the start and the end query hit."""
    start = similarities(0, candidates.start_rows)  # f64 [m]
    end = similarities(1, candidates.end_rows)  # f64 [m]
    if not scoring.reference:
        return occurrence_shares(start, end, candidates.lengths, scoring.length_exponent)
    # As in the reference, a span found from its other end adds its own end to the candidates of this side.
    all_starts = similarities(0, np.union1d(sides[0], candidates.start_rows))  # f64 [n]
    all_ends = similarities(1, np.union1d(sides[1], candidates.end_rows))  # f64 [n]
    return reference_weights(start, end, candidates.lengths, scoring.length_exponent, (all_starts, all_ends))


def occurrence_shares(start: np.ndarray, end: np.ndarray, lengths: np.ndarray, length_exponent: float) -> np.ndarray:
    """Share of every candidate span in the evidence of all of them, n^α e^(s+t) / Σ n^α e^(s+t): f64 [m].

    `start` s and `end` t are f64 [m], `lengths` n in tokens (design, decision 4; the sum over occurrences is that of
    Min et al. 2022, arXiv 2212.01349, §3).

    >>> import numpy as np
    >>> sides = np.log([1.0, 3.0])
    >>> occurrence_shares(sides, sides, np.ones(2), 0).round(6).tolist()
    [0.1, 0.9]
    """
    joint = start + end  # [m]
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
        np.exp(own - _log_sum_exp(every)) for own, every in zip((start, end), all_sides, strict=True)
    )  # [m] each
    weights: np.ndarray = (p_start + p_end) * lengths.astype(np.float64) ** length_exponent
    return weights


def _log_sum_exp(values: np.ndarray) -> float:
    """log Σ e^v; -inf of nothing."""
    if len(values) == 0:
        return -math.inf
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum()))
