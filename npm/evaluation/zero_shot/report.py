"""The result tables of a suite: a row a task, a column a method, in plain rows for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot

from npm.evaluation.metrics import Interval
from npm.evaluation.report import Row, markdown_table
from npm.evaluation.tasks.task import TaskScores

PAPER_COLUMN = "paper (354 M)"
"""What Min et al. 2022 report, for an encoder of 354 M parameters: not to be taken for ours."""
PUBLISHED = {
    "npm": "NPM, 354 M",
    "npm-single": "NPM-single, 354 M",
    "mlm": "RoBERTa-large, 354 M",
    "mlm-earlier": "RoBERTa-large (Gao et al. 2021)",
    "mlm-fine-tuned": "RoBERTa-large, fine-tuned",
    "t5": "T5, 2.2 times as large",
    "t5-3b": "T5 3B",
    "gpt-2": "GPT-2, 2.2 times as large",
    "gpt-2-pmi": "GPT-2, PMI",
    "gpt-2-knn": "GPT-2 kNN",
    "gpt-2-knn-lm": "GPT-2 kNN-LM",
    "gpt-3": "GPT-3, 500 times as large",
    "gpt-3-pmi": "GPT-3, PMI",
}
"""Whose numbers the shipped tasks have under `paper:`, in a table of their own."""
NOT_BESIDE_OURS = PUBLISHED.keys() - {"npm", "npm-single", "mlm"}
AVERAGE = "average"
MISSING = "–"
COLUMN_GAP, TABLE_EDGES = 3, 2
"""Spaces between two columns, and on both sides together, of a `terminal_table`."""


@dataclass(frozen=True, slots=True)
class SuiteTable:
    """One metric of several tasks."""

    title: str
    scores: tuple[TaskScores, ...]

    @property
    def methods(self) -> list[str]:
        """All methods, in the order in which they first come."""
        return list(dict.fromkeys(name for row in self.scores for name in row.methods))


def suite_rows(table: SuiteTable) -> tuple[Row, list[Row]]:
    """Header and rows: a row a task, then the average; a column a method, then the paper's numbers if there are any.

    A cell has three lines: per cent, 95 % confidence interval, number of examples. The average is over the tasks of
    the table; a method that did not answer all of them has none.
    """
    methods = table.methods
    has_paper = any(row.paper for row in table.scores)
    header = ["task", *methods, *([PAPER_COLUMN] if has_paper else [])]
    rows: list[Row] = [
        [row.task, *(_cell(row.methods.get(name), row.count) for name in methods), *_paper_cell(row.paper, has_paper)]
        for row in table.scores
    ]
    if len(table.scores) > 1:
        count = len(table.scores)
        # of methods that answered every task of the table, here and in the paper
        answered = {name: [row.methods[name] for row in table.scores if name in row.methods] for name in methods}
        averages = [_cell(average_interval(own) if len(own) == count else None) for own in answered.values()]
        shared = [name for name in table.scores[0].paper if all(name in row.paper for row in table.scores)]
        paper = {name: sum(row.paper[name] for row in table.scores) / count for name in shared}
        rows.append([f"{AVERAGE} of {count}", *averages, *_paper_cell(paper, has_paper)])
    return header, rows


def published_rows(table: SuiteTable) -> tuple[Row, list[Row]]:
    """Header and rows of all published numbers: a row a system, a column a task; the average of whole rows."""
    names = [name for name in PUBLISHED if any(name in row.paper for row in table.scores)]
    rows: list[Row] = []
    for name in names:
        found = [row.paper.get(name) for row in table.scores]
        known = [value for value in found if value is not None]
        mean = f"{sum(known) / len(known):.1f}" if len(known) == len(found) else MISSING
        rows.append([PUBLISHED[name], *(MISSING if value is None else f"{value:.1f}" for value in found), mean])
    return ["system", *(row.task for row in table.scores), AVERAGE], rows


def fitting_rows(table: SuiteTable, width: int) -> list[tuple[Row, list[Row]]]:
    """The columns of `suite_rows` spread over as many tables as a terminal of `width` columns needs.

    Each begins with the tasks and has at least one more column, even where that is too wide.
    """
    header, rows = suite_rows(table)
    widths = [
        max(len(text) for line in (header, *rows) for text in line[column].split("\n")) for column in range(len(header))
    ]
    groups: list[list[int]] = []
    room = 0
    for column in range(1, len(header)):
        needed = COLUMN_GAP + widths[column]
        if not groups or needed > room:
            groups.append([0])
            room = width - TABLE_EDGES - widths[0]
        groups[-1].append(column)
        room -= needed
    return [([header[c] for c in columns], [[row[c] for c in columns] for row in rows]) for columns in groups]


def suite_markdown(tables: Iterable[SuiteTable], notes: Sequence[str] = ()) -> str:
    """The text of results.md: each table under its title, what the numbers are, and `notes` as a list."""
    tables = list(tables)
    parts: list[str] = []
    for table in tables:
        parts += [f"## {table.title}", markdown_table(*suite_rows(table))]
        if any(name in NOT_BESIDE_OURS for row in table.scores for name in row.paper):
            parts += [f"### {table.title}, as published", markdown_table(*published_rows(table))]
    meaning = "Per cent with 95 % bootstrap confidence interval and number of examples (n)."
    if any(len(table.scores) > 1 for table in tables):
        meaning += " The interval of an average takes the tasks as independent."
    parts.append(meaning)
    if any(row.paper for table in tables for row in table.scores):
        parts.append(
            f"`{PAPER_COLUMN}`: numbers of Min et al. 2022 (arXiv 2212.01349) with an encoder of 354 M parameters, "
            "on their corpora and samples; they say what the method can do, not what this run did."
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


def _cell(interval: Interval | None, count: int | None = None) -> str:
    if interval is None:
        return MISSING
    lines = [f"{100 * interval.mean:.1f}", f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}]"]
    return "\n".join(lines if count is None else [*lines, f"n={count}"])


def _paper_cell(paper: Mapping[str, float], shown: bool) -> list[str]:
    """No cell, or one with a line a method."""
    beside = {name: value for name, value in paper.items() if name not in NOT_BESIDE_OURS}
    return [",\n".join(f"{name} {value:.1f}" for name, value in beside.items()) or MISSING] if shown else []
