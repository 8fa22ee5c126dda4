"""Mistakes that a user can correct: one sentence, two at most, and exit status 2 of the command line.

A message says what is wrong, the value, the full key of the setting or the path, and what to do:
`SettingError("fill.k must be at least 1, got 0")`. Anything else that escapes is a bug of ours.

    UserError
    ├── SettingError    a setting is unknown, of the wrong type, out of range, or contradicts another
    ├── CorpusError     a corpus or data file is missing, empty, damaged or in another form
    ├── EncoderError    a model cannot be loaded, or cannot do what is required
    ├── ArtifactError   a folder that we wrote is missing, unfinished, damaged or made with other settings
    ├── StorageError    no space to write, or an object store or standard output refuses a write
    ├── QueryError      a text to be filled is empty, broken or has too many masks, or a filter leaves no document
    └── ServerError     a server of `npmlm serve` cannot be reached, is busy or gives an unexpected response
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import ClassVar

UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class UserError(Exception):
    """A mistake that the user can correct, in one message, in which unprintable characters are escaped."""

    code = "invalid_value"
    """Kind of the mistake for programs: one of `codes`, or this one."""
    codes: ClassVar[dict[str, str]] = {}
    """Meaning of the codes of this class."""

    def __init__(self, message: str = "", *, code: str = "") -> None:
        super().__init__(message)
        if code:
            self.code = code

    def __str__(self) -> str:
        return UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], super().__str__())


class SettingError(UserError):
    """A setting is unknown, of the wrong type, out of range, or contradicts another."""

    codes: ClassVar = {
        "label_unknown": "no word of a label occurs in the index",
        "no_such_field": "a condition on a field that the index does not keep",
        "invalid_condition": "a condition that cannot be read",
        "retrieval_unavailable": "the index cannot be searched in this way",
    }


class CorpusError(UserError):
    """A corpus or data file is missing, empty, damaged, or not in the form that its name promises."""


class EncoderError(UserError):
    """A model cannot be loaded, or cannot do what is required."""


class ArtifactError(UserError):
    """A folder that we wrote is missing, unfinished, damaged, or made with other settings."""


class StorageError(UserError):
    """No space to write, or an object store or standard output refuses a write; files raise OSError."""


class QueryError(UserError):
    """A text to be filled is empty, broken or has too many masks, or a filter leaves no document."""

    codes: ClassVar = {
        "empty": "the text is empty",
        "too_many_masks": "the text has too many <mask>",
        "masks_too_far_apart": "the encoder cannot read the text from its first <mask> to its last",
        "invalid_unicode": "the text has one half of a surrogate pair, which is not a character",
        "too_long": "a text with too many characters or sentences",
        "no_content_word": "the phrase has function words only",
        "no_such_document": "an id in `documents` that no document has",
        "filter_empty": "no document meets the conditions",
    }


class ServerError(UserError):
    """A server of `npmlm serve` cannot be reached, is too busy, or gives an unexpected response."""


def unknown(what: str, name: str, known: Collection[str]) -> SettingError:
    """Error for a `name` that is none of the known ones.

    >>> str(unknown("task", "trexx", ["trex", "demo"]))
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
    """Error for a damaged folder or file of ours.

    >>> str(damaged("my-index/vectors.npy", "1 byte is missing"))
    'my-index/vectors.npy is damaged: 1 byte is missing; remove the folder and build or copy it again'
    """
    return ArtifactError(f"{path} is damaged: {detail}; remove the folder and build or copy it again")


def named(names: Sequence[str], *, most: int = 4) -> str:
    """The first names of a list, and how many there are beyond them.

    >>> named(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def near(name: str, known: Collection[str]) -> str:
    """Suggestion for a misspelled `name`: the known one nearest to it, else all of them.

    >>> near("trian", ["train", "fill"]), near("x", ["train", "fill"])
    ("did you mean 'train'?", 'choose one of train, fill')
    """
    match = get_close_matches(name, known, n=1)
    return f"did you mean {match[0]!r}?" if match else f"choose one of {', '.join(known)}"


def place_of(number: int, count: int, name: str = "text") -> str:
    """Name in messages of text `number`, from 1, of `count`.

    >>> place_of(1, 1), place_of(2, 3, "claim")
    ('text', 'claim 2 of 3')
    """
    return name if count == 1 else f"{name} {number} of {count}"


def shown_start(text: str, max_chars: int = 80) -> str:
    """The start of a text from outside, on one line, for a message."""
    plain = " ".join(text[: max_chars + 1].split())
    return plain if len(plain) <= max_chars else plain[:max_chars] + "…"
