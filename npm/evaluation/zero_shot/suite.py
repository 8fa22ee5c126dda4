"""Zero-shot tasks × methods: every cell measured on the same examples, written as predictions, metrics and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npm.core.errors import SettingError
from npm.core.settings import as_json
from npm.core.types import Progress
from npm.evaluation.report import terminal_table
from npm.evaluation.results import CheckRecord, any_record, index_facts, model_facts, write_results
from npm.evaluation.settings import SuiteName, ZeroShotEvaluation
from npm.evaluation.tasks.data import TaskExamples, read_task
from npm.evaluation.tasks.document_conditions import check_conditions, is_templated
from npm.evaluation.tasks.readers import ALTERNATIVES, data_file, missing_data
from npm.evaluation.tasks.task import ClosedMethod, Macro, OpenMethod, Split, Suite, Task, resolved_scoring
from npm.evaluation.tasks.task_file import load_task, task_names
from npm.evaluation.zero_shot.closed_set import ClosedTaskResult, evaluate_closed
from npm.evaluation.zero_shot.methods import Methods
from npm.evaluation.zero_shot.open_set import OpenTaskResult, evaluate_open, overlapping_examples
from npm.evaluation.zero_shot.report import SuiteTable, fitting_rows, suite_markdown
from npm.evaluation.zero_shot.unhelpful_names import lacks_name_filter, without_guessed_names
from npm.models.encoder import Encoder

if TYPE_CHECKING:
    from rich.console import Console

    from npm.evaluation.tasks.task import Example


EXAMPLES_PER_TASK = 3000
"""Where limit= says nothing, as in the paper."""
TaskResult = ClosedTaskResult | OpenTaskResult


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """All tasks of one evaluation."""

    results: tuple[TaskResult, ...]
    settings: dict[str, Any]
    sources: dict[str, Any]
    """By task: SHA-256 of its file, and which index and encoders are asked."""
    remarks: tuple[str, ...] = ()

    def tables(self) -> list[SuiteTable]:
        """Accuracy of closed tasks; exact match of open ones, on all examples and on the covered ones."""
        closed = [result.scores() for result in self.results if isinstance(result, ClosedTaskResult)]
        opened = [result for result in self.results if isinstance(result, OpenTaskResult)]
        has_macro = any(result.task.macro is not Macro.none for result in opened)
        found = [("Closed tasks: accuracy", closed)]
        for macro in (True, False) if has_macro else (False,):
            how = f", {'macro' if macro else 'micro'} average"
            found.append((f"Open tasks: exact match{how}", [result.scores(macro=macro) for result in opened]))
            covered = [result.covered_scores(macro=macro) for result in opened]
            title = f"Open tasks whose subject the corpus names: exact match{how}"
            found.append((title, [scores for scores in covered if scores is not None]))
            for name in dict.fromkeys(name for result in opened for name in result.task.subsets):
                of_subset = [result.subset_scores(name, macro=macro) for result in opened]
                title = f"Open tasks, subset {name}: exact match{how}"
                found.append((title, [scores for scores in of_subset if scores is not None]))
        old = [result.old_scores() for result in opened]
        title = "Open tasks: share answered with what was right at the other date only"
        found.append((title, [scores for scores in old if scores is not None]))
        return [SuiteTable(title, tuple(scores)) for title, scores in found if scores]

    def notes(self) -> list[str]:
        """What a reader of the tables should know."""
        return [*self.remarks, *(note for result in self.results for note in result.notes())]

    def write(self, out: str | Path) -> None:
        """Write predictions.jsonl, metrics.json and results.md to the folder `out`; see `write_results`."""
        metrics: dict[str, Any] = {
            "settings": self.settings,
            "tasks": {result.task.name: result.metrics() for result in self.results},
        }
        write_results(
            out,
            record=suite_record(self.settings, self.sources),
            predictions=(record for result in self.results for record in result.records()),
            metrics=metrics,
            report=suite_markdown(self.tables(), self.notes()),
        )

    def show(self, console: Console) -> None:
        """Print the tables, each in as many parts as the console is wide, and the notes."""
        for table in self.tables():
            for number, (header, rows) in enumerate(fitting_rows(table, console.width)):
                console.print(terminal_table(header, rows, title=None if number else table.title))
        for note in self.notes():
            console.print(f"note: {note}", markup=False)


def chosen_tasks(settings: ZeroShotEvaluation, folder: Path, others: Sequence[str] = ()) -> list[Task]:
    """The tasks of the suite, in the order of their names, and those of task=.

    `folder` holds the shipped ones; `others` are those with an evaluator of their own.

    Raises TaskFileError for what is no task, SettingError if two have one name.
    """
    tasks: list[Task] = []
    if settings.suite is not None:
        shipped = [load_task(name, folder=folder) for name in task_names(folder)]
        tasks = [
            task for task in shipped if settings.suite is SuiteName.all or task.suite.value == settings.suite.value
        ]
    named = [load_task(name, folder=folder, others=others) for name in settings.task]
    tasks += [task for task in named if task not in tasks]
    names = [task.name for task in tasks]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise SettingError(f"two tasks are named {repeated[0]}: leave one out, or rename its file")
    return tasks


def _methods(settings: ZeroShotEvaluation, tasks: Sequence[Task]) -> tuple[Methods, dict[str, list[str]]]:
    """The methods, and their names by task; raises UserError."""
    methods = Methods(settings)
    names = {task.name: methods.names(task) for task in tasks}
    for task in tasks:
        if not names[task.name]:
            raise SettingError(f"task {task.name} has no method: give index=DIR, or choose another method")
    check_conditions(settings.fill.where, where="fill.where")
    _refuse_missing_data(settings, tasks)
    return methods, names


def evaluate_suite(
    settings: ZeroShotEvaluation,
    tasks: Sequence[Task],
    *,
    check_record: CheckRecord = any_record,
    progress: Progress,
) -> SuiteResult:
    """Ask the methods of `settings` the examples of all `tasks`.

    All tasks are read and all methods checked before the first is asked. Raises UserError for what does not fit.
    """
    methods, names = _methods(settings, tasks)
    recorded = as_record(settings, names)
    sources = {task.name: _sources(settings, methods, task) for task in tasks}
    check_record(suite_record(recorded, sources))
    examples = {task.name: _with_helpful_names(settings, methods, _examples(settings, methods, task)) for task in tasks}

    made = {task.name: _made(settings, methods, task, names[task.name]) for task in tasks}
    # a task's methods keep vectors of their words, and go with the task
    results = tuple(
        _task_result(settings, methods, task, made.pop(task.name), examples[task.name], progress=progress)
        for task in tasks
    )
    return SuiteResult(results, recorded, sources, tuple(_remarks(settings, methods, tasks)))


def _remarks(settings: ZeroShotEvaluation, methods: Methods, tasks: Sequence[Task]) -> Iterator[str]:
    """Which methods were left out for lack of an index, where none were named."""
    if not settings.method and not settings.index:
        left_out = dict.fromkeys(name for task in tasks for name in methods.without_index(task))
        if left_out:
            yield f"without index=DIR these methods were not asked: {', '.join(left_out)}"


def suite_record(settings: Mapping[str, Any], sources: Mapping[str, Any]) -> dict[str, Any]:
    """What all numbers depend on, as in the manifest."""
    return {"task": "zero_shot", "settings": settings, "sources": sources}


def _sources(settings: ZeroShotEvaluation, methods: Methods, task: Task) -> dict[str, Any]:
    facts: dict[str, Any] = {"task_file": task.digest}
    if settings.index:
        index, encoder = methods.index(task)
        facts |= {"index": index_facts(index), "encoder": model_facts(encoder)}
    if settings.zero_shot.mlm.encoder:
        facts["language_model"] = model_facts(methods.language_model()[0])
    for kind in ("causal", "t5"):
        if getattr(settings.zero_shot, kind).model:
            facts[kind] = model_facts(methods.writer(kind).model)
    return facts


def _refuse_missing_data(settings: ZeroShotEvaluation, tasks: Sequence[Task]) -> None:
    """One message for all files that are not at hand, before anything is looked for on a network."""
    data_dir = Path(settings.data_dir) if settings.data_dir else None
    if data_dir is not None and not data_dir.is_dir():
        raise SettingError(f"data_dir={data_dir} is not a folder")
    missing = missing_data(tasks, data_dir, split=settings.split)
    if not missing:
        return
    left = [task.name for task in tasks if task not in missing]
    files = [data_file(task, settings.split).replace(ALTERNATIVES, " or ") for task in missing]
    other = f", or choose task=[{','.join(left)}]" if left else ""
    raise SettingError(
        f"the data of {len(missing)} of {len(tasks)} tasks is missing ({', '.join(files)}): give data_dir=DIR, or "
        f"correct data.file{other}"
    )


def as_record(settings: ZeroShotEvaluation, names: dict[str, list[str]]) -> dict[str, Any]:
    """What the numbers depend on, without where anything lies: JSON values only."""
    closed = asdict(settings.zero_shot.closed)
    if closed["verbalizer"] is not None:
        closed["verbalizer"] = Path(closed["verbalizer"]).name
    given = {name: getattr(settings, name) for name in ("split", "seed", "resamples")}
    given |= {"limit": settings.limit or EXAMPLES_PER_TASK, "dtype": settings.precision, "methods": names}
    given |= {"closed": closed, "fill": asdict(settings.fill)}
    given |= {"date": settings.zero_shot.date} if settings.zero_shot.date else {}
    if "causal-knn" in {name for asked in names.values() for name in asked}:
        causal = settings.zero_shot.causal
        given["causal-knn"] = {"share": causal.knn_share, "temperature": causal.knn_temperature, "k": causal.knn_k}
    return as_json(given)


def _examples(
    settings: ZeroShotEvaluation, methods: Methods, task: Task, split: Split | None = None, *, all_of_them: bool = False
) -> TaskExamples:
    return _read(settings, task, methods.encoder(task), split, all_of_them=all_of_them)


def _read(
    settings: ZeroShotEvaluation,
    task: Task,
    encoder: Encoder | None,
    split: Split | None = None,
    *,
    all_of_them: bool = False,
) -> TaskExamples:
    return read_task(
        task,
        Path(settings.data_dir) if settings.data_dir else None,
        split=split or settings.split,
        limit=None if all_of_them else settings.limit or EXAMPLES_PER_TASK,
        seed=settings.seed,
        encoder=encoder,
        cut=task.suite is Suite.open or resolved_scoring(task.scoring, settings.zero_shot.closed).last_tokens is None,
        date=settings.zero_shot.date,
        conditions=[each for each in settings.fill.where if is_templated(each)] if task.suite is Suite.open else (),
    )


def _with_helpful_names(settings: ZeroShotEvaluation, methods: Methods, read: TaskExamples) -> TaskExamples:
    """The same with the second filter of UHN, where a masked language model is given and the filter is asked for."""
    if not settings.zero_shot.mlm.encoder or not lacks_name_filter(read):
        return read
    return without_guessed_names(read, *methods.language_model())


def _made(
    settings: ZeroShotEvaluation, methods: Methods, task: Task, names: Sequence[str]
) -> list[ClosedMethod | OpenMethod]:
    """The methods for one task, ready to answer."""
    if task.suite is Suite.open:

        def development() -> list[Example]:
            return _examples(settings, methods, task, Split.dev, all_of_them=True).examples

        return [methods.open(name, task, development) for name in names]
    closed = [methods.closed(name, task) for name in names]
    for method in closed:
        method.prepare(task)
    return list(closed)


def _task_result(
    settings: ZeroShotEvaluation,
    methods: Methods,
    task: Task,
    made: Sequence[Any],
    read: TaskExamples,
    *,
    progress: Progress,
) -> TaskResult:
    index = methods.index(task)[0] if settings.index else None
    examples = read.examples
    if task.suite is Suite.closed:
        overlap = None if index is None else overlapping_examples(examples, index)
        return evaluate_closed(
            task,
            examples,
            made,
            overlap=overlap,
            seed=settings.seed,
            resamples=settings.resamples,
            progress=progress,
        )
    fill = methods.fill_settings(task)
    return evaluate_open(
        task,
        examples,
        made,
        tokenizer_encoder=_tokenizer_encoder(settings, methods, task),
        index=index,
        where=fill.where,
        documents=fill.documents,
        subsets=read.subsets,
        data_notes=read.notes,
        seed=settings.seed,
        resamples=settings.resamples,
        progress=progress,
    )


def _tokenizer_encoder(settings: ZeroShotEvaluation, methods: Methods, task: Task) -> Encoder:
    """Whose tokenizer measures answers."""
    # without index and language model only the most frequent answer is left, and its length is still measured
    return methods.encoder(task) or Encoder.load(settings.encoder, device=settings.device, dtype=settings.precision)
