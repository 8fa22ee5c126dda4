"""One evaluation from its settings: read its tasks, measure, write the results and return the report.

Zero-shot tasks are YAML files, and all methods of a task are asked the same examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from npm.core.errors import SettingError, missing
from npm.core.settings import as_json
from npm.core.types import Progress
from npm.evaluation.data import find_data
from npm.evaluation.methods.registry import GENERATORS, Resources, load_generator, load_method, method_names
from npm.evaluation.prompts import check_conditions
from npm.evaluation.report import suite_result
from npm.evaluation.results import Result, check_out, index_facts, model_facts, refuse_other_results
from npm.evaluation.settings import EvaluationSettings, ZeroShotEvaluation
from npm.evaluation.table import evaluate_task
from npm.evaluation.tasks import Task, load_task, task_names
from npm.models.encoder import Encoder

EXAMPLES_PER_TASK = 3000  # without limit=, as in the paper
BUILT_IN_TASKS = ("masked_tokens", "denoising", "sts", "in_batch", "reading")
"""Tasks with a function of their own; each reads the group of its name and some shared settings."""


def run_evaluation(
    settings: EvaluationSettings, *, task_folder: Path, progress: Progress, notice: Callable[[str], None]
) -> str:
    """Run the tasks, write `out`, and return the report as text for stdout; `task_folder` holds the shipped tasks.

    `notice` is called with methods that were skipped. Raises UserError for anything missing or incompatible, before the
    work begins where possible.
    """
    if not settings.task and settings.suite is None:
        raise missing("task", "task=demo")
    named = [task for task in settings.task if task in BUILT_IN_TASKS]
    if named and (len(settings.task) > 1 or settings.suite is not None):
        others = ", ".join([*settings.task, *([f"suite={settings.suite}"] if settings.suite else [])])
        raise SettingError(f"task={named[0]} must be the only task, got {others}; evaluate one after the other")
    out = check_out(settings.out, report=not named)
    kept = None if settings.overwrite else out
    if named:
        if named == ["sts"]:
            from npm.evaluation.sts import evaluate
        elif named == ["reading"]:
            from npm.evaluation.reading import evaluate
        else:
            from npm.evaluation.held_out import evaluate
        result = evaluate(settings, kept, progress)
    else:
        tasks = _chosen_tasks(settings, task_folder)
        if not (settings.method or settings.index):
            notice("note: without index=DIR no method that needs an index is asked")
        result = evaluate_suite(settings, tasks, show=settings.show, out=kept, progress=progress)
    result.write(settings.out)
    return result.text()


def _chosen_tasks(settings: ZeroShotEvaluation, folder: Path) -> list[Task]:
    """The tasks of the suite, in the order of their names, and those of task=; `folder` holds the shipped ones."""
    shipped = [load_task(name, folder=folder) for name in task_names(folder)] if settings.suite else []
    tasks = [task for task in shipped if settings.suite in ("all", task.suite)]
    named = [load_task(name, folder=folder, others=tuple(BUILT_IN_TASKS)) for name in settings.task]
    tasks += [task for task in named if task not in tasks]
    names = [task.name for task in tasks]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise SettingError(f"two tasks are named {repeated[0]}: leave one out, or rename its file")
    return tasks


def evaluate_suite(
    settings: ZeroShotEvaluation, tasks: Sequence[Task], *, show: int = 0, out: Path | None = None, progress: Progress
) -> Result:
    """Ask the methods of `settings` the examples of all `tasks`, with `show` predictions of each to show.

    All tasks are read and all methods checked before the first is run. Raises UserError for anything incompatible.
    """
    resources = Resources(settings)
    names = {task.name: method_names(settings, task) for task in tasks}
    if unused := [name for name in settings.method if not any(name in own for own in names.values())]:
        raise SettingError(f"method {unused[0]} answers none of the tasks {', '.join(names)}: leave it out")
    check_conditions(settings.fill.where, where="fill.where")
    _check_data(settings, tasks)
    record = _record(resources, tasks, names)
    refuse_other_results(out, record)
    limit = settings.limit or EXAMPLES_PER_TASK
    examples = {task.name: resources.examples(task, settings.split, limit) for task in tasks}
    methods = {task.name: [load_method(name, task, resources) for name in names[task.name]] for task in tasks}
    tables = []
    for task in tasks:
        encoder = resources.encoder(task)
        if task.suite == "open" and encoder is None:  # only the most frequent answer is evaluated
            encoder = Encoder.load(settings.encoder, device=settings.device, dtype=settings.precision)
        table = evaluate_task(
            task,
            examples[task.name],
            methods.pop(task.name),  # a task's methods keep vectors of its words, and go with the task
            encoder=encoder,
            index=resources.index(task)[0] if settings.index else None,
            fill=resources.fill_settings(task),
            seed=settings.seed,
            resamples=settings.resamples,
            progress=progress,
        )
        tables.append(table)
    return suite_result(tables, record, show)


def _check_data(settings: ZeroShotEvaluation, tasks: Sequence[Task]) -> None:
    """Raise SettingError that names all missing files in one message, before any network access."""
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


def _record(resources: Resources, tasks: Sequence[Task], names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Settings, files, indexes and models that the numbers depend on, without paths: JSON values only."""
    settings = resources.settings
    closed, causal = asdict(settings.zero_shot.closed), asdict(settings.zero_shot.causal)
    closed["verbalizer"] = closed["verbalizer"] and Path(closed["verbalizer"]).name
    given = {name: getattr(settings, name) for name in ("split", "seed", "resamples")}
    given |= {"limit": settings.limit or EXAMPLES_PER_TASK, "dtype": settings.precision, "methods": names}
    given |= {"closed": closed, "fill": asdict(settings.fill)}
    if any("causal-knn" in own for own in names.values()):
        given["causal-knn"] = {name.removeprefix("knn_"): value for name, value in causal.items() if name != "model"}
    models: dict[str, Any] = {}
    if settings.zero_shot.mlm.encoder:
        models["language_model"] = model_facts(resources.language_model[0])
    for kind in GENERATORS:
        if getattr(settings.zero_shot, kind).model:
            models[kind] = model_facts(load_generator(kind, resources))
    sources: dict[str, Any] = {}
    for task in tasks:
        sources[task.name] = {"task_file": task.digest, **models}
        if settings.index:
            index, encoder = resources.index(task)
            sources[task.name] |= {"index": index_facts(index), "encoder": model_facts(encoder)}
    return {"task": "zero_shot", "settings": as_json(given), "sources": sources}
