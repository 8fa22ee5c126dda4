"""The command `npmlm VERB key=value … text …`. stdout holds answers only; all else goes to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npm.cli import verbs
from npm.cli.help import VERBS, usage, verb_help
from npm.cli.progress import say
from npm.cli.settings import before_texts, split_arguments, wants_debug
from npm.errors import QueryError, SettingError, UserError
from npm.types import MASK_TEXT, Answer

if TYPE_CHECKING:
    from npm.cli.commands import FillCommand
    from npm.retrieval.fill import PhraseFiller


def read_texts(path: Path) -> list[tuple[str, str]]:
    """The lines of a file, each with its place; blank lines are passed over.

    Raises QueryError if the file is missing, empty or not UTF-8, with the line.
    """
    advice = {"expected": "a UTF-8 file with one text a line", "where": str(path), "fix": "check texts=FILE"}
    try:
        data = path.read_bytes()
    except OSError as error:
        raise QueryError("the file of texts cannot be read", got=str(error.strerror), **advice) from error
    lines = data.removesuffix(b"\n").split(b"\n")
    places = ((line, f"{path}, line {number}") for number, line in enumerate(lines, start=1))
    texts = [(text, place) for line, place in places if (text := _decoded(line, place)).strip()]
    if not texts:
        raise QueryError("the file of texts is empty", got="no text", **advice)
    return texts


def piped_lines() -> Iterator[tuple[str, str]]:
    """The lines of a pipe with their places, each as soon as it comes; blank lines are passed over."""
    if sys.stdin is None:  # closed by the shell, as with <&-
        return
    stream = getattr(sys.stdin, "buffer", None)
    lines = iter(stream.readline, b"") if stream is not None else iter(sys.stdin.readline, "")
    for number, line in enumerate(lines, start=1):
        place = f"standard input, line {number}"
        text = line if isinstance(line, str) else _decoded(line, place)
        if text.strip():
            yield text.rstrip("\r\n"), place


def typed_line() -> str:
    """A line from the keyboard. Raises EOFError at the end, QueryError for a line that is not UTF-8."""
    prompt = "> "
    if not sys.stdout.isatty():  # `input` would write the prompt among the answers
        sys.stderr.write(prompt)
        sys.stderr.flush()
        prompt = ""
    try:
        return input(prompt)
    except UnicodeDecodeError as error:
        raise _not_utf8(error, "the prompt") from error


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        raise _not_utf8(error, where) from error


def _not_utf8(error: UnicodeDecodeError, where: str) -> QueryError:
    return QueryError(
        "the text is not valid UTF-8",
        expected="UTF-8",
        got=f"byte 0x{error.object[error.start]:02x} at place {error.start}",
        where=where,
        fix="convert the text to UTF-8",
    )


RESUMED = ("train", "build", "add", "compact")
"""Verbs that go on where they were stopped."""
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
        goes_on = "continues where it stopped" if arguments[0] in RESUMED else "starts from the beginning"
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


def _show_traceback(arguments: list[str]) -> None:
    if wants_debug(arguments):
        import traceback

        traceback.print_exc()


def run(arguments: list[str]) -> int:
    """Dispatch to a verb. Raises UserError for a mistake of the user."""
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        sys.stdout.write(usage() + "\n")
        return 0
    if arguments[0] == "--version":
        sys.stdout.write(f"npmlm {_version()}\n")
        return 0
    verb, rest = arguments[0], arguments[1:]
    if verb not in VERBS:
        raise SettingError(
            f"unknown verb {verb!r}",
            expected=", ".join(VERBS),
            got=verb,
            where="npmlm VERB",
            fix="npmlm --help shows what there is",
        )
    from npm.cli.commands import COMMANDS
    from npm.cli.settings import compose_settings, group_choices

    if not {"--help", "-h"}.isdisjoint(before_texts(rest)):
        sys.stdout.write(verb_help(verb, COMMANDS[verb], group_choices(verb)) + "\n")
        return 0
    found = split_arguments(rest)
    if found.texts and verb not in WITH_TEXTS:
        raise SettingError(
            f"{verb} takes settings only",
            expected="key=value",
            got=found.texts[0],
            where=f"npmlm {verb}",
            fix=f"npmlm {verb} --help lists its settings",
        )
    settings = compose_settings(verb, found.settings)
    return WITH_TEXTS[verb](settings, found.texts) if verb in WITH_TEXTS else _VERBS[verb](settings)


def run_fill(settings: FillCommand, texts: list[str]) -> int:
    """`npmlm fill`: texts as arguments, from a file, from a pipe, or at a prompt that stays open."""
    if texts and settings.texts:
        raise SettingError(
            "texts are given twice",
            expected="texts as arguments or texts=FILE",
            got=f"{len(texts)} arguments and texts={settings.texts}",
            where="texts",
            fix="leave one of them out",
        )
    at_once = [(text, f"text {number} of {len(texts)}") for number, text in enumerate(texts, start=1)]
    if settings.texts:
        at_once = read_texts(Path(settings.texts))
    for text, place in at_once:
        _check(text, place)
    filler = open_filler(settings)
    show = shower(settings)
    if at_once:
        for first in range(0, len(at_once), 64):
            batch = at_once[first : first + 64]
            for answer, (_, place) in zip(filler.fill([text for text, _ in batch]), batch, strict=True):
                show(answer, place if len(at_once) > 1 else "")
    elif sys.stdin is not None and sys.stdin.isatty():
        _prompt(filler, show)
    else:
        answered = 0
        for line, place in piped_lines():
            _check(line, place)
            show(filler.fill(line), place)
            answered += 1
        if not answered:
            raise QueryError(
                "there is no text to fill",
                expected=f"a text with one {MASK_TEXT}",
                got="nothing",
                where="standard input",
                fix="give texts as arguments, with texts=FILE, or a line each on standard input",
            )
    return 0


def _check(text: str, where: str) -> None:
    from npm.retrieval.queries import check_query

    check_query(text, where=where)


def open_filler(settings: FillCommand) -> PhraseFiller:
    """The index with its encoder on the chosen device."""
    from npm.retrieval.fill import PhraseFiller

    return PhraseFiller.open(
        settings.index, settings.encoder or None, settings=settings, device=settings.device, dtype=settings.precision
    )


def _prompt(filler: PhraseFiller, show: Callable[[Answer, str], None]) -> None:
    """Answer one text after the other until the end of input; a mistake does not close the prompt."""
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (line editing and history)
    say(f"Write a text with one {MASK_TEXT}; Ctrl-D ends.")
    while True:
        try:
            text = typed_line()
            if text.strip():
                _refresh(filler)
                show(filler.fill(text), "")
        except EOFError:
            say("")
            return
        except QueryError as error:
            say(str(error))


def _refresh(filler: PhraseFiller) -> None:
    """Take up the index's present generation; where there is none any more, go on with the one that is open."""
    try:
        if filler.refresh():
            say("note: the index was changed; this is its new generation")
    except UserError as error:
        say(f"note: {error.problem}; the answer is from what was opened before")


def shower(settings: FillCommand) -> Callable[[Answer, str], None]:
    """What prints one answer on stdout and its notes on stderr, with the place of its text where there are several."""
    from npm.cli.commands import Output
    from npm.display import answer_json, print_answer

    def show(answer: Answer, place: str) -> None:
        for note in answer.notes:
            say(f"note: {place}: {note}" if place else f"note: {note}")
        if settings.output is Output.json:
            sys.stdout.write(answer_json(answer) + "\n")
            sys.stdout.flush()
        else:
            print_answer(answer)

    return show


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("npmlm")
    except PackageNotFoundError:
        return "not installed"


_VERBS: dict[str, Callable[[Any], int]] = {
    "train": verbs.run_train,
    "evaluate": verbs.run_evaluate,
    "build": verbs.run_build,
    "verify": verbs.run_verify,
    "add": verbs.run_add,
    "delete": verbs.run_delete,
    "compact": verbs.run_compact,
    "tune": verbs.run_tune,
    "inspect": verbs.run_inspect,
    "estimate": verbs.run_estimate,
}

WITH_TEXTS: dict[str, Callable[[Any, list[str]], int]] = {
    "fill": run_fill,
    "compare": verbs.run_compare,
    "plot": verbs.run_plot,
}
"""Verbs that take more than settings: texts, or folders."""
