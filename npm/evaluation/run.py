"""One evaluation from its settings: load, measure, write the results, return the table."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from npm.errors import SettingError
from npm.evaluation.results import check_out
from npm.evaluation.settings import EvaluationSettings
from npm.settings import changed_settings

if TYPE_CHECKING:
    from rich.console import Console

    from npm.evaluation.zero_shot.task import Task
    from npm.retrieval.settings import FillSettings


Progress = Callable[[str, float, float | None], None]
"""Called with the task, the examples done so far and their number."""
QUESTIONS_SHOWN = 24
DEFAULT_ARTICLES = 200
READ_BY_ALL = ("task", "out", "encoder", "device", "dtype", "seed")
"""Settings that are never refused."""


@dataclass(frozen=True, slots=True)
class BuiltInTask:
    """A task with an evaluator of its own: it measures, writes `settings.out` and prints its tables."""

    name: str
    run: Callable[[EvaluationSettings, Progress, Console], None]
    reads: tuple[str, ...]
    """Settings that it has a use for, beside those of READ_BY_ALL; whatever else was set is refused."""


def run_demo(settings: EvaluationSettings, progress: Progress, console: Console) -> None:
    """Task `demo`."""
    from npm.evaluation.demo import DemoSettings, evaluate_demo, print_demo
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


def run_in_batch(settings: EvaluationSettings, progress: Progress, console: Console) -> None:
    """Task `in_batch`."""
    from npm.evaluation.held_out.in_batch import InBatchSettings, evaluate_held_out, print_in_batch
    from npm.models.encoder import Encoder

    _require_documents(settings)
    encoder = Encoder.load(settings.encoder, device=settings.device, dtype=settings.dtype)
    chosen = InBatchSettings(
        articles=settings.limit or DEFAULT_ARTICLES,
        mask_seed=settings.seed,
        seed=settings.seed,
        dimensions=settings.dimensions,
    )
    result = evaluate_held_out(
        encoder, settings.corpus, chosen, progress=lambda done, total: progress("articles", done, total)
    )
    result.write(settings.out)
    print_in_batch(result, console)


def run_masked_tokens(settings: EvaluationSettings, progress: Progress, console: Console) -> None:
    """Task `masked_tokens`."""
    from npm.evaluation.held_out.masked_tokens import MaskedTokensSettings, evaluate_held_out_masks, print_masked_tokens
    from npm.models.encoder import Encoder
    from npm.models.loading import locate_encoder
    from npm.models.masked_lm import attach_masked_head

    _require_documents(settings)
    _require(settings.encoder, "encoder", "a masked language model, such as npmlm train experiment=mlm_uniform makes")
    chosen = MaskedTokensSettings(
        articles=settings.limit or DEFAULT_ARTICLES,
        masked_fraction=settings.masked_fraction,
        masked_unit=settings.masked_unit,
        mask_seed=settings.seed,
    )
    encoder = Encoder.load(settings.encoder, device=settings.device, dtype=settings.dtype)
    head = attach_masked_head(encoder, locate_encoder(settings.encoder), trained=True)
    result = evaluate_held_out_masks(
        encoder, head, settings.corpus, chosen, progress=lambda done, total: progress("articles", done, total)
    )
    result.write(settings.out)
    print_masked_tokens(result, console)


def run_denoising(settings: EvaluationSettings, progress: Progress, console: Console) -> None:
    """Task `denoising`."""
    from npm.evaluation.held_out.denoising import DenoisingTaskSettings, evaluate_held_out_denoising, print_denoising
    from npm.models.denoiser import Denoiser

    _require_documents(settings)
    _require(settings.encoder, "encoder", "an encoder-decoder, such as npmlm train experiment=ul2_small makes")
    denoiser = Denoiser.load(settings.encoder, mode_tokens=(), device=settings.device, dtype=settings.dtype)
    chosen = DenoisingTaskSettings(mask_seed=settings.seed, seed=settings.seed)
    chosen.articles = settings.limit or chosen.articles
    result = evaluate_held_out_denoising(
        denoiser, settings.corpus, chosen, progress=lambda done, total: progress("articles", done, total)
    )
    result.write(settings.out)
    print_denoising(result, console)


def run_sts(settings: EvaluationSettings, progress: Progress, console: Console) -> None:
    """Task `sts`."""
    from npm.evaluation.sts.data import STS_B, read_set, read_sets
    from npm.evaluation.sts.evaluate import StsSettings, evaluate_sts, print_sts, sentence_vectors
    from npm.evaluation.sts.geometry import GeometryPairs

    _require(settings.data_dir, "data_dir", "the folder with the files of STS12–16, STS-B and SICK-R, or some of them")
    if settings.before.pooler is not None and not settings.before.encoder:
        raise SettingError(
            "before.pooler is of no use without before.encoder",
            expected="before.encoder=…, or no before.pooler",
            got=f"before.pooler={settings.before.pooler.value} alone",
            where="before.pooler",
            fix="name the other encoder with before.encoder=, or give the pooler of encoder= with pooler=",
        )
    split = settings.split.value
    sets = read_sets(settings.data_dir, split=split)
    measured = {GeometryPairs.all: ("train", "dev", "test"), GeometryPairs.split: (split,), GeometryPairs.none: ()}
    found = [read_set(STS_B, settings.data_dir, split=each) for each in measured[settings.geometry.pairs]]
    places = [(settings.encoder, settings.pooler)]
    if settings.before.encoder:
        places.insert(0, (settings.before.encoder, settings.before.pooler))
    encoders = [
        sentence_vectors(place, pooler=pooler, device=settings.device, dtype=settings.dtype) for place, pooler in places
    ]
    result = evaluate_sts(
        encoders,
        sets,
        StsSettings(seed=settings.seed, resamples=settings.resamples, geometry=settings.geometry),
        geometry_pairs=[pairs for pairs in found if pairs is not None],
        progress=lambda done, total: progress("sets", done, total),
    )
    result.write(settings.out)
    print_sts(result, console, split=split)


def _require_documents(settings: EvaluationSettings) -> None:
    if not settings.corpus.files:
        _require("", "corpus.files", "held-out documents, such as the last file of the corpus")


def _require(value: str, name: str, what: str) -> None:
    if not value:
        raise SettingError(
            f"this task needs {name}=", expected=f"{name}=…", got="nothing", where=name, fix=f"give {what}"
        )


BUILT_IN_TASKS = {
    task.name: task
    for task in (
        BuiltInTask("demo", run_demo, reads=("index", "questions", "split", "limit", "fill")),
        BuiltInTask("masked_tokens", run_masked_tokens, reads=("corpus", "limit", "masked_fraction", "masked_unit")),
        BuiltInTask("denoising", run_denoising, reads=("corpus", "limit")),
        BuiltInTask("sts", run_sts, reads=("data_dir", "split", "resamples", "pooler", "before", "geometry")),
        BuiltInTask("in_batch", run_in_batch, reads=("corpus", "limit", "dimensions")),
    )
}
DEFAULT_TASK = BUILT_IN_TASKS["demo"]
"""What is asked where the settings name no task."""


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
    own = _built_in_task(settings)
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


def _built_in_task(settings: EvaluationSettings) -> BuiltInTask | None:
    """The task with an evaluator of its own, or None for zero-shot tasks; raises SettingError for a mixture."""
    named = [BUILT_IN_TASKS[task] for task in settings.task if task in BUILT_IN_TASKS]
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
    from npm.evaluation.zero_shot.suite import chosen_tasks

    return chosen_tasks(settings, task_folder)


def _run_zero_shot(settings: EvaluationSettings, tasks: list[Task], progress: Progress, console: Console) -> None:
    from npm.evaluation.report import terminal_table
    from npm.evaluation.zero_shot.report import fitting_rows
    from npm.evaluation.zero_shot.suite import evaluate_suite

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
    from npm.evaluation.zero_shot.methods import CLOSED_METHODS, OPEN_METHODS, READS_CLOSED, READS_FILL, READS_RETRIEVAL
    from npm.evaluation.zero_shot.task import ClosedRetrieval, Suite

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
    from npm.evaluation.zero_shot.methods import READS_ITS_INDEX, READS_LANGUAGE_MODEL

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
