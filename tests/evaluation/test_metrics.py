"""Answers, ranks, chances, bootstrap intervals and thresholds, by hand and against plain loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npm.evaluation.metrics import (
    STEPS,
    bootstrap_interval,
    exact_match,
    group_mean_interval,
    open_answer,
    reliability,
    reliability_note,
    suggested_min_share,
    wilson_interval,
)
from npm.evaluation.report import reliability_table


@pytest.mark.parametrize("at_once", [70, 1 << 20])
def test_the_interval_equals_a_plain_bootstrap_with_the_same_draws(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("npm.evaluation.metrics.RESAMPLED_AT_ONCE", at_once)
    values = np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    found = bootstrap_interval(values, np.random.default_rng(3), resamples=200)
    draws = np.random.default_rng(3).integers(0, 5, size=(200, 5))
    means = sorted(float(np.mean([values[place] for place in draw])) for draw in draws)
    assert found.mean == pytest.approx(0.6)
    assert (found.low, found.high) == pytest.approx((np.quantile(means, 0.025), np.quantile(means, 0.975)))


def test_clusters_are_drawn_whole_and_empty_ones_never() -> None:
    interval = bootstrap_interval(
        np.array([2.0, 0.0, 0.0]), np.random.default_rng(0), counts=np.array([2, 6, 0]), resamples=500
    )
    assert interval.mean == 0.25
    assert (interval.low, interval.high) == (0.0, 1.0)  # the means of one cluster drawn twice


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("  The Danube ", "danube"),
        ("An Officer and a Gentleman", "officer and gentleman"),
        ("“The Hague”,", "hague"),
        ("U.S.", "us"),
        ("$1,000", "1000"),
        ("Theodor another", "theodor another"),
        ("The The", "the the"),
        ("A", "a"),
        ("Côte d’Ivoire", "côte divoire"),
        ("北京。", "北京"),
        ("Cafe\u0301", "caf\u00e9"),
        ("¿…?", ""),
    ],
)
def test_open_answers_lose_case_punctuation_and_all_articles(written: str, plain: str) -> None:
    assert open_answer(written) == plain


def test_an_exact_match_is_one_of_the_answers_after_normalisation_and_no_part_of_one() -> None:
    assert exact_match("a Bank of the America.", ["bank  of america"])
    assert exact_match("Oslo", ["Bergen", "OSLO"])
    assert not exact_match("Cervantes", ["Miguel de Cervantes"])
    assert not exact_match("the", ["an"])
    assert not exact_match("…", ["?"])
    assert not exact_match("Oslo", [])


@pytest.mark.parametrize("first_group", [[True, True, False], [True, True, True]])
def test_the_interval_of_a_mean_over_groups_is_that_of_all_possible_resamples_within_groups(
    first_group: list[bool],
) -> None:
    second_group = [True, False]
    means = [
        (sum(first) / 3 + sum(second) / 2) / 2
        for first in itertools.product(first_group, repeat=3)
        for second in itertools.product(second_group, repeat=2)
    ]
    hits, groups = np.array([*second_group, *first_group]), np.array([1, 1, 0, 0, 0])
    found = group_mean_interval(hits, groups, np.random.default_rng(0), resamples=100_000)
    assert found.mean == pytest.approx((sum(first_group) / 3 + 1 / 2) / 2)
    assert (found.low, found.high) == pytest.approx((np.quantile(means, 0.025), np.quantile(means, 0.975)))


def test_no_examples_have_no_mean() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="at least one example"):
        bootstrap_interval(np.zeros(0), rng)
    for groups in (np.zeros(0, dtype=np.int64), np.array([0, 2])):
        with pytest.raises(ValueError, match="at least one example in each"):
            group_mean_interval(np.ones(len(groups), dtype=bool), groups, rng)


SHARES = np.array([0.1] * 6 + [0.25, 0.2, 0.5, 0.59, 0.8, 1.0])
RIGHT = np.array([False] * 6 + [False, True, True, False, True, True])


def test_bins_and_the_threshold_are_those_counted_by_hand() -> None:
    found = reliability(SHARES, RIGHT)
    counts = [(each["from"], each["count"], each["right"]) for each in found["bins"]]
    assert counts == [(0.0, 6, 0), (0.2, 2, 1), (0.4, 2, 1), (0.6, 0, 0), (0.8, 2, 2)]
    assert found["suggested_min_share"] == 0.15  # without the six below it, and with the four right ones of six
    assert [row[2:4] for row in reliability_table({"demo": {"methods": {"npm": {"reliability": found}}}}).rows][:2] == [
        ("0.0 to 0.2", "6"),
        ("0.2 to 0.4", "2"),
    ]
    assert "6 of 12 answers are below it, 0% of them right, and 67%" in reliability_note("demo", SHARES, RIGHT)


def test_few_answers_or_right_ones_suggest_nothing() -> None:
    assert suggested_min_share(SHARES[5:], RIGHT[5:]) is None
    assert suggested_min_share(SHARES, np.ones(12, dtype=bool)) is None
    assert "no min_share is suggested" in reliability_note("demo", SHARES[5:], RIGHT[5:])
    assert reliability_note("demo", np.full(9, 0.01), np.zeros(9, dtype=bool)).endswith("below it, 0% of them right.")


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
