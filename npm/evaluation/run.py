"""One evaluation from its settings: load, measure, write the results, return the table."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npm.errors import SettingError
from npm.evaluation.results import check_out
from npm.evaluation.settings import DEMO, IN_BATCH, EvaluationSettings

if TYPE_CHECKING:
    from rich.console import Console

    from npm.evaluation.task import Task

DEFAULT_ARTICLES = 200
QUESTIONS_SHOWN = 24
ZERO_SHOT = "zero-shot tasks"
ZERO_SHOT_ONLY = ("suite", "method", "data_dir", "closed", "mlm", "resamples")
UNUSED = {
    DEMO: ("corpus", *ZERO_SHOT_ONLY),
    IN_BATCH: ("index", "questions", "split", "fill", *ZERO_SHOT_ONLY),
    ZERO_SHOT: ("corpus", "questions"),
}
"""Settings that a task has no use for."""
Progress = Callable[[str, float, float | None], None]
"""Called with the task, the examples done so far and their number."""


def run_evaluation(settings: EvaluationSettings, *, task_folder: Path, progress: Progress) -> str:
    """Run the tasks, write `out`, and return the report as text for stdout; `task_folder` holds the shipped tasks.

    Raises UserError for whatever is missing or does not fit, before the work begins where that can be known.
    """
    kind = _kind(settings)
    tasks = _tasks(settings, task_folder) if kind == ZERO_SHOT else []
    _refuse_unused(settings, kind, tasks)
    check_out(settings.out)
    console = _console()
    if kind == DEMO:
        _run_demo(settings, progress, console)
    elif kind == IN_BATCH:
        _run_in_batch(settings, progress, console)
    else:
        _run_zero_shot(settings, tasks, progress, console)
    written = console.file
    assert isinstance(written, io.StringIO), "made by _console"
    return written.getvalue().rstrip()


def _kind(settings: EvaluationSettings) -> str:
    """`demo`, `in_batch`, or zero-shot tasks; raises SettingError for a mixture."""
    own = [task for task in settings.task if task in (DEMO, IN_BATCH)]
    if not settings.task and settings.suite is None:
        return DEMO
    if not own:
        return ZERO_SHOT
    if len(settings.task) > 1 or settings.suite is not None:
        raise SettingError(
            f"task={own[0]} stands alone",
            expected=f"task={own[0]}, or zero-shot tasks",
            got=", ".join([*settings.task, *([f"suite={settings.suite.value}"] if settings.suite else [])]),
            where="task",
            fix="evaluate them one after the other, each with an out= of its own",
        )
    return own[0]


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


def _run_demo(settings: EvaluationSettings, progress: Progress, console: Console) -> None:
    from npm.evaluation.report import print_demo
    from npm.evaluation.tasks.demo import DemoSettings, evaluate_demo
    from npm.retrieval.fill import PhraseFiller

    _require(settings.index, "index", "the index that is asked: build it with npmlm build")
    filler = PhraseFiller.open(
        settings.index, settings.encoder or None, settings=settings.fill, device=settings.device, dtype=settings.dtype
    )
    asked = DemoSettings(
        questions=settings.questions, split=settings.split, k=settings.fill.k, limit=settings.limit, seed=settings.seed
    )
    result = evaluate_demo(filler, asked, progress=lambda done, total: progress("questions", done, total))
    result.write(settings.out)
    print_demo(result, console, shown=QUESTIONS_SHOWN)


def _run_in_batch(settings: EvaluationSettings, progress: Progress, console: Console) -> None:
    from npm.evaluation.report import print_in_batch
    from npm.evaluation.tasks.in_batch import InBatchSettings, evaluate_held_out
    from npm.models.encoder import Encoder

    if not settings.corpus.files:
        _require("", "corpus.files", "held-out documents, such as the last file of the corpus")
    encoder = Encoder.load(settings.encoder, device=settings.device, dtype=settings.dtype)
    chosen = InBatchSettings(articles=settings.limit or DEFAULT_ARTICLES, mask_seed=settings.seed, seed=settings.seed)
    result = evaluate_held_out(
        encoder, settings.corpus, chosen, progress=lambda done, total: progress("articles", done, total)
    )
    result.write(settings.out)
    print_in_batch(result, console)


def _refuse_unused(settings: EvaluationSettings, kind: str, tasks: Sequence[Task]) -> None:
    """What was set for another task would be passed over without a word."""
    default = EvaluationSettings()
    unused = (*UNUSED[kind], *(_unused_by(settings, tasks) if kind == ZERO_SHOT else ()))
    changed = [key for name in unused for key in _changed(name, attrgetter(name)(settings), attrgetter(name)(default))]
    if changed:
        raise SettingError(
            f"{_shown(kind)} has no use for {', '.join(changed)}",
            expected=f"nothing for {', '.join(unused)}",
            got=f"{_shown(kind)} and {', '.join(changed)}",
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


def _shown(kind: str) -> str:
    return kind if kind == ZERO_SHOT else f"task={kind}"


def _changed(key: str, value: Any, default: Any) -> Iterator[str]:
    """Full keys of the settings under `key` that differ from their defaults."""
    if is_dataclass(value):
        for item in fields(value):
            yield from _changed(f"{key}.{item.name}", getattr(value, item.name), getattr(default, item.name))
    elif value != default:
        yield key


def _require(value: str, name: str, what: str) -> None:
    if not value:
        raise SettingError(
            f"this task needs {name}=", expected=f"{name}=…", got="nothing", where=name, fix=f"give {what}"
        )


def _console() -> Console:
    """A console that writes to memory, as wide and as colourful as stdout."""
    import sys

    from rich.console import Console

    width = max(60, min(120, shutil.get_terminal_size((100, 24)).columns))
    return Console(file=io.StringIO(), width=width, force_terminal=sys.stdout.isatty(), highlight=False)
