"""The mistakes a user can make with texts, corpora, encoders and settings; each is one clear message."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches

from index.types import ArtefactError, SettingError, StorageError, UserError, named

__all__ = [
    "ArtefactError",
    "CorpusError",
    "EncoderError",
    "QueryError",
    "ServerError",
    "SettingError",
    "StorageError",
    "UserError",
    "check_range",
    "named",
    "near",
    "put_under",
]


class CorpusError(UserError):
    """A corpus file is missing, empty, damaged, or not in the form that its name promises."""


class EncoderError(UserError):
    """An encoder cannot be loaded or cannot do what is asked of it."""


class QueryError(UserError):
    """A text to be filled is empty, has no mask or too many."""


class ServerError(UserError):
    """A server of `npmlm serve` cannot be reached, is too busy, or answers what none of ours answers."""


def put_under(error: UserError, prefix: str, names: Collection[str]) -> None:
    """Put `prefix`, such as `trainer.`, before the settings `names` of a class, which knows only its own keys.

    They are the settings in question and, as `name=`, those that what is expected and what to do speak of.
    """
    full = ", ".join(key if key.startswith(prefix) else prefix + key for key in error.where.split(", "))
    error.problem = re.sub(rf"(?<![\w.]){re.escape(error.where)}(?!\w)", lambda _: full, error.problem, count=1)
    error.where = full
    spoken_of = re.compile(rf"(?<![\w.])(?=(?:{'|'.join(names)})=)")
    error.expected, error.fix = (spoken_of.sub(prefix, text) for text in (error.expected, error.fix))


def check_range(
    right: bool, name: str, *, expected: str, got: object, fix: str = "choose a value in that range"
) -> None:
    """Raise SettingError unless `right`: the value `got` of the setting with the key `name` is out of its range."""
    if not right:
        raise SettingError(f"{name} is out of range", expected=expected, got=str(got), where=name, fix=fix)


def near(name: str, known: Collection[str]) -> str:
    """What to write instead of a misspelt `name`: the known one nearest to it, else all of them.

    >>> near("trian", ["train", "fill"]), near("x", ["train", "fill"])
    ('did you mean train?', 'choose one of train, fill')
    """
    match = get_close_matches(name, known, n=1)
    return f"did you mean {match[0]}?" if match else f"choose one of {', '.join(known)}"
