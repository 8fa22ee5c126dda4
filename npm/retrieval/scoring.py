"""How much one occurrence of a phrase counts: the formulas, and the switches between ours and the reference's.

Shapes: m candidate spans of one query, n stored vectors.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Annotated

import numpy as np
from pydantic import Field

from npm.core.settings import Settings

LEAST_TEMPERATURE = 1e-3
"""Below it the best occurrence alone would count, and similarities soon be more than floats hold."""


class Combination(Enum):
    """How the start and the end of an occurrence are combined."""

    sum = "sum"
    product = "product"


class Normalisation(Enum):
    """What evidence is divided by."""

    candidates = "candidates"
    start_end = "start_end"


class Aggregation(Enum):
    """Which occurrences count for the same phrase."""

    normalised_text = "normalised_text"
    token_ids = "token_ids"


class StopwordsInside(Enum):
    """Which stop-words a phrase may hold."""

    none = "none"
    linking = "linking"
    all = "all"


class ScoringSettings(Settings):
    """How candidate spans are allowed, weighed and put together; the defaults are ours."""

    combination: Combination = Combination.product
    """`sum`: an occurrence weighs e^s + e^t; `product`: e^(s + t), where both ends must fit."""
    normalisation: Normalisation = Normalisation.candidates
    """`candidates`: divided by the same sum over all candidate spans, so that scores are shares; `start_end`: e^s and
    e^t are softmaxes over all start and all end positions, and the sum over occurrences is left as it is."""
    aggregation: Aggregation = Aggregation.normalised_text
    """`normalised_text`: case-folded, spaces collapsed; `token_ids`: equal token sequences only."""
    length_exponent: Annotated[float, Field(ge=-10, le=10)] = -1.0
    """α: an occurrence of n tokens weighs n^α times as much."""
    temperature: Annotated[float, Field(ge=LEAST_TEMPERATURE)] = 1.0
    """Divides the scaled similarities s and t; at least 0.001."""
    stopwords_inside: StopwordsInside = StopwordsInside.linking
    """Stop-words that a phrase may hold: `all`, `linking` (of, the, and, 's: those of names), or `none`, which bars
    punctuation too. Whether its ends may be stop-words is up to which tokens have a vector."""
    allow_clauses_inside: bool = False
    """Whether a phrase may run on after one of ! , . : ? and into the next sentence."""
    cut_expressions: bool = False
    """Whether a phrase may begin or end inside a number, a date, a quantity, a hyphenated word or an abbreviation."""
    exclude_query_phrases: bool = True
    """Whether phrases whose words, function words aside, all stand in the question are left out of the answer."""
    equal_walks: bool = True
    """Whether a hit of the end query is grown left as far as one of the start query is grown right, not one less."""


def occurrence_shares(
    start: np.ndarray, end: np.ndarray, lengths: np.ndarray, *, combination: Combination, length_exponent: float
) -> np.ndarray:
    """Share of every candidate span in the evidence of all of them, f64 [m]; they sum to 1.

    w = n^α (e^s + e^t) or n^α e^(s+t), divided by Σ w (design, decision 4; the sum over occurrences is that of Min et
    al. 2022, arXiv 2212.01349, §3). `start` s and `end` t are f64 [m], `lengths` n in tokens.

    >>> import numpy as np
    >>> s, t, one = np.log([1.0, 3.0]), np.log([1.0, 3.0]), np.ones(2)
    >>> occurrence_shares(s, t, one, combination=Combination.sum, length_exponent=0).round(6).tolist()
    [0.25, 0.75]
    >>> occurrence_shares(s, t, one, combination=Combination.product, length_exponent=0).round(6).tolist()
    [0.1, 0.9]
    """
    if len(start) == 0:
        return np.zeros(0)
    if combination is Combination.sum:
        # One maximum for both sides: with one each, start and end evidence would no longer be on the same footing.
        top = max(start.max(), end.max())
        weights = np.exp(start - top) + np.exp(end - top)  # [m]
    else:
        joint = start + end  # [m]
        weights = np.exp(joint - joint.max())  # [m]
    if length_exponent:
        weights *= lengths.astype(np.float64) ** length_exponent
    return weights / weights.sum()


def reference_weights(
    start: np.ndarray,
    end: np.ndarray,
    lengths: np.ndarray,
    *,
    all_starts: np.ndarray,
    all_ends: np.ndarray,
    combination: Combination,
    length_exponent: float,
) -> np.ndarray:
    """n^α (p_s + p_e) or n^α p_s p_e of every candidate span, f64 [m], with a partition function on either side.

    p_s = e^s / Σ over `all_starts` f64 [n]; p_e likewise (what the reference implementation of that paper computes).

    >>> import numpy as np
    >>> side = np.log([1.0, 3.0])
    >>> reference_weights(side[1:], side[:1], np.ones(1), all_starts=side, all_ends=side,
    ...                   combination=Combination.sum, length_exponent=0).round(6).tolist()
    [1.0]
    """
    p_start = np.exp(start - _log_sum_exp(all_starts))  # [m]
    p_end = np.exp(end - _log_sum_exp(all_ends))  # [m]
    weights = p_start + p_end if combination is Combination.sum else p_start * p_end  # [m]
    if length_exponent:
        weights *= lengths.astype(np.float64) ** length_exponent
    return weights


def _log_sum_exp(values: np.ndarray) -> float:
    """log Σ e^v; -inf of nothing."""
    if len(values) == 0:
        return -math.inf
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum()))
