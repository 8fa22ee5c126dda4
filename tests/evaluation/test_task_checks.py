"""The message for each way in which a task's file contradicts itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.task_samples import OPEN_SMALL, SMALL, file_refused


def one(value: object, *words: str, **more: object) -> dict[str, Any]:
    return {"value": value, "words": list(words), **more}


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ([one(0, "a"), one("0", "b")], "different names and values"),
        ([one(0, "a"), one(1)], "labels[1].words"),
        ([one(0, "a", name="x"), one(1, "b", name="x")], "different names and values"),
        ([one(0, "a", "good"), one(1, "b", "Good")], "different words"),
        ([one(0, "a"), one(1, "b", "Good", "good")], "different words"),
        ([one(0, "a"), one(1, " b")], "' b'"),
        ([one(0, "a"), one(1, "")], "''"),
        ([one(0, "a")], "at least two"),
        ([], "at least two"),
    ],
)
def test_labels_that_cannot_be_told_apart_are_refused(tmp_path: Path, labels: Any, problem: str) -> None:
    assert problem in file_refused(tmp_path, {**SMALL, "labels": labels})


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ text }} <mask> <mask>.", "one <mask>"),
        ("It was <mask>.", "a field"),
        ("{{ text }} {{ label }} <mask>", "shows the label"),
        ("{{ text It was <mask>.", "invalid template"),
        ("{{ text | lower_frist }} <mask>.", "lower_frist"),
    ],
)
def test_a_template_without_one_mask_and_a_field_is_refused(tmp_path: Path, template: str, problem: str) -> None:
    assert problem in file_refused(tmp_path, {**SMALL, "template": template})


@pytest.mark.parametrize(
    ("base", "change", "problem"),
    [
        (OPEN_SMALL, {"labels": SMALL["labels"]}, "labels: "),
        (OPEN_SMALL, {"scoring": {"temperature": 3}}, "scoring: "),
        (OPEN_SMALL, {"macro": "group"}, "data.columns.group"),
        (OPEN_SMALL, {"examples_per_group": 5}, "examples_per_group"),
        (OPEN_SMALL, {"examples_per_group": 0, "macro": "answer_tokens"}, "got 0"),
        (OPEN_SMALL, {"data": {"file": ""}}, "data.file"),
        (OPEN_SMALL, {"data": {"file": "a", "development": "first_half", "development_file": "b"}}, "development_file"),
        (SMALL, {"macro": "answer_tokens"}, "macro: answer_tokens"),
        (SMALL, {"where": "a=b"}, "where: for open tasks only"),
        (SMALL, {"scoring": {"k": 5}}, "scoring.k"),
        (SMALL, {"scoring": {"k": 5, "retrieval": "exact"}}, "scoring.k"),
        (SMALL, {"max_prompt_tokens": 7}, "got 7"),
    ],
)
def test_what_contradicts_itself_is_refused(
    tmp_path: Path, base: dict[str, Any], change: dict[str, Any], problem: str
) -> None:
    assert problem in file_refused(tmp_path, {**base, **change})


@pytest.mark.parametrize(
    ("columns", "template"),
    [
        ({"label": "y"}, "{{ text }} {{ y }} <mask>."),
        ({"label": "y", "stars": "y"}, "{{ text }} {{ stars }} <mask>."),
        ({"label": "y", "text": "body or y"}, "{{ text }} <mask>."),
        ({"label": "y or text"}, "{{ text }} <mask>."),
        ({"group": "label"}, "{{ text }} {{ group }} <mask>."),
        ({"label": "my y", "text": "my y"}, "{{ text }} <mask>."),
    ],
)
def test_a_template_that_shows_the_column_of_the_label_is_refused(
    tmp_path: Path, columns: dict[str, str], template: str
) -> None:
    data = {"file": "a.csv", "columns": columns}
    assert "shows the label" in file_refused(tmp_path, {**SMALL, "data": data, "template": template})


@pytest.mark.parametrize(
    ("columns", "template"),
    [
        ({"answers": "a"}, "{{ question }} {{ a }} <mask>"),
        ({"answers": "[value] + aliases"}, "{{ aliases }} <mask>"),
        ({"answers": "answer.value", "question": "answer.value"}, "{{ question }} <mask>"),
        ({"answers": "a", "subject": "a"}, "{{ query | cloze(subject) }}"),
    ],
)
def test_a_template_that_shows_the_column_of_the_answers_is_refused(
    tmp_path: Path, columns: dict[str, str], template: str
) -> None:
    content = {**OPEN_SMALL, "data": {"file": "q.jsonl", "columns": columns}, "template": template}
    assert "shows the answers" in file_refused(tmp_path, content)
