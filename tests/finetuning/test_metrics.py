"""Metrics against scipy, hand-worked cases and scikit-learn's definitions written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from npm.finetuning.metrics import METRICS, entity_f1


def test_correlations_are_those_of_scipy(rng: np.random.Generator) -> None:
    gold = rng.integers(0, 6, 200).astype(float)
    predicted = gold + rng.normal(0, 2, 200)
    assert METRICS["pearson"](predicted, gold) == pytest.approx(stats.pearsonr(predicted, gold).statistic, abs=1e-12)
    assert METRICS["spearman"](predicted, gold) == pytest.approx(stats.spearmanr(predicted, gold).statistic, abs=1e-12)
    assert METRICS["spearman"](np.full(200, 2.5), gold) == METRICS["pearson"](np.full(200, 2.5), gold) == 0


def test_matthews_and_f1_are_those_of_the_four_counts(rng: np.random.Generator) -> None:
    gold, predicted = (rng.random(500) < 0.7).astype(int), (rng.random(500) < 0.6).astype(int)
    tp, tn = int((predicted & gold).sum()), int(((1 - predicted) & (1 - gold)).sum())
    fp, fn = int((predicted & (1 - gold)).sum()), int(((1 - predicted) & gold).sum())
    root = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert METRICS["matthews"](predicted, gold) == pytest.approx((tp * tn - fp * fn) / root, abs=1e-12)
    assert METRICS["f1"](predicted, gold) == pytest.approx(2 * tp / (2 * tp + fp + fn), abs=1e-12)
    assert METRICS["accuracy"](predicted, gold) == pytest.approx((tp + tn) / 500, abs=1e-12)


def test_whole_entities_count_where_borders_and_kind_are_right() -> None:
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG"]]
    assert entity_f1(gold, gold) == 1
    assert entity_f1([["O"] * 4, ["O"] * 2], gold) == 0
    # one of three found, and one that is none: 2 · 1 / (2 + 3)
    assert entity_f1([["B-PER", "I-PER", "O", "O"], ["B-ORG", "O"]], gold) == pytest.approx(0.4)
    # two B- side by side are two entities, an I- of another kind ends one
    assert entity_f1([["B-PER", "B-PER"]], [["B-PER", "I-PER"]]) == 0
    assert entity_f1([["B-PER", "I-LOC"]], [["B-PER", "B-LOC"]]) == 1
