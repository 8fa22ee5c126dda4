"""Mistakes that a user can correct: one sentence, two at most, and exit status 2 of the command line.

A message says what is wrong, the value, the full key of the setting or the path, and what to do:
`SettingError("fill.k must be at least 1, got 0")`. Anything else that escapes is a bug of ours.

    UserError
    ├── SettingError    a setting is unknown, of the wrong type, out of range, or contradicts another
    ├── CorpusError     a corpus or data file is missing, empty, damaged or in another form
    ├── EncoderError    a model cannot be loaded, or cannot do what is asked of it
    ├── ArtifactError   a folder that we wrote is missing, unfinished, damaged or made with other settings
    ├── StorageError    the operating system refuses to write
    ├── QueryError      a text to be filled is empty, has no mask or too many
    └── ServerError     a server of `npmlm serve` cannot be reached, is busy or gives an unexpected response
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any


class UserError(Exception):
    """A mistake that the user can correct, in one message.

    The keywords are the former form of a message, in five fields, until the last place that uses it is rewritten.
    """

    def __init__(
        self, message: str, *, expected: str = "", got: str = "nothing", where: str = "", fix: str = ""
    ) -> None:
        self.problem, self.expected, self.where, self.fix = message, expected, where, fix
        self.got = got if got.strip() else "nothing"
        super().__init__(message)

    def __str__(self) -> str:
        if not self.expected:
            return self.problem
        return (
            f"{self.problem}\n  expected: {self.expected}\n  got:      {self.got}"
            f"\n  where:    {self.where}\n  do:       {self.fix}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # an exception is made again from its arguments, which are keywords here; process pools hand errors on so
        return _remade, (type(self), self.problem, self.expected, self.got, self.where, self.fix)


def _remade(kind: type[UserError], problem: str, expected: str, got: str, where: str, fix: str) -> UserError:
    return kind(problem, expected=expected, got=got, where=where, fix=fix)


class SettingError(UserError):
    """A setting is unknown, of the wrong type, out of range, or contradicts another."""


class CorpusError(UserError):
    """A corpus or data file is missing, empty, damaged, or not in the form that its name promises."""


class EncoderError(UserError):
    """A model cannot be loaded or cannot do what is asked of it."""


class ArtifactError(UserError):
    """A folder that we wrote is missing, unfinished, damaged, or was made by something else than expected."""


class StorageError(UserError):
    """The operating system refuses to write: disk full, no permission, not a folder."""


class QueryError(UserError):
    """A text to be filled is empty, has no mask or too many."""


class ServerError(UserError):
    """A server of `npmlm serve` cannot be reached, is too busy, or gives an unexpected response."""


def unknown(what: str, name: str, known: Collection[str]) -> SettingError:
    """Error for a `name` that is none of the known ones.

    >>> unknown("task", "trexx", ["trex", "demo"]).problem
    "unknown task 'trexx': did you mean 'trex'?"
    """
    return SettingError(f"unknown {what} {name!r}: {near(name, known)}")


def missing(key: str, example: str = "") -> SettingError:
    """Error for a required setting that is not given.

    >>> str(missing("index", "index=my-index"))
    'index is required, such as index=my-index'
    """
    return SettingError(f"{key} is required" + (f", such as {example}" if example else ""))


def exclusive(first: str, second: str) -> SettingError:
    """Error for two settings that exclude each other.

    >>> str(exclusive("schedule.max_steps", "schedule.max_minutes"))
    'schedule.max_steps and schedule.max_minutes exclude each other: set one of them'
    """
    return SettingError(f"{first} and {second} exclude each other: set one of them")


def damaged(path: Path | str, detail: str) -> ArtifactError:
    """Error for a folder or file of ours that is not as it was written.

    >>> str(damaged("my-index/vectors.npy", "1 byte is missing"))
    'my-index/vectors.npy is damaged: 1 byte is missing; fetch it again, or build it again'
    """
    return ArtifactError(f"{path} is damaged: {detail}; fetch it again, or build it again")


def named(names: Sequence[str], *, most: int = 4) -> str:
    """The first names of a list, and how many there are beyond them.

    >>> named(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def put_under(error: UserError, prefix: str, names: Collection[str]) -> None:
    """Put `prefix`, such as `trainer.`, before the settings `names` of a class, which knows only its own keys.

    They are the settings in question and, as `name=`, those that what is expected and what to do speak of.
    """
    if not error.where:  # one sentence, which names its settings in full
        return
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
    ("did you mean 'train'?", 'choose one of train, fill')
    """
    match = get_close_matches(name, known, n=1)
    return f"did you mean {match[0]!r}?" if match else f"choose one of {', '.join(known)}"
