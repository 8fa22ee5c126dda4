"""Open tasks: counted by hand, against plain loops, and end to end over a small index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm.core.errors import SettingError
from npm.core.types import Answer, Occurrence, Phrase, Progress
from npm.evaluation.metrics import bootstrap_interval, exact_match
from npm.evaluation.results import write_results
from npm.evaluation.tasks.task import Example, Macro, Suite, Task, TaskData
from npm.evaluation.zero_shot.closed_set import examples_digest
from npm.evaluation.zero_shot.nonparametric import PhraseAnswers
from npm.evaluation.zero_shot.open_set import OpenTaskResult, evaluate_open
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.settings import FillSettings

TASK = Task(
    "capitals",
    Suite.open,
    TaskData("capitals.jsonl"),
    "{question} <mask>.",
    macro=Macro.group,
    paper={"npm": 34.5},
    digest="d" * 64,
)
EXAMPLES = [
    Example("0", "Iceland: <mask>.", answers=("Reykjavík", "Reykjavik"), group="north", subject="Iceland"),
    Example("1", "Norway: <mask>.", answers=("Oslo",), group="north", subject="Norway"),
    Example("2", "Denmark: <mask>.", answers=("Copenhagen",), group="north", subject="Denmark"),
    Example("5", "France: <mask>.", answers=("Paris",), group="south", subject="France", cut=True),
    Example("7", "Italy: <mask>.", answers=("Rome",), group="south", subject="Italy"),
]
PLACE = Occurrence("norway", "Norway", 18, 22, "Norway's capital, Oslo, lies there.", 0)


@dataclass
class Told:
    """A method that answers what it was told; None is an answer without a phrase."""

    name: str
    phrases: Sequence[str | None]
    asked: list[tuple[str, tuple[Example, ...]]] = field(default_factory=list)

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[Answer]:
        self.asked.append((task.name, tuple(examples)))
        answers = []
        for number, (example, phrase) in enumerate(zip(examples, self.phrases, strict=True), start=1):
            found = () if phrase is None else (Phrase(phrase, 0.75, 2, (PLACE,)), Phrase("Bergen", 0.25, 1, ()))
            answers.append(Answer(example.text, found))
            progress(f"task {task.name}", number, len(examples))
        return answers

    def facts(self) -> dict[str, Any]:
        return {"told": len(self.phrases)}


@pytest.fixture(scope="module")
def index(index_folder: Path) -> PhraseIndex:
    return PhraseIndex.open(index_folder)


@pytest.fixture
def good() -> Told:
    return Told("good", ["the Reykjavik!", "oslo", "Aarhus", "Lyon", None])


@pytest.fixture
def result(encoder: Encoder, index: PhraseIndex, good: Told) -> OpenTaskResult:
    poor = Told("poor", ["Oslo", "Oslo", "Oslo", "Oslo", "Oslo"])
    return evaluate_open(TASK, EXAMPLES, [good, poor], tokenizer_encoder=encoder, index=index, resamples=500)


def test_exact_match_is_a_mean_over_examples_and_over_groups_on_all_and_on_covered_examples(
    result: OpenTaskResult,
) -> None:
    good, poor = result.methods
    assert good.right.tolist() == [True, True, False, False, False]
    assert good.all_examples.count == 5
    assert good.all_examples.micro is not None and good.all_examples.macro is not None
    assert good.all_examples.micro.mean == pytest.approx(2 / 5)
    assert good.all_examples.macro.mean == pytest.approx((2 / 3 + 0) / 2)
    # The passages name Iceland, Norway and France.
    assert good.covered is not None and good.covered.micro is not None and good.covered.macro is not None
    assert good.covered.count == 3
    assert good.covered.micro.mean == pytest.approx(2 / 3)
    assert good.covered.macro.mean == pytest.approx((2 / 2 + 0) / 2)
    assert poor.all_examples.micro is not None
    assert poor.all_examples.micro.mean == pytest.approx(1 / 5)


def test_only_the_best_phrase_counts(encoder: Encoder) -> None:
    example = [Example("0", "Where? <mask>", answers=("Bergen",))]  # every told answer has Bergen in second place
    found = evaluate_open(TASK, example, [Told("told", ["Oslo"])], tokenizer_encoder=encoder, index=None, resamples=5)
    assert found.methods[0].right.tolist() == [False]


def test_metrics_say_what_was_asked_what_the_corpus_holds_and_what_each_method_scores(result: OpenTaskResult) -> None:
    metrics = result.metrics()
    assert json.loads(json.dumps(metrics)) == metrics
    methods = metrics.pop("methods")
    tokens = {tokens: result.answer_tokens.count(tokens) for tokens in result.answer_tokens}
    assert metrics == {
        "suite": "open",
        "count": 5,
        "cut_count": 1,
        "examples_sha256": examples_digest(EXAMPLES),
        "task_sha256": "d" * 64,
        "macro_over": "group",
        "coverage": {
            "answer_held": {"count": 3, "share": 0.6},
            "subject_named": {"count": 3, "share": 0.6},
            "answer_held_if_named": {"count": 3, "share": 1.0},
        },
    }
    assert list(methods) == ["good", "poor"]
    assert methods["good"]["by_group"] == {
        "north": {"count": 3, "exact_match": pytest.approx(2 / 3)},
        "south": {"count": 2, "exact_match": 0.0},
    }
    assert {name: entry["count"] for name, entry in methods["good"]["by_answer_tokens"].items()} == tokens
    assert methods["good"]["facts"] == {"told": 5}
    assert methods["poor"]["covered"]["count"] == 3
    assert set(methods["poor"]["all"]["macro"]) == {"mean", "low", "high"}


def test_records_hold_gold_prediction_phrases_and_where_the_prediction_stands(result: OpenTaskResult) -> None:
    records = list(result.records())
    assert [(record["method"], record["id"]) for record in records] == [
        (method, example.id) for method in ("good", "poor") for example in EXAMPLES
    ]
    assert records[1] == {
        "task": "capitals",
        "method": "good",
        "id": "1",
        "text": "Norway: <mask>.",
        "gold": ["Oslo"],
        "group": "north",
        "prediction": "oslo",
        "correct": True,
        "phrases": [
            {"phrase": "oslo", "score": 0.75, "occurrence_count": 2},
            {"phrase": "Bergen", "score": 0.25, "occurrence_count": 1},
        ],
        "evidence": [
            {
                "document": "norway",
                "title": "Norway",
                "start_char": 18,
                "end_char": 22,
                "context": "Norway's capital, Oslo, lies there.",
                "context_start_char": 0,
            }
        ],
        "subject_named": True,
        "answer_held": True,
    }
    unanswered = records[4]
    assert (unanswered["prediction"], unanswered["correct"]) == (None, False)
    assert (unanswered["phrases"], unanswered["evidence"]) == ([], [])
    assert [record["subject_named"] for record in records[:5]] == [True, True, False, True, False]


def test_a_table_takes_the_average_that_the_task_names_beside_the_number_of_the_paper(result: OpenTaskResult) -> None:
    scores = result.scores()
    assert (scores.task, scores.count, scores.paper) == ("capitals", 5, {"npm": 34.5})
    assert {name: interval.mean for name, interval in scores.methods.items()} == {
        "good": pytest.approx(1 / 3),
        "poor": pytest.approx(1 / 6),
    }
    over_examples = result.scores(macro=False)
    assert over_examples.methods["good"].mean == pytest.approx(2 / 5)
    assert over_examples.paper == {}  # the paper's number is an average over groups
    covered = result.covered_scores()
    assert covered is not None
    assert (covered.count, covered.methods["good"].mean, covered.paper) == (3, pytest.approx(1 / 2), {})


def test_a_task_without_groups_has_the_mean_over_examples_in_its_table(encoder: Encoder, good: Told) -> None:
    task = replace(TASK, macro=Macro.none)
    found = evaluate_open(task, EXAMPLES, [good], tokenizer_encoder=encoder, index=None, resamples=50)
    assert found.methods[0].all_examples.macro is None
    assert found.scores().methods["good"].mean == pytest.approx(2 / 5)
    assert found.scores().paper == {"npm": 34.5}


def test_notes_tell_of_cut_texts_coverage_and_texts_without_a_phrase(result: OpenTaskResult) -> None:
    assert result.notes() == [
        "capitals: 1 of 5 texts were cut to the longest prompt allowed.",
        "capitals: of 5 examples the corpus names the subject of 3 and holds an answer of 3.",
        "capitals: good found no phrase for 1 of 5 examples.",
    ]


def test_without_an_index_nothing_is_said_of_coverage(encoder: Encoder, good: Told) -> None:
    found = evaluate_open(TASK, EXAMPLES[:5], [good], tokenizer_encoder=encoder, index=None, resamples=50)
    assert found.covered_scores() is None
    assert found.metrics()["coverage"] is None
    assert found.metrics()["methods"]["good"]["covered"] is None
    assert not {"subject_named", "answer_held"} & set(next(found.records()))


def test_where_the_corpus_names_no_subject_covered_examples_are_none_and_have_no_mean(
    encoder: Encoder, index: PhraseIndex
) -> None:
    found = evaluate_open(
        TASK, EXAMPLES[2:3], [Told("told", ["Copenhagen"])], tokenizer_encoder=encoder, index=index, resamples=5
    )
    assert found.metrics()["methods"]["told"]["covered"] == {"count": 0, "micro": None, "macro": None}
    assert found.metrics()["coverage"]["answer_held_if_named"] == {"count": 0, "share": None}
    assert found.covered_scores() is None


def test_every_method_is_asked_all_examples_once_and_progress_counts_over_all(encoder: Encoder, good: Told) -> None:
    seen: list[tuple[int, int]] = []
    other = Told("other", ["Oslo"] * 5)
    evaluate_open(
        TASK,
        EXAMPLES,
        [good, other],
        tokenizer_encoder=encoder,
        index=None,
        resamples=5,
        progress=lambda _, done, total: seen.append((done, total)),
    )
    assert seen == [(done, 10) for done in range(1, 11)]
    assert good.asked == other.asked == [("capitals", tuple(EXAMPLES))]


@pytest.mark.parametrize("seed", range(4))
def test_all_numbers_equal_those_of_plain_loops(encoder: Encoder, index: PhraseIndex, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = ["Oslo", "Paris", "North Sea", "Miguel de Cervantes", "Iceland", "Mars"]
    count, macro = int(rng.integers(1, 60)), list(Macro)[seed % 3]
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
    told = [None if rng.random() < 0.2 else str(rng.choice(names)) for _ in examples]
    task = replace(TASK, macro=macro)
    found = evaluate_open(
        task, examples, [Told("told", told)], tokenizer_encoder=encoder, index=index, seed=seed, resamples=50
    )
    right = [
        phrase is not None and exact_match(phrase, example.answers)
        for phrase, example in zip(told, examples, strict=True)
    ]
    groups = {
        Macro.none: [""] * count,
        Macro.group: [example.group for example in examples],
        Macro.answer_tokens: list(found.answer_tokens),
    }[macro]
    covered = [example.subject != "Mars" for example in examples]
    for chosen, scored in (([True] * count, found.methods[0].all_examples), (covered, found.methods[0].covered)):
        assert scored is not None
        kept = [number for number in range(count) if chosen[number]]
        assert scored.count == len(kept)
        if not kept:
            assert scored.micro is None and scored.macro is None
            continue
        hits = np.array([right[number] for number in kept], dtype=float)
        assert scored.micro == bootstrap_interval(hits, np.random.default_rng(seed), resamples=50)
        rates = []
        for group in {groups[number] for number in kept}:
            inside = [right[number] for number in kept if groups[number] == group]
            rates.append(sum(inside) / len(inside))
        if macro is Macro.none:
            assert scored.macro is None
        else:
            assert scored.macro is not None
            assert scored.macro.mean == pytest.approx(sum(rates) / len(rates))
            assert scored.macro.low <= scored.macro.mean <= scored.macro.high


def test_no_examples_and_methods_of_one_name_are_refused(encoder: Encoder, good: Told) -> None:
    with pytest.raises(SettingError, match="has no examples"):
        evaluate_open(TASK, [], [good], tokenizer_encoder=encoder, index=None)
    with pytest.raises(SettingError, match="each once"):
        evaluate_open(TASK, EXAMPLES, [good, good], tokenizer_encoder=encoder, index=None)


def test_phrases_of_an_index_are_counted_and_written_in_the_same_bytes_each_time(
    encoder: Encoder, index: PhraseIndex, tmp_path: Path
) -> None:
    contents = []
    for run in ("first", "second"):
        filler = PhraseFiller(index, encoder, FillSettings(bm25_blocks=1))
        methods = [PhraseAnswers(filler, name) for name in ("npm-bm25", "npm-dense")]
        found = evaluate_open(TASK, EXAMPLES, methods, tokenizer_encoder=encoder, index=index, resamples=100)
        metrics = {"tasks": {TASK.name: found.metrics()}}
        write_results(tmp_path / run, record={}, predictions=found.records(), metrics=metrics)
        contents.append([(tmp_path / run / name).read_bytes() for name in ("predictions.jsonl", "metrics.json")])
    assert contents[0] == contents[1]
    records = [json.loads(line) for line in contents[0][0].splitlines()]
    assert len(records) == 10
    for record in records:
        if record["prediction"] is not None:
            (place, *_), spelled = record["evidence"], record["prediction"]
            context_start = place["start_char"] - place["context_start_char"]
            assert place["context"][context_start : context_start + len(spelled)].casefold() == spelled.casefold()
            assert record["phrases"][0]["phrase"] == spelled
    assert sum(record["prediction"] is not None for record in records) >= 8
    assert [record["correct"] for record in records] == [
        record["prediction"] is not None and exact_match(record["prediction"], record["gold"]) for record in records
    ]
