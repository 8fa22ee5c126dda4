"""The texts of `npmlm fill`: read from arguments, a file or a pipe, checked, and answered on stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from npm.cli.base import Output, decoded, say
from npm.cli.cards import answer_json, print_answer
from npm.core.errors import QueryError, exclusive
from npm.core.types import MASK_TEXT, Answer
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.queries import MAX_MASKS, Query


def given_texts(texts: list[str], file: str) -> list[Query]:
    """The texts given as arguments or in a file, read; none if they come from elsewhere. Raises QueryError."""
    if texts and file:
        raise exclusive("texts=FILE", "texts as arguments")
    places = [f"text {number} of {len(texts)}" for number in range(1, len(texts) + 1)]
    queries = [Query.read(text, place, max_masks=MAX_MASKS) for text, place in zip(texts, places, strict=True)]
    if file:
        try:
            data = Path(file).read_bytes()
        except OSError as error:
            raise QueryError(f"texts: cannot read {file}: {error.strerror}") from error
        queries = list(_decoded(file, data.removesuffix(b"\n").split(b"\n")))
        if not queries:
            raise QueryError(f"texts: {file} is empty")
    return queries


def fill_texts(filler: PhraseFiller, output: Output, queries: list[Query]) -> None:
    """Answer texts, several at once, after all were checked."""
    for query, answer in zip(queries, filler.answers(queries), strict=True):
        show_answer(output, answer, query, names_place=len(queries) > 1)


def fill_piped(filler: PhraseFiller, output: Output) -> None:
    """Answer each line of a pipe as soon as it comes. Raises QueryError at the end, with all unusable lines."""
    count, refused = 0, list[str]()
    stream = getattr(sys.stdin, "buffer", None)  # None if the shell closed it, as with <&-
    for number, line in enumerate(iter(stream.readline, b"") if stream else (), start=1):
        try:
            for query in _decoded("standard input", [line], number):
                (answer,) = filler.answers([query])
                show_answer(output, answer, query, names_place=True)
                count += 1
        except QueryError as error:
            refused.append(str(error))
    if refused:
        raise QueryError("\n".join(refused))
    if not count:
        raise QueryError(f"no text on standard input: write one with {MASK_TEXT} a line, or give texts=FILE")


def show_answer(
    output: Output, answer: Answer, query: Query, *, with_text: bool = True, names_place: bool = False
) -> None:
    """Print one answer on stdout and its notes on stderr, with the place of its text where there are several."""
    for note in answer.notes:
        say(f"note: {query.place}: {note}" if names_place else f"note: {note}")
    if output == "json":
        sys.stdout.write(answer_json(answer, line=query.line) + "\n")
        sys.stdout.flush()
    else:
        print_answer(answer, with_text=with_text)


def _decoded(source: str, lines: list[bytes], first: int = 1) -> Iterator[Query]:
    """The lines that are not blank, without a byte order mark. Raises QueryError for one that cannot be filled."""
    for number, line in enumerate(lines, start=first):
        place = f"{source}, line {number}"
        text = decoded(line, place).rstrip("\r\n")
        if text.strip():
            yield replace(Query.read(text, place, max_masks=MAX_MASKS), line=number)
