"""The examples of a task: its rows as prompts with gold, divided into development and test, and sampled.

Shapes: n rows of the file, m rows chosen.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from index.files import sha256_of_file
from npm.errors import CorpusError, check_range
from npm.evaluation.examples import Example
from npm.evaluation.prompts import Template, answer_tokens, cut_values, parse_template, prompt_tokens
from npm.evaluation.questions import Split
from npm.evaluation.table_rows import SEPARATORS, Row, TaskDataError, read_hub_rows, read_rows
from npm.evaluation.task import Development, Macro, Suite, Task, TooLong
from npm.evaluation.task_rows import Asked, RowReader

if TYPE_CHECKING:
    from npm.models.encoder import Encoder

LONGEST_ANSWER_GROUP = 4
"""Answers of so many tokens or more are one group, as in the paper."""
_FITTED_AT_ONCE = 1024


def find_data(task: Task, data_dir: Path | None, *, split: Split) -> Path | None:
    """The file with the examples of a split; None where there is none at hand and a hub data set is named.

    Raises TaskDataError if there is neither, or no development data.
    """
    data = task.data
    in_file_of_its_own = split is Split.dev and bool(data.development_file)
    if split is Split.dev and not in_file_of_its_own and data.development is Development.none:
        raise TaskDataError(
            f"{task.name} has no development data",
            expected="data.development: first_half, or data.development_file, in the task's file",
            got="neither",
            where=f"split={split.value}",
            fix="add one of them, or ask for split=test",
        )
    name = data.development_file if in_file_of_its_own else data.file
    path = (data_dir or Path()) / name  # an absolute name, of a file beside the task's own, stays as it is
    if name and (data_dir is not None or path.is_absolute()) and path.is_file():
        return path
    if data.hub and not in_file_of_its_own:
        return None
    raise TaskDataError(
        f"the data of {task.name} is not there",
        expected=f"the file {name} under data_dir=, or beside the task's own file",
        got="no data_dir=" if data_dir is None else f"no file {path}",
        where=f"data.file of {task.name}",
        fix="give data_dir=DIR, the folder that holds it",
    )


def data_sha256(task: Task, data_dir: Path | None, *, split: Split) -> str:
    """SHA-256 of the file that `find_data` finds; "" for a hub data set, which has no file of its own."""
    path = find_data(task, data_dir, split=split)
    return sha256_of_file(path) if path is not None else ""


def read_examples(
    task: Task,
    data_dir: Path | None = None,
    *,
    split: Split = Split.test,
    limit: int | None = None,
    seed: int = 0,
    encoder: Encoder | None = None,
) -> list[Example]:
    """The examples of a split in the order of the file, at most `limit` of them.

    The file lies beside the task's own file or under `data_dir`; without it the hub is asked. A sample is drawn
    as in the paper (Min et al. 2022, §4): the first `limit` of `RandomState(seed).permutation(n)`, of each group first
    where the task bounds groups. The file is read twice, so that only chosen rows are held in memory. With an encoder
    prompts are as long as it takes at most; without one they are whole. Raises TaskDataError for data that does not
    fit the task.
    """
    check_range(limit is None or limit >= 1, "limit", expected="at least 1, or null for all", got=limit)
    path = find_data(task, data_dir, split=split)
    rows = partial(read_rows, path) if path is not None else partial(_hub_rows, task)
    place = str(path) if path is not None else f"hub:{task.data.hub}"
    template = parse_template(task.template, where=task.name)
    reader = RowReader(task, template, splits_answers=path is not None and path.suffix in SEPARATORS)

    def all_asked() -> Iterator[Asked]:
        for number, (line, row) in enumerate(rows()):
            yield reader.read(row, name=str(number), where=f"{place}:{line}")

    facts = _facts(task, all_asked())
    chosen = _chosen_rows(task, facts, place=place, split=split, limit=limit, seed=seed, encoder=encoder)
    wanted = np.zeros(len(facts.labels), dtype=bool)  # [n]
    wanted[chosen] = True
    asked = (each for each, is_wanted in zip(all_asked(), wanted, strict=True) if is_wanted)
    examples: list[Example] = []
    while batch := list(islice(asked, _FITTED_AT_ONCE)):
        examples += _fitted(task, template, batch, encoder)
    return examples


def _hub_rows(task: Task) -> Iterator[tuple[int, Row]]:
    data = task.data
    try:
        yield from read_hub_rows(data.hub, data.config, data.split)
    except CorpusError as error:
        raise TaskDataError(
            f"the data of {task.name} is neither at hand nor on the hub",
            expected=f"the file {data.file} under data_dir=, or the hub data set {data.hub}",
            got=error.got,
            where=error.where,
            fix=f"give data_dir=DIR, the folder that holds {data.file}",
        ) from error


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
    _check_gold(task, facts.labels[of_split], place, split)
    if task.examples_per_group is not None:
        by_length = task.macro is Macro.answer_tokens
        groups = answer_groups(_needed(encoder, task), facts.answers) if by_length else facts.groups  # i64 [n]
        own = groups[of_split]  # i64 [rows of the split]
        kept = [_sample(of_split[own == group], task.examples_per_group, seed) for group in np.unique(own)]
        of_split = np.sort(np.concatenate(kept))  # i64 [at most examples_per_group a group]
    return np.sort(_sample(of_split, limit, seed))  # i64 [m]


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
    """Tokens of the shortest answer of each example, 4 standing for more: i64 [n] (Min et al. 2022, §4.3)."""
    counts = answer_tokens(encoder, [answer for own in answers for answer in own])
    firsts = np.cumsum([0, *(len(own) for own in answers)])[:-1]  # i64 [n]
    shortest = np.minimum.reduceat(np.array(counts, dtype=np.int64), firsts)  # i64 [n]
    return np.minimum(shortest, LONGEST_ANSWER_GROUP)  # i64 [n]


def _needed(encoder: Encoder | None, task: Task) -> Encoder:
    if encoder is None:
        raise TaskDataError(
            f"{task.name} samples by the number of tokens of an answer",
            expected="an encoder, whose tokenizer counts them",
            got="none",
            where="encoder",
            fix="give encoder= or an index",
        )
    return encoder


def _check_gold(task: Task, labels: np.ndarray, place: str, split: Split) -> None:
    """Refuse data without examples, and closed data with one class, on which every accuracy is meaningless."""
    present = np.unique(labels)  # i64 [labels that come]
    if len(labels) == 0:
        raise TaskDataError(
            f"the {split.value} set of {task.name} is empty",
            expected="at least one example",
            got="no rows",
            where=place,
            fix="check the file, or name another with data.file",
        )
    if task.suite is Suite.closed and len(present) < 2:
        only = task.labels[present[0]]
        raise TaskDataError(
            f"all examples of {task.name} have one label",
            expected=f"examples of at least two of the labels {', '.join(label.name for label in task.labels)}",
            got=f"{len(labels)} examples with the label {only.value!r} ({only.name})",
            where=place,
            fix="check data.columns.label and the file: whoever answers the same every time would be always right",
        )


def _fitted(task: Task, template: Template, asked: Sequence[Asked], encoder: Encoder | None) -> list[Example]:
    """Examples whose prompts the encoder takes whole; without an encoder all as they are."""
    if encoder is None or not asked:
        return [each.example for each in asked]
    most_tokens = min(encoder.max_input_tokens, task.max_prompt_tokens or encoder.max_input_tokens)
    counts = prompt_tokens(encoder, [each.example.text for each in asked])
    examples: list[Example] = []
    for each, count in zip(asked, counts, strict=True):
        example = each.example
        if count > most_tokens:
            cut = None
            if task.too_long is not TooLong.refuse:
                render = partial(template.fill, answers=example.answers)
                cut = cut_values(encoder, each.values, render, most_tokens=most_tokens, keep=task.too_long)
            if cut is None:
                raise _too_long(task, count, most_tokens, each.where)
            example = replace(example, text=render(cut), cut=True)
        examples.append(example)
    return examples


def _too_long(task: Task, count: int, most_tokens: int, where: str) -> TaskDataError:
    return TaskDataError(
        "an example is too long",
        expected=f"a prompt of at most {most_tokens} tokens",
        got=f"{count} tokens with too_long: {task.too_long.value}",
        where=where,
        fix="write too_long: keep_start or keep_end in the task's file, which cuts the longest field, or shorten it",
    )
