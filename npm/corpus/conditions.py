"""Conditions on the kept fields of documents, such as `lang=en` or `year>=1990`: which documents a search may use.

A condition is tried once on each distinct value of a shard, then taken to the documents by their codes.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.core.errors import SettingError

if TYPE_CHECKING:
    from npm.corpus.store import BlockStore

EXAMPLES = 'a condition such as lang=en, year>=1990, kind!=stub, topic in [history, "arts, crafts"]'
OPERATOR = re.compile(r"==|!=|>=|<=|=|>|<|(?<=\s)in(?=\s*\[)")
NUMBER = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
MAX_INTEGER_CHARS = 4000
"""Python reads no longer ones; they are compared as floats."""
SEVERAL = re.compile(r"\s(?:and|or|AND|OR)\s.*[=<>]")
"""Pattern of a second condition within the operand of the first."""
LISTED = re.compile(r'\s*("(?:[^"\\]|\\.)*"\s*|[^,"\[\]]+)(?:,|\Z)', re.S)


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    **{"=": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt},
    "in": operator.eq,
}
ORDERS = (">=", "<=", ">", "<")


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of one field with one operand, or with one of several.

    An operand is a text and the number that it denotes, None if it is not a number or was quoted.
    """

    field: str
    operator: str  # of COMPARISONS
    operands: tuple[tuple[str, int | float | None], ...]

    def accepts(self, value: Any) -> bool:
        """Return True if the condition holds for a JSON value, or for an element of a list; never for null.

        Two numbers compare as numbers, all else as text in the order of code points: a string unchanged, another
        value as its JSON text. More or less than a number is only a number, or a string that is one.

        >>> [condition] = parse_conditions(["year >= 1990"])
        >>> [condition.accepts(value) for value in (1990, 1989.5, [1800, 2000], None, [])]
        [True, False, True, False, False]
        """
        if isinstance(value, list):
            return any(map(self._accepts_one, value))
        return self._accepts_one(value)

    def _accepts_one(self, value: Any) -> bool:
        if value is None:
            return False
        compare = COMPARISONS[self.operator]
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
        for wanted, wanted_number in self.operands:
            if wanted_number is not None and number is None and self.operator in ORDERS:
                read = _number(value.strip()) if isinstance(value, str) else None
                accepted = read is not None and compare(read, wanted_number)
            elif wanted_number is not None and number is not None:
                accepted = compare(number, wanted_number)
            else:
                accepted = compare(text, wanted)
            if accepted:
                return True
        return False


def parse_conditions(where: Sequence[str]) -> list[Condition]:
    """The conditions written in `where`: FIELD OPERATOR VALUE each, or FIELD in [VALUE, …].

    The operators are = (or ==), !=, >=, <=, > and <. A value in double quotes is a JSON string, compared as text.
    Raises SettingError for text that is not a condition.

    >>> parse_conditions(["topic in [history, 7]"])
    [Condition(field='topic', operator='in', operands=(('history', None), ('7', 7)))]
    """
    return [_parse(text) for text in where]


def matching_documents(store: BlockStore, conditions: Sequence[Condition]) -> np.ndarray:
    """Mask bool [documents] of those that meet all the conditions; a missing field meets none, not even !=.

    Raises SettingError for a field that no document of the store keeps.
    """
    matching = np.ones(store.document_count, dtype=bool)  # [documents]
    if not conditions:
        return matching
    kept: set[str] = set()
    for documents, columns in store.field_columns():
        kept.update(columns)
        for condition in conditions:
            values, codes = columns.get(condition.field, ([], None))
            if codes is None:
                matching[documents] = False
                continue
            accepted = np.array([*map(condition.accepts, values), False])  # [values + 1], the last for code -1
            matching[documents] &= accepted[codes]  # [documents of the shard]
    if unknown := sorted({condition.field for condition in conditions} - kept):
        names, present = ", ".join(unknown), sorted(kept)
        raise SettingError(
            f"where: no document has a kept field {names}, only {', '.join(present) or 'none'}: name another, or build "
            f"again with corpus.kept_fields=[{','.join([*present, *unknown])}]",
            code="no_such_field",
        )
    return matching


def _parse(text: str) -> Condition:
    def refused(expected: str) -> SettingError:
        return SettingError(
            f"where: {text!r} is not a condition on documents: expected {expected}", code="invalid_condition"
        )

    def operand(value: str) -> tuple[str, int | float | None]:
        if value.startswith('"'):
            try:
                return json.loads(value), None
            except ValueError:
                raise refused(f"a JSON string instead of {value}") from None
        if SEVERAL.search(value):
            raise refused("one comparison; several as where=[…, …], or the value in double quotes")
        return value, _number(value)

    found = OPERATOR.search(text)
    field, rest = (text[: found.start()].strip(), text[found.end() :].strip()) if found else ("", "")
    if found is None or not field or not rest or field.startswith(("[", '"')):
        raise refused(EXAMPLES)
    if found[0] != "in":
        if rest[0] in "=<>":  # as in year=>1990, which would compare with the text ">1990"
            operators = ", ".join(COMPARISONS)
            raise refused(f"one of {operators} instead of {found[0] + rest[0]}, or the value in double quotes")
        return Condition(field, "=" if found[0] == "==" else found[0], (operand(rest),))
    inner, place, values = rest[1:-1], 0, []
    if not rest.endswith("]") or not inner.strip():
        raise refused("a list of values in brackets, such as topic in [history, arts]")
    while place < len(inner):
        listed = LISTED.match(inner, place)
        if listed is None or not listed[1].strip():
            raise refused("values between commas; one that holds , [ ] or a quote in double quotes")
        values.append(operand(listed[1].strip()))
        place = listed.end()
    return Condition(field, "in", tuple(values))


def _number(text: str) -> int | float | None:
    """The number that a text denotes; None if it is not a number."""
    if NUMBER.fullmatch(text) is None:
        return None
    is_whole = text.lstrip("+-").isdigit() and len(text) <= MAX_INTEGER_CHARS
    return int(text) if is_whole else float(text)
