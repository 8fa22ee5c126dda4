"""Right first answers by share: bins and a threshold counted by hand, and by a plain loop over all thresholds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from npm.core.types import Answer, Phrase
from npm.evaluation.metrics import wilson_interval
from npm.evaluation.reliability import (
    STEPS,
    first_shares,
    reliability,
    reliability_note,
    reliability_table,
    suggested_min_share,
)

SHARES = np.array([0.1] * 6 + [0.25, 0.2, 0.5, 0.59, 0.8, 1.0])
RIGHT = np.array([False] * 6 + [False, True, True, False, True, True])


def test_bins_and_the_threshold_are_those_counted_by_hand() -> None:
    found = reliability(SHARES, RIGHT)
    counts = [(each["from"], each["count"], each["right"]) for each in found["bins"]]
    assert counts == [(0.0, 6, 0), (0.2, 2, 1), (0.4, 2, 1), (0.6, 0, 0), (0.8, 2, 2)]
    assert found["suggested_min_share"] == 0.15  # without the six below it, and with the four right ones of six
    assert [row[2:4] for row in reliability_table([("demo", "npm", found)]).rows][:2] == [
        ("0.0 to 0.2", "6"),
        ("0.2 to 0.4", "2"),
    ]
    assert "6 of 12 answers are below it, 0% of them right, and 67%" in reliability_note("demo", SHARES, RIGHT)


def test_few_answers_or_right_ones_suggest_nothing() -> None:
    assert suggested_min_share(SHARES[5:], RIGHT[5:]) is None
    assert suggested_min_share(SHARES, np.ones(12, dtype=bool)) is None
    assert "no min_share is suggested" in reliability_note("demo", SHARES[5:], RIGHT[5:])


def test_the_share_of_an_answer_is_that_of_its_first_phrase() -> None:
    phrases = (Phrase("one", 0.7, 1, ()), Phrase("two", 0.2, 1, ()))
    assert first_shares([Answer("<mask>", phrases), Answer("<mask>", ())]).tolist() == [0.7, 0.0]


@given(st.lists(st.tuples(st.integers(0, 100), st.booleans()), min_size=1, max_size=60))
def test_the_threshold_is_the_best_of_all_by_a_plain_count(pairs: list[tuple[int, bool]]) -> None:
    shares = np.array([share / 100 for share, _ in pairs])
    right = np.array([is_right for _, is_right in pairs])
    gains = {}
    for step in STEPS.tolist():
        gains[step] = sum(is_right == (share >= step) for share, is_right in zip(shares, right, strict=True))
    best = next(step for step in gains if gains[step] == max(gains.values()))
    below = [is_right for share, is_right in zip(shares, right, strict=True) if share < best]
    is_clear = bool(below) and wilson_interval(sum(below), len(below)).high <= 0.5
    assert suggested_min_share(shares, right) == (best if is_clear else None)
