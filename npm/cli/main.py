"""The command `npmlm VERB key=value … text …`. stdout holds answers only; all else goes to stderr."""

from __future__ import annotations

import os
import re
import sys
import traceback
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from npm.cli.help import USAGE, verb_help
from npm.cli.progress import say
from npm.cli.verbs import VERBS, compose
from npm.errors import SettingError, UserError
from npm.types import MASK_TEXT

SETTING = re.compile(r"^(\+{0,2}|~)[A-Za-z_][\w.]*=")
DEBUG = re.compile(r"^\+{0,2}debug=(true|yes|on|1)$", re.IGNORECASE)
EXIT_USER_ERROR, EXIT_BUG, EXIT_INTERRUPTED = 2, 1, 130


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit status: 0 success, 2 a user's mistake, 130 interrupted, 1 a bug of ours."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return run(arguments)
    except UserError as error:
        _show_traceback(arguments)
        say(f"npmlm: error: {error}")
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        resumes = any(VERBS[name].resumes for name in arguments[:1] if name in VERBS)
        goes_on = "continues where it stopped" if resumes else "starts from the beginning"
        say(f"\nnpmlm: interrupted. The same command, given again, {goes_on}.")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader of our answers went away; Python would complain again when it flushes stdout at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        _show_traceback(arguments)
        say(f"npmlm: internal error: {type(error).__name__}: {error}\n  do: run it again with debug=true and report it")
        return EXIT_BUG


def run(arguments: list[str]) -> int:
    """Dispatch to a verb. Raises UserError for a mistake of the user."""
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        verbs = "\n".join(f"  {name:<10}{verb.summary}" for name, verb in VERBS.items())
        sys.stdout.write(USAGE.format(verbs=verbs) + "\n")
        return 0
    if arguments[0] == "--version":
        sys.stdout.write(f"npmlm {_version()}\n")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in VERBS:
        raise SettingError(
            f"unknown verb {name!r}",
            expected=", ".join(VERBS),
            got=name,
            where="npmlm VERB",
            fix="npmlm --help shows what there is",
        )
    verb, before = VERBS[name], before_texts(rest)
    if asked := {"--help", "-h"}.intersection(before):
        wants_all = before[before.index(asked.pop()) + 1 :][:1] == ["all"]
        first = None if wants_all else verb.first.split()
        sys.stdout.write(verb_help(name, verb.root, first=first, groups=verb.choices) + "\n")
        return 0
    found = split_arguments(rest)
    if found.texts and not verb.takes_texts:
        raise SettingError(
            f"{name} takes settings only",
            expected="key=value",
            got=found.texts[0],
            where=f"npmlm {name}",
            fix=f"npmlm {name} --help shows its settings",
        )
    settings = compose(name, found.settings)
    return verb.run(settings, found.texts) if verb.takes_texts else verb.run(settings)


@dataclass(frozen=True, slots=True)
class Arguments:
    """What stood on the command line: settings, and texts."""

    settings: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


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


def before_texts(arguments: list[str]) -> list[str]:
    """The arguments up to `--`."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _show_traceback(arguments: list[str]) -> None:
    """Print one if it is asked for; known before settings are, so that it covers mistakes in settings too."""
    if any(DEBUG.match(argument) for argument in before_texts(arguments)):
        traceback.print_exc()


def _version() -> str:
    try:
        return version("npmlm")
    except PackageNotFoundError:
        return "not installed"
