"""Rows of a task's data as examples: columns, labels, answers, prompts, passages, and which rows are refused."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from npm.evaluation.tasks import Example, Task, TaskData, load_task
from npm.models.encoder import Encoder
from tests.evaluation.task_samples import REVIEWS, SHIPPED, closed, opened, read_examples, refused, written
from tests.helpers.tiny_models import tiny_encoder


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_encoder("bert", max_positions=24)


def test_rows_become_prompts_with_gold_in_the_order_of_the_file(tmp_path: Path) -> None:
    written(tmp_path, REVIEWS)
    joined = replace(closed(), template="{{ text | detokenize }} It was <mask>.")
    assert read_examples(joined, tmp_path) == [
        Example("0", "dull. It was <mask>.", label=0, passage="dull."),
        Example("1", "it's great! It was <mask>.", label=1, passage="it's great!"),
        Example("2", "fine It was <mask>.", label=1, passage="fine"),
    ]
    assert read_examples(closed(), tmp_path)[1].text == "it 's great ! It was <mask>."


def test_labels_of_a_table_are_text_and_columns_have_the_names_that_the_task_gives(tmp_path: Path) -> None:
    with (tmp_path / "data.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["review", "stars", "who"], ["Dull", "0", "a"], ['"Great", fun', "1", "b"]])
    task = closed(file="data.csv", columns={"text": "review", "label": "stars", "group": "who"})
    found = read_examples(task, tmp_path)
    assert [(each.text, each.label, each.group) for each in found] == [
        ("Dull It was <mask>.", 0, "a"),
        ('"Great", fun It was <mask>.', 1, "b"),
    ]


def test_answers_come_from_one_or_several_columns_inside_others_and_from_cells(tmp_path: Path) -> None:
    row = {"q": "who", "answer": {"value": "Ann", "aliases": ["Anna ", "Ann"]}, "all names": ["A", "B"]}
    written(tmp_path, [row])
    (tmp_path / "data.csv").write_text("q,answers\nwho,Ann| Anna\n", encoding="utf-8")

    def answers(column: str, file: str = "data.jsonl") -> tuple[str, ...]:
        task = Task(
            name="t",
            suite="open",
            data=TaskData(file=file, columns={"answers": column}),
            template="{{ q | question }} <mask>.",
        )
        return read_examples(task, tmp_path)[0].answers

    assert answers("answer.value") == ("Ann",)
    assert answers("[answer.value] + answer.aliases") == ("Ann", "Anna")
    assert answers("answers or answer.aliases") == ("Anna", "Ann")
    assert answers("all names") == ("A", "B")
    assert answers("answers", "data.csv") == ("Ann", "Anna")


def test_each_open_set_reads_its_public_format(tmp_path: Path) -> None:
    """A line of every data set that is not at hand, as it is published."""
    rows: dict[str, dict[str, Any]] = {
        "google_re": {
            "relation": "place_of_birth",
            "subject": "Ann",
            "answers": ["Rome"],
            "template": "[X] was born in [Y] .",
        },
        "kamel": {
            "relation": "P54",
            "question": "What teams was [S] a member of?",
            "sub_label": "Ann",
            "obj_label": ["A.", "B"],
        },
        "trivia_qa": {"question": "Who?", "answer": {"value": "A", "aliases": ["B"], "normalized_aliases": ["b"]}},
        "templama": {
            "query": "Ann plays for _X_.",
            "answers": ["Ajax"],
            "relation": "P54",
        },
        "entity_translation": {"language": "Greek", "title": "Rome", "answers": ["Ρώμη"]},
    }
    expected = {
        "google_re": ("Ann was born in <mask>.", ("Rome",), "place_of_birth"),
        "kamel": ("What teams was Ann a member of? Answer: <mask>", ("A.", "B"), "P54"),
        "trivia_qa": ("Who? The answer is: <mask>.", ("A", "B", "b"), ""),
        "templama": ("Ann plays for <mask>.", ("Ajax",), "P54"),
        "entity_translation": ("The Greek translation of Rome is: <mask>.", ("Ρώμη",), "Greek"),
    }
    for name, row in rows.items():
        task = load_task(name, folder=SHIPPED)
        written(tmp_path, [row], task.data.file)
        (found,) = read_examples(task, tmp_path, encoder=tiny_encoder("bert"))
        assert (found.text, found.answers, found.group) == expected[name]


def test_each_closed_set_reads_its_public_format(tmp_path: Path) -> None:
    text = {"text": "it 's fine", "label": 1}
    rows: dict[str, dict[str, Any]] = {
        "yahoo": {"topic": 1, "question_title": "T", "question_content": "C", "best_answer": "A"},
        "amazon": {"title": "T", "content": "C.", "label": 1},
        "rt": text,
        "cr": text,
        "rte": {"sentence1": "A dog barks.", "sentence2": "Dogs bark.", "label": 1},
    }
    expected = {
        "yahoo": "title: T content: C answer: A The text topic is about <mask>.",
        "amazon": "T. C. It was <mask>.",
        "rt": "it's fine It was <mask>.",
        "cr": "it's fine It was <mask>.",
        "rte": "A dog barks, right? <mask>, dogs bark.",
    }
    for name, row in rows.items():
        task = load_task(name, folder=SHIPPED)
        gold = task.data.columns.get("label", "label")
        written(tmp_path, [row, {**row, gold: 0}], task.data.file)
        assert [(each.text, each.label) for each in read_examples(task, tmp_path)] == [
            (expected[name], 1),
            (expected[name], 0),
        ]


def test_the_passage_is_the_longest_field_as_it_stands_in_the_prompt(tmp_path: Path) -> None:
    written(tmp_path, [{"a": "Short.", "b": " It  rains, they say... ", "label": number} for number in (0, 1)])
    task = replace(closed(), template="{{ a }} {{ b | no_final_punctuation | lower_first }}? <mask>")
    for found in read_examples(task, tmp_path):
        assert found.passage == "it rains, they say"
        assert found.text == f"Short. {found.passage}? <mask>" and not found.blank


@pytest.mark.parametrize("with_encoder", [False, True])
def test_a_row_whose_fields_are_all_blank_is_marked(tmp_path: Path, encoder: Encoder, with_encoder: bool) -> None:
    texts = [("a", "b"), ("", "b"), (" ", "\t"), ("", "..."), ("a", "")]
    written(tmp_path, [{"a": a, "b": b, "label": number % 2} for number, (a, b) in enumerate(texts)])
    task = replace(closed(), template="{{ a }} {{ b | no_final_punctuation }} It was <mask>.")
    found = read_examples(task, tmp_path, encoder=encoder if with_encoder else None)
    assert [each.blank for each in found] == [False, False, True, True, False]
    assert [each.passage for each in found] == ["a", "b", "", "", "a"]


def test_a_row_of_which_the_cut_leaves_nothing_is_marked(tmp_path: Path, encoder: Encoder) -> None:
    written(tmp_path, [{"text": "-" * 40, "label": number} for number in (0, 1)])  # one word of many tokens
    for found in read_examples(replace(closed(), too_long="keep_start"), tmp_path, encoder=encoder):
        assert found.cut and found.blank and found.text == "It was <mask>."


FACT = {"relation": "r", "subject": "s", "answers": ["a"]}
CLOZE = replace(opened(), template="{{ query | cloze(subject) }}")


@pytest.mark.parametrize(
    ("task", "rows", "parts"),
    [
        (closed(columns={"text": "txt"}), REVIEWS, ["data.jsonl:1: no column 'txt': did you mean 'text'"]),
        (closed(columns={"text": "a.b"}), REVIEWS, ["no column 'a.b'"]),
        (opened(), [{"relation": "r", "subject": "s"}], ["no column 'answers'"]),
        (closed(), [*REVIEWS, {"text": "so so", "label": 2}], ["data.jsonl:4", "got 2"]),
        (closed(), [*REVIEWS, {"text": "what a <mask>", "label": 0}], ["data.jsonl:4: ", "what a <mask>"]),
        *((closed(), [{"text": value, "label": 0}], ["'text' must be"]) for value in (None, ["a"], True, {"a": 1})),
        *((opened(), [{**FACT, "answers": no}], ["'answers' must be"]) for no in ([], "", [" "], [1], None, 5)),
        (CLOZE, [{**FACT, "subject": "", "query": "[X] is [Y] ."}], ["a subject is required"]),
        (replace(closed(), max_prompt_tokens=100_000), REVIEWS, ["max_prompt_tokens of reviews must be at most"]),
    ],
)
def test_what_cannot_be_asked_is_refused_with_its_line(
    task: Task, rows: list[dict[str, Any]], parts: list[str], tmp_path: Path, encoder: Encoder
) -> None:
    more: dict[str, Any] = {"encoder": encoder} if task.max_prompt_tokens else {"limit": 1}
    told = refused(tmp_path, task, rows, **more)
    assert all(part in told for part in parts)
