"""The mistakes a user can make with texts, corpora, encoders and settings; each is one clear message."""

from __future__ import annotations

from index.types import ArtefactError, StorageError, UserError

__all__ = [
    "ArtefactError",
    "CorpusError",
    "EncoderError",
    "QueryError",
    "SettingError",
    "StorageError",
    "UserError",
    "check_range",
]


class SettingError(UserError):
    """A setting is unknown, out of range, or contradicts another."""


class CorpusError(UserError):
    """A corpus file is missing, empty, damaged, or not in the form that its name promises."""


class EncoderError(UserError):
    """An encoder cannot be loaded or cannot do what is asked of it."""


class QueryError(UserError):
    """A text to be filled is empty, has no mask or several."""


def check_range(
    right: bool, name: str, *, expected: str, got: object, fix: str = "choose a value in that range"
) -> None:
    """Raise SettingError unless `right`: the value `got` of the setting with the key `name` is out of its range."""
    if not right:
        raise SettingError(f"{name} is out of range", expected=expected, got=str(got), where=name, fix=fix)
