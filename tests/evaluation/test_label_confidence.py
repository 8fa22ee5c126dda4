"""The probability that a label is right, fitted to rows whose labels are known."""

from __future__ import annotations

import numpy as np
import pytest

from npm.core.errors import CorpusError, SettingError
from npm.evaluation.labeling import LabeledText, ScoredLabel, fit_label_confidence, label_features, label_task

TASK = label_task({"world": ["politics"], "sports": ["sport"]})


def labeled(label: str, score: float) -> LabeledText:
    other = "sports" if label == "world" else "world"
    ranked = (ScoredLabel(label, score, None, None), ScoredLabel(other, 1 - score, None, None))
    return LabeledText(ranked[:1], ranked, cut=False)


def test_features_are_logs_of_the_score_and_of_its_ratio() -> None:
    np.testing.assert_allclose(label_features(labeled("world", 0.8)), [np.log(0.8), np.log(4)])
    assert np.isfinite(label_features(labeled("world", 1.0))).all()  # the second score is 0


def test_confidence_is_the_fraction_that_is_right_at_such_scores() -> None:
    # of scores of .95, 18 of 20 are right; of .55, 10 of 20
    found = [labeled("world", 0.95)] * 20 + [labeled("sports", 0.55)] * 20
    known = ["world"] * 18 + ["sports"] * 2 + ["sports"] * 10 + ["world"] * 10
    confidence = fit_label_confidence(TASK, found, known)
    assert (confidence.rows, confidence.right) == (40, 28)
    assert confidence.of(labeled("sports", 0.95)) == pytest.approx(0.9, abs=0.03)
    assert confidence.of(labeled("sports", 0.55)) == pytest.approx(0.5, abs=0.03)
    assert 0.5 < confidence.of(labeled("world", 0.75)) < 0.9


def test_labels_that_the_task_has_not_and_rows_that_teach_nothing() -> None:
    with pytest.raises(SettingError, match="known_column"):
        fit_label_confidence(TASK, [labeled("world", 0.9)], ["economy"])
    for known in (["world"] * 30, ["sports"] * 30, ["world", "sports"]):  # all right, none right, too few
        with pytest.raises(CorpusError, match="known"):
            fit_label_confidence(TASK, [labeled("world", 0.9)] * len(known), known)
