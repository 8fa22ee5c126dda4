from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from index.types import Hits
from npm.indexing.phrase_index import PhraseIndex
from npm.tuning import measures
from npm.tuning.measures import EncodedQuestions, exact_answers, found_rows, one_thread
from npm.tuning.tune import draw_questions
from tests.helpers.tiny_models import tiny_encoder
from tests.helpers.tuned_indexes import build_measured


def hits(scores: list[list[float]]) -> Hits:
    values = np.array(scores, dtype=np.float32)
    return Hits(rows=np.zeros(values.shape, dtype=np.int64), scores=values, found=np.isfinite(values))


def test_rows_count_as_found_if_they_score_as_well_as_the_worst_of_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "RECALL_AT", (1, 2, 4))
    worst = np.array([[9, 8, 6], [5, 4, 2]], dtype=np.float32)
    counts = np.array([[1, 2, 4], [1, 2, 3]])
    # the start query lacks its second and third row; the end query's index has three rows, and it finds two of them
    found = hits([[9, 7, 6, 5], [5, 4, -np.inf, -np.inf]])
    assert found_rows(found, worst, counts).tolist() == [2, 1 + 2, 3 + 2]
    # of equal scores it does not matter which row is found, and of rows beyond the rank none counts
    assert found_rows(hits([[9, 9, 9, 9], [5, 5, 5, 5]]), worst, counts).tolist() == [2, 4, 4 + 3]
    rounded = np.nextafter(np.float32(9), np.float32(0))
    assert found_rows(hits([[rounded, 1, 1, 1], [0, 0, 0, 0]]), worst, counts).tolist() == [1, 1, 1]


def test_exact_answers_do_not_depend_on_how_many_questions_a_pass_has(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = tiny_encoder("bert")
    index = PhraseIndex.open(build_measured(tmp_path / "index", encoder, None))
    texts = [question.text for question in draw_questions(index, 7, seed=0)]
    questions = EncodedQuestions.encode(encoder, texts)
    told: list[tuple[str, int, int | None]] = []

    def answered() -> measures.ExactAnswers:
        told.clear()
        return exact_answers(index, encoder, questions, [16, 64], lambda *report: told.append(report))

    once = answered()
    monkeypatch.setattr(measures, "QUESTIONS_PER_PASS", 3)
    thrice = answered()
    np.testing.assert_allclose(once.worst_scores, thrice.worst_scores, rtol=1e-5)
    assert np.array_equal(once.found_counts, thrice.found_counts)
    assert once.best_phrases == thrice.best_phrases
    assert {width: len(best) for width, best in once.best_phrases.items()} == {16: 7, 64: 7}
    for stage in ("exact scores", "exact answers"):
        reports = [(done, total) for name, done, total in told if name == stage]
        assert [done for done, _ in reports] == sorted({done for done, _ in reports})
        assert reports[-1][0] == reports[-1][1]


def test_all_libraries_compute_with_one_thread_while_measuring() -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def threads() -> list[int]:
        return [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]

    with threadpoolctl.threadpool_limits(limits=2):
        with one_thread():
            assert set(threads()) == {1}
        assert 2 in threads()
