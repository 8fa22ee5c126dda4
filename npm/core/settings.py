"""Settings as dataclasses: bounds beside the fields, what a manifest records of them, what must not differ, shards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from math import inf
from operator import attrgetter
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from index.settings import take_typed
from npm.core.errors import ArtifactError, SettingError, check_range, near, put_under

Settings = TypeVar("Settings")
Item = TypeVar("Item")
PathText = Annotated[str, "path"]
"""A setting that names a file, a folder, or an encoder: `~` is expanded, and hydra's grammar never reads it."""
PathList = Annotated[list[str], "path"]
"""Several of them."""
LIST_ENTRY = re.compile(
    r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^,\s'"](?:\[[^\[\]]*\]|[^,])*?|))\s*(?:,|$)"""
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which numbers a setting may be: `Annotated[int | None, Bounds(1)]`. None may always; of a list each entry counts.

    >>> Bounds(1).expected, Bounds(above=0).expected, Bounds(0, below=1).expected, Bounds(above=0, most=1).expected
    ('at least 1', 'above 0', 'at least 0 and below 1', 'above 0 and at most 1')
    >>> Bounds(0, below=1).hold(1.0), Bounds(0).hold(float("nan"))
    (False, False)
    """

    least: float = -inf
    most: float = inf
    above: float = -inf
    below: float = inf

    @property
    def expected(self) -> str:
        """The bounds in words."""
        words = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        return " and ".join(f"{word} {value}" for word, value in words.items() if abs(value) != inf)

    def hold(self, value: float) -> bool:
        """Whether `value` is within the bounds; NaN and the infinities never are."""
        return self.least <= value <= self.most and -inf < value < inf and self.above < value < self.below


class CheckedSettings:
    """A settings dataclass whose values are checked against its annotations, types and bounds, when it is made.

    A member of an enumeration may be given by its value. A subclass that has more to check, such as settings that
    contradict each other, does so in `check`. Refusals name the settings by their keys within the class; the command
    line puts the group they stand in before them.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        take_typed(self)
        for name, bounds in bounds_of(type(self)).items():  # type: ignore[arg-type] # mypy finds classes unhashable
            value = getattr(self, name)
            for number in value if isinstance(value, (list, tuple)) else [value]:
                check_range(number is None or bounds.hold(number), name, expected=bounds.expected, got=value)
        self.check()

    def check(self) -> None:
        """Raise SettingError for settings that do not fit together. Default: any do."""


@cache
def bounds_of(kind: type) -> dict[str, Bounds]:
    """The bounds of the fields of a settings class."""
    hints = get_type_hints(kind, include_extras=True)
    marks = {name: get_args(hint)[1:] for name, hint in hints.items() if get_origin(hint) is Annotated}
    return {name: mark for name, own in marks.items() for mark in own if isinstance(mark, Bounds)}


def changed_settings(settings: Any, default: Any, names: Iterable[str]) -> list[str]:
    """Full keys of the settings under the dotted `names` that differ between two dataclasses of one class."""
    return [key for name in names for key in _changed(name, attrgetter(name)(settings), attrgetter(name)(default))]


def _changed(key: str, value: Any, default: Any) -> Iterator[str]:
    if is_dataclass(value):
        for item in fields(value):
            yield from _changed(f"{key}.{item.name}", getattr(value, item.name), getattr(default, item.name))
    elif value != default:
        yield key


def settings_from(kind: type[Settings], recorded: Mapping[str, Any], absent: Mapping[str, Any] = {}) -> Settings:
    """The settings of class `kind` that a manifest recorded; raises ArtifactError for any that are not of its kind.

    `absent` has the values of settings that a manifest may lack, because they came later.

    >>> from dataclasses import asdict
    >>> from npm.corpus.documents import CorpusSettings
    >>> settings_from(CorpusSettings, {**asdict(CorpusSettings()), "split": "line"}).split
    <DocumentSplit.line: 'line'>
    """
    try:
        names = [item.name for item in fields(kind)]  # type: ignore[arg-type]
        return kind(
            **{name: absent[name] if name in absent.keys() - recorded.keys() else recorded[name] for name in names}
        )
    except SettingError as error:
        file = str(getattr(recorded, "file", "a manifest"))
        raise ArtifactError(
            f"{file} records invalid settings ({error}): fetch the index again, or build it again"
        ) from error


def settings_given(kind: type[Settings], given: Mapping[str, Any]) -> Settings:
    """Settings of class `kind` from values by key, as the command line has them: groups as mappings, or dotted keys.

    Raises SettingError, with full keys, for an unknown key, one given twice, or a value that does not fit.

    >>> from npm.retrieval.settings import FillSettings
    >>> settings = settings_given(FillSettings, {"k": 3, "scoring.temperature": 2, "scoring": {"combination": "sum"}})
    >>> settings.k, settings.scoring.temperature, settings.scoring.combination.value
    (3, 2.0, 'sum')
    """
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for key, value in given.items():
        name, dot, rest = key.partition(".")
        is_group = is_dataclass(hints.get(name))
        if name not in hints or (dot and not is_group):
            fix = near(key, hints)
            raise SettingError(f"unknown setting {key}", expected="a declared setting", got=key, where=key, fix=fix)
        inner = {rest: value} if dot else value
        if not is_group or not isinstance(inner, Mapping):
            values[name] = value
        elif twice := groups.setdefault(name, {}).keys() & inner.keys():
            full = f"{name}.{min(twice)}"
            fix = "leave one of them out"
            raise SettingError(f"{full} is given twice", expected="one value", got="two", where=full, fix=fix)
        else:
            groups[name] |= inner
    for name, own in groups.items():
        try:
            values[name] = settings_given(hints[name], own)
        except SettingError as error:
            put_under(error, f"{name}.", get_type_hints(hints[name]))
            raise
    return kind(**values)


def as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` as a file records them: enumerations by value, tuples as lists. Raises TypeError for anything else."""
    recorded: dict[str, Any] = json.loads(json.dumps(values, default=enum_value))
    return recorded


def enum_value(value: object) -> Any:
    """What `json.dumps` writes for an enum among settings; raises TypeError for anything else it cannot write."""
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"not a setting: {value!r}")


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard `number` of `count`, counted from 1."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The shard that `text` names; raises SettingError.

        >>> Shard.parse("3/20")
        Shard(number=3, count=20)
        """
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip())
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise SettingError(f"shard must be i/n with i from 1 to n, such as shard=3/20, got {text[:80]!r}")
        return cls(int(found[1]), int(found[2]))

    def of(self, items: Sequence[Item]) -> Sequence[Item]:
        """The consecutive items of this shard; all shards together have each item once.

        >>> [Shard(number, 3).of("abcd") for number in (1, 2, 3)]
        ['a', 'b', 'cd']
        """
        first, stop = ((self.number - 1 + side) * len(items) // self.count for side in (0, 1))
        return items[first:stop]


WHOLE = Shard()


def parse_list(value: str, key: str) -> list[str]:
    """One entry, or a list of them in brackets; an entry that holds a comma, quote or space at its ends is quoted.

    >>> parse_list("a, b.jsonl", "files"), parse_list("[a.jsonl, 'b, c.jsonl']", "files"), parse_list("[]", "files")
    (['a, b.jsonl'], ['a.jsonl', 'b, c.jsonl'], [])
    >>> parse_list("[topic in [a, b], year>=1990]", "where")
    ['topic in [a, b]', 'year>=1990']
    """
    if not (value.startswith("[") and value.endswith("]")):
        return [value]
    inside = value[1:-1].strip()
    entries: list[str] = []
    place = 0
    while place < len(inside):
        match = LIST_ENTRY.match(inside, place)
        if match is None:
            raise SettingError(
                f"{key} must be a list such as [a,b], with quotes around entries that hold commas, got {value[:80]!r}"
            )
        single, double, plain = match.groups()
        quoted = single if single is not None else double
        entries.append(plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        place = match.end()
    return entries
