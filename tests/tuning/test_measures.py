from __future__ import annotations

import numpy as np
import pytest

from index.types import Hits
from npm.tuning import tune
from npm.tuning.tune import found_rows


def hits(scores: list[list[float]]) -> Hits:
    values = np.array(scores, dtype=np.float32)
    return Hits(rows=np.zeros(values.shape, dtype=np.int64), scores=values, found=np.isfinite(values))


def test_rows_count_as_found_if_they_score_as_well_as_the_worst_of_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "RECALL_AT", (1, 2, 4))
    worst = np.array([[9, 8, 6], [5, 4, 2]], dtype=np.float32)
    counts = np.array([[1, 2, 4], [1, 2, 3]])
    # the start query lacks its second and third row; the end query's index has three rows, and it finds two of them
    found = hits([[9, 7, 6, 5], [5, 4, -np.inf, -np.inf]])
    assert found_rows(found, worst, counts).tolist() == [2, 1 + 2, 3 + 2]
    # of equal scores it does not matter which row is found, and of rows beyond the rank none counts
    assert found_rows(hits([[9, 9, 9, 9], [5, 5, 5, 5]]), worst, counts).tolist() == [2, 4, 4 + 3]
    rounded = np.nextafter(np.float32(9), np.float32(0))
    assert found_rows(hits([[rounded, 1, 1, 1], [0, 0, 0, 0]]), worst, counts).tolist() == [1, 1, 1]
