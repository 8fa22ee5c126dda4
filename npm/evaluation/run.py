"""One evaluation from its settings: load, measure, write the results, return the table."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from npm.errors import SettingError
from npm.evaluation.own_tasks import DEFAULT_TASK, OWN_TASKS, READ_BY_ALL, OwnTask, Progress
from npm.evaluation.results import check_out
from npm.evaluation.settings import EvaluationSettings
from npm.settings import changed_settings

if TYPE_CHECKING:
    from rich.console import Console

    from npm.evaluation.task import Task
    from npm.retrieval.settings import FillSettings

ZERO_SHOT = "a zero-shot evaluation"
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
        _refuse_unused(settings, ZERO_SHOT, READ_BY_ZERO_SHOT, refused=dict(_unused_by(settings, tasks)))
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
    settings: EvaluationSettings, asked: str, reads: Sequence[str], *, refused: Mapping[str, str] | None = None
) -> None:
    """What was set for another task would be passed over without a word.

    `refused` are exceptions from `reads`, each with what would read it; "" where only another task or method does.
    """
    refused = refused or {}
    default = EvaluationSettings()
    known = {*READ_BY_ALL, *reads}
    unused = [*(item.name for item in fields(EvaluationSettings) if item.name not in known), *refused]
    changed = changed_settings(settings, default, unused)
    if changed:
        readers = [refused[name] for name in changed if refused.get(name)]
        others = f"give {', '.join(readers)}" if readers else "choose another task or method"
        only = f"of the settings of single tasks only {', '.join(name for name in reads if name not in refused)}"
        raise SettingError(
            f"{asked} has no use for {', '.join(changed)}",
            expected=", ".join(readers) if len(readers) == len(changed) else only,
            got=f"{asked} and {', '.join(changed)}",
            where=", ".join(changed),
            fix=f"leave these out, or {others}",
        )


def _unused_by(settings: EvaluationSettings, tasks: Sequence[Task]) -> Iterator[tuple[str, str]]:
    """Settings that none of the methods of `tasks` reads, each with what would read it.

    Raises SettingError for a method that answers none of the tasks.
    """
    from npm.evaluation.methods import CLOSED_METHODS, OPEN_METHODS, READS_CLOSED, READS_FILL, READS_RETRIEVAL
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
    if any(name not in (*CLOSED_METHODS, *OPEN_METHODS) for name in settings.method):
        return  # that there is no such method is said where methods are made
    asked = settings.method or list(known)
    if not any(name in READS_FILL and name in opened for name in asked):
        yield "fill", ""
    elif not _is_of_reference(settings.fill) and not any(name in READS_RETRIEVAL for name in settings.method):
        yield "fill.retrieval", f"method={READS_RETRIEVAL[0]}, whose retrieval it is"
    if not any(name in READS_CLOSED and name in closed for name in asked):
        yield "closed", ""
    elif settings.closed.k is not None and settings.closed.retrieval is not ClosedRetrieval.top_k:
        retrievals = {task.scoring.retrieval for task in tasks}
        if ClosedRetrieval.top_k not in retrievals or settings.closed.retrieval is ClosedRetrieval.exact:
            yield "closed.k", "closed.retrieval=top_k, which reads it"
    yield from _unused_of_language_model(settings)


def _unused_of_language_model(settings: EvaluationSettings) -> Iterator[tuple[str, str]]:
    """Of the settings mlm.*, those that none of the methods asked for reads."""
    from npm.evaluation.methods import READS_ITS_INDEX, READS_LANGUAGE_MODEL

    asked = settings.method
    # without index= the language model says how long prompts may be, whoever answers them
    if asked and settings.index and not any(name in READS_LANGUAGE_MODEL for name in asked):
        yield "mlm.encoder", "a method that asks it, such as mlm"
    if asked and not any(name in READS_ITS_INDEX for name in asked):
        yield "mlm.index", f"method={READS_ITS_INDEX[0]}, which asks it"


def _is_of_reference(settings: FillSettings) -> bool:
    """Whether fill.retrieval came with scoring=reference, which sets it for whichever method reads it."""
    reference = type(settings).reference()
    return (
        settings.retrieval is reference.retrieval and settings.scoring.normalisation is reference.scoring.normalisation
    )


def _console() -> Console:
    """A console that writes to memory, as wide and as colourful as stdout."""
    import sys

    from rich.console import Console

    width = max(60, min(120, shutil.get_terminal_size((100, 24)).columns))
    return Console(file=io.StringIO(), width=width, force_terminal=sys.stdout.isatty(), highlight=False)
