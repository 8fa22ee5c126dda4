"""The report of zero-shot tasks: tables of scores for the terminal and as Markdown, and samples of predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import hypot
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npm.core.display import Table, markdown_table
from npm.evaluation.metrics import BINS, Interval, exact_match, percent, wilson_interval
from npm.evaluation.results import Result
from npm.evaluation.table import ResultTable, task_metrics, task_notes, task_records

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from npm.core.types import Occurrence


SAMPLE_ROWS = 3  # phrases or labels of a sample


class Score(NamedTuple):
    """A share of the examples of one task, by one method."""

    task: str
    method: str
    examples: int
    share: Interval


def suite_result(tables: Sequence[ResultTable], record: Mapping[str, Any], show: int) -> Result:
    """Lines, metrics and tables of all tasks, and `show` predictions of each to show."""
    metrics = {table.task.name: task_metrics(table) for table in tables}
    scores, notes = score_tables(tables, metrics), [note for table in tables for note in task_notes(table)]
    shown = []
    for title, own in scores.items():
        rows = [(each.task, each.method, percent(each.share), str(each.examples)) for each in own]
        shown.append(Table(title, ("task", "method", "per cent", "n"), rows, (2, 3)))
    report = suite_markdown(scores, notes)
    by_share = reliability_table(metrics)
    if by_share.rows:
        shown.append(by_share)
        report += f"\n## {by_share.title}\n\n{markdown_table(by_share.header, by_share.rows)}\n"
    return Result(
        record,
        [line for table in tables for line in task_records(table)],
        {"tasks": metrics},
        shown,
        notes,
        report=report,
        samples=[card for table in tables for card in sample_cards(table, show)],
    )


def score_tables(tables: Sequence[ResultTable], metrics: Mapping[str, Any]) -> dict[str, list[Score]]:
    """Accuracy of closed tasks; exact match of open ones, over all examples and over parts of them; by title.

    `metrics` are those of each task; a table with several tasks ends with the mean of each method that answered all.
    """
    opened = [table for table in tables if table.task.suite == "open"]
    titles = {"all": "Open tasks", "covered": "Open tasks whose subject the corpus names"}
    titles |= {name: f"Open tasks, subset {name}" for each in opened for name in each.scopes if name not in titles}
    averages = ("macro", "micro") if any(each.task.macro != "none" for each in opened) else ("micro",)
    chosen = [("Closed tasks: accuracy", "accuracy", "")]
    for average in averages:
        note = f", {average} average" if len(averages) > 1 else ""
        chosen += [(f"{title}: exact match (hit@1){note}", scope, average) for scope, title in titles.items()]
    most = max(
        (len(answer.phrases) for table in opened for each in table.methods.values() for answer in each.answers),
        default=0,
    )
    if most > 1:
        chosen.append((f"Open tasks: right in the first {most} (hit@{most})", "all", "among"))
    chosen.append(("Open tasks: share answered with what was right at another date only", "old_answers", "micro"))
    found: dict[str, list[Score]] = {}
    for title, scope, average in chosen:
        scores = []
        for task, of_task in metrics.items():
            for method, own in of_task["methods"].items():
                score = own.get(scope)  # micro where the task has no groups
                if share := score and (score if scope == "accuracy" else score[average] or score["micro"]):
                    scores.append(Score(task, method, score.get("count", of_task["count"]), Interval(**share)))
        if scores:
            found[title] = scores + _averages(scores)
    return found


def _averages(scores: Sequence[Score]) -> list[Score]:
    """The mean over the tasks of each method that answered all of several.

    The distances to the bounds add as those of independent means do: low = mean − √Σ(meanᵢ − lowᵢ)² / T for T tasks,
    high likewise, since the variance of a mean of T independent means is the sum of their variances / T².

    >>> scores = [Score("a", "npm", 9, Interval(0.5, 0.2, 0.9)), Score("b", "npm", 1, Interval(0.7, 0.3, 1.0))]
    >>> _averages(scores)[0].share
    Interval(mean=0.6, low=0.35, high=0.85)
    """
    counts, found = {score.task: score.examples for score in scores}, []
    for method in dict.fromkeys(score.method for score in scores):
        shares = [each.share for each in scores if each.method == method]
        if len(shares) == len(counts) > 1:
            mean = sum(each.mean for each in shares) / len(shares)
            below = hypot(*(each.mean - each.low for each in shares)) / len(shares)
            above = hypot(*(each.high - each.mean for each in shares)) / len(shares)
            share = Interval(mean, mean - below, mean + above)
            found.append(Score(f"average of {len(counts)}", method, sum(counts.values()), share))
    return found


def suite_markdown(tables: Mapping[str, Sequence[Score]], notes: Sequence[str] = ()) -> str:
    """The text of results.md: for each table a row per task and a column per method; then `notes` as a list."""
    parts: list[str] = []
    for title, scores in tables.items():
        methods = list(dict.fromkeys(score.method for score in scores))
        counts = {score.task: str(score.examples) for score in scores}
        shares = {(score.task, score.method): percent(score.share) for score in scores}
        rows = [[task, *(shares.get((task, name), "–") for name in methods), counts[task]] for task in counts]
        parts += [f"## {title}", markdown_table(["task", *methods, "n"], rows)]
    parts.append(
        "Per cent with 95 % bootstrap confidence interval, and number of examples (n); the interval of an average "
        "takes the tasks as independent."
    )
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def reliability_table(metrics: Mapping[str, Any]) -> Table:
    """A row for each bin with answers, of each task and method with its `reliability`."""
    edges = [f"{low:.1f} to {high:.1f}" for low, high in zip(BINS, (*BINS[1:], 1.0), strict=True)]
    rows = [
        (task, method, edge, str(each["count"]), percent(wilson_interval(each["right"], each["count"])))
        for task, of_task in metrics.items()
        for method, own in of_task["methods"].items()
        if "reliability" in own
        for edge, each in zip(edges, own["reliability"]["bins"], strict=True)
        if each["count"]
    ]
    return Table("First answer right, by its share", ("task", "method", "share", "n", "right, %"), rows, (3, 4))


SampleRow = tuple[bool, float, str, "Occurrence | None"]
"""Correctness, score, phrase or label, and occurrence of an answer."""


def sample_cards(table: ResultTable, count: int) -> Iterator[Group]:
    """Predictions of the first method for some of the examples, evenly spread over all."""
    names, rows = [label.name for label in table.task.labels], list(table.asked().rows())
    for number in np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)):
        example, prediction, _ = rows[number]
        title = f"{table.task.name}, {next(iter(table.methods))}: {example.text}"
        shown: list[SampleRow]
        if table.task.suite == "open":
            shown = [
                (exact_match(each.phrase, example.answers), each.score, each.phrase, (*each.occurrences, None)[0])
                for each in prediction.phrases[:SAMPLE_ROWS]
            ]
            yield sample_card(title, example.answers[0], shown)
        else:
            places = {each.label: each.occurrence for each in prediction.evidence}
            scores = prediction.scores
            order = sorted(range(len(names)), key=scores.__getitem__, reverse=True)[:SAMPLE_ROWS]
            shown = [(each == example.label, scores[each], names[each], places.get(each)) for each in order]
            yield sample_card(title, names[example.label], shown)


def sample_card(title: str, answer: str, rows: Sequence[SampleRow]) -> Group:
    """A text with its best phrases or labels: ✓ where right, score, phrase, and the sentence of its place.

    Without a right one, `answer` is named, which would have been right.
    """
    from rich.console import Group
    from rich.text import Text

    from npm.core.display import indented, marked_context, one_line

    heading = Text(one_line(title), style="bold cyan")
    if not any(is_right for is_right, *_ in rows):
        heading.append(f"  (answer: {one_line(answer)})", style="not bold red")
    lines: list[RenderableType] = [heading]
    for is_right, score, phrase, occurrence in rows:
        style = "bold green" if is_right else "bold"
        lines.append(Text.assemble("✓ " if is_right else "  ", f"{score:.3f}  ", (one_line(phrase), style)))
        if occurrence is not None:
            lines += indented(marked_context(occurrence.parts), occurrence.document_name)
    return Group(*lines, *([] if rows else ["no phrase found"]), "")
