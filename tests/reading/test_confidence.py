"""How likely a first phrase is right: features by hand, the fitted function, its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from npm.core.errors import ArtifactError
from npm.reading.confidence import (
    FEATURES,
    FILE,
    PENALTY,
    Confidence,
    best_span,
    features_of,
    fit,
    read_confidence,
)


def test_features_by_hand() -> None:
    with np.errstate(divide="ignore"):
        first = np.log([[0.5, 0.1, 0.0], [0.0, 0.2, 0.6]])  # "not here": 0.4 and 0.2
        second = np.log([[0.1, 0.1], [0.1, 0.1]])  # "not here": 0.8 and 0.8
    found = features_of([first, second], np.array([4.0, 5.0]), [0.6, 0.3, 0.1], 0.75, max_span_tokens=2)
    span, absent, gap = 0.5 * 0.2, 0.4, 4 / 5 - 1  # 0.5 × 0.6 would be three tokens
    assert found.tolist() == pytest.approx([np.log(span), absent, gap, np.log(2), np.log(0.6), 0.75])
    assert len(FEATURES) == len(found)
    gap_of = FEATURES.index("gap")
    for passages, expected in (
        (np.array([5.0, 4.0]), 1 - 4 / 5),
        (np.array([5.0]), 1),
    ):  # the best one, or the only one
        read = [first, second][: len(passages)]
        assert features_of(read, passages, [0.6], 0.75, max_span_tokens=2)[gap_of] == pytest.approx(expected)


def test_nothing_read_and_one_phrase_have_finite_features() -> None:
    found = features_of([np.zeros((2, 0)), np.full((2, 3), -np.inf)], np.zeros(2), [], 0.0, max_span_tokens=10)
    assert np.isfinite(found).all()
    assert best_span(np.zeros((2, 0)), 10) == pytest.approx(np.log(1e-6))


def test_fit_is_the_best_penalized_logistic_function() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(400, 3)) * [1, 5, 0.2] + [0, 3, 1]
    right = rng.random(400) < 1 / (1 + np.exp(-(features @ [1.0, -0.3, 2.0] + 0.5)))
    weights, bias = fit(features, right)
    scaled = (features - features.mean(0)) / features.std(0)

    def loss(given_weights: np.ndarray) -> float:
        logits = scaled @ given_weights[:3] + given_weights[3]
        return float(np.mean(np.logaddexp(0, np.where(right, -logits, logits)))) + PENALTY / 2 * float(
            given_weights[:3] @ given_weights[:3]
        )

    best = minimize(loss, np.zeros(4)).x
    assert weights * features.std(0) == pytest.approx(best[:3], abs=1e-3)
    assert bias + weights @ features.mean(0) == pytest.approx(best[3], abs=1e-3)


@given(st.floats(-50, 50), st.floats(-50, 50))
def test_confidence_is_a_probability_that_rises_with_the_logit(one: float, other: float) -> None:
    known = Confidence((1.0, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0, 0.5)
    low, high = known.of(np.array([[min(one, other), *[0.0] * 5], [max(one, other), *[0.0] * 5]]))
    assert 0 <= low <= high <= 1


def test_a_saved_function_is_read_again_and_a_damaged_one_refused(tmp_path: Path) -> None:
    assert read_confidence(tmp_path) is None
    known = Confidence((0.5, 1.0, -0.25, 0.0, 2.0, 0.5), -1.5, 0.3)
    known.save(tmp_path)
    assert read_confidence(tmp_path) == known
    (tmp_path / FILE).write_text('{"bias": 1}')
    with pytest.raises(ArtifactError):
        read_confidence(tmp_path)
