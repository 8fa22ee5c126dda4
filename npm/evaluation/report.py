"""Tables of results: for the terminal with rich, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from npm.display import CONTEXT_CHARS, marked_context, one_line
from npm.evaluation.metrics import Interval, is_hit

if TYPE_CHECKING:
    from npm.evaluation.tasks.demo import DemoResult, HitRates, Prediction
    from npm.evaluation.tasks.denoising import DenoisingResult
    from npm.evaluation.tasks.in_batch import InBatchResult
    from npm.evaluation.tasks.masked_tokens import MaskedTokensResult
    from npm.types import Occurrence, Phrase

PHRASES_SHOWN = 3
PHRASE_COLUMNS = 22
"""Widest a phrase may be in a table before it is wrapped."""

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


def hit_rows(rates: Iterable[HitRates], *, k: int) -> tuple[Row, list[Row]]:
    """Header and rows of a table of hit rates, in per cent."""
    header = ["", "questions", "hit@1, % [95 %]", f"hit@{k}, % [95 %]"]
    return header, [[row.name, str(row.question_count), percent(row.hit_at_1), percent(row.hit_at_k)] for row in rates]


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
    parts: list[RenderableType] = []
    for prediction in predictions:
        shown = prediction.answer.phrases[:phrases]
        heading = Text(prediction.question.text, style="bold cyan")
        if prediction.hit_rank is None or prediction.hit_rank > len(shown):
            heading.append(f"  (answer: {prediction.question.answers[0]})", style="not bold red")
        parts += [heading, Padding(_phrase_grid(shown, prediction.question.answers), (0, 0, 1, 2))]
    return Group(*parts)


def _phrase_grid(phrases: Sequence[Phrase], answers: Sequence[str]) -> Table:
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


def marked_occurrence(occurrence: Occurrence, *, most_chars: int = CONTEXT_CHARS) -> Text:
    """The sentence around a phrase, the phrase marked, and the document's title behind it."""
    text = marked_context(occurrence, most_chars=most_chars)
    text.append(f" ({one_line(occurrence.title or occurrence.document)})", style="italic dim")
    return text


def print_demo(result: DemoResult, console: Console, *, shown: int | None = None) -> None:
    """The whole report of task `demo`: answers (`shown` of them, spread over the kinds; None: all), then hit rates."""
    count = len(result.predictions) if shown is None else shown
    console.print(answer_table(spread_over_kinds(result.predictions, count)))
    if count < len(result.predictions):
        console.print(Text(f"{count} of {len(result.predictions)} questions shown.\n", style="dim"))
    header, rows = hit_rows(result.kinds, k=result.k)
    console.print(terminal_table(["kind of question", *header[1:]], rows))
    compared = [result.total] if result.baseline is None else [result.baseline, result.total]
    header, rows = hit_rows(compared, k=result.k)
    console.print(terminal_table(["all questions", *header[1:]], rows))


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
