"""The command `npmlm VERB key=value … text …`. stdout holds answers only; all else goes to stderr."""

from __future__ import annotations

import errno
import gc
import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, cast

import npm
from npm.cli.help import declared_settings, overview, similar_settings, verb_help
from npm.cli.progress import say
from npm.cli.verbs import VERBS, compose
from npm.core.errors import SettingError, StorageError, UserError, unknown
from npm.core.types import MASK_TEXT

SETTING = re.compile(r"^(\+{0,2}|~)[A-Za-z_][\w.]*=")
OPTION = re.compile(
    r"^(?:-(?P<letter>[A-Za-z])(?P<number>\d+)|--?(?P<name>[A-Za-z][\w.-]*)(?:=(?P<value>.*))?)$", re.DOTALL
)
"""What other programs call an option; here it is a setting, `key=value`."""
HELP, VERSION = ("--help", "-h", "help"), ("--version", "-V")
DEBUG = re.compile(r"^\+{0,2}debug=(true|yes|on|1)$", re.IGNORECASE)
EXIT_USER_ERROR, EXIT_BUG, EXIT_INTERRUPTED = 2, 1, 130
OBJECTS_TO_A_COLLECTION = 10_000
"""With the 700 of Python, what imports leave is gone through hundreds of times, a tenth of a cold answer."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit status: 0 success, 2 a user's mistake, 130 interrupted, 1 a bug of ours."""
    gc.set_threshold(OBJECTS_TO_A_COLLECTION)
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    stdout = sys.stdout
    if sys.stderr is None:  # closed by whoever started us
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - open as long as the process
    if sys.stdout is not None:
        sys.stdout = cast(TextIO, Answers(stdout))
    try:
        return _run_and_report(arguments)
    finally:
        sys.stdout = stdout


def _run_and_report(arguments: list[str]) -> int:
    try:
        Path.cwd()  # in one that was removed, torch's own libraries would end the process
        status = run(arguments)
        sys.stdout.flush()
        return status
    except UserError as error:
        _show_traceback(arguments)
        rank = os.environ.get("RANK", "0")
        say(f"npmlm: error: {error}" if rank == "0" else f"npmlm: error on rank {rank}: {error}")
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        if arguments[:1] == ["serve"]:
            say("\nnpmlm: the server was stopped")
            return EXIT_INTERRUPTED
        resumes = any(VERBS[name].resumes for name in arguments[:1] if name in VERBS)
        goes_on = "continues where it stopped" if resumes else "starts from the beginning"
        say(f"\nnpmlm: interrupted. The same command, given again, {goes_on}.")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our answers went away
        _drop_unwritten()
        return 0
    except Exception as error:
        _show_traceback(arguments)
        if refusal := system_refusal(error):
            say(f"npmlm: error: {refusal}")
            return EXIT_USER_ERROR
        say(f"npmlm: internal error: {type(error).__name__}: {error}; run it again with debug=true and report it")
        return EXIT_BUG


class Answers:
    """Standard output, whose refusals are told from those of other files. Raises StorageError for them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As a stream does."""
        with self._refusals():
            return self._stream.write(text)

    def flush(self) -> None:
        """As a stream does."""
        with self._refusals():
            self._stream.flush()

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except UnicodeEncodeError as error:
            letter = f"{error.object[error.start]!a} in {error.encoding}"
            raise StorageError(f"cannot write {letter} to standard output: set PYTHONIOENCODING=utf-8") from error
        except OSError as error:
            _drop_unwritten()
            raise StorageError(f"cannot write to standard output: {error.strerror or error}") from error


def run(arguments: list[str]) -> int:
    """Dispatch to a verb. Raises UserError for a mistake of the user."""
    if sys.stdout is None:
        raise StorageError("standard output is closed: leave out >&-, or write > /dev/null")
    if not arguments or (arguments[0] in HELP and len(arguments) == 1):
        sys.stdout.write(overview() + "\n")
        return 0
    if arguments[0] in HELP:
        arguments = [arguments[1], "--help", *arguments[2:]]
    name, rest = arguments[0], arguments[1:]
    before = before_texts(rest)
    if name in VERSION or (name in VERBS and set(VERSION).intersection(before)):
        sys.stdout.write(f"npmlm {npm.__version__}\n")
        return 0
    if name not in VERBS:
        raise unknown("verb", name, VERBS)
    verb = VERBS[name]
    asked = [place for place, word in enumerate(before) if word in HELP[:2] or (word in HELP and place == 0)]
    if asked:
        sys.stdout.write(verb_help(name, whole=before[asked[0] + 1 :][:1] == ["all"]) + "\n")
        return 0
    _refuse_options(name, rest)
    found = split_arguments(rest)
    if found.texts and not verb.takes_texts:
        raise SettingError(
            f"npmlm {name} takes settings only, as key=value, got {found.texts[0][:80]!r}; "
            f"npmlm {name} --help shows them"
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


def _refuse_options(name: str, arguments: list[str]) -> None:
    """Raise SettingError, with the command as it is to be written, for `-k 3`, `--index=DIR` or a folder alone."""
    declared = declared_settings(VERBS[name].root)
    before = before_texts(arguments)
    waiting = list(before)
    has_index = (
        VERBS[name].required != "index" or name == "build" or any(re.match("-*index(=|$)", word) for word in waiting)
    )
    corrected: list[str] = []
    wrong = ""
    while waiting:
        word = waiting.pop(0)
        is_usual = MASK_TEXT in word or SETTING.match(word) is not None
        if not is_usual and (option := OPTION.match(word)):
            key = option["letter"] or option["name"].replace("-", "_")
            key = key if key in declared else (similar_settings(key, declared) or [key])[0]
            value = option["number"] or option["value"]
            if value is None and key in declared and declared[key].is_flag:
                value = "true"
            elif value is None:
                value = waiting.pop(0) if waiting and not OPTION.match(waiting[0]) else "…"
            corrected.append(f"{key}={value}")
        elif is_usual or has_index or " " in word:
            corrected.append(word)
            continue
        else:
            corrected.append(f"index={word}")
            has_index = True
        wrong = wrong or word
    if wrong:
        command = shlex.join(["npmlm", name, *corrected, *arguments[len(before) :]])
        raise SettingError(f"settings are written key=value, got {wrong!r}; write: {command}")


def system_refusal(error: Exception) -> str:
    """One sentence for what the operating system refused, such as memory; empty for any other error."""
    if _ran_out_of_files(error):
        return "too many open files: allow more, such as with ulimit -n 1024"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported
        return f"out of memory ({error}): use a smaller model, fewer tokens at once, or device=cpu"
    if isinstance(error, OSError):
        place = error.filename or "a file or the working directory"
        return f"the operating system refused {place}: {error.strerror or error}"
    return ""


def _ran_out_of_files(error: BaseException | None) -> bool:
    """Whether the system opened no further file, which libraries report in their own ways."""
    while error is not None:
        if getattr(error, "errno", None) == errno.EMFILE or os.strerror(errno.EMFILE) in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _drop_unwritten() -> None:
    """Let what stdout did not take go nowhere: Python would try and complain again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_traceback(arguments: list[str]) -> None:
    """Print one if it is asked for; known before settings are, so that it covers mistakes in settings too."""
    if any(DEBUG.match(argument) for argument in before_texts(arguments)):
        traceback.print_exc()
