from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from npm.retrieval.scoring import Combination, occurrence_shares, reference_weights


def test_shares_worked_by_hand() -> None:
    # Three spans: e^s = 1, 2, 1 and e^t = 1, 4, 3; sums 2, 6, 4 of 12; products 1, 8, 3 of 12.
    s, t, lengths = np.log([1.0, 2.0, 1.0]), np.log([1.0, 4.0, 3.0]), np.array([1, 2, 4])
    shares = occurrence_shares(s, t, lengths, combination=Combination.sum, length_exponent=0.0)
    np.testing.assert_allclose(shares, [2 / 12, 6 / 12, 4 / 12])
    shares = occurrence_shares(s, t, lengths, combination=Combination.product, length_exponent=0.0)
    np.testing.assert_allclose(shares, [1 / 12, 8 / 12, 3 / 12])
    # Lengths 1, 2, 4 to the power 1: 2, 12, 16 of 30.
    shares = occurrence_shares(s, t, lengths, combination=Combination.sum, length_exponent=1.0)
    np.testing.assert_allclose(shares, [2 / 30, 12 / 30, 16 / 30])


def test_reference_weights_worked_by_hand() -> None:
    # Z_s = 1 + 2 + 5 = 8, Z_e = 1 + 3 = 4: the span weighs 2/8 + 3/4 = 1, or 2/8 · 3/4 = 3/16.
    sides = {"all_starts": np.log([1.0, 2.0, 5.0]), "all_ends": np.log([1.0, 3.0])}
    s, t, lengths = np.log([2.0]), np.log([3.0]), np.array([2])
    for combination, expected in ((Combination.sum, 1.0), (Combination.product, 3 / 16)):
        weights = reference_weights(s, t, lengths, combination=combination, length_exponent=0.0, **sides)
        np.testing.assert_allclose(weights, [expected])
    weights = reference_weights(s, t, lengths, combination=Combination.sum, length_exponent=0.5, **sides)
    np.testing.assert_allclose(weights, [math.sqrt(2)])


@pytest.mark.parametrize("combination", Combination)
def test_similarities_of_any_size_give_finite_shares(combination: Combination) -> None:
    large, mixed, small = np.array([1e4, 1e4, -1e4]), np.array([1e4, -1e4, -1e4]), np.full(3, -1e4)
    for s, t in itertools.permutations((large, mixed, small), 2):
        shares = occurrence_shares(s, t, np.ones(3), combination=combination, length_exponent=0.0)
        assert np.isfinite(shares).all()
        assert shares.sum() == pytest.approx(1.0)


def test_similarities_of_any_size_give_finite_reference_weights() -> None:
    s, t = np.array([1e4, 1e4 - 1]), np.array([-1e4, -1e4])
    weights = reference_weights(
        s, t, np.ones(2), all_starts=s, all_ends=t, combination=Combination.sum, length_exponent=0.0
    )
    np.testing.assert_allclose(weights, np.array([1.0, np.exp(-1.0)]) / (1 + np.exp(-1.0)) + 0.5)
