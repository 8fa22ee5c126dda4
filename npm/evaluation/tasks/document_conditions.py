"""Conditions on the documents that may answer an example, such as `date<={date}`, filled from the example's row."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any

from npm.core.errors import CorpusError, SettingError
from npm.corpus.conditions import NUMBER, OPERATOR, ORDERS, parse_conditions
from npm.indexing.phrase_index import NoDocumentError, PhraseIndex, select

if TYPE_CHECKING:
    from npm.evaluation.tasks.task import Example

FIELD = re.compile(r"\{(\w+)\}")
"""What of a condition is filled from an example's row."""
NO_DOCUMENT = "no document of the index meets the conditions of this example"


def is_templated(condition: str) -> bool:
    """Whether a condition takes something from each example.

    >>> is_templated("date<={date}"), is_templated("lang=en")
    (True, False)
    """
    return FIELD.search(condition) is not None


def check_conditions(conditions: Sequence[str], *, where: str) -> None:
    """Refuse what is no condition once it is filled; raises SettingError that names the place `where`."""
    for condition in conditions:
        if re.search(r"[{}]", FIELD.sub("", condition)):
            raise SettingError(f"{where}: invalid braces in {condition!r}, expected such as {{column}}")
        try:
            parse_conditions([FIELD.sub("0", condition)])
        except SettingError as error:
            raise SettingError(f"{where}: invalid condition {condition!r}, expected such as date<={{date}}") from error


def filled_conditions(conditions: Sequence[str], cell: Callable[[str], Any], *, where: str) -> tuple[str, ...]:
    """`conditions` with what a row has in their fields, which `cell` looks up; `where` names the row in messages.

    A number or ISO date is compared as such, other text only by = and !=. Raises CorpusError for anything else.
    """
    return tuple(
        FIELD.sub(lambda name, own=condition: _operand(own, name[1], cell(name[1]), where), condition)  # type: ignore[misc]
        for condition in conditions
    )


def _operand(condition: str, name: str, value: Any, where: str) -> str:
    """What stands for the field `name` in a condition."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if is_number or (isinstance(value, str) and (NUMBER.fullmatch(value) or is_iso_date(value))):
        return str(value)
    found = OPERATOR.search(condition)
    ordered = found is not None and found[0] in ORDERS
    if isinstance(value, str) and not ordered:
        return json.dumps(value, ensure_ascii=False)
    raise CorpusError(
        f"{where}: {name!r} must be {'a number or an ISO date' if ordered else 'text or a number'} for the condition "
        f"{condition}, got {value!r:.80}"
    )


def is_iso_date(text: str) -> bool:
    """Whether `text` is a year, a month or a day as ISO 8601 writes it with hyphens.

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
    """The places of the examples that are answered under the same conditions."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, example in enumerate(examples):
        groups.setdefault(example.where, []).append(place)
    return groups


def admissible_parts(
    index: PhraseIndex,
    examples: Sequence[Example],
    *,
    where: Sequence[str] = (),
    documents: Sequence[str] | None = None,
) -> Iterator[tuple[PhraseIndex | None, list[int]]]:
    """`index` as if only the documents that may answer were live, and the places of the examples that these are for.

    Those that meet `where`, are among `documents` and meet the examples' own conditions, None if there is none. The
    lexicon and block vectors stay as they are. Raises as `select` does, NoDocumentError for `where` and `documents`
    where examples have no conditions of their own.
    """
    for conditions, places in examples_by_condition(examples).items():
        part: PhraseIndex | None = index
        if where or conditions or documents is not None:
            try:
                allowed = select(index, documents, [*where, *conditions])
                part = replace(index, live_blocks=allowed.blocks, live_rows=allowed.rows)
            except NoDocumentError:
                if not conditions:
                    raise
                part = None
        yield part, places
