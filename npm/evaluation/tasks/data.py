"""The examples of a task: its rows as prompts with gold, divided into development and test, and sampled.

Shapes: n rows of the file, m rows chosen.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import PositiveInt

from npm.core.errors import CorpusError, near
from npm.core.settings import checked
from npm.core.types import MASK_TEXT, SURROGATE
from npm.corpus.readers import SEPARATORS, Row
from npm.corpus.sources import format_suffix
from npm.corpus.text import words_of
from npm.evaluation.tasks.document_conditions import filled_conditions
from npm.evaluation.tasks.prompts import (
    ANSWERS,
    Template,
    answer_tokens,
    cut_values,
    detokenise,
    filled_cloze,
    parse_template,
    prompt_tokens,
)
from npm.evaluation.tasks.readers import ALTERNATIVES, find_data, not_found, placed_rows
from npm.evaluation.tasks.task import Development, Example, Macro, Split, Suite, Task, TooLong
from npm.retrieval.queries import check_query

if TYPE_CHECKING:
    from npm.models.encoder import Encoder


TOGETHER = " + "
"""In `data.columns`: the values of several columns, for answers."""
ANSWER_SEPARATOR = "|"
"""Stands between the answers in a cell of a CSV or TSV file."""
OLD_ANSWERS = "old_answers"
"""In `data.columns`: what was right before, where something else is right now."""
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
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
    is_table: bool
    """Whether the file's cells are all strings, of which one may hold several answers and none is empty."""
    conditions: tuple[str, ...] = ()
    """On the documents that may answer a row."""

    def read(self, row: Row, *, name: str, where: str) -> Asked:
        """One row as the example `name`, all of it checked but its length. Raises CorpusError if it does not fit."""
        task = self.task
        subject = _aside(task, row, "subject", where)
        values = {field: _text(task, row, field, where, filled=self.is_table) for field in self.template.fields}
        if task.data.detokenise:
            values = {field: detokenise(value) for field, value in values.items()}
        if task.template_column:
            cloze = values[task.template_column]
            if not subject and ("[X]" in cloze or "[S]" in cloze):
                raise _wrong_cell("subject", "a subject for [X] or [S] of the template", cloze, where)
            values[task.template_column] = filled_cloze(cloze, subject)
        label = _label(task, row, where) if task.suite is Suite.closed else -1
        answers = self._answers(row, ANSWERS, where) if task.suite is Suite.open else ()
        old_column = task.data.columns.get(OLD_ANSWERS)
        old_answers = self._answers(row, OLD_ANSWERS, where) if old_column in row else ()
        group = _aside(task, row, "group", where)
        text = self.template.fill(values, answers)
        if text.count(MASK_TEXT) != 1:
            shown = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
            raise CorpusError(f"{where}: a prompt must have one {MASK_TEXT}, got {shown!r}")
        check_query(text, where=where)
        conditions = filled_conditions(
            self.conditions, lambda field: _cell(row, task.data.columns.get(field, field), where), where=where
        )
        example = Example(
            name, text, label, answers, group, subject, subsets=self._subsets(row, where), where=conditions
        )
        return Asked(replace(example, old_answers=old_answers), values, where)

    def marked(self, example: Example, values: Mapping[str, str]) -> Example:
        """`example` with its passage and whether it is blank, from the fields that its text is made of."""
        passage = self.template.longest(values) if self.task.suite is Suite.closed else ""
        return replace(example, blank=self.template.is_blank(values), passage=passage)

    def _subsets(self, row: Row, where: str) -> tuple[str, ...]:
        """The subsets that the row is in, of those whose column it has."""
        found: list[str] = []
        for name, column in self.task.subsets.items():
            value = row.get(column, False)
            value = _FLAGS.get(value.strip().lower(), value) if self.is_table and isinstance(value, str) else value
            if not isinstance(value, bool):
                raise _wrong_cell(column, "true or false", value, where)
            found += [name] * value
        return tuple(found)

    def _answers(self, row: Row, name: str, where: str) -> tuple[str, ...]:
        """All that is, or was, right, each once."""
        columns = self.task.data.columns.get(name, name)
        found: list[str] = []
        for column in columns.split(TOGETHER):
            value = _cell(row, column, where)
            if isinstance(value, str):
                value = value.split(ANSWER_SEPARATOR) if self.is_table else [value]
            if not isinstance(value, list) or not all(isinstance(answer, str) for answer in value):
                raise _wrong_cell(column, "a string or a list of strings", value, where)
            for answer in value:
                _check_whole(column, answer, where)
            found += [answer.strip() for answer in value]
        answers = tuple(dict.fromkeys(answer for answer in found if answer))
        if not answers and name == ANSWERS:
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
    raise CorpusError(
        f"{where}: no column {expression!r}: {near(expression, list(row))}; data.columns of the task's file names it"
    )


def _inside(value: Any, key: str) -> Any:
    """What stands under a key of an object, or under that key of each object of a list."""
    if isinstance(value, list) and value:
        each = [_inside(item, key) for item in value]
        return _ABSENT if _ABSENT in each else each
    return value.get(key, _ABSENT) if isinstance(value, Mapping) else _ABSENT


def _text(task: Task, row: Row, name: str, where: str, *, filled: bool = False) -> str:
    """A field as text; numbers are written out, but not the NaN that stands for an empty cell of a data frame.

    `filled` refuses empty text, which in a file without null stands for nothing.
    """
    column = task.data.columns.get(name, name)
    value = _cell(row, column, where)
    is_finite = not isinstance(value, float) or math.isfinite(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and is_finite:
        return str(value)
    if isinstance(value, str) and (value or not filled):
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
        raise _wrong_cell(column, "complete characters, no half of one (\\ud800 to \\udfff)", text, where)


def _label(task: Task, row: Row, where: str) -> int:
    """Number of the row's label in the task's order."""
    column = task.data.columns.get("label", "label")
    value = _cell(row, column, where)
    for number, label in enumerate(task.labels):
        if str(label.value) == str(value):  # a CSV file has 0 as "0"
            return number
    labels = ", ".join(repr(label.value) for label in task.labels)
    raise CorpusError(f"{where}: {column!r} must be one of the labels of {task.name}, {labels}, got {value!r}")


def _wrong_cell(column: str, expected: str, value: object, where: str) -> CorpusError:
    return CorpusError(f"{where}: {column!r} must be {expected}, got {repr(value)[:_SHOWN_CHARS]}")


LONGEST_ANSWER_GROUP = 4
"""Answers of this many tokens or more are one group, as in the paper."""
_FITTED_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class TaskExamples:
    """The examples of a split in the order of the file, and what a reader of results should know of them."""

    examples: list[Example]
    subsets: tuple[str, ...] = ()
    """Those of the task's subsets that its data has columns for."""
    notes: tuple[str, ...] = ()


def read_task(
    task: Task,
    data_dir: Path | None = None,
    *,
    split: Split = Split.test,
    limit: int | None = None,
    seed: int = 0,
    encoder: Encoder | None = None,
    cut: bool = True,
    date: str = "",
    conditions: Sequence[str] = (),
) -> TaskExamples:
    """The examples of a split in the order of the file, at most `limit` of them.

    The file lies beside the task's own file or under `data_dir`; without it the hub is asked. A sample is drawn
    as in the paper (Min et al. 2022, §4): the first `limit` of `RandomState(seed).permutation(n)`, of each group first
    where the task bounds groups. The file is read twice, so that only chosen rows are held in memory. With an encoder
    prompts are as long as it takes at most, unless `cut` is False; without one they are whole. `date` is the one of
    the task's dates that is asked about, and `conditions` on documents hold beside the task's own. Raises
    CorpusError for data that does not fit the task.
    """
    checked(limit, PositiveInt | None, "limit")
    path = find_data(task, data_dir, split=split)
    rows, place, notes = placed_rows(task, path, date=date, not_found=not_found(task, data_dir, split))
    reader = RowReader(
        task,
        parse_template(task.template, where=task.name),
        is_table=path is not None and format_suffix(path) in SEPARATORS,
        conditions=(*task.where, *conditions),
    )
    lacking: set[str] = set()  # subsets that some row has no column for

    def all_asked() -> Iterator[Asked]:
        for number, (where, row) in enumerate(rows()):
            lacking.update(name for name, column in task.subsets.items() if column not in row)
            yield reader.read(row, name=str(number), where=where)

    facts = _facts(task, all_asked())
    chosen = _chosen_rows(task, facts, place=place, split=split, limit=limit, seed=seed, encoder=encoder)
    wanted = np.zeros(len(facts.labels), dtype=bool)  # [n]
    wanted[chosen] = True
    asked = (each for each, is_wanted in zip(all_asked(), wanted, strict=True) if is_wanted)
    examples: list[Example] = []
    while batch := list(islice(asked, _FITTED_AT_ONCE)):
        examples += _fitted(reader, batch, encoder if cut else None)
    if lacking:
        notes = (*notes, f"{task.name}: the data does not say which examples are {', '.join(sorted(lacking))}.")
    return TaskExamples(examples, tuple(name for name in task.subsets if name not in lacking), notes)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a sample is drawn by, for every row of the file."""

    labels: np.ndarray  # i64 [n], -1 in open tasks
    groups: np.ndarray  # i64 [n], numbers of the groups in the order in which they first come
    answers: list[tuple[str, ...]]  # [n], kept only where samples are drawn by their lengths


def _facts(task: Task, asked: Iterable[Asked]) -> _Facts:
    labels, groups = array("q"), array("q")
    answers: list[tuple[str, ...]] = []
    group_numbers: dict[str, int] = {}
    for each in asked:
        labels.append(each.example.label)
        groups.append(group_numbers.setdefault(each.example.group, len(group_numbers)))
        if task.macro is Macro.answer_tokens and task.examples_per_group is not None:
            answers.append(each.example.answers)
    return _Facts(np.array(labels, dtype=np.int64), np.array(groups, dtype=np.int64), answers)


def _chosen_rows(
    task: Task, facts: _Facts, *, place: str, split: Split, limit: int | None, seed: int, encoder: Encoder | None
) -> np.ndarray:
    """Numbers i64 [m] of the rows of a split that are asked, ascending."""
    of_split = _split_rows(task, facts.groups, split)  # i64 [rows of the split]
    if len(of_split) == 0:
        raise CorpusError(f"{place}: the {split.value} set of {task.name} is empty")
    _check_classes(task, facts.labels[of_split], place, fix="check data.columns.label")
    of_all = len(of_split)
    if task.examples_per_group is not None:
        groups = facts.groups  # i64 [n]
        if task.macro is Macro.answer_tokens:
            if encoder is None:
                raise CorpusError(f"{task.name} samples by the tokens of answers: give encoder= or index=")
            groups = answer_groups(encoder, facts.answers)  # i64 [n]
        own = groups[of_split]  # i64 [rows of the split]
        kept = [_sample(of_split[own == group], task.examples_per_group, seed) for group in np.unique(own)]
        of_split = np.sort(np.concatenate(kept))  # i64 [at most examples_per_group a group]
    chosen = np.sort(_sample(of_split, limit, seed))  # i64 [m]
    if len(chosen) < of_all:
        _check_classes(task, facts.labels[chosen], f"the sample of {place}", fix="raise limit or change seed")
    return chosen


def _sample(rows: np.ndarray, limit: int | None, seed: int) -> np.ndarray:
    """The first `limit` of a random order of `rows` i64 [n]; the published samples come from this generator."""
    if limit is None or limit >= len(rows):
        return rows
    return rows[np.random.RandomState(seed).permutation(len(rows))[:limit]]  # i64 [limit]


def _split_rows(task: Task, groups: np.ndarray, split: Split) -> np.ndarray:
    """Rows i64 [m] of a split: with `first_half` the first ⌊n/2⌋ of each group are for development."""
    if task.data.development is Development.none:
        return np.arange(len(groups))  # i64 [n]
    order = np.argsort(groups, kind="stable")  # i64 [n], by group, each in the order of the file
    sizes = np.bincount(groups)  # i64 [groups]
    firsts = np.cumsum(sizes) - sizes  # i64 [groups]
    places = np.empty(len(groups), dtype=np.int64)  # [n], within the group
    places[order] = np.arange(len(groups)) - np.repeat(firsts, sizes)
    is_development = places < sizes[groups] // 2  # bool [n]
    return np.flatnonzero(is_development if split is Split.dev else ~is_development)  # i64 [m]


def answer_groups(encoder: Encoder, answers: Sequence[Sequence[str]]) -> np.ndarray:
    """Tokens of the shortest answer of each example, 4 standing for more: i64 [n] (Min et al. 2022, §4.3).

    Words where tokens are bytes.
    """
    flat = [answer for own in answers for answer in own]
    counts = [len(words_of(answer)) for answer in flat] if encoder.spells_bytes else answer_tokens(encoder, flat)
    firsts = np.cumsum([0, *(len(own) for own in answers)])[:-1]  # i64 [n]
    shortest = np.minimum.reduceat(np.array(counts, dtype=np.int64), firsts)  # i64 [n]
    return np.minimum(shortest, LONGEST_ANSWER_GROUP)  # i64 [n]


def _check_classes(task: Task, labels: np.ndarray, place: str, *, fix: str) -> None:
    """Refuse closed examples that all have one label, on which every accuracy is meaningless."""
    present = np.unique(labels)  # i64 [labels that come]
    if task.suite is Suite.closed and len(present) < 2:
        only = task.labels[present[0]]
        raise CorpusError(
            f"{place}: all {len(labels)} examples of {task.name} have the label {only.value!r} ({only.name}); {fix}"
        )


def _fitted(reader: RowReader, asked: Sequence[Asked], encoder: Encoder | None) -> list[Example]:
    """Examples whose prompts fit the encoder; without an encoder all as they are."""
    task, template = reader.task, reader.template
    plain = [reader.marked(each.example, each.values) for each in asked]
    if encoder is None or not asked:
        return plain
    most_tokens = task.max_prompt_tokens or encoder.max_input_tokens
    if most_tokens > encoder.max_input_tokens:
        raise CorpusError(
            f"max_prompt_tokens of {task.name} must be at most {encoder.max_input_tokens} for this encoder, "
            f"got {most_tokens}"
        )
    counts = prompt_tokens(encoder, [example.text for example in plain])
    examples: list[Example] = []
    for each, example, count in zip(asked, plain, counts, strict=True):
        if count > most_tokens:
            cut = None
            if task.too_long is not TooLong.refuse:
                render = partial(template.fill, answers=example.answers)
                cut = cut_values(encoder, each.values, render, most_tokens=most_tokens, keep=task.too_long)
            if cut is None:
                raise CorpusError(
                    f"{each.where}: the prompt has {count} tokens, at most {most_tokens} are allowed; shorten it, or "
                    "cut it with too_long: keep_start or keep_end in the task's file"
                )
            examples.append(reader.marked(replace(example, text=render(cut), cut=True), cut))
        else:
            examples.append(example)
    return examples
