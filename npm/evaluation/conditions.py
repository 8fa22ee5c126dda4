"""Conditions on the documents that may answer an example, such as `date<={date}`, filled from the example's row."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from npm.core.errors import CorpusError, SettingError
from npm.corpus.conditions import NUMBER, OPERATOR, ORDERS, parse_conditions

FIELD = re.compile(r"\{(\w+)\}")
"""Part of a condition that is filled from an example's row."""
ISO_DATE = re.compile(r"\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?")
"""A year, a month or a day as ISO 8601 writes it with hyphens."""


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
        if is_number or (isinstance(value, str) and (NUMBER.fullmatch(value) or ISO_DATE.fullmatch(value))):
            return str(value)
        found = OPERATOR.search(condition)
        if isinstance(value, str) and not (found and found[0] in ORDERS):
            return json.dumps(value, ensure_ascii=False)
        raise CorpusError(f"{where}: {name!r} must be a number or an ISO date for {condition}, got {value!r:.80}")

    return tuple(
        FIELD.sub(lambda name, own=condition: operand(name[1], own), condition)  # type: ignore[misc]
        for condition in conditions
    )
