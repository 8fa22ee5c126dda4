"""Tables of results, for the terminal with rich and as Markdown, and intervals in percent."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from npm.evaluation.metrics import Interval

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


Row = Sequence[str]
LEAST_TEXT_COLUMNS = 20


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
