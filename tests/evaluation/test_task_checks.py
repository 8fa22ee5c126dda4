"""The message for each way in which a task's file contradicts itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.task_samples import OPEN_SMALL, SMALL, file_refused


def one(value: object, *words: str, **more: object) -> dict[str, Any]:
    return {"value": value, "words": list(words), **more}


def columns(**names: str) -> dict[str, Any]:
    return {"data": {"file": "a.csv", "columns": names}}


CLOSED_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"labels": [one(0, "a"), one("0", "b")]}, "must have different"),
    ({"labels": [one(0, "a"), one(1)]}, "labels[1].words must not be empty"),
    ({"labels": [one(0, "a", name="x"), one(1, "b", name="x")]}, "must have different"),
    ({"labels": [one(0, "a", "good"), one(1, "b", "Good")]}, "different words, got 'good'"),
    ({"labels": [one(0, "a"), one(1, "b", "Good", "good")]}, "different words"),
    ({"labels": [one(0, "a"), one(1, " b")]}, "' b'"),
    ({"labels": [one(0, "a"), one(1, "")]}, "''"),
    ({"labels": [one(0, "a")]}, "at least two"),
    ({"labels": []}, "at least two"),
    ({"template": "{{ text }} <mask> <mask>."}, "one <mask>"),
    ({"template": "It was <mask>."}, "a field"),
    ({"template": "{{ text }} {{ label }} <mask>"}, "shows the label"),
    ({"template": "{{ text It was <mask>."}, "invalid template"),
    ({"template": "{{ text | lower_frist }} <mask>."}, "lower_frist"),
    ({**columns(label="y"), "template": "{{ text }} {{ y }} <mask>."}, "shows the label"),
    ({**columns(label="y", stars="y"), "template": "{{ text }} {{ stars }} <mask>."}, "shows the label"),
    ({**columns(label="y", text="body or y"), "template": "{{ text }} <mask>."}, "shows the label"),
    ({**columns(label="y or text"), "template": "{{ text }} <mask>."}, "shows the label"),
    ({**columns(group="label"), "template": "{{ text }} {{ group }} <mask>."}, "shows the label"),
    ({**columns(label="my y", text="my y"), "template": "{{ text }} <mask>."}, "shows the label"),
    ({"macro": "answer_tokens"}, "macro: answer_tokens"),
    ({"where": "a=b"}, "where: for open tasks only"),
    ({"scoring": {"k": 5}}, "scoring.k"),
    ({"scoring": {"k": 5, "retrieval": "exact"}}, "scoring.k"),
    ({"max_prompt_tokens": 7}, "got 7"),
]
OPEN_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"labels": SMALL["labels"]}, "labels: "),
    ({"scoring": {"temperature": 3}}, "scoring: "),
    ({"fill": {"max_phrase": 3}}, "fill.max_phrase"),
    ({"fill": {"k": 0}}, "fill.k must be"),
    ({"macro": "group"}, "data.columns.group"),
    ({"examples_per_group": 5}, "examples_per_group"),
    ({"examples_per_group": 0, "macro": "answer_tokens"}, "got 0"),
    ({"data": {"file": ""}}, "data.file"),
    ({"data": {"file": "a", "development": "first_half", "development_file": "b"}}, "development_file"),
    ({**columns(answers="a"), "template": "{{ question }} {{ a }} <mask>"}, "shows the answers"),
    ({**columns(answers="[value] + aliases"), "template": "{{ aliases }} <mask>"}, "shows the answers"),
    (
        {**columns(answers="answer.value", question="answer.value"), "template": "{{ question }} <mask>"},
        "shows the answers",
    ),
    ({**columns(answers="a", subject="a"), "template": "{{ query | cloze(subject) }}"}, "shows the answers"),
]


@pytest.mark.parametrize(
    ("base", "change", "problem"),
    [
        *((SMALL, *mistake) for mistake in CLOSED_MISTAKES),
        *((OPEN_SMALL, *mistake) for mistake in OPEN_MISTAKES),
    ],
)
def test_what_contradicts_itself_is_refused(
    tmp_path: Path, base: dict[str, Any], change: dict[str, Any], problem: str
) -> None:
    assert problem in file_refused(tmp_path, {**base, **change})
