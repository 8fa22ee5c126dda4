"""Which settings differ from their defaults, so that those that nothing reads can be refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, TypeVar, get_type_hints


def changed_settings(settings: Any, default: Any, names: Iterable[str]) -> list[str]:
    """Full keys of the settings under the dotted `names` that differ between two dataclasses of one class."""
    return [key for name in names for key in _changed(name, attrgetter(name)(settings), attrgetter(name)(default))]


def _changed(key: str, value: Any, default: Any) -> Iterator[str]:
    if is_dataclass(value):
        for item in fields(value):
            yield from _changed(f"{key}.{item.name}", getattr(value, item.name), getattr(default, item.name))
    elif value != default:
        yield key


Settings = TypeVar("Settings")


def settings_from(kind: type[Settings], recorded: Mapping[str, Any]) -> Settings:
    """The settings of class `kind` that a manifest recorded.

    >>> from npm.corpus.documents import CorpusSettings
    >>> settings_from(CorpusSettings, {**asdict(CorpusSettings()), "split": "line"}).split
    <DocumentSplit.line: 'line'>
    """
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for item in fields(kind):  # type: ignore[arg-type]
        hint = hints[item.name]
        is_enum = isinstance(hint, type) and issubclass(hint, Enum)
        values[item.name] = hint(recorded[item.name]) if is_enum else recorded[item.name]
    return kind(**values)


def enum_value(value: object) -> Any:
    """What `json.dumps` writes for an enum among settings; raises TypeError for anything else it cannot write."""
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"not a setting: {value!r}")
