"""Confidence, the probability that a first phrase is right: a logistic function of the outputs of a reader.

    P = 1 / (1 + exp(−(b + Σ w_i x_i)))

The features x of an answer (`features_of`) are

    span    log P(start) + log P(end) of the likeliest span of all passages that were read
    absent  probability that the passage with this span has no answer, by the start
    gap     score of this passage less that of the best other one, both as shares of the best score of all
    lead    log of the first phrase's share over that of the second
    share   log of the first phrase's share
    words   share of the question's rare words that the passages have, weighted by inverse document frequency

The weights are fitted to people's questions (`fit`), half of them asked with the right passage removed from the corpus.
Where more questions have an answer, the first phrase is right more often than its confidence says. They are saved
beside the reader's weights. A network's own probabilities are too high (Guo et al. 2017, arXiv 1706.04599).

Shapes: n answers, f features, p passages, T tokens of a passage.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from npm.core.errors import ArtifactError
from npm.core.files import json_bytes, replace_file

FILE = "confidence.json"
FEATURES = ("span", "absent", "gap", "lead", "share", "words")
LEAST = 1e-6
"""Floor for probabilities and shares."""
PENALTY = 1e-2  # of squared weights
NEWTON_STEPS = 50


@dataclass(frozen=True, slots=True)
class Confidence:
    """A fitted function of features f64 [f]."""

    weights: tuple[float, ...]
    bias: float
    withheld_below: float
    """Confidence below which an answer is withheld, as chosen when the function was fitted."""

    def of(self, features: np.ndarray) -> np.ndarray:
        """The confidence f64 [n] of answers with features f64 [n, f], or of one with f64 [f]."""
        return probabilities(features @ np.array(self.weights) + self.bias)

    def threshold(self, chosen: float | None) -> float:
        """Confidence below which an answer is withheld: `chosen`, or that of the fit."""
        return self.withheld_below if chosen is None else chosen

    def save(self, folder: Path) -> None:
        """Write the function into the folder of a reader."""
        record = {
            "weights": dict(zip(FEATURES, self.weights, strict=True)),
            "bias": self.bias,
            "withheld_below": self.withheld_below,
        }
        replace_file(folder / FILE, json_bytes(record))


def read_confidence(folder: Path) -> Confidence | None:
    """The function that a reader's folder has, if any. Raises ArtifactError for a damaged one."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_bytes())
        weights = tuple(float(record["weights"][name]) for name in FEATURES)
        known = Confidence(weights, float(record["bias"]), float(record["withheld_below"]))
        if not (np.isfinite([*weights, known.bias]).all() and 0 <= known.withheld_below <= 1):
            raise ValueError("numbers must be finite, and withheld_below from 0 to 1")
        return known
    except (ValueError, KeyError, TypeError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ArtifactError(f"{path} is damaged: {problem}; fit it again with npmlm calibrate") from error


def probabilities(logits: np.ndarray) -> np.ndarray:
    """The logistic function of logits f64 [n]; computed so that no exponential overflows."""
    found: np.ndarray = np.exp(-np.logaddexp(0, -logits))  # f64 [n]
    return found


def fit(features: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, float]:
    """Weights f64 [f] and bias that make answers with features f64 [n, f] most likely right as bool [n] says.

    By Newton's method on the mean log loss of standardized features, plus PENALTY / 2 times the squared weights.
    """
    mean, deviation = features.mean(0), np.maximum(features.std(0), LEAST)  # f64 [f] each
    inputs = np.column_stack([(features - mean) / deviation, np.ones(len(features))])  # f64 [n, f + 1]
    penalty = np.append(np.full(features.shape[1], PENALTY), 0.0)  # f64 [f + 1]
    coefficients = np.zeros(inputs.shape[1])  # f64 [f + 1]
    for _ in range(NEWTON_STEPS):
        chances = probabilities(inputs @ coefficients)  # f64 [n]
        gradient = inputs.T @ (chances - right) / len(right) + penalty * coefficients  # f64 [f + 1]
        curvature = (inputs * (chances * (1 - chances))[:, None]).T @ inputs / len(right)  # f64 [f + 1, f + 1]
        coefficients -= np.linalg.solve(curvature + np.diag(penalty + LEAST), gradient)
    weights = coefficients[:-1] / deviation  # f64 [f]
    return weights, float(coefficients[-1] - weights @ mean)


def features_of(
    scores: Sequence[np.ndarray],
    passage_scores: np.ndarray,
    shares: Sequence[float],
    words: float,
    *,
    max_span_tokens: int,
) -> np.ndarray:
    """The features f64 [f] of an answer from `scores` f64 [2, T] of each of p passages and `passage_scores` f64 [p].

    `shares` are those of the phrases, best first; `words` is a feature as it is.
    """
    first, second = (max(LEAST, share) for share in (*shares, 0.0, 0.0)[:2])
    span, absent, gap = float(np.log(LEAST)), 1.0, 0.0
    if len(scores):
        spans = [best_span(own, max_span_tokens) for own in scores]
        best = int(np.argmax(spans))
        span, absent = spans[best], 1 - float(np.exp(scores[best][0]).sum())
        relative = passage_scores / max(LEAST, float(passage_scores.max()))  # f64 [p]
        gap = float(relative[best] - np.delete(relative, best).max(initial=0))
    return np.array([span, absent, gap, np.log(first / second), np.log(first), words])


def best_span(scores: np.ndarray, max_span_tokens: int) -> float:
    """The log-probability, start plus end, of the likeliest span of a passage with scores f64 [2, T]."""
    starts, ends = scores
    if not len(starts):
        return float(np.log(LEAST))
    sums = starts[:, None] + ends[None, :]  # f64 [T, T]
    allowed = np.triu(np.tril(np.ones_like(sums, dtype=bool), max_span_tokens - 1))  # bool [T, T]
    return max(float(sums[allowed].max()), float(np.log(LEAST)))
