"""Tables of results: for the terminal with rich, and as Markdown; intervals; the whole report of task `demo`."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from npm.evaluation.metrics import Interval, is_hit

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    from npm.core.types import Occurrence, Phrase
    from npm.evaluation.demo import DemoResult, HitRates, Prediction


Row = Sequence[str]
PHRASES_SHOWN = 3
LEAST_TEXT_COLUMNS = 20
PHRASE_COLUMNS = 22
"""Widest a phrase may be in a table before it is wrapped."""


def percent(interval: Interval, *, sign: str = "") -> str:
    """A share and its 95 % confidence interval, in per cent; `sign` "+" is for differences.

    >>> percent(Interval(0.6211, 0.547, 0.696)), percent(Interval(0.02, -0.01, 0.05), sign="+")
    ('62.1 [54.7, 69.6]', '+2.0 [-1.0, +5.0]')
    """
    mean, low, high = (f"{100 * value:{sign}.1f}" for value in (interval.mean, interval.low, interval.high))
    return f"{mean} [{low}, {high}]"


def markdown_table(header: Row, rows: Iterable[Row]) -> str:
    """A Markdown table; the first column is text, the others are numbers.

    >>> print(markdown_table(["method", "hit@1, %"], [["a|b", "60.0"]]))
    | method | hit@1, % |
    |---|---:|
    | a\\|b | 60.0 |
    """
    lines = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (header, *rows)]
    written = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([written[0], "|---" + "|---:" * (len(header) - 1) + "|", *written[1:]])


def terminal_table(
    header: Row, rows: Iterable[Row], *, title: str | None = None, numbers: Iterable[int] | None = None
) -> Table:
    """The same table for a terminal; `numbers` are the columns of numbers, by default all but the first.

    Numbers are not broken, so that a column of text keeps room for its longest cell, or for LEAST_TEXT_COLUMNS of it.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    right = set(range(1, len(header)) if numbers is None else numbers)
    heading = Text(title) if title else None
    table = Table(title=heading, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    cells = list(rows)
    for number, name in enumerate(header):
        if number in right:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            longest = max((len(row[number]) for row in cells), default=0)
            table.add_column(name, min_width=min(LEAST_TEXT_COLUMNS, longest))
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    return table


def memory_console(*, least: int, usual: int, most: int) -> Console:
    """A console that writes to memory, as colourful as stdout and as wide, within bounds; see `written_on`."""
    from rich.console import Console

    width = max(least, min(most, shutil.get_terminal_size((usual, 24)).columns))
    return Console(file=io.StringIO(), width=width, force_terminal=sys.stdout.isatty(), highlight=False)


def written_on(console: Console) -> str:
    """What was printed on a console of `memory_console`."""
    written = console.file
    assert isinstance(written, io.StringIO), "made by memory_console"
    return written.getvalue().rstrip()


def hit_rows(rates: Iterable[HitRates], *, k: int) -> tuple[Row, list[Row]]:
    """Header and rows of a table of hit rates, in per cent."""
    header = ["", "questions", "hit@1, % [95 %]", f"hit@{k}, % [95 %]"]
    return header, [[row.name, str(row.question_count), percent(row.hit_at_1), percent(row.hit_at_k)] for row in rates]


def spread_over_kinds(predictions: Iterable[Prediction], count: int) -> list[Prediction]:
    """The first `count` predictions when each kind of question has its turn, in the order in which kinds first come."""
    by_kind: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        by_kind.setdefault(prediction.question.kind, []).append(prediction)
    turns = (prediction for turn in zip_longest(*by_kind.values()) for prediction in turn if prediction is not None)
    return [prediction for prediction, _ in zip(turns, range(count), strict=False)]


def answer_table(predictions: Iterable[Prediction], *, phrases: int = PHRASES_SHOWN) -> Group:
    """Each question with its best phrases: score, phrase, and the sentence it stands in with the document's title.

    The phrase is marked in the sentence, bold and with «»; ✓ stands before a right one. A question that no shown
    phrase answers says what would have been right.
    """
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    parts: list[RenderableType] = []
    for prediction in predictions:
        shown = prediction.answer.phrases[:phrases]
        heading = Text(prediction.question.text, style="bold cyan")
        if prediction.hit_rank is None or prediction.hit_rank > len(shown):
            heading.append(f"  (answer: {prediction.question.answers[0]})", style="not bold red")
        parts += [heading, Padding(_phrase_grid(shown, prediction.question.answers), (0, 0, 1, 2))]
    return Group(*parts)


def _phrase_grid(phrases: Sequence[Phrase], answers: Sequence[str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from npm.core.display import one_line

    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(no_wrap=True, width=1)
    grid.add_column(no_wrap=True, width=5, justify="right")
    grid.add_column(overflow="fold", max_width=PHRASE_COLUMNS, min_width=PHRASE_COLUMNS)
    grid.add_column(overflow="fold", ratio=1)
    for phrase in phrases:
        right = is_hit(phrase.phrase, answers)
        where = marked_occurrence(phrase.occurrences[0]) if phrase.occurrences else Text("")
        grid.add_row(
            Text("✓" if right else "", style="green"),
            f"{phrase.score:.3f}",
            Text(one_line(phrase.phrase), style="bold green" if right else "bold"),
            where,
        )
    if not phrases:
        grid.add_row("", "", Text("no phrase found", style="dim"), "")
    return grid


def marked_occurrence(occurrence: Occurrence, *, most_chars: int | None = None) -> Text:
    """The sentence around a phrase, the phrase marked, and the document's title behind it."""
    from npm.core.display import CONTEXT_CHARS, marked_context, one_line

    text = marked_context(occurrence, most_chars=most_chars or CONTEXT_CHARS)
    text.append(f" ({one_line(occurrence.title or occurrence.document)})", style="italic dim")
    return text


def print_demo(result: DemoResult, console: Console, *, shown: int | None = None) -> None:
    """The whole report of task `demo`: answers (`shown` of them, spread over the kinds; None: all), then hit rates."""
    from rich.text import Text

    count = len(result.predictions) if shown is None else shown
    console.print(answer_table(spread_over_kinds(result.predictions, count)))
    if count < len(result.predictions):
        console.print(Text(f"{count} of {len(result.predictions)} questions shown.\n", style="dim"))
    header, rows = hit_rows(result.kinds, k=result.k)
    console.print(terminal_table(["kind of question", *header[1:]], rows))
    compared = [result.total] if result.baseline is None else [result.baseline, result.total]
    header, rows = hit_rows(compared, k=result.k)
    console.print(terminal_table(["all questions", *header[1:]], rows))
    if result.blocks:
        _, rows = hit_rows(result.blocks, k=result.k)
        console.print(terminal_table(["a block that holds an answer", "questions", "first, %", "among 3, %"], rows))
