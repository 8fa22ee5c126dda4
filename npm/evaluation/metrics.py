"""Right answers, and confidence intervals of means over examples.

Shapes: n examples, r resamples, g groups.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Any

import numpy as np

RESAMPLED_AT_ONCE = 1 << 20  # example numbers drawn at once by the bootstrap; bounds memory
ARTICLES = frozenset({"a", "an", "the"})
BINS = (0.0, 0.2, 0.4, 0.6, 0.8)  # lower edges of the shares in the table
TAILS = (1 - 0.95) / 2, (1 + 0.95) / 2  # quantiles at the ends of an interval
STEPS = np.arange(20) / 20  # values of `min_share` that are tried


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over examples and its 95 % confidence interval."""

    mean: float
    low: float
    high: float


def percent(interval: Interval, *, sign: str = "") -> str:
    """A share and its 95 % confidence interval, in per cent; `sign` "+" is for differences.

    >>> percent(Interval(0.6211, 0.547, 0.696)), percent(Interval(0.02, -0.01, 0.05), sign="+")
    ('62.1 [54.7, 69.6]', '+2.0 [-1.0, +5.0]')
    """
    mean, low, high = (f"{100 * value:{sign}.1f}" for value in (interval.mean, interval.low, interval.high))
    return f"{mean} [{low}, {high}]"


def open_answer(text: str) -> str:
    """The form compared in open tasks: lower case, without punctuation and articles, runs of spaces collapsed.

    Rajpurkar et al. 2016 (arXiv 1606.05250, §6.1), as Min et al. 2022 use it. Theirs knows ASCII punctuation only, its
    symbols such as $ and + included; here that of Unicode goes too, and what is nothing but articles keeps them.

    >>> open_answer("The Bank of  an America!"), open_answer("“A” + B"), open_answer("The")
    ('bank of america', 'b', 'the')
    """
    composed = unicodedata.normalize("NFC", text.lower())
    kept = (c for c in composed if c not in string.punctuation and not unicodedata.category(c).startswith("P"))
    words = "".join(kept).split()
    return " ".join([word for word in words if word not in ARTICLES] or words)


def exact_match(phrase: str, answers: Iterable[str]) -> bool:
    """Return True if `phrase` equals an answer, both as `open_answer` has them; nothing equals an empty one.

    >>> exact_match("a Danube.", ["Donau", "the Danube"]), exact_match("the", ["a"]), exact_match("!", ["?"])
    (True, False, False)
    """
    plain = open_answer(phrase)
    return plain != "" and any(plain == open_answer(answer) for answer in answers)


def wilson_interval(hits: float, count: int) -> Interval:
    """The share of `hits` among `count` independent cases, one at least, and its score interval (Wilson 1927).

    Unlike a bootstrap it has a width even where all or none are hits.

    >>> found = wilson_interval(8, 10)
    >>> found.mean, round(found.low, 4), round(found.high, 4)
    (0.8, 0.4902, 0.9433)
    """
    share, z = hits / count, NormalDist().inv_cdf(0.975)
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    # Where all or none are hits, the share is a bound itself; rounding must not put it outside.
    return Interval(share, min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half)))


def percentile_interval(mean: float, resampled: np.ndarray) -> Interval:
    """A mean and its 95 % interval by the means f64 [r] of resamples."""
    return Interval(float(mean), *np.quantile(resampled, TAILS).tolist())


def bootstrap_interval(
    sums: np.ndarray, rng: np.random.Generator, *, counts: np.ndarray | None = None, resamples: int = 10_000
) -> Interval:
    """Mean of `sums` f64 [n] and its percentile bootstrap interval (Efron and Tibshirani 1993, §13.3).

    With `counts` [n] an example is a cluster of that many cases, the mean is Σ sums / Σ counts, and entire clusters are
    drawn. Raises ValueError without examples, or if all counts are zero.

    >>> bootstrap_interval(np.ones(3), np.random.default_rng(0))
    Interval(mean=1.0, low=1.0, high=1.0)
    """
    sums = np.asarray(sums, dtype=np.float64)  # [n]
    counts = np.ones(len(sums)) if counts is None else np.asarray(counts, dtype=np.float64)  # [n]
    if counts.sum() == 0:
        raise ValueError("a mean needs at least one example")
    occupied = counts > 0  # bool [n], an empty cluster alone would have no mean
    sums, counts = sums[occupied], counts[occupied]
    at_once = max(1, RESAMPLED_AT_ONCE // len(sums))
    means = np.empty(resamples)  # f64 [r]
    for first in range(0, resamples, at_once):
        size = min(at_once, resamples - first)
        drawn = rng.integers(0, len(sums), size=(size, len(sums)))  # i64 [size, n]
        means[first : first + size] = sums[drawn].sum(1) / counts[drawn].sum(1)
    return percentile_interval(sums.sum() / counts.sum(), means)


def ratio_standard_error(sums: np.ndarray, counts: np.ndarray) -> float | None:
    """Standard error of Σ sums / Σ counts, f64 [n] each, where the n examples are clusters of `counts` cases.

    √(n/(n−1) Σ (sᵢ − r cᵢ)²) / Σ c with r = Σ s / Σ c, the linearized ratio estimator (Cochran 1977, §2.11 and §9A.2);
    None for a single cluster, which tells nothing about the others.

    >>> ratio_standard_error(np.array([1.0, 3.0]), np.array([1.0, 1.0])), ratio_standard_error(np.ones(1), np.ones(1))
    (1.0, None)
    """
    if len(sums) < 2:
        return None
    residuals = sums - sums.sum() / counts.sum() * counts  # f64 [n]
    return float(np.sqrt(len(sums) / (len(sums) - 1) * (residuals**2).sum()) / counts.sum())


def group_mean_interval(
    hits: np.ndarray, groups: np.ndarray, rng: np.random.Generator, *, resamples: int = 10_000
) -> Interval:
    """The mean over groups of the share of hits in each, and its percentile bootstrap interval within groups.

    `hits` bool [n], `groups` i64 [n] the group of each, all of 0 to its largest occupied. The groups are fixed and each
    is resampled, as a stratum (Efron and Tibshirani 1993, §8.3); of c examples with h hits a resample holds
    Binomial(c, h/c) hits, which is drawn directly. Raises ValueError without examples or for a group without any.

    >>> group_mean_interval(np.array([True, True, False]), np.array([0, 0, 1]), np.random.default_rng(0))
    Interval(mean=0.5, low=0.5, high=0.5)
    """
    counts = np.bincount(groups)  # i64 [g]
    if len(counts) == 0 or counts.min() == 0:
        raise ValueError("a mean over groups needs at least one example in each")
    rates = np.bincount(groups, weights=hits) / counts  # f64 [g]
    drawn = rng.binomial(counts, rates, size=(resamples, len(counts)))  # i64 [r, g]
    means = (drawn / counts).mean(1)  # f64 [r]
    return percentile_interval(rates.mean(), means)


def macro_f1(confusion: np.ndarray) -> float:
    """Mean over labels of F1 = 2 · right / (gold + predicted), from `confusion` i64 [C, C].

    Labels that neither the examples nor the predictions have are omitted (Opitz and Burst 2019, arXiv 1911.03347).

    >>> round(macro_f1(np.array([[1, 1, 0], [0, 1, 0], [0, 0, 0]])), 4)
    0.6667
    """
    right = np.diagonal(confusion)  # i64 [C]
    mentioned = confusion.sum(0) + confusion.sum(1)  # i64 [C]
    known = mentioned > 0  # bool [C]
    return float(np.mean(2 * right[known] / mentioned[known]))


def auroc(positives: np.ndarray, negatives: np.ndarray) -> float | None:
    """The share of pairs in which the positive of f64 [n] is above the negative of f64 [m], ties counting half.

    >>> auroc(np.array([3.0, 1.0]), np.array([2.0, 1.0]))
    0.625
    """
    if not (len(positives) and len(negatives)):
        return None
    ordered = np.sort(negatives)  # f64 [m]
    below, up_to = (np.searchsorted(ordered, positives, side) for side in ("left", "right"))  # i64 [n] each
    return float((below + up_to).mean() / (2 * len(ordered)))


def suggested_min_share(shares: np.ndarray, right: np.ndarray) -> float | None:
    """The `min_share` below which answers are more often wrong than right, by `shares` f64 [n] and `right` bool [n].

    Of STEPS that with the most right answers above it and wrong ones below it; None if that is 0, or if more than half
    of the answers below it may be right, by Wilson's 95 % interval.

    >>> suggested_min_share(np.array([0.1] * 8 + [0.7] * 8), np.array([False] * 8 + [True] * 8))
    0.15
    """
    gains = [int((np.where(shares >= step, 1, -1) * np.where(right, 1, -1)).sum()) for step in STEPS]
    least = float(STEPS[int(np.argmax(gains))])  # the first of equals
    below = right[shares < least]  # bool [below]
    if not len(below) or wilson_interval(int(below.sum()), len(below)).high > 0.5:
        return None
    return least


def reliability(shares: np.ndarray, right: np.ndarray) -> dict[str, Any]:
    """Answers and right ones in each bin of shares, for metrics.json, and the suggested `min_share`, or None."""
    inside = np.searchsorted(BINS, shares, side="right") - 1  # i64 [n]
    bins = [
        {"from": edge, "count": int((inside == number).sum()), "right": int(right[inside == number].sum())}
        for number, edge in enumerate(BINS)
    ]
    return {"bins": bins, "suggested_min_share": suggested_min_share(shares, right)}


def reliability_note(name: str, shares: np.ndarray, right: np.ndarray) -> str:
    """Effect of the suggested `min_share` of a task and method, in a sentence."""
    least = suggested_min_share(shares, right)
    if least is None:
        return f"{name}: no min_share is suggested: at no share are first answers clearly more often wrong than right."
    below = right[shares < least]  # bool [below]
    above = right[shares >= least]  # bool [above]
    others = f", and {above.mean():.0%} of the others" if len(above) else ""
    start = f"{name}: min_share={least:g} is suggested: {len(below)} of {len(right)} answers are below it"
    return f"{start}, {below.mean():.0%} of them right{others}."
