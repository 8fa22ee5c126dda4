"""Weight of one occurrence of a phrase: our formula and the reference's.

Shapes: m candidate spans of one query, n stored vectors.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import numpy as np
from pydantic import Field

from npm.core.settings import Settings

LEAST_TEMPERATURE = 1e-3
"""Minimum temperature: below it only the best occurrence would count, and similarities would soon overflow."""


class Combination(Enum):
    """Combination of the start and the end of an occurrence."""

    sum = "sum"
    product = "product"


class ScoringSettings(Settings):
    """Settings that filter, weigh and combine candidate spans; the defaults are ours."""

    reference: bool = False
    """The rules of the implementation of arXiv 2212.01349 instead of ours: an occurrence weighs p_s + p_e, softmaxes
    over all start and all end positions, not e^(s + t) over its sum over all candidates; phrases are the same if their
    tokens are, not their text up to case and spaces; they contain no stop-words and no punctuation, not of, the, and,
    's as names do; and they may continue into the next clause."""
    length_exponent: Annotated[float, Field(ge=-10, le=10)] = -1.0
    """α: an occurrence of n tokens weighs n^α times as much."""
    temperature: Annotated[float, Field(ge=LEAST_TEMPERATURE)] = 1.0
    """Divides the scaled similarities s and t; at least 0.001."""
    cut_expressions: bool = False
    """A phrase may begin or end inside a number, a date, a quantity, a hyphenated word or an abbreviation."""
    exclude_query_phrases: bool = True
    """Omit phrases whose words, except function words, all occur in the question."""


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
