"""Texts of `npmlm fill` read, and answers on a terminal: cards of phrases, places of a phrase, or a line of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from npm.cli.base import Output, decoded, say
from npm.core.display import PASSAGE_CHARS, indented, marked_context, one_line, printable, write_rendered
from npm.core.errors import QueryError, exclusive
from npm.core.types import MASK_TEXT, Answer, JointAnswer, Occurrence, Phrase, confidence_word
from npm.corpus.text import without_mask
from npm.retrieval.queries import MAX_MASKS, Query

if TYPE_CHECKING:
    from npm.retrieval.filler import PhraseFiller

TITLE_CHARS = 400
"""Characters of a text shown above its answers."""
CLOSEST_SENTENCES = 3
"""Sentences that are shown in place of an answer, at most."""


def answer_json(answer: Answer, *, line: int | None = None) -> str:
    """The answer as one line of JSON, with the `line` of its text in a file or a pipe, from 1.

    Raises ValueError for a score that is not a number, which JSON cannot hold.
    """
    record = asdict(answer) if line is None else {**asdict(answer), "line": line}
    return json.dumps(record, ensure_ascii=False, allow_nan=False)


def shown_text(text: str, *, most_chars: int = TITLE_CHARS) -> str:
    """A text for a terminal: the part near its masks and between them, without control characters.

    >>> shown_text("It is \\x1b[31m <mask>"), shown_text("a " * 9 + "<mask>" + " b" * 9, most_chars=14)
    ('It is �[31m <mask>', '…a a <mask> b b…')
    >>> shown_text("a a <mask> b <mask> c c", most_chars=19)
    '…a <mask> b <mask> c…'
    """
    first, last = max(0, text.find(MASK_TEXT)), max(0, text.rfind(MASK_TEXT)) + len(MASK_TEXT)
    around = max(0, most_chars - (last - first)) // 2
    start, stop = max(0, first - around), last + around
    cut = ("…" if start else "") + text[start:stop] + ("…" if stop < len(text) else "")
    return printable(cut)


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


def print_answer(answer: Answer, *, with_text: bool = True) -> None:
    """A card per phrase on stdout: number, score, phrase, the sentence of its best occurrence, and its document.

    Of a text with several masks the fillings, and below them the cards of each mask, counted through; of an answer with
    low evidence the closest sentences.
    """
    lines: list[RenderableType] = [Text(without_mask(shown_text(answer.text))), ""] if with_text else []
    if answer.status == "low_evidence":
        closest = answer.passages[:CLOSEST_SENTENCES]
        lines.append("no clear answer in the corpus" + ("; closest sentences:" if closest else ""))
        for place in closest:
            lines += indented(marked_context(place.parts), place.document_name)
    elif isinstance(answer, JointAnswer):
        for filling in answer.fillings:
            lines.append(Text.assemble(f"{filling.score:.3f}  ", (one_line(" / ".join(filling.phrases)), "bold")))
        count = 1
        for number, mask in enumerate(answer.masks, start=1):
            lines += ["", f"mask {number}", *_cards(mask.phrases, count)]
            count += len(mask.phrases)
    else:
        lines += _cards(answer.phrases, 1, answer.confidence)
    lines += [""] if with_text else []
    write_rendered(Group(*lines))


def confidence_text(confidence: float) -> str:
    """A confidence in words and percent.

    >>> confidence_text(0.934), confidence_text(0.5), confidence_text(0.004)
    ('sure, 93 %', 'likely, 50 %', 'unsure, under 1 %')
    """
    percent = round(100 * confidence)
    return f"{confidence_word(confidence)}, {percent if percent else 'under 1'} %"


def _cards(phrases: Sequence[Phrase], first: int, confidence: float | None = None) -> list[RenderableType]:
    """The lines of phrases numbered from `first`; a sentence that is above already is not repeated.

    With the `confidence` of the first phrase it is shown, and no share.
    """
    shown: dict[tuple[str, int], tuple[int, str]] = {}
    lines: list[RenderableType] = []
    for number, phrase in enumerate(phrases, start=first):
        sure = confidence_text(confidence) if confidence is not None and number == first else None
        score = f"{phrase.score:.3f}  " if confidence is None else ""
        heading = (f"{number:>2}  {score}", (one_line(phrase.phrase), "bold"), f"  ({sure})" if sure else "")
        lines.append(Text.assemble(*heading))
        for best in phrase.occurrences[:1]:
            above, sentence = shown.get((best.document, best.context_start_char), (0, ""))
            if above and one_line(best.parts[1]) in sentence:
                lines.append(f"    same sentence as {above}")
                continue
            context = marked_context(best.parts)
            shown[best.document, best.context_start_char] = number, context.plain
            lines += indented(context, best.document_name)
    return lines or ["no phrase found"]


def print_places(phrase: Phrase) -> None:
    """Print the occurrences of a phrase, numbered, each with its sentence and its document."""
    shown, count = len(phrase.occurrences), phrase.occurrence_count
    heading = f"{count} {'place' if count == 1 else 'places'} found"
    print_occurrences(
        phrase.phrase, heading + (f", the best {shown} of them" if shown < count else ""), phrase.occurrences
    )


def print_occurrences(phrase: str, heading: str, occurrences: Sequence[Occurrence]) -> None:
    """Print a phrase with a `heading`, and places of it, numbered."""
    lines: list[Text | Padding] = [Text.assemble((one_line(phrase), "bold"), f"  {heading}")]
    for number, occurrence in enumerate(occurrences, start=1):
        lines.append(Text.assemble(f"{number:>3}  ", one_line(occurrence.document_name)))
        lines.append(Padding(marked_context(occurrence.parts), (0, 0, 0, 5), expand=False))
    write_rendered(Group(*lines))


def print_passage(occurrence: Occurrence) -> None:
    """Print an occurrence whose context is its document, the phrase marked."""
    heading = Text(f"{one_line(occurrence.document_name)}, characters {occurrence.start_char} to {occurrence.end_char}")
    write_rendered(Group(heading, "", marked_context(occurrence.parts, most_chars=PASSAGE_CHARS)))


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


def _decoded(source: str, lines: list[bytes], first: int = 1) -> Iterator[Query]:
    """The lines that are not blank, without a byte order mark. Raises QueryError for one that cannot be filled."""
    for number, line in enumerate(lines, start=first):
        place = f"{source}, line {number}"
        text = decoded(line, place).rstrip("\r\n")
        if text.strip():
            yield replace(Query.read(text, place, max_masks=MAX_MASKS), line=number)
