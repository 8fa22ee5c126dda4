"""`npmlm fill`: texts as arguments, from a file or from a pipe; their answers on stdout."""

from __future__ import annotations

import sys
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from npm.cli.commands import FillCommand, Output
from npm.cli.progress import say
from npm.cli.user_files import demo_filler
from npm.core.display import answer_json, print_answer, print_sentences
from npm.core.errors import QueryError, exclusive
from npm.core.types import MASK_TEXT, Answer
from npm.retrieval.blocks import lacks_block_vectors
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.queries import MOST_MASKS, check_masked_text, check_query

TEXTS_AT_ONCE = 64
NO_BLOCK_VECTORS = (
    "note: the encoder makes block vectors, and this index was built without: blocks are ranked by shared words alone. "
    "Build it into another folder to rank by both; vector_share=0 leaves this note out."
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A text, and where it was asked."""

    text: str
    place: str = ""  # for messages; "" where there is one text only
    line: int | None = None  # in a file or a pipe, from 1


def fill_texts(settings: FillCommand, texts: list[str]) -> int:
    """Answer texts given as arguments, in a file or through a pipe; returns the exit status."""
    if texts and settings.texts:
        raise exclusive("texts=FILE", "texts as arguments")
    at_once = [Asked(text, f"text {number} of {len(texts)}") for number, text in enumerate(texts, start=1)]
    if settings.texts:
        at_once = _read_texts(Path(settings.texts))
    most_masks = 1 if settings.output is Output.sentences else MOST_MASKS
    for asked in at_once:
        check_query(asked.text, where=asked.place, most_masks=most_masks)
    filler = open_filler(settings)
    for asked in at_once:
        check_masked_text(filler.encoder, asked.text, where=asked.place)
    if at_once:
        for first in range(0, len(at_once), TEXTS_AT_ONCE):
            batch = at_once[first : first + TEXTS_AT_ONCE]
            _answer(filler, settings.output, batch if len(at_once) > 1 else [replace(batch[0], place="")])
    else:
        _answer_piped(filler, settings.output, most_masks)
    return 0


def _answer_piped(filler: PhraseFiller, output: Output, most_masks: int) -> None:
    """Answer each line as soon as it comes. Raises QueryError at the end, with all lines that are no questions."""
    answered, refused = 0, list[str]()
    for number, line in _piped_lines():
        try:
            asked = _decoded(line, f"standard input, line {number}", number)
            if not asked.text.strip():
                continue
            check_query(asked.text, where=asked.place, most_masks=most_masks)
            check_masked_text(filler.encoder, asked.text, where=asked.place)
        except QueryError as error:
            refused.append(str(error))
            continue
        _answer(filler, output, [asked])
        answered += 1
    if refused:
        raise QueryError("\n".join(refused))
    if not answered:
        raise QueryError(f"no text on standard input: write one with {MASK_TEXT} a line, or give texts=FILE")


def _answer(filler: PhraseFiller, output: Output, batch: list[Asked]) -> None:
    """Answer some checked texts on stdout."""
    texts = [asked.text for asked in batch]
    if output is Output.sentences:
        for text, found in zip(texts, filler.sentences(texts), strict=True):
            print_sentences(text, found)
        return
    for answer, asked in zip(filler.fill(texts), batch, strict=True):
        show_answer(output, answer, asked)


def open_filler(settings: FillCommand) -> PhraseFiller:
    """The index that the settings name, or without one that of the demo corpus, opened with its encoder."""
    if settings.index:
        made_by = settings.encoder or None
        filler = PhraseFiller.open(
            settings.index, made_by, settings=settings, device=settings.device, dtype=settings.precision
        )
    else:
        filler = demo_filler(settings)
    if lacks_block_vectors(filler.index, filler.encoder, settings):
        say(NO_BLOCK_VECTORS)
    return filler


def _read_texts(path: Path) -> list[Asked]:
    """The lines of a file, each with its place; blank lines are passed over, and so is a byte order mark.

    Raises QueryError if the file is missing, empty or not UTF-8, with the line.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise QueryError(f"texts: cannot read {path}: {error.strerror}") from error
    lines = enumerate(data.removeprefix(BOM_UTF8).removesuffix(b"\n").split(b"\n"), start=1)
    texts = [_decoded(line, f"{path}, line {number}", number) for number, line in lines]
    if not (texts := [asked for asked in texts if asked.text.strip()]):
        raise QueryError(f"texts: {path} is empty")
    return texts


def _piped_lines() -> Iterator[tuple[int, bytes]]:
    """The lines of a pipe with their numbers, each as soon as it comes."""
    if sys.stdin is None:  # closed by the shell, as with <&-
        return
    stream = getattr(sys.stdin, "buffer", None)
    lines = iter(stream.readline, b"") if stream is not None else iter(sys.stdin.readline, "")
    for number, line in enumerate(lines, start=1):
        data = line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line
        yield number, data.removeprefix(BOM_UTF8) if number == 1 else data


def show_answer(output: Output, answer: Answer, asked: Asked, *, with_text: bool = True) -> None:
    """Print one answer on stdout and its notes on stderr, with the place of its text where there are several."""
    for note in answer.notes:
        say(f"note: {asked.place}: {note}" if asked.place else f"note: {note}")
    if output is Output.json:
        sys.stdout.write(answer_json(answer, line=asked.line) + "\n")
        sys.stdout.flush()
    else:
        print_answer(answer, with_text=with_text)


def _decoded(line: bytes, where: str, number: int) -> Asked:
    try:
        return Asked(line.decode("utf-8").rstrip("\r\n"), where, number)
    except UnicodeDecodeError as error:
        raise not_utf8(error, where) from error


def not_utf8(error: UnicodeDecodeError, where: str) -> QueryError:
    return QueryError(f"{where}: invalid UTF-8: byte 0x{error.object[error.start]:02x} at place {error.start}")
