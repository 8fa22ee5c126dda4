"""Closed and open tasks: counted by hand, against plain loops, and end to end over a small index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from npm.core.types import Answer, Occurrence, Phrase, Progress
from npm.evaluation.methods.nonparametric import phrase_answers
from npm.evaluation.methods.registry import Method, Predictions
from npm.evaluation.metrics import bootstrap_interval, exact_match, macro_f1, wilson_interval
from npm.evaluation.report import score_tables
from npm.evaluation.results import Result
from npm.evaluation.table import ResultTable, evaluate_task, task_metrics, task_notes, task_records
from npm.evaluation.tasks import Evidence, Example, Label, LabelPrediction, Macro, Task, TaskData
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FillSettings

LABELS = [Label(value=0, name="bad", words=["bad"]), Label(value=1, name="good", words=["good"])]
LABELS.append(Label(value=2, name="mixed", words=["mixed"]))
CLOSED = Task(
    name="films", suite="closed", data=TaskData(file="f.csv"), template="{{ text }} It was <mask>.", labels=LABELS
)
OPEN = Task(
    name="capitals",
    suite="open",
    data=TaskData(file="c.jsonl", columns={"group": "g"}),
    template="{{ question }} <mask>.",
    macro="group",
)
EXAMPLES = [
    Example("0", "Iceland: <mask>.", answers=("Reykjavík", "Reykjavik"), group="north", subject="Iceland"),
    Example("1", "Norway: <mask>.", answers=("Oslo",), group="north", subject="Norway"),
    Example("2", "Denmark: <mask>.", answers=("Copenhagen",), group="north", subject="Denmark"),
    Example("5", "France: <mask>.", answers=("Paris",), group="south", subject="France", cut=True),
    Example("7", "Italy: <mask>.", answers=("Rome",), group="south", subject="Italy"),
]
PLACE = Occurrence("norway", "Norway", 18, 22, "Norway's capital, Oslo, lies there.", 0, 35, 18, 22)


def fixed(labels: Sequence[int], name: str = "npm", *, notes: Sequence[str] | None = None) -> Method:
    """Predicts the labels that it is given."""
    shares = [tuple(0.6 if number == label else 0.2 for number in range(3)) for label in labels]
    predictions = [LabelPrediction(each, (Evidence(1, "good", 2.5, PLACE),)) for each in shares]
    return Method(name, lambda *_: Predictions(predictions, {"temperature": 2.0}, notes))


def told(name: str, phrases: Sequence[str | None], *, are_shares: bool = False) -> Method:
    """Answers what it was told; None is an answer without a phrase."""

    def answer(_: Task, examples: Sequence[Example], __: Progress) -> Predictions:
        answers = []
        for example, phrase in zip(examples, phrases, strict=True):
            found = () if phrase is None else (Phrase(phrase, 0.75, 2, (PLACE,)), Phrase("Bergen", 0.25, 1, ()))
            answers.append(Answer(example.text, found))
        return Predictions(answers, {}, are_shares=are_shares)

    return Method(name, answer)


def labeled(gold: Sequence[int], **values: Any) -> list[Example]:
    return [Example(str(n), f"Film {n}. It was <mask>.", label=label, **values) for n, label in enumerate(gold)]


def classified(gold: Sequence[int], *methods: Method, **more: Any) -> ResultTable:
    return evaluate_task(CLOSED, labeled(gold), methods, **{"resamples": 300, **more})


@pytest.fixture(scope="module")
def index(index_folder: Path) -> PhraseIndex:
    return PhraseIndex.open(index_folder)


@pytest.fixture
def result(encoder: Encoder, index: PhraseIndex) -> ResultTable:
    methods = [told("good", ["the Reykjavik!", "oslo", "Aarhus", "Lyon", None]), told("poor", ["Oslo"] * 5)]
    return evaluate_task(OPEN, EXAMPLES, methods, encoder=encoder, index=index, resamples=500)


def test_the_counts_of_four_labels_are_those_counted_by_hand() -> None:
    metrics = task_metrics(classified([0, 1, 1, 1], fixed([0, 1, 1, 0])))
    assert json.loads(json.dumps(metrics)) == metrics and metrics["labels"] == ["bad", "good", "mixed"]
    method = metrics["methods"]["npm"]
    assert method["accuracy"]["mean"] == 0.75 and method["facts"] == {"temperature": 2.0}
    assert method["confusion"] == [[1, 0, 0], [1, 2, 0], [0, 0, 0]]  # gold in rows
    assert method["predicted_counts"] == [2, 2, 0]
    # bad: 2·1 / (1 + 2); good: 2·2 / (3 + 2); mixed is neither asked nor answered
    assert method["macro_f1"] == pytest.approx((2 / 3 + 4 / 5) / 2)


def test_f1_equals_plain_loops_over_random_labels_and_is_zero_where_one_is_only_predicted() -> None:
    assert macro_f1(np.array([[1, 0, 1], [0, 0, 0], [0, 0, 0]])) == pytest.approx((2 / 3 + 0) / 2)
    rng = np.random.default_rng(4)
    for _ in range(20):
        count, gold, predicted = 0, *rng.integers(0, 5, (2, int(rng.integers(1, 60))))
        confusion = np.zeros((5, 5), dtype=int)
        for right, said in zip(gold, predicted, strict=True):
            confusion[right, said] += 1
        scores = []
        for label in sorted(set(gold.tolist()) | set(predicted.tolist())):
            hits = sum(1 for g, p in zip(gold, predicted, strict=True) if g == p == label)
            precision = hits / max(1, int(np.count_nonzero(predicted == label)))
            recall = hits / max(1, int(np.count_nonzero(gold == label)))
            scores.append(2 * precision * recall / (precision + recall) if hits else 0.0)
            count += 1
        assert macro_f1(confusion) == pytest.approx(sum(scores) / count)


def test_intervals_are_the_bootstrap_with_the_same_draws_for_every_method() -> None:
    gold, said = [0, 1, 1, 1, 2], [0, 1, 0, 1, 1]
    result = classified(gold, fixed(said), fixed(said, name="mlm"), seed=7)
    rights = np.array([g == s for g, s in zip(gold, said, strict=True)], dtype=float)
    expected = bootstrap_interval(rights, np.random.default_rng(7), resamples=300)
    methods = task_metrics(result)["methods"]
    assert [methods[name]["accuracy"] for name in ("npm", "mlm")] == [asdict(expected), asdict(expected)]


def test_a_record_of_a_label_has_scores_and_evidence() -> None:
    records = list(task_records(classified([0, 1], fixed([0, 2]), fixed([1, 1], name="mlm"))))
    assert [(record["method"], record["id"]) for record in records] == [
        ("npm", "0"), ("npm", "1"), ("mlm", "0"), ("mlm", "1")
    ]  # fmt: skip
    wrong = json.loads(json.dumps(records[1]))
    (evidence,) = wrong.pop("evidence")
    assert (evidence["label"], evidence["word"], evidence["score"]) == (1, "good", 2.5)
    assert evidence["occurrence"]["document"] == "norway"
    shown = {"gold": "good", "prediction": "mixed", "correct": False, "scores": [0.2, 0.2, 0.6]}
    assert wrong == {"task": "films", "method": "npm", "id": "1", "text": "Film 1. It was <mask>.", **shown}


def test_notes_say_what_was_cut_what_a_method_says_and_which_one_sees_no_difference() -> None:
    methods = [fixed([1, 1], notes=["no 'mixed'"]), fixed([1, 1], name="majority")]
    result = evaluate_task(CLOSED, labeled([0, 1], cut=True), methods, resamples=5)
    assert list(task_notes(result)) == [
        "films: 2 of 2 texts were cut to the longest prompt allowed.",
        "films: npm answers 'good' to every example.",
        "films, npm: no 'mixed'",
    ]
    assert task_metrics(result)["cut_count"] == 2


def test_the_digest_of_the_data_sees_text_gold_and_order() -> None:
    asked = labeled([0, 1])
    changed = [
        [replace(asked[0], text="Another <mask>."), asked[1]],
        [replace(asked[0], label=1), asked[1]],
        asked[::-1],
    ]
    found = [task_metrics(evaluate_task(CLOSED, each, [], resamples=5)) for each in (asked, *changed)]
    assert len({each["examples_sha256"] for each in found}) == 4


def test_exact_match_is_a_mean_over_examples_and_over_groups_on_all_and_on_covered_examples(
    result: ResultTable,
) -> None:
    assert result.by("method")["good"]["right"].tolist() == [True, True, False, False, False]
    metrics = {"capitals": task_metrics(result)}
    good, poor = (metrics["capitals"]["methods"][name] for name in ("good", "poor"))
    scores = good["all"]
    assert (scores["count"], scores["micro"]["mean"]) == (5, pytest.approx(2 / 5))
    assert poor["all"]["micro"]["mean"] == pytest.approx(1 / 5)
    assert scores["macro"]["mean"] == pytest.approx((2 / 3 + 0) / 2)
    covered = good["covered"]  # the passages name Iceland, Norway and France
    assert (covered["count"], covered["micro"]["mean"]) == (3, pytest.approx(2 / 3))
    assert covered["macro"]["mean"] == pytest.approx((2 / 2 + 0) / 2)
    tables = score_tables([result], metrics)
    (shown,) = (own for title, own in tables.items() if "corpus names" in title and "macro" in title)
    assert [(each.method, each.examples, each.share.mean) for each in shown] == [
        ("good", 3, pytest.approx(1 / 2)),
        ("poor", 3, pytest.approx(1 / 4)),
    ]
    assert list(task_notes(result)) == [
        "capitals: 1 of 5 texts were cut to the longest prompt allowed.",
        "capitals: of 5 examples the corpus names the subject of 3 and holds an answer of 3.",
        "capitals: good found no phrase for 1 of 5 examples.",
    ]


def test_records_of_phrases_hold_gold_prediction_and_where_the_prediction_stands(result: ResultTable) -> None:
    records = list(task_records(result))
    assert {key: records[1][key] for key in ("gold", "group", "prediction", "correct")} == {
        "gold": ["Oslo"], "group": "north", "prediction": "oslo", "correct": True
    }  # fmt: skip
    assert records[1]["phrases"][1] == {"phrase": "Bergen", "score": 0.25, "occurrence_count": 1}
    assert records[1]["evidence"][0]["document"] == "norway"
    assert (records[4]["prediction"], records[4]["correct"], records[4]["phrases"]) == (None, False, [])
    assert [record["subject_named"] for record in records[:5]] == [True, True, False, True, False]


def test_without_an_index_nothing_is_said_of_coverage_and_only_the_best_phrase_counts(encoder: Encoder) -> None:
    found = evaluate_task(OPEN, EXAMPLES[1:2], [told("told", ["Oslo"])], encoder=encoder, resamples=50)
    metrics = task_metrics(found)
    assert "covered" not in metrics["methods"]["told"] and "coverage" not in metrics
    assert not {"subject_named", "answer_held"} & set(next(task_records(found)))
    second = [Example("0", "Where? <mask>", answers=("Bergen",))]
    assert not evaluate_task(OPEN, second, [told("told", ["Oslo"])], encoder=encoder, resamples=5)["right"][0]


def test_the_share_of_an_answer_is_that_of_its_first_phrase_unless_its_scores_are_no_shares(encoder: Encoder) -> None:
    methods = [told(name, ["Oslo", None], are_shares=name == "told") for name in ("told", "other")]
    found = evaluate_task(OPEN, EXAMPLES[:2], methods, encoder=encoder, resamples=5)
    assert found.by("method")["told"]["share"].tolist() == [0.75, 0.0]
    assert np.isnan(found.by("method")["other"]["share"]).all()


@pytest.mark.parametrize("seed", range(4))
def test_all_numbers_equal_those_of_plain_loops(encoder: Encoder, index: PhraseIndex, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = ["Oslo", "Paris", "North Sea", "Miguel de Cervantes", "Iceland", "Mars"]
    count, macro = int(rng.integers(1, 60)), get_args(Macro)[seed % 3]
    examples = [
        Example(
            str(number),
            f"{number} <mask>",
            answers=tuple(rng.choice(names, size=rng.integers(1, 3))),
            group="abc"[rng.integers(3)],
            subject=str(rng.choice(names)),
        )
        for number in range(count)
    ]
    said = [None if rng.random() < 0.2 else str(rng.choice(names)) for _ in examples]
    task, methods = replace(OPEN, macro=macro), [told("told", said)]
    found = evaluate_task(task, examples, methods, encoder=encoder, index=index, seed=seed, resamples=50)
    pairs = zip(said, examples, strict=True)
    right = [phrase is not None and exact_match(phrase, example.answers) for phrase, example in pairs]
    groups = {
        "none": [""] * count,
        "group": [example.group for example in examples],
        "answer_tokens": found["answer_tokens"].tolist(),
    }[macro]
    covered = [example.subject != "Mars" for example in examples]
    scores = task_metrics(found)["methods"]["told"]
    for name, chosen in (("all", [True] * count), ("covered", covered)):
        scored = scores[name]
        kept = [number for number in range(count) if chosen[number]]
        assert scored["count"] == len(kept)
        if not kept:
            assert scored["micro"] is None and scored["macro"] is None
            continue
        hits = np.array([right[number] for number in kept], dtype=float)
        if hits.all() or not hits.any():  # a bootstrap would print a point for an interval
            assert scored["micro"] == asdict(wilson_interval(sum(hits), len(hits)))
            assert scored["micro"]["low"] < scored["micro"]["high"]
        else:
            assert scored["micro"] == asdict(bootstrap_interval(hits, np.random.default_rng(seed), resamples=50))
        rates = []
        for group in {groups[number] for number in kept}:
            inside = [right[number] for number in kept if groups[number] == group]
            rates.append(sum(inside) / len(inside))
        if macro == "none":
            assert scored["macro"] is None
        else:
            mean, low, high = (scored["macro"][name] for name in ("mean", "low", "high"))
            assert mean == pytest.approx(sum(rates) / len(rates)) and low <= mean <= high
            assert low < high or 0 < hits.mean() < 1


def test_phrases_of_an_index_are_counted_and_written_in_the_same_bytes_each_time(
    encoder: Encoder, index: PhraseIndex, tmp_path: Path
) -> None:
    contents = []
    for run in ("first", "second"):
        filler = PhraseFiller(index, encoder, FillSettings(bm25_blocks=1))
        methods = [phrase_answers(filler, name) for name in ("npm-bm25", "npm-dense")]
        found = evaluate_task(OPEN, EXAMPLES, methods, encoder=encoder, index=index, resamples=100)
        metrics = {"tasks": {OPEN.name: task_metrics(found)}}
        Result({}, list(task_records(found)), metrics, []).write(tmp_path / run)
        contents.append([(tmp_path / run / name).read_bytes() for name in ("predictions.jsonl", "metrics.json")])
    assert contents[0] == contents[1]
    records = [json.loads(line) for line in contents[0][0].splitlines()]
    assert len(records) == 10 and sum(record["prediction"] is not None for record in records) >= 8
    for record in records:
        if record["prediction"] is not None:
            (place, *_), spelled = record["evidence"], record["prediction"]
            context_start = place["start_char"] - place["context_start_char"]
            assert place["context"][context_start : context_start + len(spelled)].casefold() == spelled.casefold()
        said, gold = record["prediction"], record["gold"]
        assert record["correct"] == (said is not None and exact_match(said, gold))
