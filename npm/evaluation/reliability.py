"""Right first phrases by their share of the evidence, and the `min_share` that they suggest.

Shapes: n answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npm.core.types import Table
from npm.evaluation.metrics import wilson_interval
from npm.evaluation.report import percent

BINS = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Lower edges of the shares in the table."""
STEPS = np.arange(20) / 20
"""Values of `min_share` that are tried."""


def first_shares(answers: Sequence[Any]) -> np.ndarray:
    """The share of the first phrase of each answer, f64 [n]; 0 for an answer without phrases."""
    return np.array([answer.phrases[0].score if answer.phrases else 0.0 for answer in answers], dtype=np.float64)


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


def reliability_table(found: Sequence[tuple[str, str, dict[str, Any]]]) -> Table:
    """A row for each bin with answers, of each task and method with its `reliability`."""
    edges = [f"{low:.1f} to {high:.1f}" for low, high in zip(BINS, (*BINS[1:], 1.0), strict=True)]
    rows = [
        (task, method, edge, str(each["count"]), percent(wilson_interval(each["right"], each["count"])))
        for task, method, own in found
        for edge, each in zip(edges, own["bins"], strict=True)
        if each["count"]
    ]
    return Table("First answer right, by its share", ("task", "method", "share", "n", "right, %"), rows, (3, 4))


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
