"""Conditions on the documents that may answer an example, such as `date<={date}`, filled from the example's row."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any

from npm.core.errors import CorpusError, SettingError
from npm.core.types import Answer, Progress
from npm.corpus.conditions import NUMBER, OPERATOR, ORDERS, parse_conditions
from npm.indexing.phrase_index import NoDocumentError, PhraseIndex, select

if TYPE_CHECKING:
    from npm.evaluation.tasks import Example, Task

FIELD = re.compile(r"\{(\w+)\}")
"""Part of a condition that is filled from an example's row."""
NO_DOCUMENT = "no document of the index meets the conditions of this example"


def is_templated(condition: str) -> bool:
    """Return True if a condition takes something from each example.

    >>> is_templated("date<={date}"), is_templated("lang=en")
    (True, False)
    """
    return FIELD.search(condition) is not None


def check_conditions(conditions: Sequence[str], *, where: str) -> None:
    """Raise SettingError, which names the setting `where`, for what is no condition once it is filled."""
    for condition in conditions:
        filled = FIELD.sub("0", condition)
        if re.search(r"[{}]", filled):
            raise SettingError(f"{where}: invalid braces in {condition!r}, expected such as {{column}}")
        try:
            parse_conditions([filled])
        except SettingError as error:
            raise SettingError(f"{where}: invalid condition {condition!r}, expected such as date<={{date}}") from error


def filled_conditions(conditions: Sequence[str], cell: Callable[[str], Any], *, where: str) -> tuple[str, ...]:
    """`conditions` with the values of a row in their fields, which `cell` looks up; `where` names the row in messages.

    A number or ISO date is compared as such, other text only by = and !=. Raises CorpusError for anything else.
    """

    def operand(name: str, condition: str) -> str:
        value = cell(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if is_number or (isinstance(value, str) and (NUMBER.fullmatch(value) or is_iso_date(value))):
            return str(value)
        found = OPERATOR.search(condition)
        if isinstance(value, str) and not (found and found[0] in ORDERS):
            return json.dumps(value, ensure_ascii=False)
        raise CorpusError(f"{where}: {name!r} must be a number or an ISO date for {condition}, got {value!r:.80}")

    return tuple(
        FIELD.sub(lambda name, own=condition: operand(name[1], own), condition)  # type: ignore[misc]
        for condition in conditions
    )


def is_iso_date(text: str) -> bool:
    """Return True for a year, a month or a day as ISO 8601 writes it with hyphens.

    >>> [is_iso_date(text) for text in ("2019", "2019-02", "2019-02-28", "2019-02-30", "May 2019", "20190228")]
    [True, True, True, False, False, False]
    """
    if not re.fullmatch(r"\d{4}(-\d{2}){0,2}", text):
        return False
    try:
        date.fromisoformat(text + "-01" * ((10 - len(text)) // 3))
    except ValueError:
        return False
    return True


def examples_by_condition(examples: Sequence[Example]) -> dict[tuple[str, ...], list[int]]:
    """The indices of the examples that are answered under the same conditions."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, example in enumerate(examples):
        groups.setdefault(example.where, []).append(number)
    return groups


def answered(
    task: Task,
    examples: Sequence[Example],
    parts: Iterable[tuple[PhraseIndex | None, list[int]]],
    answer: Callable[[PhraseIndex, list[Example]], Iterable[Answer]],
    progress: Progress,
    *,
    at_once: int = 1,
) -> list[Answer]:
    """The answers to all examples in their order; without phrases to those that no document may answer.

    `parts` are those of `admissible_parts`, and `answer` answers some examples from a part.
    """
    found: dict[int, Answer] = {}
    for part, numbers in parts:
        for first in range(0, len(numbers), at_once):
            batch = numbers[first : first + at_once]
            own = [examples[number] for number in batch]
            none = (Answer(example.text, (), notes=(NO_DOCUMENT,)) for example in own)
            found |= zip(batch, none if part is None else answer(part, own), strict=True)
            progress(f"task {task.name}", len(found), len(examples))
    return [found[number] for number in range(len(examples))]


def admissible_parts(
    index: PhraseIndex,
    examples: Sequence[Example],
    *,
    where: Sequence[str] = (),
    documents: Sequence[str] | None = None,
) -> Iterator[tuple[PhraseIndex | None, list[int]]]:
    """`index` with only those documents live that may answer, and the indices of the examples that these are for.

    Those that meet `where`, are among `documents` and meet the examples' own conditions, None if there is none. The
    lexicon and block vectors stay as they are. Raises as `select` does, NoDocumentError for `where` and `documents`
    where examples have no conditions of their own.
    """
    for conditions, numbers in examples_by_condition(examples).items():
        part: PhraseIndex | None = index
        if where or conditions or documents is not None:
            try:
                allowed = select(index, documents, [*where, *conditions])
                part = replace(index, live_blocks=allowed.blocks, live_rows=allowed.rows)
            except NoDocumentError:
                if not conditions:
                    raise
                part = None
        yield part, numbers
