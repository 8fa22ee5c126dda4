"""Zero-shot tasks × methods: all methods of a task are asked the same examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from npm.core.errors import SettingError
from npm.core.settings import as_json
from npm.core.types import Progress
from npm.evaluation.conditions import check_conditions, is_templated
from npm.evaluation.data import find_data, read_task
from npm.evaluation.methods.registry import GENERATORS, Resources, load_generator, load_method, method_names
from npm.evaluation.report import (
    markdown_table,
    reliability_table,
    sample_cards,
    score_tables,
    suite_markdown,
    terminal_table,
)
from npm.evaluation.results import CheckRecord, Result, any_record, index_facts, model_facts
from npm.evaluation.settings import ZeroShotEvaluation
from npm.evaluation.table import ResultTable, evaluate_task, task_metrics, task_notes, task_records
from npm.evaluation.tasks import Example, Split, Task, load_task, task_names
from npm.models.encoder import Encoder

EXAMPLES_PER_TASK = 3000
"""Without limit=, as in the paper."""


def chosen_tasks(settings: ZeroShotEvaluation, folder: Path, others: Sequence[str] = ()) -> list[Task]:
    """The tasks of the suite, in the order of their names, and those of task=.

    `folder` holds the shipped ones; `others` are those with their own evaluator. Raises SettingError for an unknown
    task, or if two have one name.
    """
    shipped = [load_task(name, folder=folder) for name in task_names(folder)] if settings.suite else []
    tasks = [task for task in shipped if settings.suite in ("all", task.suite)]
    named = [load_task(name, folder=folder, others=others) for name in settings.task]
    tasks += [task for task in named if task not in tasks]
    names = [task.name for task in tasks]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise SettingError(f"two tasks are named {repeated[0]}: leave one out, or rename its file")
    return tasks


def evaluate_suite(
    settings: ZeroShotEvaluation,
    tasks: Sequence[Task],
    *,
    show: int = 0,
    check_record: CheckRecord = any_record,
    progress: Progress,
) -> Result:
    """Ask the methods of `settings` the examples of all `tasks`, of each of which `show` predictions are shown.

    All tasks are read and all methods checked before the first is run. Raises UserError for what does not fit.
    """
    resources = Resources(settings)
    names = {task.name: method_names(settings, task) for task in tasks}
    if unused := [name for name in settings.method if not any(name in own for own in names.values())]:
        raise SettingError(f"method {unused[0]} answers none of the tasks {', '.join(names)}: leave it out")
    check_conditions(settings.fill.where, where="fill.where")
    data_dir = _check_data(settings, tasks)
    sources = {task.name: _sources(resources, task) for task in tasks}
    record = {"task": "zero_shot", "settings": _recorded(settings, names), "sources": sources}
    check_record(record)

    def read(task: Task, split: Split, limit: int | None) -> list[Example]:
        return read_task(
            task,
            data_dir,
            split=split,
            limit=limit,
            seed=settings.seed,
            encoder=resources.encoder(task),
            cut=task.suite == "open" or resources.scoring(task).last_tokens is None,
            conditions=[each for each in settings.fill.where if is_templated(each)] if task.suite == "open" else (),
        )

    examples = {task.name: read(task, settings.split, settings.limit or EXAMPLES_PER_TASK) for task in tasks}
    made = {
        task.name: [
            load_method(name, task, resources, lambda task=task: read(task, "dev", None))  # type: ignore[misc]
            for name in names[task.name]
        ]
        for task in tasks
    }
    results = []
    for task in tasks:
        encoder = resources.encoder(task)
        if task.suite == "open" and encoder is None:  # only the most frequent answer is evaluated
            encoder = Encoder.load(settings.encoder, device=settings.device, dtype=settings.precision)
        result = evaluate_task(
            task,
            examples[task.name],
            made.pop(task.name),  # a task's methods keep vectors of its words, and go with the task
            encoder=encoder,
            index=resources.index(task)[0] if settings.index else None,
            fill=resources.fill_settings(task),
            seed=settings.seed,
            resamples=settings.resamples,
            progress=progress,
        )
        results.append(result)
    return suite_result(results, record, show)


def suite_result(tables: Sequence[ResultTable], record: Mapping[str, Any], show: int) -> Result:
    """Lines, metrics and tables of all tasks, and `show` predictions of each to show."""
    metrics = {table.task.name: task_metrics(table) for table in tables}
    scores, notes = score_tables(tables, metrics), [note for table in tables for note in task_notes(table)]
    by_share = [
        (task, method, own["reliability"])
        for task, each in metrics.items()
        for method, own in each["methods"].items()
        if "reliability" in own
    ]
    shown = [reliability_table(by_share)] if by_share else []
    curves = [f"\n## {table.title}\n\n{markdown_table(table.header, table.rows)}\n" for table in shown]
    return Result(
        record,
        [line for table in tables for line in task_records(table)],
        {"tasks": metrics},
        [*(terminal_table(title, own) for title, own in scores.items()), *shown],
        notes,
        report=suite_markdown(scores, notes) + "".join(curves),
        samples=[card for table in tables for card in sample_cards(table, show)],
    )


def _check_data(settings: ZeroShotEvaluation, tasks: Sequence[Task]) -> Path | None:
    """`data_dir`; all missing files are named in one message, before any network access."""
    data_dir = Path(settings.data_dir) if settings.data_dir else None
    if data_dir is not None and not data_dir.is_dir():
        raise SettingError(f"data_dir={data_dir} is not a folder")
    if absent := [task for task in tasks if find_data(task, data_dir, settings.split) is None]:
        files = ", ".join(task.data.file for task in absent)
        others = ",".join(task.name for task in tasks if task not in absent)
        other = f", or choose task=[{others}]" if others else ""
        raise SettingError(
            f"the data of {len(absent)} of {len(tasks)} tasks is missing ({files}): set data_dir, or correct "
            f"data.file{other}"
        )
    return data_dir


def _sources(resources: Resources, task: Task) -> dict[str, Any]:
    """SHA-256 of the task's file, and which index and models are asked."""
    settings, facts = resources.settings, dict[str, Any](task_file=task.digest)
    if settings.index:
        index, encoder = resources.index(task)
        facts |= {"index": index_facts(index), "encoder": model_facts(encoder)}
    if settings.zero_shot.mlm.encoder:
        facts["language_model"] = model_facts(resources.language_model[0])
    for kind in GENERATORS:
        if getattr(settings.zero_shot, kind).model:
            facts[kind] = model_facts(load_generator(kind, resources))
    return facts


def _recorded(settings: ZeroShotEvaluation, names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Settings that the numbers depend on, without paths: JSON values only."""
    closed, causal = asdict(settings.zero_shot.closed), asdict(settings.zero_shot.causal)
    closed["verbalizer"] = closed["verbalizer"] and Path(closed["verbalizer"]).name
    given = {name: getattr(settings, name) for name in ("split", "seed", "resamples")}
    given |= {"limit": settings.limit or EXAMPLES_PER_TASK, "dtype": settings.precision, "methods": names}
    given |= {"closed": closed, "fill": asdict(settings.fill)}
    if any("causal-knn" in own for own in names.values()):
        given["causal-knn"] = {name.removeprefix("knn_"): value for name, value in causal.items() if name != "model"}
    return as_json(given)
