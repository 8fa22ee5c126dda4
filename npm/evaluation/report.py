"""Tables of results: for the terminal with rich, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from npm.evaluation.metrics import Interval

if TYPE_CHECKING:
    from npm.evaluation.tasks.denoising import DenoisingResult
    from npm.evaluation.tasks.in_batch import InBatchResult
    from npm.evaluation.tasks.masked_tokens import MaskedTokensResult


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


def in_batch_rows(result: InBatchResult) -> tuple[Row, list[Row]]:
    """Header and rows of the in-batch retrieval table: whole vectors, shorter ones, and what a random key scores."""
    header = ["", "articles", "spans", "top-1, % [95 %]", "start, %", "end, %", "loss"]
    chance = f"{100 * result.chance:.2f}"
    counts = [str(len(result.articles)), str(result.span_count)]
    sides = [f"{100 * result.start_top1:.1f}", f"{100 * result.end_top1:.1f}"]
    rows = [[result.encoder_name, *counts, percent(result.top1), *sides, f"{result.loss:.2f}"]]
    for each in reversed(result.shorter):
        sides = [f"{100 * each.start_top1:.1f}", f"{100 * each.end_top1:.1f}"]
        rows.append(
            [f"its first {each.dimensions} dimensions", *counts, percent(each.top1), *sides, f"{each.loss:.2f}"]
        )
    return header, [*rows, ["a random key", *counts, chance, chance, chance, ""]]


def masked_tokens_rows(result: MaskedTokensResult) -> tuple[Row, list[Row]]:
    """Header and rows of the table of one masked language model."""

    def error(value: float | None, scale: float, digits: int) -> str:
        return "" if value is None else f" ± {scale * value:.{digits}f}"

    header = ["", "articles", "predictions", "accuracy, %", "loss, nats", "perplexity"]
    row = [
        result.encoder_name,
        str(len(result.articles)),
        str(result.prediction_count),
        f"{100 * result.accuracy:.2f}{error(result.accuracy_standard_error, 100, 2)}",
        f"{result.loss:.3f}{error(result.loss_standard_error, 1, 3)}",
        "∞" if result.perplexity is None else f"{result.perplexity:.4g}",
    ]
    return header, [row]


def print_in_batch(result: InBatchResult, console: Console) -> None:
    """The report of task `in_batch`."""
    console.print(terminal_table(*in_batch_rows(result), title="in-batch retrieval on held-out articles"))


def print_masked_tokens(result: MaskedTokensResult, console: Console) -> None:
    """The report of task `masked_tokens`."""
    asked = result.record["settings"]
    whole = "masked tokens" if asked["masked_unit"] == "token" else "whole masked words"
    title = f"{whole} of held-out articles, {100 * asked['masked_fraction']:g} % of the tokens masked"
    console.print(terminal_table(*masked_tokens_rows(result), title=title))
    console.print("note: ± is the standard error over articles.", markup=False)
    console.print("note: perplexities compare encoders of the same tokenizer only.", markup=False)


def print_denoising(result: DenoisingResult, console: Console) -> None:
    """The report of task `denoising`."""
    from npm.evaluation.tasks.denoising import denoising_rows

    title = "loss of denoisers (rows) under mode tokens (columns)"
    console.print(terminal_table(*denoising_rows(result), title=title))
    console.print("note: nats a target token; the star marks the mode token of the denoiser.", markup=False)
