"""Settings: frozen dataclasses that pydantic validates when they are made, from Python, YAML or the command line.

A mistake is one SettingError with the full key, what the setting may be, the value, and the closest name if it is
misspelt. What belongs together across several settings is checked by `check` of the class that has them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from dataclasses import Field as DataclassField
from difflib import get_close_matches
from enum import Enum
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated_dataclass
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticKnownError
from pydantic_core.core_schema import no_info_before_validator_function

from npm.core.errors import ArtifactError, SettingError, near
from npm.core.types import SURROGATE

Kind = TypeVar("Kind")
Item = TypeVar("Item")


def _usable_path(path: Any) -> Any:
    """`path` with `~` expanded; raises ValueError for a device, pipe or socket, which may never end."""
    if not isinstance(path, str | os.PathLike):
        return path
    if "\0" in os.fspath(path) or SURROGATE.search(os.fsdecode(path)):
        raise ValueError("must be valid UTF-8 without null characters")
    path = os.path.expanduser(path)  # noqa: PTH111 - Path would change it in other ways, and raise for ~nobody
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):  # noqa: PTH110, PTH112, PTH113
        raise ValueError("must be a file or folder")
    return path


PATH = BeforeValidator(_usable_path)
PathText = Annotated[str, PATH]
"""A setting that names a file, a folder, or an encoder; `~` is expanded."""
Fraction = Annotated[float, Field(ge=0, le=1)]


class ShellText(str):
    """Text of the command line, the only text that numbers and flags are parsed from."""

    __slots__ = ()


def _no_stand_in(value: Any) -> Any:
    """`value`, unless it is a flag, bytes or a text that is not of the command line."""
    if isinstance(value, bool | bytes) or (isinstance(value, str) and not isinstance(value, ShellText)):
        raise PydanticKnownError("int_type")
    return value


def _no_number(value: Any) -> Any:
    """`value` if it is true, false or a text of the command line."""
    if not isinstance(value, bool | ShellText):
        raise PydanticKnownError("bool_type")
    return value


GUARDS = {"int": _no_stand_in, "float": _no_stand_in, "bool": _no_number}


class _Unmixed:
    """Type marker: numbers and flags are not converted from other types; pydantic would read "3" and True as 3."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _guard(schema)
        return schema


def _guard(schema: Any) -> None:
    # pydantic shares the schemas of classes: one that is guarded is met again
    guarded = schema.get("function") if isinstance(schema, dict) else None
    if isinstance(guarded, dict) and guarded.get("function") in GUARDS.values():
        return
    for part in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(part, dict | list | tuple):
            _guard(part)
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "str":
        schema["strict"] = True
    elif guard := GUARDS.get(schema.get("type", "")):
        inner = dict(schema)
        schema.clear()
        schema.update(no_info_before_validator_function(guard, inner))


LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
LIST_ENTRY = re.compile(
    r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^,\s'"](?:\[[^\[\]]*\]|[^,])*?|))\s*(?:,|$)"""
)


class _Reporting(type):
    if not TYPE_CHECKING:  # which knows of no errors, only of a signature that it would lose

        def __call__(cls, **values: Any) -> Any:
            try:
                return super().__call__(**values)
            except ValidationError as error:
                raise SettingError(explain(error, cls)) from None


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class Settings(metaclass=_Reporting):
    """Base of all settings: a subclass is a frozen dataclass, validated on construction; raises SettingError."""

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, DataclassField[Any]]]

    __get_pydantic_core_schema__: ClassVar[Any] = _Unmixed.__get_pydantic_core_schema__

    def __init_subclass__(cls) -> None:
        config = ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True, defer_build=True)
        validated_dataclass(cls, config=config, kw_only=True, frozen=True)

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise SettingError for incompatible settings. Default: none are."""


def read_settings(kind: type[Kind], values: Mapping[str, Any], prefix: str = "") -> Kind:
    """Settings of class `kind` from values by key, groups as mappings or dotted keys; raises SettingError.

    >>> from npm.retrieval.settings import FillSettings
    >>> settings = read_settings(FillSettings, {"k": 3, "scoring.temperature": 2, "scoring": {"combination": "sum"}})
    >>> settings.k, settings.scoring.temperature, settings.scoring.combination.value
    (3, 2.0, 'sum')
    """
    nested = merged({}, values)
    for item in fields(kind):  # type: ignore[arg-type]
        if item.name in nested and item.default_factory is not MISSING:
            nested[item.name] = _over(item.default_factory(), nested[item.name])
    found: Kind = checked(nested, kind, prefix)
    return found


def _over(default: Any, values: Any) -> Any:
    """`values` of a group over those that the class which has the group gives it by default."""
    if not (is_dataclass(default) and isinstance(values, Mapping)):
        return values
    own = {item.name: getattr(default, item.name) for item in fields(default)}
    return own | {name: _over(own.get(name), value) for name, value in values.items()}


def checked(value: Any, hint: Any, key: str = "") -> Any:
    """`value` as the type `hint`; raises SettingError, which names it by `key`.

    >>> checked((1, 2), list[int], "numbers")
    [1, 2]
    """
    try:
        return _adapter(hint).validate_python(value)
    except ValidationError as error:
        raise SettingError(explain(error, hint, key)) from None


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    if is_dataclass(hint):  # which has a configuration of its own
        return TypeAdapter(hint)
    return TypeAdapter(Annotated[hint, _Unmixed], config=ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False))


def merged(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `values`, whose keys may be dotted, in place of what it has under them.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a.b": 3, "d": 4})
    {'a': {'b': 3, 'c': 2}, 'd': 4}
    """
    found = dict(base)
    for key, value in values.items():
        name, dot, rest = str(key).partition(".")
        inner = {rest: value} if dot else value
        if isinstance(inner, Mapping):
            before = found.get(name)
            found[name] = merged(before if isinstance(before, Mapping) else {}, inner)
        else:
            found[name] = inner
    return found


def explain(error: ValidationError, hint: Any, key: str = "") -> str:
    """The first mistake that pydantic found in a value of the type `hint`, in one sentence with the full key."""
    mistake = error.errors(include_url=False)[0]
    own: Any = hint
    for part in mistake["loc"]:
        kind = _without_none(own)
        inner = get_args(kind)
        if is_dataclass(kind):
            known = get_type_hints(kind, include_extras=True)
            if part not in known:
                return f"unknown setting {_joined(key, part)}: {near(str(part), known)}"
            key, own = _joined(key, part), known[str(part)]
        elif get_origin(kind) is dict:
            key, own = _joined(key, part), inner[1]
        elif get_origin(kind) in (list, tuple, frozenset):
            key, own = f"{key}[{part}]", inner[0]
    got = mistake["input"]
    if mistake["type"] == "missing":
        return f"{key} is required"
    if mistake["type"] == "value_error":
        return f"{key}: {mistake['ctx']['error']}, got {_shown(got)}"
    shown = _shown(got)
    if mistake["type"] in ("int_type", "bool_type"):
        return f"{key} must be {in_words(own)}, got {_shown(got, quoted=True)}"
    close = get_close_matches(shown.lower(), choices(own), n=1)
    return f"{key} must be {in_words(own)}, got {shown}" + (f"; did you mean {close[0]}?" if close else "")


def _joined(key: str, part: object) -> str:
    return f"{key}.{part}" if key and not key.endswith(".") else f"{key}{part}"


def _shown(value: object, *, quoted: bool = False) -> str:
    try:
        shown = value or "nothing" if isinstance(value, str) and not quoted else repr(value)
    except ValueError:  # of a number with more than 4,300 digits
        shown = f"a {type(value).__name__} with too many digits"
    return shown if len(shown) <= 80 else shown[:79] + "…"


def _without_none(hint: Any) -> Any:
    """The type without its marks, and without None where that leaves one."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        inner = [each for each in get_args(hint) if each is not NoneType]
        return _without_none(inner[0]) if len(inner) == 1 else hint
    return hint


def marks(hint: Any) -> list[Any]:
    """All that is said of a type, and of the types in it, by Annotated."""
    own = getattr(hint, "__metadata__", ())
    flat = [mark for each in own for mark in (each.metadata if isinstance(each, FieldInfo) else [each])]
    return flat + [mark for inner in get_args(hint) for mark in marks(inner) if not isinstance(inner, FieldInfo)]


def limits(hint: Any) -> str:
    """The range of a number, or of numbers in a list, in words.

    >>> limits(Annotated[int, Field(gt=0)]), limits(Annotated[float, Field(gt=0, le=1)] | None), limits(int)
    ('at least 1', 'above 0 and at most 1', '')
    """
    found = {name: getattr(mark, name) for mark in marks(hint) for name in LIMITS if hasattr(mark, name)}
    if found.get("gt") == 0 and "int" in str(hint):
        found["ge"] = found.pop("gt") + 1
    return " and ".join(f"{words} {found[name]}" for name, words in LIMITS.items() if name in found)


def choices(hint: Any) -> list[str]:
    """The values of an enumeration or a flag, alone or in a list or union; none for numbers and texts."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        return [str(member.value) for member in hint]
    inner = [value for each in get_args(hint) for value in choices(each)]
    return ["true", "false"] if hint is bool else inner


def in_words(hint: Any) -> str:
    """What a value of the type `hint` may be.

    >>> in_words(Annotated[int, Field(ge=1)] | None), in_words(list[str])
    ('a whole number, at least 1, or null', 'a list, each a text')
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return ", ".join(filter(None, (in_words(inner[0]), limits(hint))))
    if origin in (Union, UnionType):
        return ", or ".join("null" if each is NoneType else in_words(each) for each in inner)
    if inner:
        is_mapping = origin is dict
        return f"a {'mapping' if is_mapping else 'list'}, each {in_words(inner[is_mapping])}"
    plain = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text", Any: "a value"}
    if hint in plain:
        return plain[hint]
    if is_dataclass(hint):
        return f"a group of {', '.join(item.name for item in fields(hint))}"
    return ", ".join(choices(hint)) or f"an instance of {getattr(hint, '__name__', hint)}"


def is_optional(hint: Any) -> bool:
    """Return True if None is a value of the type `hint`."""
    return get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)


def changed_settings(settings: Any, default: Any, names: Iterable[str]) -> list[str]:
    """Full keys of the settings under the dotted `names` that differ between two dataclasses of one class."""
    return [key for name in names for key in _changed(name, attrgetter(name)(settings), attrgetter(name)(default))]


def _changed(key: str, value: Any, default: Any) -> Iterator[str]:
    if is_dataclass(value):
        for item in fields(value):
            yield from _changed(f"{key}.{item.name}", getattr(value, item.name), getattr(default, item.name))
    elif value != default:
        yield key


def settings_from(kind: type[Kind], recorded: Mapping[str, Any]) -> Kind:
    """The settings of class `kind` that a manifest recorded; raises ArtifactError for any that are not of its kind.

    >>> from dataclasses import asdict
    >>> from npm.corpus.documents import CorpusSettings
    >>> settings_from(CorpusSettings, {**asdict(CorpusSettings()), "split": "line"}).split
    <DocumentSplit.line: 'line'>
    """
    try:
        return kind(**{item.name: recorded[item.name] for item in fields(kind)})  # type: ignore[arg-type]
    except SettingError as error:
        file = str(getattr(recorded, "file", "a manifest"))
        raise ArtifactError(
            f"{file} records invalid settings ({error}): fetch the index again, or build it again"
        ) from error


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
