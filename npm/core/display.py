"""Display of answers, for people and for programs."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from npm.core.errors import UNPRINTABLE
from npm.core.types import MASK_TEXT, Answer, JointAnswer, Occurrence, Phrase, Table

if TYPE_CHECKING:
    from rich.table import Table as RichTable

OPENING_MARK, CLOSING_MARK = "«", "»"
TITLE_CHARS = 400
"""Characters of a text shown above its answers."""
CONTEXT_CHARS = 150
"""Characters of a sentence shown around a phrase."""
SENTENCE_CHARS = 400
"""Characters of a sentence shown alone."""
PASSAGE_CHARS = 1500
"""Characters of a document shown around a phrase."""
CONFIDENCE_WORDS = ((0.8, "sure"), (0.5, "likely"), (0.0, "unsure"))
REPORT_COLUMNS, MAX_REPORT_COLUMNS, MIN_TEXT_COLUMNS = 100, 120, 20


def answer_json(answer: Answer, *, line: int | None = None) -> str:
    """The answer as one line of JSON, with the `line` of its text in a file or a pipe, from 1.

    Raises ValueError for a score that is not a number, which JSON cannot hold.
    """
    record = asdict(answer) if line is None else {**asdict(answer), "line": line}
    return json.dumps(record, ensure_ascii=False, allow_nan=False)


def marked_context(occurrence: Occurrence, *, most_chars: int = CONTEXT_CHARS) -> Text:
    """The sentence of an occurrence, the phrase bold and in guillemets; a long sentence is shortened around it.

    >>> marked_context(Occurrence("d", "Iceland", 115, 124, "It is run from Reykjavík.", 100, 125, 15, 24)).plain
    'It is run from «Reykjavík».'
    """
    before, phrase, after = occurrence.parts
    room = max(0, most_chars - len(phrase))
    kept_before = min(len(before), max(room // 2, room - len(after)))
    text = Text(one_line(_end_of(before, kept_before)))
    text.append(f"{OPENING_MARK}{one_line(phrase)}{CLOSING_MARK}", style="bold")
    text.append(one_line(_beginning_of(after, room - kept_before)))
    return text


def one_line(text: str) -> str:
    """`text` for a line of a terminal: line breaks and tabs as spaces, other control characters replaced."""
    return printable("".join(" " if char.isspace() else char for char in text))


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


def printable(text: str) -> str:
    """`text` with control characters replaced: those of a corpus or a question must not steer a terminal."""
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def print_answer(answer: Answer, *, with_text: bool = True) -> None:
    """A card per phrase on stdout: number, score, phrase, the sentence of its best occurrence, and its document.

    Of a text with several masks the fillings, and below them the cards of each mask, counted through; of an answer with
    low evidence no card.
    """
    lines: list[RenderableType] = [Text(shown_text(answer.text)), ""] if with_text else []
    if answer.status == "low_evidence" and answer.confidence is not None and answer.phrases:
        lines += ["no clear answer in the corpus; closest passage:", *_closest(answer.phrases[0])]
    elif answer.status == "low_evidence":
        lines.append("no clear answer in the corpus")
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
    word = next(word for least, word in CONFIDENCE_WORDS if confidence >= least)
    percent = round(100 * confidence)
    return f"{word}, {percent if percent else 'under 1'} %"


def _closest(phrase: Phrase) -> list[RenderableType]:
    """The sentence of a withheld phrase, and its document."""
    return [line for best in phrase.occurrences[:1] for line in indented(marked_context(best), best.document_name)]


def _cards(phrases: Sequence[Phrase], first: int, confidence: float | None = None) -> list[RenderableType]:
    """The lines of phrases numbered from `first`; a sentence that is above already is not repeated.

    With the `confidence` of the first phrase it is shown, and no share.
    """
    shown: dict[tuple[str, int], tuple[int, str]] = {}
    lines: list[RenderableType] = []
    for number, phrase in enumerate(phrases, start=first):
        sure = confidence_text(confidence) if confidence is not None and number == first else None
        lines.append(_heading(number, phrase.phrase, phrase.score if confidence is None else None, sure))
        for best in phrase.occurrences[:1]:
            above, sentence = shown.get((best.document, best.context_start_char), (0, ""))
            if above and one_line(best.parts[1]) in sentence:
                lines.append(f"    same sentence as {above}")
                continue
            context = marked_context(best)
            shown[best.document, best.context_start_char] = number, context.plain
            lines += indented(context, best.document_name)
    return lines or ["no phrase found"]


def _heading(number: int, phrase: str, score: float | None, after: str | None) -> Text:
    shown = "" if score is None else f"{score:.3f}  "
    return Text.assemble(f"{number:>2}  {shown}", (one_line(phrase), "bold"), f"  ({after})" if after else "")


def indented(context: Text, document: str) -> list[RenderableType]:
    """A sentence and the name of its document, indented."""
    return [Padding(each, (0, 0, 0, 4), expand=False) for each in (context, Text(one_line(document), style="dim"))]


def write_rendered(shown: RenderableType) -> None:
    """Write what rich renders to stdout."""
    # written by us, because rich ends the process with status 1 when the reader of a pipe goes away
    sys.stdout.write(rendered([shown]))
    sys.stdout.flush()


def rendered(parts: Iterable[RenderableType], *, columns: int | None = None) -> str:
    """Text that rich makes of the parts, without padding; as colorful and, without `columns`, as wide as stdout."""
    console = Console(file=sys.stdout, width=columns, highlight=False)
    with console.capture() as printed:
        for part in parts:
            console.print(part)
    return re.sub(" +$", "", printed.get(), flags=re.MULTILINE)


def report_text(parts: Iterable[RenderableType | Table], *, min_columns: int = 80) -> str:
    """Tables, plain texts, and what rich renders, of a report; as wide as the terminal, within bounds."""
    columns = max(min_columns, min(MAX_REPORT_COLUMNS, shutil.get_terminal_size((REPORT_COLUMNS, 24)).columns))
    shown = (
        _rich_table(part) if isinstance(part, Table) else Text(part) if isinstance(part, str) else part
        for part in parts
    )
    return rendered(shown, columns=columns)


def _rich_table(table: Table) -> RichTable:
    """The table for a terminal.

    Numbers are not broken, so that a column of text keeps space for its longest cell, or for MIN_TEXT_COLUMNS of it.
    """
    from rich import box
    from rich.table import Table as RichTable

    right = range(1, len(table.header)) if table.numbers is None else table.numbers
    heading = Text(one_line(table.title)) if table.title else None
    shown = RichTable(title=heading, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(table.header):
        if place in right:
            shown.add_column(name, justify="right", no_wrap=True)
        else:
            longest = max((len(row[place]) for row in table.rows), default=0)
            shown.add_column(name, min_width=min(MIN_TEXT_COLUMNS, longest))
    for row in table.rows:
        shown.add_row(*(Text(one_line(cell)) for cell in row))
    return shown


def _end_of(text: str, most_chars: int) -> str:
    """The last characters of `text`, cut at a word.

    >>> _end_of("one two three", 9), _end_of("one", 3)
    ('… three', 'one')
    """
    if len(text) <= most_chars:
        return text
    cut = text[len(text) - most_chars :]
    return "… " + (cut.partition(" ")[2] if " " in cut.rstrip() else "")


def _beginning_of(text: str, most_chars: int) -> str:
    """The first characters of `text`, cut at a word.

    >>> _beginning_of("one two three", 9), _beginning_of("one", 3)
    ('one two …', 'one')
    """
    if len(text) <= most_chars:
        return text
    cut = text[:most_chars]
    return (cut.rpartition(" ")[0] if " " in cut.lstrip() else "") + " …"


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
        lines.append(Padding(marked_context(occurrence), (0, 0, 0, 5), expand=False))
    write_rendered(Group(*lines))


def print_passage(occurrence: Occurrence) -> None:
    """Print an occurrence whose context is its document, the phrase marked."""
    heading = Text(f"{one_line(occurrence.document_name)}, characters {occurrence.start_char} to {occurrence.end_char}")
    write_rendered(Group(heading, "", marked_context(occurrence, most_chars=PASSAGE_CHARS)))
