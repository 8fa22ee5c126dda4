"""The texts of `npmlm fill`: read from arguments, a file or a pipe, checked, and answered on stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from npm.cli.base import Output, decoded, say
from npm.core.display import answer_json, print_answer
from npm.core.errors import QueryError, exclusive
from npm.core.types import MASK_TEXT, Answer
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.queries import MAX_MASKS, check_masked_text, read_query

TEXTS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Query:
    """A text, and where it was read."""

    text: str
    place: str = ""  # for messages; "" where there is one text only
    line: int | None = None  # in a file or a pipe, from 1


def given_texts(texts: list[str], file: str) -> list[Query]:
    """The texts given as arguments or in a file, checked; none if they come from elsewhere. Raises QueryError."""
    if texts and file:
        raise exclusive("texts=FILE", "texts as arguments")
    queries = [Query(text, f"text {number} of {len(texts)}") for number, text in enumerate(texts, start=1)]
    if file:
        try:
            data = Path(file).read_bytes()
        except OSError as error:
            raise QueryError(f"texts: cannot read {file}: {error.strerror}") from error
        queries = list(_decoded(file, data.removesuffix(b"\n").split(b"\n")))
        if not queries:
            raise QueryError(f"texts: {file} is empty")
    return [read(query) for query in queries]


def fill_texts(filler: PhraseFiller, output: Output, queries: list[Query]) -> None:
    """Answer checked texts, several at once."""
    for query in queries:
        check_masked_text(filler.encoder, query.text, where=query.place)
    for first in range(0, len(queries), TEXTS_AT_ONCE):
        batch = queries[first : first + TEXTS_AT_ONCE]
        _answer(filler, output, batch if len(queries) > 1 else [Query(batch[0].text, line=batch[0].line)])


def fill_piped(filler: PhraseFiller, output: Output) -> None:
    """Answer each line of a pipe as soon as it comes. Raises QueryError at the end, with all unusable lines."""
    count, refused = 0, list[str]()
    stream = getattr(sys.stdin, "buffer", None)  # None if the shell closed it, as with <&-
    for number, line in enumerate(iter(stream.readline, b"") if stream else (), start=1):
        try:
            for given in _decoded("standard input", [line], number):
                query = read(given)
                check_masked_text(filler.encoder, query.text, where=query.place)
                _answer(filler, output, [query])
                count += 1
        except QueryError as error:
            refused.append(str(error))
    if refused:
        raise QueryError("\n".join(refused))
    if not count:
        raise QueryError(f"no text on standard input: write one with {MASK_TEXT} a line, or give texts=FILE")


def show_answer(output: Output, answer: Answer, query: Query, *, with_text: bool = True) -> None:
    """Print one answer on stdout and its notes on stderr, with the place of its text where there are several."""
    for note in answer.notes:
        say(f"note: {query.place}: {note}" if query.place else f"note: {note}")
    if output == "json":
        sys.stdout.write(answer_json(answer, line=query.line) + "\n")
        sys.stdout.flush()
    else:
        print_answer(answer, with_text=with_text)


def _answer(filler: PhraseFiller, output: Output, batch: list[Query]) -> None:
    texts = [query.text for query in batch]
    for answer, query in zip(filler.fill(texts), batch, strict=True):
        show_answer(output, answer, query)


def read(query: Query) -> Query:
    """The query as it is filled. Raises QueryError."""
    return replace(query, text=read_query(query.text, where=query.place or "text", max_masks=MAX_MASKS))


def _decoded(source: str, lines: list[bytes], first: int = 1) -> Iterator[Query]:
    """The lines that are not blank, without a byte order mark. Raises QueryError for one that is not UTF-8."""
    for number, line in enumerate(lines, start=first):
        place = f"{source}, line {number}"
        text = decoded(line, place).rstrip("\r\n")
        if text.strip():
            yield Query(text, place, number)
