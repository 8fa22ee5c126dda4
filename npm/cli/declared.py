"""The settings that a class declares, by dotted name, with their types and docstrings."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from npm.core.settings import PATH, field_texts

REQUIRED = "Required."
"""Last word in the docstring of a setting without which its verb cannot begin."""
LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a verb: the class that declares it, its field there, its type with bounds, and its default."""

    owner: type
    field: dataclasses.Field[Any]
    hint: Any
    default: Any

    @property
    def kind(self) -> Any:
        """Type without bounds."""
        return get_type_hints(self.owner)[self.field.name]

    @property
    def is_path(self) -> bool:
        """Return True if it names files, folders or encoders."""
        return PATH in marks(self.hint)

    @property
    def is_list(self) -> bool:
        """Return True if it is a list of texts, or of names."""
        if get_origin(self.kind) is list and get_origin(get_args(self.kind)[0]) is Literal:
            return True
        return self.kind in (list[str], list[str] | None)

    @property
    def is_text(self) -> bool:
        """Return True if it is taken as it is written."""
        return self.is_path or self.kind in (str, str | None)

    @property
    def text(self) -> str:
        """Docstring, in one line."""
        return self._docstring.removesuffix(REQUIRED).strip()

    @property
    def is_required(self) -> bool:
        """Return True if its verb cannot begin without it."""
        return self._docstring.endswith(REQUIRED)

    @property
    def _docstring(self) -> str:
        return field_texts(self.owner).get(self.field.name, "")

    @property
    def shown(self) -> str:
        """Default and possible values."""
        if self.is_required:
            return "(required)"
        value = self.default
        if isinstance(value, Enum):
            return f"{value.name}  ({' | '.join(member.name for member in type(value))})"
        if get_origin(self.kind) is Literal:
            return f"{value}  ({' | '.join(get_args(self.kind))})"
        if value is None or isinstance(value, bool):
            shown = {None: "null", True: "true", False: "false"}[value]
        else:
            shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        return f"{shown}  ({limits(self.hint)})" if limits(self.hint) else shown


def marks(hint: Any) -> list[Any]:
    """All that is said of a type, and of the types in it, by Annotated."""
    own = getattr(hint, "__metadata__", ())
    flat = [mark for each in own for mark in (each.metadata if isinstance(each, FieldInfo) else [each])]
    return flat + [mark for inner in get_args(hint) for mark in marks(inner) if not isinstance(inner, FieldInfo)]


def limits(hint: Any) -> str:
    """The range of a number, or of numbers in a list, in words.

    >>> from typing import Annotated
    >>> from pydantic import Field
    >>> limits(Annotated[int, Field(gt=0)]), limits(Annotated[float, Field(gt=0, le=1)] | None), limits(int)
    ('at least 1', 'above 0 and at most 1', '')
    """
    found = {name: getattr(mark, name) for mark in marks(hint) for name in LIMITS if hasattr(mark, name)}
    if found.get("gt") == 0 and "int" in str(hint):
        found["ge"] = found.pop("gt") + 1
    return " and ".join(f"{words} {found[name]}" for name, words in LIMITS.items() if name in found)


@cache
def declared_settings(root: type) -> dict[str, Setting]:
    """Every leaf of a settings class and of the classes in it, by dotted name; plain ones before groups."""
    return _settings_of(root())


def _settings_of(default: Any, prefix: str = "") -> dict[str, Setting]:
    root = type(default)
    hints = get_type_hints(root, include_extras=True)
    values = {item: getattr(default, item.name) for item in dataclasses.fields(root)}
    groups = {item.name: value for item, value in values.items() if dataclasses.is_dataclass(hints[item.name])}
    found = {
        f"{prefix}{item.name}": Setting(root, item, hints[item.name], value)
        for item, value in values.items()
        if item.name not in groups
    }
    for name, value in groups.items():
        found |= _settings_of(value, f"{prefix}{name}.")
    return found


def similar_settings(name: str, declared: Collection[str]) -> list[str]:
    """Declared names close to one that is not: those with the same last part, then those spelt alike.

    >>> similar_settings("files", ["index", "corpus.files", "k"]), similar_settings("kk", ["index", "k"])
    (['corpus.files'], ['k'])
    """
    last = name.rsplit(".", 1)[-1]
    same = [known for known in declared if known.rsplit(".", 1)[-1] == last]
    return list(dict.fromkeys([*same, *get_close_matches(name, declared, n=3, cutoff=0.5)]))
