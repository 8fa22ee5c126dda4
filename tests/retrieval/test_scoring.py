from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from npm.retrieval.scoring import occurrence_shares, reference_weights


def test_shares_worked_by_hand() -> None:
    # Three spans: e^s = 1, 2, 1 and e^t = 1, 4, 3; products 1, 8, 3 of 12.
    s, t, lengths = np.log([1.0, 2.0, 1.0]), np.log([1.0, 4.0, 3.0]), np.array([1, 2, 4])
    np.testing.assert_allclose(occurrence_shares(s, t, lengths, 0.0), [1 / 12, 8 / 12, 3 / 12])
    # Lengths 1, 2, 4 to the power 1: 1, 16, 12 of 29.
    np.testing.assert_allclose(occurrence_shares(s, t, lengths, 1.0), [1 / 29, 16 / 29, 12 / 29])
    assert len(occurrence_shares(*np.zeros((3, 0)), 0.0)) == 0


def test_reference_weights_worked_by_hand() -> None:
    # Z_s = 1 + 2 + 5 = 8, Z_e = 1 + 3 = 4: the span weighs 2/8 + 3/4 = 1.
    sides = np.log([1.0, 2.0, 5.0]), np.log([1.0, 3.0])
    s, t, lengths = np.log([2.0]), np.log([3.0]), np.array([2])
    np.testing.assert_allclose(reference_weights(s, t, lengths, 0.0, sides), [1.0])
    np.testing.assert_allclose(reference_weights(s, t, lengths, 0.5, sides), [math.sqrt(2)])


def test_similarities_of_any_size_give_finite_weights() -> None:
    large, mixed, small = np.array([1e4, 1e4, -1e4]), np.array([1e4, -1e4, -1e4]), np.full(3, -1e4)
    for s, t in itertools.permutations((large, mixed, small), 2):
        shares = occurrence_shares(s, t, np.ones(3), 0.0)
        assert np.isfinite(shares).all() and shares.sum() == pytest.approx(1.0)
    s, t = np.array([1e4, 1e4 - 1]), np.array([-1e4, -1e4])
    weights = reference_weights(s, t, np.ones(2), 0.0, (s, t))
    np.testing.assert_allclose(weights, np.array([1.0, np.exp(-1.0)]) / (1 + np.exp(-1.0)) + 0.5)
