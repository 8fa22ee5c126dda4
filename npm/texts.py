"""Texts to be filled as they come in: lines of a file, of a pipe, of a keyboard."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from npm.errors import QueryError


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
