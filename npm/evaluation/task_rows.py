"""One row of a task's data as an example: its columns read and checked, its prompt written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from npm.corpus.rows import Row, TaskDataError
from npm.evaluation.examples import Example
from npm.evaluation.prompts import ANSWERS, Template, filled_cloze
from npm.evaluation.task import Suite, Task
from npm.evaluation.treebank import detokenise
from npm.retrieval.queries import check_query
from npm.types import MASK_TEXT, SURROGATE

ALTERNATIVES, TOGETHER = " | ", " + "
"""In `data.columns`: the first of several columns that the data has; for answers, the values of several columns."""
ANSWER_SEPARATOR = "|"
"""Stands between the answers in a cell of a CSV or TSV file."""
_SHOWN_CHARS = 120
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Asked:
    """An example before it is marked and fitted to an encoder, with the fields that its prompt is made of."""

    example: Example
    values: dict[str, str]
    where: str


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads rows of a task's data."""

    task: Task
    template: Template
    splits_answers: bool
    """Whether a string holds several answers, as in files whose cells are all strings."""

    def read(self, row: Row, *, name: str, where: str) -> Asked:
        """One row as the example `name`, all of it checked but its length. Raises TaskDataError if it does not fit."""
        task = self.task
        subject = _aside(task, row, "subject", where)
        values = {field: _text(task, row, field, where) for field in self.template.fields}
        if task.data.detokenise:
            values = {field: detokenise(value) for field, value in values.items()}
        if task.template_column:
            cloze = values[task.template_column]
            if not subject and ("[X]" in cloze or "[S]" in cloze):
                raise _wrong_cell("subject", "a subject for [X] or [S] of the template", cloze, where)
            values[task.template_column] = filled_cloze(cloze, subject)
        label = _label(task, row, where) if task.suite is Suite.closed else -1
        answers = self._answers(row, where) if task.suite is Suite.open else ()
        group = _aside(task, row, "group", where)
        text = self.template.fill(values, answers)
        if text.count(MASK_TEXT) != 1:
            raise TaskDataError(
                f"the prompt has {'several' if MASK_TEXT in text else 'no'} {MASK_TEXT}",
                expected=f"exactly one {MASK_TEXT}, from the template",
                got=text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…",
                where=where,
                fix=f"take {MASK_TEXT} out of the example's fields, or mend its template",
            )
        check_query(text, where=where)
        example = Example(name, text, label, answers, group, subject)
        return Asked(example, values, where)

    def marked(self, example: Example, values: Mapping[str, str]) -> Example:
        """`example` with its passage and whether it is blank, from the fields that its text is made of."""
        passage = self.template.longest(values) if self.task.suite is Suite.closed else ""
        return replace(example, blank=self.template.is_blank(values), passage=passage)

    def _answers(self, row: Row, where: str) -> tuple[str, ...]:
        """All that is right, each once."""
        columns = self.task.data.columns.get(ANSWERS, ANSWERS)
        found: list[str] = []
        for column in columns.split(TOGETHER):
            value = _cell(row, column, where)
            if isinstance(value, str):
                value = value.split(ANSWER_SEPARATOR) if self.splits_answers else [value]
            if not isinstance(value, list) or not all(isinstance(answer, str) for answer in value):
                raise _wrong_cell(column, "a string or a list of strings", value, where)
            for answer in value:
                _check_whole(column, answer, where)
            found += [answer.strip() for answer in value]
        answers = tuple(dict.fromkeys(answer for answer in found if answer))
        if not answers:
            raise _wrong_cell(columns, "at least one answer", found, where)
        return answers


def columns_of(expression: str) -> tuple[str, ...]:
    """All columns that an expression of `data.columns` may read.

    >>> columns_of("answers | answer.value + answer.aliases")
    ('answers', 'answer.value', 'answer.aliases')
    """
    return tuple(column for each in expression.split(TOGETHER) for column in each.split(ALTERNATIVES))


def _cell(row: Row, expression: str, where: str) -> Any:
    """What stands in a column; `a.b` is the key b of what is in a, `a | b` the first that is there."""
    for column in expression.split(ALTERNATIVES):
        found: Any = row.get(column, _ABSENT)
        if found is _ABSENT and "." in column:
            found = row
            for key in column.split("."):
                found = _inside(found, key)
        if found is not _ABSENT:
            return found
    near = get_close_matches(expression, list(row), n=1)
    raise TaskDataError(
        f"the data has no column {expression!r}",
        expected=f"a column {expression!r}",
        got=f"the columns {', '.join(row)}",
        where=where,
        fix=f"name the right one in data.columns of the task's file{f', such as {near[0]}' if near else ''}",
    )


def _inside(value: Any, key: str) -> Any:
    """What stands under a key of an object, or under that key of each object of a list."""
    if isinstance(value, list) and value:
        each = [_inside(item, key) for item in value]
        return _ABSENT if _ABSENT in each else each
    return value.get(key, _ABSENT) if isinstance(value, Mapping) else _ABSENT


def _text(task: Task, row: Row, name: str, where: str) -> str:
    """A field as text; numbers are written out, but not the NaN that stands for an empty cell of a data frame."""
    column = task.data.columns.get(name, name)
    value = _cell(row, column, where)
    is_finite = not isinstance(value, float) or math.isfinite(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and is_finite:
        return str(value)
    if isinstance(value, str):
        return value
    raise _wrong_cell(column, "text, or a finite number", value, where)


def _aside(task: Task, row: Row, name: str, where: str) -> str:
    """A column beside the prompt, which alone `check_query` looks at; "" where the task names none."""
    if name not in task.data.columns:
        return ""
    text = _text(task, row, name, where)
    _check_whole(task.data.columns[name], text, where)
    return text


def _check_whole(column: str, text: str, where: str) -> None:
    """Refuse half a character, which an escape in JSON can write and neither a tokenizer nor a UTF-8 file takes."""
    if SURROGATE.search(text):
        raise _wrong_cell(column, "whole characters, no half of one (\\ud800 to \\udfff)", text, where)


def _label(task: Task, row: Row, where: str) -> int:
    """Number of the row's label in the task's order."""
    column = task.data.columns.get("label", "label")
    value = _cell(row, column, where)
    for number, label in enumerate(task.labels):
        if str(label.value) == str(value):  # a CSV file has 0 as "0"
            return number
    raise TaskDataError(
        f"no label of {task.name} has the value {value!r}",
        expected=f"one of {', '.join(repr(label.value) for label in task.labels)} in the column {column!r}",
        got=repr(value),
        where=where,
        fix="add it to labels in the task's file, or mend data.columns.label",
    )


def _wrong_cell(column: str, expected: str, value: object, where: str) -> TaskDataError:
    return TaskDataError(
        f"the column {column!r} has the wrong content",
        expected=expected,
        got=repr(value)[:_SHOWN_CHARS],
        where=where,
        fix="mend the row, or name another column in data.columns of the task's file",
    )
