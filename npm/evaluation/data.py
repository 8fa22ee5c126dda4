"""Examples of a task: its rows as prompts with gold, divided into development and test, and sampled.

A row is an object with the columns of the template and `label` or `answers`; `data.columns` names others.
Shapes: n rows of the file, m rows chosen.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from pydantic import PositiveInt

from npm.core.errors import CorpusError, QueryError, near
from npm.core.settings import checked
from npm.core.types import MASK_TEXT, SURROGATE
from npm.corpus.readers import SEPARATORS, Row, read_records
from npm.corpus.sources import HUB_PREFIX, Source, file_source, format_suffix
from npm.corpus.text import words_of
from npm.evaluation.prompts import ENVIRONMENT, answer_tokens, cut_values, filled_conditions, prompt_tokens
from npm.evaluation.tasks import Example, Split, Task
from npm.models.encoder import Encoder
from npm.retrieval.queries import read_query

MAX_ANSWER_TOKENS = 4  # answers of this many tokens or more are one group, as in the paper
FITTED_AT_ONCE = 1024
SHOWN_CHARS = 120
PLAIN_NAME = re.compile(r"[\w -]+")
"""The name of a column, not an expression."""
compiled = lru_cache(ENVIRONMENT.compile_expression)


def find_data(task: Task, data_dir: Path | None, split: Split) -> Source | None:
    """The file with the examples of a split, next to the task's own file or in `data_dir`, or else the hub's data set.

    None where neither is there; no hub is contacted, and there is none where HF_HUB_OFFLINE or
    HF_DATASETS_OFFLINE is set. Raises CorpusError for a task without development data.
    """
    data = task.data
    if split == "dev" and not task.has_development:
        raise CorpusError(f"{task.name} has no development data: add data.development or data.development_file")
    has_own_file = split == "dev" and bool(data.development_file)
    name = data.development_file if has_own_file else data.file
    for folder in (Path(task.folder) if task.folder else None, data_dir):
        if name and folder is not None and (folder / name).is_file():
            return file_source(str(folder / name))
    is_offline = any(
        os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
    )
    if not data.hub or is_offline or has_own_file:
        return None
    return Source(f"{HUB_PREFIX}{data.hub}", data.hub, "hub")


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads rows of a task's data."""

    task: Task
    is_table: bool = False  # true if all cells of the file are strings; one may hold several answers, and none is empty
    conditions: tuple[str, ...] = ()  # on the documents that may answer a row
    remedy: str = ""  # for a column that is missing; empty: the task's columns

    def cell(self, name: str, row: Row, where: str) -> Any:
        """The value of a name of the template: of the column, or of the expression, that data.columns gives it."""
        expression = self.task.data.columns.get(name, name)
        if expression in row:
            return row[expression]
        try:
            found = compiled(expression)(row)
        except jinja2.TemplateError:
            found = None
        except (TypeError, ValueError, ArithmeticError) as error:
            raise CorpusError(
                f"{where}: cannot compute {expression!r}: {error}; cells of a table are texts: {name} | int"
            ) from error
        if found is None:
            remedy = self.remedy or f"set data.columns.{name} of the task"
            raise CorpusError(f"{where}: no column {expression!r}: {near(expression, list(row))}; {remedy}")
        return found

    def text(self, name: str, row: Row, where: str) -> str:
        """A cell as text; numbers are written out, but not the NaN that a data frame writes for an empty cell."""
        value = self.cell(name, row, where)
        if type(value) is int or (type(value) is float and math.isfinite(value)):
            return str(value)
        if not isinstance(value, str) or (self.is_table and not value) or SURROGATE.search(value):
            column = self.task.data.columns.get(name, name)
            raise _wrong_cell(column, "text of complete characters, or a finite number", value, where)
        return value

    def answers(self, name: str, row: Row, where: str) -> tuple[str, ...]:
        """Everything that is, or was, right, each once."""
        value = self.cell(name, row, where)
        if isinstance(value, str):
            value = value.split("|") if self.is_table else [value]
        if not isinstance(value, list) or not all(
            isinstance(each, str) and not SURROGATE.search(each) for each in value
        ):
            raise _wrong_cell(name, "a text of complete characters or a list of them", value, where)
        return tuple(dict.fromkeys(answer.strip() for answer in value if answer.strip()))

    def read(self, row: Row, *, name: str, where: str) -> tuple[Example, dict[str, str]]:
        """One row as the example `name`, checked except for its length, and the fields of its prompt."""
        task, columns = self.task, self.task.data.columns
        values = {field: self.text(field, row, where) for field in task.prompt.fields}
        gold: dict[str, Any] = {}  # and the groups that it is counted by
        if task.suite == "open":
            gold["answers"] = self.answers("answers", row, where)
            if not gold["answers"]:
                raise _wrong_cell("answers", "at least one answer", "", where)
            old = columns.get("old_answers", "old_answers")
            if old in row or not PLAIN_NAME.fullmatch(old):  # some rows may have no such column
                gold["old_answers"] = self.answers("old_answers", row, where)
        else:
            value = self.cell("label", row, where)
            known = [str(each.value) for each in task.labels]  # a CSV file has 0 as "0"
            if str(value) not in known:
                raise _wrong_cell("label", f"one of the labels of {task.name}, {', '.join(known)}", value, where)
            gold["label"] = known.index(str(value))
        gold |= {each: self.text(each, row, where) for each in ("group", "subject") if each in columns}
        try:
            text = task.prompt.render(values, gold.get("answers", ()))
            if text.count(MASK_TEXT) > 1:
                raise ValueError(f"a prompt must have one {MASK_TEXT}, got {text[:SHOWN_CHARS]!r}")
        except (jinja2.TemplateError, ValueError) as error:
            raise CorpusError(f"{where}: {error}") from None
        try:
            text = read_query(text, where=where)
        except QueryError as error:
            raise CorpusError(str(error)) from None
        example = Example(
            name,
            text,
            **gold,
            subsets=tuple(
                each for each, column in task.subsets.items() if str(row.get(column)).lower() in ("true", "1")
            ),
            where=filled_conditions(self.conditions, lambda field: self.cell(field, row, where), where=where),
        )
        return example, values


def _wrong_cell(column: str, expected: str, value: object, where: str) -> CorpusError:
    return CorpusError(f"{where}: {column!r} must be {expected}, got {repr(value)[:SHOWN_CHARS]}")


def read_task(
    task: Task,
    data_dir: Path | None = None,
    *,
    split: Split = "test",
    limit: int | None = None,
    seed: int = 0,
    encoder: Encoder | None = None,
    cut: bool = True,
    conditions: Sequence[str] = (),
) -> list[Example]:
    """The examples of a split in the order of the file, at most `limit` of them.

    A sample is drawn as in the paper (Min et al. 2022, §4): the first `limit` of `RandomState(seed).permutation(n)`, of
    each group first where the task bounds groups. The file is read twice, so that only chosen rows are held in memory.
    With an encoder prompts are as long as it takes at most, unless `cut` is False. `conditions` on documents hold in
    addition to the task's own. Raises CorpusError for data that does not fit the task.
    """
    checked(limit, PositiveInt | None, "limit")
    source = find_data(task, data_dir, split)
    if source is None:
        raise CorpusError(f"the data of {task.name} is missing: {task.data.file}; set data_dir")
    is_table = source.format == "table" and format_suffix(source.file) in SEPARATORS
    reader = RowReader(_of_source(task, source), is_table, (*task.where, *conditions))

    def rows() -> Iterator[tuple[Example, dict[str, str], str]]:
        for number, (line, row) in enumerate(read_records(source)):
            if not task.data.split or row.get(task.data.split) == split:
                yield *reader.read(row, name=str(number), where=f"{source.path}:{line}"), f"{source.path}:{line}"

    by_length = task.macro == "answer_tokens" and task.examples_per_group is not None
    if by_length and encoder is None:
        raise CorpusError(f"{task.name} samples by the tokens of answers: set encoder or index")
    numbers: dict[str, int] = {}  # of the groups, in the order in which they first occur
    seen = [
        (each.label, numbers.setdefault(each.group, len(numbers)), each.answers if by_length else ())
        for each, *_ in rows()
    ]
    labels, groups = np.array([(label, group) for label, group, _ in seen], dtype=np.int64).reshape(-1, 2).T  # i64 [n]
    of_split = _split_rows(task, groups, split)  # i64 [rows of the split]
    if len(of_split) == 0:
        raise CorpusError(f"{source.path}: the {split} set of {task.name} is empty")
    _check_classes(task, labels[of_split], source.path, fix="check data.columns.label")
    chosen = of_split
    if task.examples_per_group is not None:
        if by_length:
            assert encoder is not None, "checked above"
            groups = answer_groups(encoder, [answers for *_, answers in seen])  # i64 [n]
        own = groups[of_split]  # i64 [rows of the split]
        kept = [_sample(of_split[own == group], task.examples_per_group, seed) for group in np.unique(own)]
        chosen = np.sort(np.concatenate(kept))  # i64 [at most examples_per_group per group]
    chosen = np.sort(_sample(chosen, limit, seed))  # i64 [m]
    if len(chosen) < len(of_split):
        _check_classes(task, labels[chosen], f"the sample of {source.path}", fix="raise limit or change seed")
    wanted = np.isin(np.arange(len(seen)), chosen)  # bool [n]
    asked = (each for each, is_wanted in zip(rows(), wanted, strict=True) if is_wanted)
    examples: list[Example] = []
    while batch := list(islice(asked, FITTED_AT_ONCE)):
        examples += _fitted(task, batch, encoder if cut else None)
    return examples


def _of_source(task: Task, source: Source) -> Task:
    """The task with the columns that `source` has."""
    if source.format != "hub":
        return task
    return replace(task, data=replace(task.data, columns=task.data.columns | task.data.hub_columns))


def _sample(rows: np.ndarray, limit: int | None, seed: int) -> np.ndarray:
    """The first `limit` of a random order of `rows` i64 [n]; the published samples come from this generator."""
    if limit is None or limit >= len(rows):
        return rows
    return rows[np.random.RandomState(seed).permutation(len(rows))[:limit]]  # i64 [limit]


def _split_rows(task: Task, groups: np.ndarray, split: Split) -> np.ndarray:
    """Rows i64 [m] of a split: with `first_half` the first ⌊n/2⌋ of each group are for development."""
    if task.data.development == "none":
        return np.arange(len(groups))  # i64 [n]
    order = np.argsort(groups, kind="stable")  # i64 [n], by group, each in the order of the file
    sizes = np.bincount(groups)  # i64 [groups]
    places = np.empty(len(groups), dtype=np.int64)  # [n], within the group
    places[order] = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_development = places < sizes[groups] // 2  # bool [n]
    return np.flatnonzero(is_development if split == "dev" else ~is_development)  # i64 [m]


def answer_groups(encoder: Encoder, answers: Sequence[Sequence[str]]) -> np.ndarray:
    """Tokens of the shortest answer of each example, 4 standing for more: i64 [n] (Min et al. 2022, §4.3).

    Words where tokens are bytes.
    """
    flat = [answer for own in answers for answer in own]
    counts = [len(words_of(answer)) for answer in flat] if encoder.spells_bytes else answer_tokens(encoder, flat)
    firsts = np.cumsum([0, *(len(own) for own in answers)])[:-1]  # i64 [n]
    shortest = np.minimum.reduceat(np.array(counts, dtype=np.int64), firsts)  # i64 [n]
    return np.minimum(shortest, MAX_ANSWER_TOKENS)  # i64 [n]


def _check_classes(task: Task, labels: np.ndarray, place: str, *, fix: str) -> None:
    """Refuse closed examples that all have one label, on which every accuracy is meaningless."""
    present = np.unique(labels)  # i64 [labels that occur]
    if task.suite == "closed" and len(present) < 2:
        name = task.labels[present[0]].name
        raise CorpusError(f"{place}: all {len(labels)} examples of {task.name} have the label {name!r}; {fix}")


def _fitted(task: Task, asked: Sequence[tuple[Example, dict[str, str], str]], encoder: Encoder | None) -> list[Example]:
    """Examples whose prompts fit the encoder; without an encoder all as they are."""
    counts, max_tokens = [0] * len(asked), 0
    if encoder is not None:
        max_tokens = task.max_prompt_tokens or encoder.max_input_tokens
        if max_tokens > encoder.max_input_tokens:
            raise CorpusError(
                f"max_prompt_tokens of {task.name} must be at most {encoder.max_input_tokens}, got {max_tokens}"
            )
        counts = prompt_tokens(encoder, [example.text for example, *_ in asked])
    examples = []
    for (example, values, where), count in zip(asked, counts, strict=True):
        shown = values
        if encoder is not None and count > max_tokens:
            render, keep_start = partial(task.prompt.render, answers=example.answers), task.too_long == "keep_start"
            fitting = None
            if task.too_long != "refuse":
                fitting = cut_values(encoder, values, render, max_tokens=max_tokens, keep_start=keep_start)
            if fitting is None:
                raise CorpusError(
                    f"{where}: the prompt has {count} tokens, at most {max_tokens} are allowed; shorten it, or cut it "
                    "with too_long: keep_start or keep_end in the task's file"
                )
            example, shown = replace(example, text=render(fitting), cut=True), fitting
        passage = task.prompt.longest(shown) if task.suite == "closed" else ""
        is_blank = task.prompt.render(shown) == task.prompt.empty()
        examples.append(replace(example, blank=is_blank, passage=passage))
    return examples
