"""The command line before any settings are known: which argument is a setting, which is text, what a path is."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, field

from npm.errors import SettingError
from npm.types import MASK_TEXT

SETTING = re.compile(r"^(\+{0,2}|~)[A-Za-z_][\w.]*=")
LIST_ENTRY = re.compile(
    r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^,\s'"](?:\[[^\[\]]*\]|[^,])*?|))\s*(?:,|$)"""
)
DEBUG = re.compile(r"^\+{0,2}debug=(true|yes|on|1)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Arguments:
    """What stood on the command line: settings, and texts."""

    settings: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def before_texts(arguments: list[str]) -> list[str]:
    """The arguments up to `--`."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def split_arguments(arguments: list[str]) -> Arguments:
    """Settings are `key=value` without a mask in it; all else, and everything after `--`, is text.

    >>> split_arguments(["k=3", "a=<mask>", "The capital", "--", "k=4"])
    Arguments(settings=['k=3'], texts=['a=<mask>', 'The capital', 'k=4'])
    """
    found = Arguments()
    first = before_texts(arguments)
    for argument in first:
        is_setting = SETTING.match(argument) is not None and MASK_TEXT not in argument
        (found.settings if is_setting else found.texts).append(argument)
    found.texts.extend(arguments[len(first) + 1 :])
    return found


def wants_debug(arguments: list[str]) -> bool:
    """Whether tracebacks are asked for; known before settings are, so that it covers mistakes in settings too."""
    return any(DEBUG.match(argument) for argument in before_texts(arguments))


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
                f"the list in {key}= cannot be read",
                expected="[a,b], with quotes around entries that hold commas",
                got=value,
                where=key,
                fix="close the quotes, or give one entry without brackets",
            )
        single, double, plain = match.groups()
        quoted = single if single is not None else double
        entries.append(plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        place = match.end()
    return entries


def quoted(value: str) -> str:
    """A string in hydra's grammar; `null`, nothing at all and what is in quotes already stay as they are."""
    if value in ("", "null") or (len(value) > 1 and value[0] == value[-1] and value[0] in "'\""):
        return value
    return "'" + value.replace("'", "\\'") + "'"


def usable_path(path: str, key: str) -> str:
    """The path with `~` at its beginning as the shell would read it, which leaves `key=~/…` alone.

    Raises SettingError for what the system takes for no path at all, whether something is there or not.
    """
    path = os.path.expanduser(path)  # noqa: PTH111 - Path would change the path in other ways, and raise for ~nobody
    try:
        os.stat(path)  # noqa: PTH116
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise SettingError(
                f"{key} holds a path that cannot be",
                expected="a path that the file system knows",
                got=error.strerror or str(error),
                where=key,
                fix="give a shorter path, or mend the links in it",
            ) from error
    return path
