"""Closed tasks: counts by hand, equality with plain loops, and what is written down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from npm.core.errors import SettingError
from npm.core.types import Occurrence, Progress
from npm.evaluation.metrics import bootstrap_interval
from npm.evaluation.tasks.task import Evidence, Example, Label, LabelPrediction, Suite, Task, TaskData
from npm.evaluation.zero_shot.closed_set import confusion_counts, evaluate_closed, examples_digest, macro_f1

LABELS = (Label(0, "bad", ("bad",)), Label(1, "good", ("good", "great")), Label(2, "mixed", ("mixed",)))
TASK = Task("films", Suite.closed, TaskData("films.csv"), "{text} It was <mask>.", LABELS, paper={"npm": 87.2})
EVIDENCE = Evidence(1, "great", 2.5, Occurrence("r1", "Review", 3, 8, "A great film.", 1))


class Fixed:
    """Predicts the labels that it is given."""

    def __init__(self, labels: Sequence[int], name: str = "npm", label_count: int = 3) -> None:
        self.name = name
        rest = 0.4 / (label_count - 1)
        self.predictions = [
            LabelPrediction(tuple(0.6 if number == label else rest for number in range(label_count)), (EVIDENCE,))
            for label in labels
        ]

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[LabelPrediction]:
        for number in range(len(examples)):
            progress(f"task {task.name}", number + 1, len(examples))
        return self.predictions

    def facts(self) -> dict[str, Any]:
        return {"temperature": 2.0}


def examples(gold: Sequence[int], **values: Any) -> list[Example]:
    return [Example(str(n), f"Film {n}. It was <mask>.", label=label, **values) for n, label in enumerate(gold)]


def test_the_counts_of_four_examples_are_those_counted_by_hand() -> None:
    result = evaluate_closed(TASK, examples([0, 1, 1, 1]), [Fixed([0, 1, 1, 0])])
    (method,) = result.methods
    assert method.accuracy.mean == 0.75
    assert method.confusion.tolist() == [[1, 0, 0], [1, 2, 0], [0, 0, 0]]  # gold in rows
    assert method.predicted_counts.tolist() == [2, 2, 0]
    assert result.gold_counts.tolist() == [1, 3, 0]
    # bad: 2·1 / (1 + 2); good: 2·2 / (3 + 2); mixed is neither asked nor answered
    assert method.macro_f1 == pytest.approx((2 / 3 + 4 / 5) / 2)


def test_f1_of_a_label_that_is_only_predicted_counts_as_zero() -> None:
    assert macro_f1(confusion_counts(np.array([0, 0]), np.array([0, 2]), 3)) == pytest.approx((2 / 3 + 0) / 2)


def test_confusion_and_f1_equal_plain_loops_over_random_labels() -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        label_count, count = int(rng.integers(2, 8)), int(rng.integers(1, 60))
        gold, predicted = rng.integers(0, label_count, (2, count))
        confusion = confusion_counts(gold, predicted, label_count)
        plain = np.zeros((label_count, label_count), dtype=int)
        for right, said in zip(gold, predicted, strict=True):
            plain[right, said] += 1
        assert np.array_equal(confusion, plain)
        scores = []
        for label in sorted(set(gold.tolist()) | set(predicted.tolist())):
            hits = sum(1 for g, p in zip(gold, predicted, strict=True) if g == p == label)
            precision = hits / max(1, int(np.count_nonzero(predicted == label)))
            recall = hits / max(1, int(np.count_nonzero(gold == label)))
            scores.append(2 * precision * recall / (precision + recall) if hits else 0.0)
        assert macro_f1(confusion) == pytest.approx(np.mean(scores))


def test_the_interval_is_the_bootstrap_of_right_and_wrong_with_the_same_draws_for_every_method() -> None:
    gold, said = [0, 1, 1, 1, 2], [0, 1, 0, 1, 1]
    result = evaluate_closed(TASK, examples(gold), [Fixed(said), Fixed(said, name="mlm")], seed=7, resamples=300)
    rights = np.array([g == s for g, s in zip(gold, said, strict=True)], dtype=float)
    expected = bootstrap_interval(rights, np.random.default_rng(7), resamples=300)
    assert [method.accuracy for method in result.methods] == [expected, expected]


def test_a_record_says_all_about_one_example_and_one_method() -> None:
    result = evaluate_closed(TASK, examples([0, 1]), [Fixed([0, 2]), Fixed([1, 1], name="mlm")])
    records = list(result.records())
    assert [(record["method"], record["id"]) for record in records] == [
        ("npm", "0"), ("npm", "1"), ("mlm", "0"), ("mlm", "1")
    ]  # fmt: skip
    wrong = json.loads(json.dumps(records[1]))
    assert wrong == {
        "task": "films",
        "method": "npm",
        "id": "1",
        "text": "Film 1. It was <mask>.",
        "gold": "good",
        "prediction": "mixed",
        "correct": False,
        "scores": [0.2, 0.2, 0.6],
        "evidence": [
            {
                "label": 1,
                "word": "great",
                "score": 2.5,
                "occurrence": {
                    "document": "r1",
                    "title": "Review",
                    "start_char": 3,
                    "end_char": 8,
                    "context": "A great film.",
                    "context_start_char": 1,
                },
            }
        ],
    }


def test_metrics_are_json_and_the_same_for_the_same_run() -> None:
    written = [
        json.dumps(evaluate_closed(TASK, examples([0, 1, 1]), [Fixed([0, 2, 1])], seed=1).metrics()) for _ in range(2)
    ]
    assert written[0] == written[1]
    metrics = json.loads(written[0])
    assert metrics["count"] == 3 and metrics["labels"] == ["bad", "good", "mixed"]
    assert metrics["methods"]["npm"]["confusion"] == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]
    assert metrics["methods"]["npm"]["facts"] == {"temperature": 2.0}


def test_the_digest_of_the_data_sees_text_gold_and_order() -> None:
    asked = examples([0, 1])
    changed = [
        [replace(asked[0], text="Another <mask>."), asked[1]],
        [replace(asked[0], label=1), asked[1]],
        asked[::-1],
        asked[:1],
    ]
    digests = {examples_digest(each) for each in (asked, *changed)}
    assert len(digests) == 5
    assert examples_digest(list(asked)) in digests


def test_the_row_of_a_table_has_the_accuracy_of_each_method_and_the_papers_number() -> None:
    row = evaluate_closed(TASK, examples([0, 1]), [Fixed([0, 1]), Fixed([1, 1], name="mlm")]).scores()
    assert (row.task, row.count, row.paper) == ("films", 2, {"npm": 87.2})
    assert {name: interval.mean for name, interval in row.methods.items()} == {"npm": 1.0, "mlm": 0.5}


def test_progress_goes_once_over_all_methods() -> None:
    seen: list[tuple[int, int]] = []
    evaluate_closed(
        TASK,
        examples([0, 1]),
        [Fixed([0, 1]), Fixed([1, 1], name="mlm")],
        progress=lambda _, done, total: seen.append((done, total)),
    )
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_method_that_always_says_the_same_is_noted_unless_it_is_the_majority() -> None:
    methods = [Fixed([1, 1]), Fixed([0, 1], name="mlm"), Fixed([1, 1], name="majority")]
    assert evaluate_closed(TASK, examples([0, 1]), methods).notes() == ["films: npm answers 'good' to every example."]


def test_notes_of_a_method_are_shown_with_its_name() -> None:
    class Noting(Fixed):
        def facts(self) -> dict[str, Any]:
            return {"notes": ["the corpus lacks 'mixed'"]}

    assert evaluate_closed(TASK, examples([0, 1]), [Noting([0, 1])]).notes() == ["films, npm: the corpus lacks 'mixed'"]


def test_texts_that_were_cut_are_noted_and_counted() -> None:
    asked = [*examples([0], cut=True), replace(examples([0, 1])[1])]
    result = evaluate_closed(TASK, asked, [Fixed([0, 1])])
    assert result.notes() == ["films: 1 of 2 texts were cut to the longest prompt allowed."]
    assert result.metrics()["cut_count"] == 1


def test_nothing_to_ask_and_nobody_to_answer_are_refused() -> None:
    with pytest.raises(SettingError, match="has no examples"):
        evaluate_closed(TASK, [], [Fixed([])])
    with pytest.raises(SettingError, match="each once"):
        evaluate_closed(TASK, examples([0]), [])
    with pytest.raises(SettingError, match="npm, npm"):
        evaluate_closed(TASK, examples([0]), [Fixed([0]), Fixed([0])])


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([(0.5, 0.5)], "example 0 of films"),
        ([(0.5, 0.5, float("nan"))], "example 0 of films"),
        ([(0.5, 0.5, 0.5)], "example 0 of films"),
        ([], "0 predictions for 1 examples"),
    ],
)
def test_a_method_that_answers_with_other_than_a_share_a_label_is_a_bug(
    scores: list[tuple[float, ...]], message: str
) -> None:
    method = Fixed([])
    method.predictions = [LabelPrediction(each) for each in scores]
    with pytest.raises(ValueError, match=message):
        evaluate_closed(TASK, examples([0]), [method])
