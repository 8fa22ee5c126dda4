"""Spearman's correlation of sentence pairs, against SciPy and against resamples that are written out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

from npm.core.errors import EncoderError
from npm.evaluation.sts.correlation import (
    pair_cosines,
    resampled_spearman,
    spearman,
    sts_spearman,
    unit_rows,
    weighted_correlation,
    weighted_ranks,
)
from tests.evaluation.sts.sentence_pairs import in_the_plane, pairs_of


def test_all_subsets_together_score_otherwise_than_the_mean_of_subsets() -> None:
    # Each subset is in perfect order by itself; together the better-scored subset has the lower cosines.
    gold = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    cosines = np.array([0.7, 0.8, 0.9, 0.1, 0.2, 0.3])
    assert spearman(cosines[:3], gold[:3]) == spearman(cosines[3:], gold[3:]) == pytest.approx(1.0)
    # ranks 4 5 6 1 2 3 against 1 … 6: Σd² = 6 · 9 = 54, and 1 − 6 · 54 / (6 · 35) = −0.542857
    assert spearman(cosines, gold) == pytest.approx(1 - 6 * 54 / (6 * 35))


def test_ranks_and_correlations_with_ties_equal_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    for size in (2, 3, 10, 57):
        scores, gold = rng.normal(size=size).round(1), rng.integers(0, 6, size=size) / 1.0
        gold[0], gold[-1] = 0, 5
        scores[0], scores[-1] = -9, 3
        assert weighted_ranks(gold, np.ones((1, size)))[0].tolist() == rankdata(gold).tolist()
        assert spearman(scores, gold) == pytest.approx(spearmanr(scores, gold).statistic)


def test_one_side_without_any_order_correlates_with_nothing() -> None:
    assert spearman(np.full(4, 0.9), np.arange(4.0)) == 0
    assert spearman(np.arange(4.0), np.full(4, 0.9)) == 0


def test_weights_say_the_same_as_copies_that_are_written_out() -> None:
    rng = np.random.default_rng(1)
    for size in (3, 20):
        scores, gold = rng.normal(size=size), rng.integers(0, 4, size=size) / 1.0
        copies = rng.integers(0, 4, size=(5, size)).astype(float)
        copies[:, 0] = 1
        found = weighted_correlation(weighted_ranks(scores, copies), weighted_ranks(gold, copies), copies)
        for row, correlation in zip(copies.astype(int), found, strict=True):
            written = spearman(np.repeat(scores, row), np.repeat(gold, row))
            assert correlation == pytest.approx(written)


def test_resamples_are_paired_and_spread_around_the_correlation() -> None:
    rng = np.random.default_rng(2)
    gold = rng.normal(size=300)
    good, bad = gold + 0.3 * rng.normal(size=300), gold + 3 * rng.normal(size=300)
    found = resampled_spearman(np.stack([good, good, bad]), gold, np.random.default_rng(3), resamples=200)
    assert found.shape == (200, 3)
    assert (found[:, 0] == found[:, 1]).all()
    assert found[:, 0].std() > 0
    for column, scores in enumerate((good, good, bad)):
        assert found[:, column].mean() == pytest.approx(spearman(scores, gold), abs=0.03)
    again = resampled_spearman(np.stack([good, good, bad]), gold, np.random.default_rng(3), resamples=200)
    assert (again == found).all()


def test_resamples_drawn_in_pieces_are_those_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    scores, gold = rng.normal(size=(1, 10)), rng.normal(size=10)
    at_once = resampled_spearman(scores, gold, np.random.default_rng(0), resamples=9)
    monkeypatch.setattr("npm.evaluation.sts.correlation.DRAWN_AT_ONCE", 40)
    assert (resampled_spearman(scores, gold, np.random.default_rng(0), resamples=9) == at_once).all()


def test_pairs_are_scored_by_the_angle_and_each_sentence_is_encoded_once() -> None:
    asked: list[list[str]] = []

    def encode(sentences: list[str]) -> np.ndarray:
        asked.append(sentences)
        return in_the_plane(sentences)

    pairs = pairs_of([("a", "b", 5.0), ("a", "c", 3.0), ("b", "f", 0.0), ("a", "a", 5.0)])
    assert pair_cosines(encode, pairs) == pytest.approx(np.cos([0.3, 0.7, 2.5, 0.0]), abs=1e-6)
    assert asked == [["a", "b", "c", "f"]]
    # ranks of cosines 3 2 1 4, of gold 3.5 2 1 3.5: Pearson's of these is √0.9
    assert sts_spearman(encode, pairs) == pytest.approx(np.sqrt(0.9))


@pytest.mark.parametrize("wrong", [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_a_vector_without_a_direction_is_refused(wrong: list[float]) -> None:
    with pytest.raises(EncoderError, match="sentence 2 of 2"):
        unit_rows(np.array([[1.0, 0.0], wrong]))
