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
    ("labels", "problem", "got"),
    [
        ([one(0, "a"), one("0", "b")], "two labels with one value", "0"),
        ([one(0, "a"), one(1)], "a label without words", "no words for the label 1"),
        ([one(0, "a"), one(1, name="b")], "a label without words", "no words for the label 1"),
        ([one(0, "a", name="x"), one(1, "b", name="x")], "two labels with one name", "x"),
        ([one(0, "a", "good"), one(1, "b", "Good")], "a word that names two labels", "good"),
        ([one(0, "a"), one(1, "b", "Good", "good")], "lists a word twice for one label", "good"),
        ([one(0, "a"), one(1, " b")], "a word with stray spaces", "' b'"),
        ([one(0, "a"), one(1, "")], "a word with stray spaces", "''"),
        ([one(0, "a")], "too few labels", "1"),
        ([], "too few labels", "0"),
    ],
)
def test_labels_that_cannot_be_told_apart_are_refused(tmp_path: Path, labels: Any, problem: str, got: str) -> None:
    told = file_refused(tmp_path, {**SMALL, "labels": labels})
    assert problem in told.problem and got in told.got


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{text} It was great.", "the template has no <mask>"),
        ("{text} <mask> <mask>.", "the template has several <mask>"),
        ("It was <mask>.", "takes nothing from an example"),
        ("{text} {label} <mask>", "shows the label"),
        ("{text} {answers} <mask>", "shows the answers"),
        ("{text It was <mask>.", "cannot be read"),
        ("{text} } <mask>.", "cannot be read"),
        ("{text:>5} <mask>.", "cannot be read"),
        ("{} <mask>.", "cannot be read"),
        ("{text|lower_frist} <mask>.", "unknown edit 'lower_frist'"),
    ],
)
def test_a_template_without_one_mask_and_a_field_is_refused(tmp_path: Path, template: str, problem: str) -> None:
    told = file_refused(tmp_path, {**SMALL, "template": template}, TemplateError)
    assert problem in told.problem and told.where.endswith("mine.yaml: template")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"labels": SMALL["labels"]}, "is open and has labels"),
        ({"scoring": {"temperature": 3}}, "is open and has scoring"),
        ({"scoring": {"verbalizer": "agn"}}, "is open and has scoring"),
        ({"verbalizer": "agn"}, "is open and has a verbalizer"),
        ({"macro": "group"}, "has no groups"),
        ({"examples_per_group": 5}, "samples groups that it does not have"),
        ({"examples_per_group": 0, "macro": "answer_tokens"}, "samples groups that it does not have"),
        ({"data": {"file": ""}}, "names no data"),
        ({"data": {"file": "a", "development": "first_half", "development_file": "b"}}, "development data twice"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    assert problem in file_refused(tmp_path, {**OPEN_SMALL, **change}).problem


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"macro": "answer_tokens"}, "has no answers to count"),
        ({"template_column": "t"}, "is closed and has template_column"),
        ({"scoring": {"k": 5}}, "has scoring.k that nothing reads"),
        ({"scoring": {"k": 5, "retrieval": "exact"}}, "has scoring.k that nothing reads"),
        ({"max_prompt_tokens": 7}, "has no room for a prompt"),
        ({"max_prompt_tokens": -1}, "has no room for a prompt"),
    ],
)
def test_a_closed_task_takes_nothing_that_only_open_ones_have(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    assert problem in file_refused(tmp_path, {**SMALL, **change}).problem


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
    told = file_refused(tmp_path, {**SMALL, "data": data, "template": template}, TemplateError)
    assert told.problem == "the template shows the label of an example" and told.where.endswith("template")


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
    assert file_refused(tmp_path, content, TemplateError).problem == "the template shows the answers of an example"


def test_the_column_of_the_label_may_divide_the_data_and_that_of_an_answer_measure_coverage(tmp_path: Path) -> None:
    closed = {**SMALL, "data": {"file": "a.csv", "columns": {"label": "y", "group": "y"}}, "max_prompt_tokens": 8}
    assert load_task(task_written(tmp_path, closed), folder=SHIPPED).max_prompt_tokens == 8
    opened = {**OPEN_SMALL, "data": {"file": "q.jsonl", "columns": {"answers": "a", "subject": "a"}}}
    assert load_task(task_written(tmp_path, opened), folder=SHIPPED).data.columns["subject"] == "a"
