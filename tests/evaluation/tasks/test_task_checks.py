"""The message for each way in which a task's file contradicts itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npm.evaluation.tasks.prompts import TemplateError
from npm.evaluation.tasks.task_file import load_task
from tests.evaluation.tasks.task_samples import OPEN_SMALL, SHIPPED, SMALL, file_refused, task_written


def one(value: object, *words: str, **more: object) -> dict[str, Any]:
    return {"value": value, "words": list(words), **more}


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ([one(0, "a"), one("0", "b")], "the value 0"),
        ([one(0, "a"), one(1)], "add words: […] to the label 1"),
        ([one(0, "a"), one(1, name="b")], "add words: […] to the label 1"),
        ([one(0, "a", name="x"), one(1, "b", name="x")], "the name 'x'"),
        ([one(0, "a", "good"), one(1, "b", "Good")], "two labels have the word 'good'"),
        ([one(0, "a"), one(1, "b", "Good", "good")], "a label has the word 'good' twice"),
        ([one(0, "a"), one(1, " b")], "' b'"),
        ([one(0, "a"), one(1, "")], "''"),
        ([one(0, "a")], "got 1"),
        ([], "got 0"),
    ],
)
def test_labels_that_cannot_be_told_apart_are_refused(tmp_path: Path, labels: Any, problem: str) -> None:
    assert problem in file_refused(tmp_path, {**SMALL, "labels": labels})


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{text} It was great.", "one <mask>, got 0"),
        ("{text} <mask> <mask>.", "one <mask>, got 2"),
        ("It was <mask>.", "no field of an example"),
        ("{text} {label} <mask>", "{label}"),
        ("{text} {answers} <mask>", "{answers}"),
        ("{text It was <mask>.", "invalid template"),
        ("{text} } <mask>.", "invalid template"),
        ("{text:>5} <mask>.", "invalid field"),
        ("{} <mask>.", "invalid field"),
        ("{text|lower_frist} <mask>.", "unknown edit 'lower_frist'"),
    ],
)
def test_a_template_without_one_mask_and_a_field_is_refused(tmp_path: Path, template: str, problem: str) -> None:
    assert problem in file_refused(tmp_path, {**SMALL, "template": template}, TemplateError)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"labels": SMALL["labels"]}, "labels: "),
        ({"scoring": {"temperature": 3}}, "scoring: "),
        ({"scoring": {"verbalizer": "agn"}}, "scoring: "),
        ({"verbalizer": "agn"}, "verbalizer: "),
        ({"macro": "group"}, "data.columns.group"),
        ({"examples_per_group": 5}, "examples_per_group"),
        ({"examples_per_group": 0, "macro": "answer_tokens"}, "got 0"),
        ({"data": {"file": ""}}, "data.file"),
        ({"data": {"file": "a", "development": "first_half", "development_file": "b"}}, "data.development_file"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    assert problem in file_refused(tmp_path, {**OPEN_SMALL, **change})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"macro": "answer_tokens"}, "macro: answer_tokens"),
        ({"template_column": "t"}, "template_column"),
        ({"scoring": {"k": 5}}, "scoring.k"),
        ({"scoring": {"k": 5, "retrieval": "exact"}}, "scoring.k"),
        ({"max_prompt_tokens": 7}, "got 7"),
        ({"max_prompt_tokens": -1}, "got -1"),
    ],
)
def test_a_closed_task_takes_nothing_that_only_open_ones_have(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    assert problem in file_refused(tmp_path, {**SMALL, **change})


@pytest.mark.parametrize(
    ("columns", "template"),
    [
        ({"label": "y"}, "{text} {y} <mask>."),
        ({"label": "y", "stars": "y"}, "{text} {stars} <mask>."),
        ({"label": "y", "text": "body | y"}, "{text} <mask>."),
        ({"label": "y | text"}, "{text} <mask>."),
        ({"group": "label"}, "{text} {group} <mask>."),
        ({"text": "label"}, "{text} <mask>."),
    ],
)
def test_a_template_that_shows_the_column_of_the_label_is_refused(
    tmp_path: Path, columns: dict[str, str], template: str
) -> None:
    data = {"file": "a.csv", "columns": columns}
    assert "shows the label" in file_refused(tmp_path, {**SMALL, "data": data, "template": template}, TemplateError)


@pytest.mark.parametrize(
    ("columns", "change"),
    [
        ({"answers": "a"}, {"template": "{question} {a} <mask>"}),
        ({"answers": "value + aliases"}, {"template": "{aliases} <mask>"}),
        ({"answers": "a | b", "question": "b"}, {}),
        ({"answers": "answer.value", "question": "answer.value"}, {}),
        ({"answers": "a", "subject": "a"}, {"template": "{cloze}", "template_column": "cloze"}),
        ({"answers": "cloze"}, {"template": "{cloze}", "template_column": "cloze"}),
    ],
)
def test_a_template_that_shows_the_column_of_the_answers_is_refused(
    tmp_path: Path, columns: dict[str, str], change: dict[str, str]
) -> None:
    content = {**OPEN_SMALL, "data": {"file": "q.jsonl", "columns": columns}, **change}
    assert "shows the answers" in file_refused(tmp_path, content, TemplateError)


def test_the_column_of_the_label_may_divide_the_data_and_that_of_an_answer_measure_coverage(tmp_path: Path) -> None:
    closed = {**SMALL, "data": {"file": "a.csv", "columns": {"label": "y", "group": "y"}}, "max_prompt_tokens": 8}
    assert load_task(task_written(tmp_path, closed), folder=SHIPPED).max_prompt_tokens == 8
    opened = {**OPEN_SMALL, "data": {"file": "q.jsonl", "columns": {"answers": "a", "subject": "a"}}}
    assert load_task(task_written(tmp_path, opened), folder=SHIPPED).data.columns["subject"] == "a"
