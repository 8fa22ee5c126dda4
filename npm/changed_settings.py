"""Which settings differ from their defaults, so that those that nothing reads can be refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any


def changed_settings(settings: Any, default: Any, names: Iterable[str]) -> list[str]:
    """Full keys of the settings under the dotted `names` that differ between two dataclasses of one class."""
    return [key for name in names for key in _changed(name, attrgetter(name)(settings), attrgetter(name)(default))]


def _changed(key: str, value: Any, default: Any) -> Iterator[str]:
    if is_dataclass(value):
        for item in fields(value):
            yield from _changed(f"{key}.{item.name}", getattr(value, item.name), getattr(default, item.name))
    elif value != default:
        yield key
