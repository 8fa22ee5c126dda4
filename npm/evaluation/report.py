"""Tables of results, for the terminal with rich and as Markdown, and intervals in percent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from typing import TYPE_CHECKING

from npm.core.types import Table
from npm.evaluation.metrics import Interval

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from npm.core.types import Occurrence


Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class TaskScores:
    """A task's metric by method, over the same examples."""

    task: str
    count: int
    """Examples."""
    methods: Mapping[str, Interval]


ScoreTable = tuple[str, Sequence[TaskScores]]
"""Title, and the scores of several tasks with their average."""


def with_average(scores: Sequence[TaskScores]) -> list[TaskScores]:
    """The tasks, and of several the mean over them, of methods that answered all."""
    methods = dict.fromkeys(name for row in scores for name in row.methods)
    shared = [name for name in methods if all(name in row.methods for row in scores)]
    found = {name: average_interval([row.methods[name] for row in scores]) for name in shared}
    average = TaskScores(f"average of {len(scores)}", sum(row.count for row in scores), found)
    return [*scores, *([average] if len(scores) > 1 else [])]


def score_table(table: ScoreTable) -> Table:
    """For a terminal: one row per task and method."""
    title, scores = table
    rows = [(row.task, name, percent(own), str(row.count)) for row in scores for name, own in row.methods.items()]
    return Table(title, ("task", "method", "per cent", "n"), rows, (2, 3))


def suite_markdown(tables: Iterable[ScoreTable], notes: Sequence[str] = ()) -> str:
    """The text of results.md: for each table a row per task and a column per method; then `notes` as a list."""
    parts: list[str] = []
    for title, scores in tables:
        methods = list(dict.fromkeys(name for row in scores for name in row.methods))
        shown = [
            [percent(own[name]) if name in own else "–" for name in methods] for own in (r.methods for r in scores)
        ]
        cells = [[row.task, *own, str(row.count)] for row, own in zip(scores, shown, strict=True)]
        parts += [f"## {title}", markdown_table(["task", *methods, "n"], cells)]
    parts.append(
        "Per cent with 95 % bootstrap confidence interval, and number of examples (n); the interval of an average "
        "takes the tasks as independent."
    )
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def average_interval(intervals: Sequence[Interval]) -> Interval:
    """Mean of the means; the distances to the bounds add as those of independent means do.

    low = mean − √Σ(meanᵢ − lowᵢ)² / T for T tasks, high likewise: the variance of a mean of T independent means is
    the sum of their variances / T².

    >>> average_interval([Interval(0.5, 0.2, 0.9), Interval(0.7, 0.3, 1.0)])
    Interval(mean=0.6, low=0.35, high=0.85)
    """
    count = len(intervals)
    mean = sum(each.mean for each in intervals) / count
    below = hypot(*(each.mean - each.low for each in intervals)) / count
    above = hypot(*(each.high - each.mean for each in intervals)) / count
    return Interval(mean, mean - below, mean + above)


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


@dataclass(frozen=True, slots=True)
class Sample:
    """One prediction to show."""

    title: str
    answer: str
    rows: Sequence[tuple[bool, float, str, Occurrence | None]]
    """Correctness, score, phrase or label, and occurrence of each answer; best first."""


def sample_card(sample: Sample) -> Group:
    """A text with its best phrases or labels: ✓ where right, score, phrase, and the sentence of its place.

    Without a right one, what would have been right is named.
    """
    from rich.console import Group
    from rich.text import Text

    from npm.core.display import indented, marked_context, one_line

    heading = Text(one_line(sample.title), style="bold cyan")
    if not any(is_right for is_right, *_ in sample.rows):
        heading.append(f"  (answer: {one_line(sample.answer)})", style="not bold red")
    lines: list[RenderableType] = [heading]
    for is_right, score, phrase, occurrence in sample.rows:
        style = "bold green" if is_right else "bold"
        lines.append(Text.assemble("✓ " if is_right else "  ", f"{score:.3f}  ", (one_line(phrase), style)))
        if occurrence is not None:
            lines += indented(marked_context(occurrence), occurrence.document_name)
    return Group(*lines, *([] if sample.rows else ["no phrase found"]), "")
