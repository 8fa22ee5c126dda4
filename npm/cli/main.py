"""The command `npmlm VERB key=value … text …`. stdout holds answers only; all else goes to stderr."""

from __future__ import annotations

import gc
import os
import re
import sys
import traceback
from pathlib import Path

import npm
from npm.cli.base import say
from npm.cli.registry import DECLARED, MODULES, find_verb, overview, verb_help
from npm.cli.settings import as_yaml, compose_settings, multirun
from npm.core.errors import SettingError, StorageError, UserError, unknown
from npm.core.types import MASK_TEXT

SETTING = re.compile(r"^(\+{0,2}|~)[A-Za-z_][\w.]*=")
OPTION = re.compile(r"^--?[A-Za-z][\w.-]*(=.*)?$", re.DOTALL)
"""An option of other programs; here it is a setting, `key=value`."""
MULTIRUN = (["-m"], ["--multirun"])
HELP, VERSION = ("--help", "-h", "help"), ("--version", "-V")
DEBUG = "debug=true"
"""Of every verb, and of mistakes in other settings too: shows the full traceback of an error."""
EXIT_USER_ERROR, EXIT_BUG, EXIT_INTERRUPTED = 2, 1, 130
OBJECTS_TO_A_COLLECTION = 10_000
"""With the 700 of Python, garbage collection of what imports create takes a tenth of a cold answer."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit status: 0 success, 2 a user's mistake, 130 interrupted, 1 a bug of ours."""
    gc.set_threshold(OBJECTS_TO_A_COLLECTION)
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if sys.stderr is None:  # closed by whoever started us
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - open as long as the process
    try:
        status = run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of our answers went away
        _drop_unwritten()
        return 0
    except KeyboardInterrupt:
        resumes = any(DECLARED[name].resumes for name in arguments[:1] if name in DECLARED)
        say("\nnpmlm: interrupted" + ("; the same command resumes where it stopped" if resumes else ""))
        return EXIT_INTERRUPTED
    except Exception as error:
        if DEBUG in before_texts(arguments):
            traceback.print_exc()
        if message := _mistake(error):
            rank = os.environ.get("RANK", "0")
            say(f"npmlm: error: {message}" if rank == "0" else f"npmlm: error on rank {rank}: {message}")
            return EXIT_USER_ERROR
        say(f"npmlm: internal error: {type(error).__name__}: {error}; run it again with debug=true and report it")
        return EXIT_BUG


def _mistake(error: Exception) -> str:
    """The message of what a user can change; empty for a bug of ours."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, UnicodeEncodeError):
        letter = error.object[error.start]
        return f"cannot write {letter!a} in {error.encoding} to standard output: set PYTHONIOENCODING=utf-8"
    if isinstance(error, OSError):
        if error.filename is None:
            _drop_unwritten()
        return f"{error.filename or 'standard output or a file'}: {error.strerror or error}"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # of torch, which is not imported
        return f"out of memory: {error}"
    return ""


def run(arguments: list[str]) -> int:
    """Dispatch to a verb. Raises UserError for a mistake of the user."""
    if sys.stdout is None:
        raise StorageError("standard output is closed: leave out >&-, or write > /dev/null")
    try:
        Path.cwd()
    except FileNotFoundError as error:  # in which torch's own libraries would end the process
        raise StorageError("the working directory was removed: change to another one") from error
    if not arguments or (arguments[0] in HELP and len(arguments) == 1):
        sys.stdout.write(overview() + "\n")
        return 0
    if arguments[0] in HELP:
        arguments = [arguments[1], "--help", *arguments[2:]]
    name, rest = arguments[0], arguments[1:]
    before = before_texts(rest)
    if name in VERSION or (name in MODULES and set(VERSION).intersection(before)):
        sys.stdout.write(f"npmlm {npm.__version__}\n")
        return 0
    if name not in MODULES:
        raise unknown("verb", name, MODULES)
    verb = find_verb(name)
    asked = [place for place, word in enumerate(before) if word in HELP[:2] or (word in HELP and place == 0)]
    if asked:
        sys.stdout.write(verb_help(verb, is_full=before[asked[0] + 1 :][:1] == ["all"]) + "\n")
        return 0
    shows_settings, repeats = before[:2] == ["--cfg", "job"], before[:1] in MULTIRUN
    rest, before = (words[2 * shows_settings + repeats :] for words in (rest, before))
    given, texts = split_arguments(rest)
    unusable = [word for word in before if OPTION.match(word)] or ([] if verb.takes_texts else texts)
    if unusable:
        raise SettingError(
            f"npmlm {name} takes settings as key=value, got {unusable[0][:80]!r}; npmlm {name} --help shows them"
        )
    given = [each for each in given if each != DEBUG]
    if repeats:
        return multirun(verb, given, texts)
    settings = compose_settings(name, given)
    if shows_settings:
        sys.stdout.write(as_yaml(settings))
        return 0
    if sys.stderr.isatty() and hasattr(settings, "encoder"):  # before the imports that take the time
        say(f"loading {Path(settings.encoder).name or 'the encoder'}…")
    return verb.run(settings, texts) if verb.takes_texts else verb.run(settings)


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Settings, `key=value` without a mask or `template=…`, and texts: all else, and everything after `--`.

    >>> split_arguments(["k=3", "a=<mask>", "The capital", "--", "k=4"])
    (['k=3'], ['a=<mask>', 'The capital', 'k=4'])
    """
    settings: list[str] = []
    texts: list[str] = []
    first = before_texts(arguments)
    for argument in first:
        has_mask = MASK_TEXT in argument and not argument.startswith("template=")
        is_setting = SETTING.match(argument) is not None and not has_mask
        (settings if is_setting else texts).append(argument)
    return settings, texts + arguments[len(first) + 1 :]


def before_texts(arguments: list[str]) -> list[str]:
    """The arguments up to `--`."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _drop_unwritten() -> None:
    """Discard what stdout did not accept, or Python would try and complain again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
