"""Answers, ranks, chances and bootstrap intervals, by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from npm.evaluation.metrics import (
    bootstrap_interval,
    exact_match,
    group_mean_interval,
    open_answer,
)


def test_the_interval_equals_a_plain_bootstrap_with_the_same_draws() -> None:
    values = np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    found = bootstrap_interval(values, np.random.default_rng(3), resamples=200, confidence=0.9)
    draws = np.random.default_rng(3).integers(0, 5, size=(200, 5))
    means = sorted(float(np.mean([values[place] for place in draw])) for draw in draws)
    assert found.mean == pytest.approx(0.6)
    assert (found.low, found.high) == pytest.approx((np.quantile(means, 0.05), np.quantile(means, 0.95)))


def test_clusters_are_drawn_whole_and_empty_ones_never() -> None:
    interval = bootstrap_interval(
        np.array([2.0, 0.0, 0.0]), np.random.default_rng(0), counts=np.array([2, 6, 0]), resamples=500
    )
    assert interval.mean == 0.25
    assert (interval.low, interval.high) == (0.0, 1.0)  # the means of one cluster drawn twice


def test_the_interval_is_the_same_when_resamples_are_drawn_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(10) / 10
    whole = bootstrap_interval(values, np.random.default_rng(0), resamples=100)
    monkeypatch.setattr("npm.evaluation.metrics.RESAMPLED_AT_ONCE", 70)
    assert bootstrap_interval(values, np.random.default_rng(0), resamples=100) == whole


def test_no_examples_have_no_mean() -> None:
    with pytest.raises(ValueError, match="at least one example"):
        bootstrap_interval(np.zeros(0), np.random.default_rng(0))


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
    found = group_mean_interval(hits, groups, np.random.default_rng(0), resamples=100_000, confidence=0.9)
    assert found.mean == pytest.approx((sum(first_group) / 3 + 1 / 2) / 2)
    assert (found.low, found.high) == pytest.approx((np.quantile(means, 0.05), np.quantile(means, 0.95)))


@pytest.mark.parametrize("groups", [[], [0, 2]])
def test_a_group_without_examples_has_no_mean(groups: list[int]) -> None:
    with pytest.raises(ValueError, match="at least one example in each"):
        group_mean_interval(
            np.ones(len(groups), dtype=bool), np.array(groups, dtype=np.int64), np.random.default_rng(0)
        )
