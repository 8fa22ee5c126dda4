from __future__ import annotations

import numpy as np
import pytest

from index.arrays import RowSet, ShardedArray
from index.exact import ExactSearcher, exact_top
from npm.tuning.measures import HitRecorder, KnownHitsSearcher


def sample() -> tuple[ShardedArray, np.ndarray]:
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((50, 6)).astype(np.float16)
    queries = rng.standard_normal((4, 6)).astype(np.float32)
    return ShardedArray([vectors[:20], vectors[20:]]), queries


@pytest.mark.parametrize("is_restricted", [False, True])
def test_known_hits_are_those_of_an_exact_scan_whatever_the_batch(is_restricted: bool) -> None:
    vectors, queries = sample()
    allowed = RowSet.of_rows(np.arange(0, 50, 2), 50) if is_restricted else None
    known = KnownHitsSearcher(vectors, queries, exact_top(vectors, queries, 12, allowed), allowed=allowed)
    exact = ExactSearcher(vectors)
    for batch in (queries, queries[[2, 0]], queries[1:2]):
        ours, theirs = known.scan(batch, allowed), exact.scan(batch, allowed)
        for name in ("rows", "found"):
            assert np.array_equal(getattr(ours.top(7), name), getattr(theirs.top(7), name))
        np.testing.assert_allclose(ours.top(7).scores, theirs.top(7).scores, rtol=1e-5)
        rows = np.array([49, 3, 3, 20])
        np.testing.assert_allclose(ours.at(0, rows), theirs.at(0, rows), rtol=1e-5)


def test_what_is_not_known_is_refused() -> None:
    vectors, queries = sample()
    known = KnownHitsSearcher(vectors, queries[:3], exact_top(vectors, queries[:3], 5))
    with pytest.raises(ValueError, match="query 1 of 2"):
        known.scan(queries[2:])
    with pytest.raises(ValueError, match="other rows"):
        known.scan(queries[:1], RowSet.of_rows(np.array([1]), 50))
    with pytest.raises(ValueError, match="5 hits are known, not 6"):
        known.scan(queries[:1]).top(6)


def test_a_recorder_keeps_the_last_hits_and_changes_nothing() -> None:
    vectors, queries = sample()
    exact = ExactSearcher(vectors)
    recorder = HitRecorder(exact)
    assert (recorder.row_count, recorder.dimensions, recorder.hits) == (50, 6, None)
    hits = recorder.scan(queries[:2]).top(3)
    assert recorder.hits is hits
    assert np.array_equal(hits.rows, exact.scan(queries[:2]).top(3).rows)
    last = recorder.scan(queries[3:]).top(2)
    assert recorder.hits is last is not hits
