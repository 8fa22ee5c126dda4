"""Tables of results: for the terminal with rich, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from npm.evaluation.metrics import Interval

Row = Sequence[str]


def percent(interval: Interval) -> str:
    """A share and its 95 % confidence interval, in per cent.

    >>> percent(Interval(0.6211, 0.547, 0.696))
    '62.1 [54.7, 69.6]'
    """
    return f"{100 * interval.mean:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


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


def terminal_table(header: Row, rows: Iterable[Row], *, title: str | None = None) -> Table:
    """The same table for a terminal."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number else "left", no_wrap=number > 0)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
