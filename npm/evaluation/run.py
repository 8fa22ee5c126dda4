"""One evaluation from its settings: load, measure, write the results, return the table."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from npm.changed_settings import changed_settings
from npm.errors import SettingError
from npm.evaluation.own_tasks import DEFAULT_TASK, OWN_TASKS, READ_BY_ALL, OwnTask, Progress
from npm.evaluation.results import check_out
from npm.evaluation.settings import EvaluationSettings

if TYPE_CHECKING:
    from rich.console import Console

    from npm.evaluation.task import Task

ZERO_SHOT = "zero-shot tasks"
READ_BY_ZERO_SHOT = (
    "suite",
    "method",
    "data_dir",
    "index",
    "split",
    "limit",
    "resamples",
    "closed",
    "mlm",
    "fill",
)
"""Settings that zero-shot tasks have a use for, beside READ_BY_ALL."""


def run_evaluation(settings: EvaluationSettings, *, task_folder: Path, progress: Progress) -> str:
    """Run the tasks, write `out`, and return the report as text for stdout; `task_folder` holds the shipped tasks.

    Raises UserError for whatever is missing or does not fit, before the work begins where that can be known.
    """
    own = _own_task(settings)
    console = _console()
    if own is None:
        tasks = _tasks(settings, task_folder)
        _refuse_unused(settings, ZERO_SHOT, READ_BY_ZERO_SHOT, refused=tuple(_unused_by(settings, tasks)))
        check_out(settings.out)
        _run_zero_shot(settings, tasks, progress, console)
    else:
        _refuse_unused(settings, f"task={own.name}", own.reads)
        check_out(settings.out)
        own.run(settings, progress, console)
    written = console.file
    assert isinstance(written, io.StringIO), "made by _console"
    return written.getvalue().rstrip()


def _own_task(settings: EvaluationSettings) -> OwnTask | None:
    """The task with an evaluator of its own, or None for zero-shot tasks; raises SettingError for a mixture."""
    named = [OWN_TASKS[task] for task in settings.task if task in OWN_TASKS]
    if not settings.task and settings.suite is None:
        return DEFAULT_TASK
    if not named:
        return None
    if len(settings.task) > 1 or settings.suite is not None:
        raise SettingError(
            f"task={named[0].name} stands alone",
            expected=f"task={named[0].name}, or zero-shot tasks",
            got=", ".join([*settings.task, *([f"suite={settings.suite.value}"] if settings.suite else [])]),
            where="task",
            fix="evaluate them one after the other, each with an out= of its own",
        )
    return named[0]


def _tasks(settings: EvaluationSettings, task_folder: Path) -> list[Task]:
    from npm.evaluation.suite import chosen_tasks

    return chosen_tasks(settings, task_folder)


def _run_zero_shot(settings: EvaluationSettings, tasks: list[Task], progress: Progress, console: Console) -> None:
    from npm.evaluation.report import terminal_table
    from npm.evaluation.suite import evaluate_suite
    from npm.evaluation.suite_report import fitting_rows

    result = evaluate_suite(settings, tasks, progress=progress)
    result.write(settings.out)
    for table in result.tables():
        for number, (header, rows) in enumerate(fitting_rows(table, console.width)):
            console.print(terminal_table(header, rows, title=None if number else table.title))
    for note in result.notes():
        console.print(f"note: {note}", markup=False)


def _refuse_unused(
    settings: EvaluationSettings, asked: str, reads: Sequence[str], *, refused: Sequence[str] = ()
) -> None:
    """What was set for another task would be passed over without a word; `refused` are exceptions from `reads`."""
    default = EvaluationSettings()
    known = {*READ_BY_ALL, *reads}
    unused = [*(item.name for item in fields(EvaluationSettings) if item.name not in known), *refused]
    changed = changed_settings(settings, default, unused)
    if changed:
        raise SettingError(
            f"{asked} has no use for {', '.join(changed)}",
            expected=f"of the settings of single tasks only {', '.join(name for name in reads if name not in refused)}",
            got=f"{asked} and {', '.join(changed)}",
            where=", ".join(changed),
            fix="leave these out, or choose another task or method",
        )


def _unused_by(settings: EvaluationSettings, tasks: Sequence[Task]) -> Iterator[str]:
    """Groups of settings that none of the methods of `tasks` reads; a method that answers none of them is refused."""
    from npm.evaluation.methods import CLOSED_METHODS, OPEN_METHODS, READS_CLOSED, READS_FILL
    from npm.evaluation.task import ClosedRetrieval, Suite

    suites = {task.suite for task in tasks}
    closed = CLOSED_METHODS if Suite.closed in suites else ()
    opened = OPEN_METHODS if Suite.open in suites else ()
    known = dict.fromkeys((*closed, *opened))
    for name in settings.method:
        if name not in known and name in (*CLOSED_METHODS, *OPEN_METHODS):
            raise SettingError(
                f"method {name} answers none of the tasks",
                expected=", ".join(known),
                got=name,
                where="method",
                fix="leave it out, or ask a task of the other suite",
            )
    asked = settings.method or list(known)
    if not any(name in READS_FILL and name in opened for name in asked):
        yield "fill"
    if not any(name in READS_CLOSED and name in closed for name in asked):
        yield "closed"
    elif settings.closed.k is not None and settings.closed.retrieval is not ClosedRetrieval.top_k:
        retrievals = {task.scoring.retrieval for task in tasks}
        if ClosedRetrieval.top_k not in retrievals or settings.closed.retrieval is ClosedRetrieval.exact:
            yield "closed.k"


def _console() -> Console:
    """A console that writes to memory, as wide and as colourful as stdout."""
    import sys

    from rich.console import Console

    width = max(60, min(120, shutil.get_terminal_size((100, 24)).columns))
    return Console(file=io.StringIO(), width=width, force_terminal=sys.stdout.isatty(), highlight=False)
