"""Settings: frozen dataclasses that pydantic validates when they are made, from Python, YAML or the command line.

A mistake is one SettingError with the full key, pydantic's words for what the setting may be, the value, and the
closest name if it is misspelled. Settings that depend on each other are checked by `check` of their class. YAML files
of settings are in configs/, or are a user's own.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from dataclasses import Field as DataclassField
from enum import Enum
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, dataclass_transform, get_args, get_type_hints

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated_dataclass

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
INNER = "inner"
"""Mark of a setting that the command line does not offer: it is for Python and YAML files."""
SHORTER = {
    "Input should be": "must be",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}
"""Words of pydantic's messages, and ours."""


@dataclass(frozen=True, slots=True)
class PerRequest:
    """Mark of a setting that a single request may replace, in Python, over HTTP and as a tool of an agent."""

    most: int | None = None
    """Largest value, or longest list, of a request over HTTP; None: as the setting itself."""


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
    >>> settings = read_settings(FillSettings, {"k": 3, "scoring.temperature": 2, "scoring": {"reference": True}})
    >>> settings.k, settings.scoring.temperature, settings.scoring.reference
    (3, 2.0, True)
    """
    nested = merged({}, values)
    for item in fields(kind):  # type: ignore[arg-type]
        if item.name in nested and item.default_factory is not MISSING:
            nested[item.name] = _over(item.default_factory(), nested[item.name])
    found: Kind = checked(nested, kind, prefix)
    return found


@cache
def per_request(kind: type) -> dict[str, Any]:
    """The types, with their marks, of the settings of `kind` that a request may replace, by name."""
    hints = get_type_hints(kind, include_extras=True)
    marked = (name for name, hint in hints.items() for mark in get_args(hint) if isinstance(mark, PerRequest))
    return {name: hints[name] for name in marked}


@cache
def field_texts(kind: type) -> dict[str, str]:
    """The string under each field of a dataclass and of the dataclasses it extends, in one line each."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if not is_dataclass(owner):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(tree, ast.ClassDef), f"{owner} is not a class in its own source"
        for before, after in zip(tree.body, tree.body[1:], strict=False):
            match before, after:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(str(text))):
                    found[name] = " ".join(text.split())
    return found


def _over(default: Any, values: Any) -> Any:
    """`values` of a group over the defaults given by the class with the group."""
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
    config = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)
    return TypeAdapter(hint, config=None if is_dataclass(hint) else config)


def merged(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `values`, whose keys may be dotted, in place of its own under these keys.

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


def explain(error: ValidationError, kind: Any, key: str = "") -> str:
    """The first mistake that pydantic found in a value of the type `kind`, in one sentence with the full key."""
    mistakes = error.errors(include_url=False)  # a misspelled key explains the required one that is missing
    mistake = next((each for each in mistakes if each["type"] == "unexpected_keyword_argument"), mistakes[0])
    names = [part for part in mistake["loc"] if not str(part).endswith("]")]  # those of unions do
    for part in names[:-1]:
        hint = get_type_hints(kind).get(str(part)) if is_dataclass(kind) else None
        kind = next((each for each in (hint, *get_args(hint)) if is_dataclass(each)), kind)
    for part in names:
        key += f"[{part}]" if isinstance(part, int) else f"{'.' * (key[-1:] not in ('', '.'))}{part}"
    if mistake["type"] == "unexpected_keyword_argument":
        return f"unknown setting {key}: {near(str(names[-1]), [item.name for item in fields(kind)])}"
    if mistake["type"] == "missing":
        return f"{key} is required"
    message = mistake["msg"].removeprefix("Value error, ")
    if mistake["type"] == "too_short":
        message = "must not be empty"
    if mistake["type"] == "byte_size":
        message = "must be a size such as 4GB"
    if mistake["type"] == "dataclass_type":
        message = "must be a mapping of settings"
    for words, shorter in SHORTER.items():
        message = message.replace(words, shorter)
    if mistake["type"].endswith("_parsing"):
        message = message.partition(",")[0]
    got = mistake["input"] if mistake["input"] and isinstance(mistake["input"], str) else repr(mistake["input"])
    return f"{key} {message}, got {got if len(got) <= 80 else got[:79] + '…'}"


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
    >>> from npm.corpus.settings import CorpusSettings
    >>> settings_from(CorpusSettings, {**asdict(CorpusSettings()), "split": "line"}).split
    <DocumentSplit.line: 'line'>
    """
    try:
        return kind(**{item.name: recorded[item.name] for item in fields(kind)})  # type: ignore[arg-type]
    except SettingError as error:
        file = str(getattr(recorded, "file", "a manifest"))
        raise ArtifactError(
            f"{file} records invalid settings ({error}): remove the folder and build or copy it again"
        ) from error


def as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` as a file records them: enumerations by value, tuples as lists. Raises TypeError for anything else."""
    recorded: dict[str, Any] = json.loads(json.dumps(values, default=enum_value))
    return recorded


def enum_value(value: object) -> Any:
    """Value of an enum for `json.dumps`; raises TypeError for anything else it cannot write."""
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


@cache
def _loader() -> Any:
    """A safe loader that reads 1e-4 as a number, as YAML 1.2 does."""
    import yaml  # not on a bare GPU image, which reads no YAML

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )
    return Loader


def config_folder() -> Path:
    """The folder configs: in the package when installed, next to it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def has_studies() -> bool:
    """Return True if the folder `studies` is beside the package; its verbs and methods are registered then."""
    return (Path(__file__).parents[2] / "studies" / "verbs.py").is_file()


def yaml_text(value: Any) -> str:
    """A JSON value as YAML, its keys in their order.

    >>> yaml_text({"b": [1, None], "a": "${x}"})
    'b:\\n- 1\\n- null\\na: ${x}\\n'
    """
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))


def read_yaml(text: str, *, words_only: bool = False) -> Any:
    """The value that a YAML text holds, with `words_only` its words and numbers as they are written. Raises ValueError.

    >>> read_yaml("{a: 1e-4, b: [yes, null]}"), read_yaml("{no: [yes, 7]}", words_only=True)
    ({'a': 0.0001, 'b': [True, None]}, {'no': ['yes', '7']})
    """
    import yaml

    try:
        return yaml.load(text, Loader=yaml.BaseLoader if words_only else _loader())
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
