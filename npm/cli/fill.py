"""`npmlm fill`: texts as arguments, from a file, from a pipe or at a prompt; their answers on stdout."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from npm.cli.commands import FillCommand, Output
from npm.cli.progress import say
from npm.display import answer_json, print_answer
from npm.errors import QueryError, SettingError, UserError
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.queries import check_query
from npm.types import MASK_TEXT, Answer

TEXTS_AT_ONCE = 64


def fill_texts(settings: FillCommand, texts: list[str]) -> int:
    """Answer texts given as arguments, in a file, through a pipe, or at a prompt that stays open."""
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
        at_once = _read_texts(Path(settings.texts))
    for text, place in at_once:
        check_query(text, where=place)
    filler = PhraseFiller.open(
        settings.index, settings.encoder or None, settings=settings, device=settings.device, dtype=settings.precision
    )
    show = partial(_show, settings.output)
    if at_once:
        for first in range(0, len(at_once), TEXTS_AT_ONCE):
            batch = at_once[first : first + TEXTS_AT_ONCE]
            for answer, (_, place) in zip(filler.fill([text for text, _ in batch]), batch, strict=True):
                show(answer, place if len(at_once) > 1 else "")
    elif sys.stdin is not None and sys.stdin.isatty():
        _prompt(filler, show)
    else:
        answered = 0
        for line, place in _piped_lines():
            check_query(line, where=place)
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


def _read_texts(path: Path) -> list[tuple[str, str]]:
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


def _piped_lines() -> Iterator[tuple[str, str]]:
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


def _prompt(filler: PhraseFiller, show: Callable[[Answer, str], None]) -> None:
    """Answer one text after the other until the end of input; a mistake does not close the prompt."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (line editing and history; it changes how `input` reads)
    say(f"Write a text with one {MASK_TEXT}; Ctrl-D ends.")
    while True:
        try:
            text = _typed_line()
            if text.strip():
                _refresh(filler)
                show(filler.fill(text), "")
        except EOFError:
            say("")
            return
        except QueryError as error:
            say(str(error))


def _typed_line() -> str:
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


def _refresh(filler: PhraseFiller) -> None:
    """Take up the index's present generation; where there is none any more, go on with the one that is open."""
    try:
        if filler.refresh():
            say("note: the index was changed; this is its new generation")
    except UserError as error:
        say(f"note: {error.problem}; the answer is from what was opened before")


def _show(output: Output, answer: Answer, place: str) -> None:
    """Print one answer on stdout and its notes on stderr, with the place of its text where there are several."""
    for note in answer.notes:
        say(f"note: {place}: {note}" if place else f"note: {note}")
    if output is Output.json:
        sys.stdout.write(answer_json(answer) + "\n")
        sys.stdout.flush()
    else:
        print_answer(answer)


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
