"""One evaluation from its settings: load, measure, write the results, return the table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from npm.core.errors import SettingError, exclusive
from npm.core.files import sha256_of_file
from npm.core.settings import changed_settings
from npm.core.types import Progress
from npm.evaluation.demo import evaluate_demo, shipped_questions_file
from npm.evaluation.held_out.articles import held_out_store
from npm.evaluation.held_out.denoising import evaluate_denoising
from npm.evaluation.held_out.in_batch import evaluate_in_batch
from npm.evaluation.held_out.masked_tokens import evaluate_masked_tokens
from npm.evaluation.report import memory_console, written_on
from npm.evaluation.results import CheckRecord, any_record, check_out, refuse_other_results
from npm.evaluation.settings import (
    BeforeSettings,
    EvaluationSettings,
    GeometryPairs,
    HeldOutSettings,
    ZeroShotEvaluation,
)
from npm.evaluation.sts.data import STS_B, read_set, read_sets
from npm.evaluation.sts.evaluate import evaluate_sts, sentence_vectors
from npm.evaluation.tasks.task import ClosedRetrieval, ClosedScoring, Suite, Task
from npm.evaluation.zero_shot.methods import (
    CAUSAL,
    CLOSED_METHODS,
    FILTERS,
    OPEN_METHODS,
    READS_CLOSED,
    READS_FILL,
    READS_FILTERS,
    READS_ITS_INDEX,
    READS_LANGUAGE_MODEL,
    READS_RETRIEVAL,
)
from npm.evaluation.zero_shot.suite import chosen_tasks, evaluate_suite
from npm.indexing.generation import Generation
from npm.models.denoiser import Denoiser
from npm.models.encoder import Encoder
from npm.models.masked_lm import attach_masked_head
from npm.models.names import locate_encoder
from npm.models.settings import check_leading_dimensions
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.settings import FillSettings

if TYPE_CHECKING:
    from rich.console import Console


READ_BY_ALL = ("task", "out", "overwrite", "encoder", "device", "precision", "seed")
"""Settings that are never refused."""
ZERO_SHOT = "a zero-shot evaluation"
HeldOut = TypeVar("HeldOut", bound=HeldOutSettings)


class Result(Protocol):
    """What a task found."""

    def write(self, out: str | Path) -> None:
        """Write the files of the folder `out`."""

    def show(self, console: Console) -> None:
        """Print the report."""


@dataclass(frozen=True, slots=True)
class BuiltInTask:
    """A task with an evaluator of its own; its own settings are the group of its name."""

    name: str
    run: Callable[[EvaluationSettings, CheckRecord, Progress], Result]
    reads: tuple[str, ...]
    """Shared settings that it has a use for, beside those of READ_BY_ALL; if others were set, they are refused."""


def _asked(settings: EvaluationSettings, task_folder: Path) -> list[Task]:
    """The zero-shot tasks; raises SettingError for settings that none of them reads."""
    tasks = chosen_tasks(settings, task_folder, tuple(BUILT_IN_TASKS))
    reads = [item.name for item in fields(ZeroShotEvaluation)]
    _refuse_unused(settings, ZERO_SHOT, reads, refused=dict(_unused_by(settings, tasks)))
    return tasks


def run_evaluation(
    settings: EvaluationSettings, *, task_folder: Path, progress: Progress, notice: Callable[[str], None]
) -> str:
    """Run the tasks, write `out`, and return the report as text for stdout; `task_folder` holds the shipped tasks.

    `notice` is told what was done in place of what was not said. Raises UserError for whatever is missing or does not
    fit, before the work begins where that can be known.
    """
    built_in = _built_in_task(settings)
    if built_in is None:
        tasks = _asked(settings, task_folder)
        suite = evaluate_suite(settings, tasks, check_record=_check_record(settings, report=True), progress=progress)
        for remark in suite.remarks:
            notice(f"note: {remark}")
        result: Result = suite
    else:
        own = (*built_in.reads, built_in.name)
        _refuse_unused(settings, f"task={built_in.name}", own)
        if not settings.task:
            _refuse_other_corpus(settings)
            notice("note: no task= was named: task=demo, the questions about the demo corpus")
        result = built_in.run(settings, _check_record(settings, report=False), progress)
    result.write(settings.out)
    console = memory_console(least=60, usual=100, most=120)
    result.show(console)
    return written_on(console)


def _check_record(settings: EvaluationSettings, *, report: bool) -> CheckRecord:
    """Refuses, before the work, an `out` that cannot be written, and one with other results unless overwrite=true."""
    out = check_out(settings.out, report=report)
    return any_record if settings.overwrite else partial(refuse_other_results, out)


def _refuse_other_corpus(settings: EvaluationSettings) -> None:
    """Raise SettingError unless the index that is asked holds the demo corpus, which the demo asks about."""
    if not settings.index or settings.demo.questions:
        return
    manifest = Generation.read(Path(settings.index)).manifest
    held = {source.get("sha256") for segment in manifest.segments.values() for source in segment.sources}
    if not {sha256_of_file(file) for file in shipped_questions_file().parent.glob("*.jsonl")} <= held:
        raise SettingError(
            f"evaluate needs task= or suite=: the demo corpus is not in this index ({settings.index}); task=demo asks "
            "its questions anyway"
        )


def _demo(settings: EvaluationSettings, check_record: CheckRecord, progress: Progress) -> Result:
    _require(settings.index, "index", "the index that is asked: build it with npmlm build")
    filler = PhraseFiller.open(
        settings.index,
        settings.encoder or None,
        settings=settings.fill,
        device=settings.device,
        dtype=settings.precision,
    )
    return evaluate_demo(filler, settings.demo, settings, check_record=check_record, progress=progress)


def _in_batch(settings: EvaluationSettings, check_record: CheckRecord, progress: Progress) -> Result:
    chosen = _held_out(settings, settings.in_batch)
    encoder = Encoder.load(settings.encoder, device=settings.device, dtype=settings.precision)
    check_leading_dimensions(chosen.dimensions, where="in_batch.dimensions", most=encoder.dimensions)
    with held_out_store(encoder, settings.corpus, chosen, prefix="in_batch.") as store:
        return evaluate_in_batch(encoder, store, chosen, settings, check_record=check_record, progress=progress)


def _masked_tokens(settings: EvaluationSettings, check_record: CheckRecord, progress: Progress) -> Result:
    chosen = _held_out(settings, settings.masked_tokens)
    _require(settings.encoder, "encoder", "a masked language model, such as npmlm train experiment=mlm_uniform makes")
    encoder = Encoder.load(settings.encoder, device=settings.device, dtype=settings.precision)
    head = attach_masked_head(encoder, locate_encoder(settings.encoder), trained=True)
    with held_out_store(encoder, settings.corpus, chosen, prefix="masked_tokens.") as store:
        return evaluate_masked_tokens(
            encoder, head, store, chosen, settings, check_record=check_record, progress=progress
        )


def _denoising(settings: EvaluationSettings, check_record: CheckRecord, progress: Progress) -> Result:
    chosen = _held_out(settings, settings.denoising)
    _require(settings.encoder, "encoder", "an encoder-decoder, such as npmlm train experiment=ul2_small makes")
    denoiser = Denoiser.load(settings.encoder, mode_tokens=(), device=settings.device, dtype=settings.precision)
    with held_out_store(denoiser, settings.corpus, chosen, prefix="denoising.") as store:
        return evaluate_denoising(denoiser, store, chosen, settings, check_record=check_record, progress=progress)


def _sts(settings: EvaluationSettings, check_record: CheckRecord, progress: Progress) -> Result:
    _require(settings.data_dir, "data_dir", "the folder with the files of STS12–16, STS-B and SICK-R, or some of them")
    chosen, split = settings.sts, settings.split.value
    unused = changed_settings(chosen.before, BeforeSettings(), ("pooler", "pooler_post"))
    if unused and not chosen.before.encoder:
        name = f"sts.before.{unused[0]}"
        raise SettingError(f"{name} needs sts.before.encoder; the pooler of encoder= is sts.pooler")
    sets = read_sets(settings.data_dir, split=split)
    measured = {GeometryPairs.all: ("train", "dev", "test"), GeometryPairs.split: (split,), GeometryPairs.none: ()}
    found = [read_set(STS_B, settings.data_dir, split=each) for each in measured[chosen.geometry.pairs]]
    places = [(settings.encoder, chosen.pooler, chosen.pooler_post)]
    if chosen.before.encoder:
        places.insert(0, (chosen.before.encoder, chosen.before.pooler, chosen.before.pooler_post))
    encoders = [
        sentence_vectors(place, pooler=pooler, post=post, device=settings.device, dtype=settings.precision)
        for place, pooler, post in places
    ]
    pairs = [each for each in found if each is not None]
    return evaluate_sts(
        encoders, sets, chosen, settings, geometry_pairs=pairs, check_record=check_record, progress=progress
    )


BUILT_IN_TASKS = {
    task.name: task
    for task in (
        BuiltInTask("demo", _demo, reads=("index", "split", "limit", "resamples", "fill")),
        BuiltInTask("masked_tokens", _masked_tokens, reads=("corpus", "limit")),
        BuiltInTask("denoising", _denoising, reads=("corpus", "limit", "resamples")),
        BuiltInTask("sts", _sts, reads=("data_dir", "split", "resamples")),
        BuiltInTask("in_batch", _in_batch, reads=("corpus", "limit", "resamples")),
    )
}
DEFAULT_TASK = BUILT_IN_TASKS["demo"]
"""What is asked where the settings name no task."""


def _held_out(settings: EvaluationSettings, group: HeldOut) -> HeldOut:
    """The settings of a task on held-out text, with as many articles as limit= says. Raises SettingError."""
    _require(",".join(settings.corpus.files), "corpus.files", "held-out documents, such as the last file of the corpus")
    if settings.limit and group.takes_every_document:
        raise exclusive("limit", "masked_tokens.every_document")
    return replace(group, articles=settings.limit or group.articles)


def _require(value: str, name: str, what: str) -> None:
    if not value:
        raise SettingError(f"{name} is required: {what}")


def _built_in_task(settings: EvaluationSettings) -> BuiltInTask | None:
    """The task with an evaluator of its own, or None for zero-shot tasks; raises SettingError for a mixture."""
    named = [BUILT_IN_TASKS[task] for task in settings.task if task in BUILT_IN_TASKS]
    if not settings.task and settings.suite is None:
        return DEFAULT_TASK
    if not named:
        return None
    if len(settings.task) > 1 or settings.suite is not None:
        others = ", ".join([*settings.task, *([f"suite={settings.suite.value}"] if settings.suite else [])])
        raise SettingError(f"task={named[0].name} must be the only task, got {others}; evaluate one after the other")
    return named[0]


def _refuse_unused(
    settings: EvaluationSettings, asked: str, reads: Sequence[str], *, refused: Mapping[str, str] | None = None
) -> None:
    """What was set for another task would be passed over without a word.

    `refused` are exceptions from `reads`, each with what would read it; "" where only another task or method does.
    """
    refused = refused or {}
    settings = _without_unread_reference(settings, reads, refused)
    known = {*READ_BY_ALL, *reads}
    unused = [*(item.name for item in fields(EvaluationSettings) if item.name not in known), *refused]
    changed = changed_settings(settings, EvaluationSettings(), unused)
    if changed:
        readers = [refused[name] for name in changed if refused.get(name)]
        others = f"give {', '.join(readers)}" if readers else "choose another task or method"
        raise SettingError(f"{asked} has no use for {', '.join(changed)}: leave it out, or {others}")


def _without_unread_reference(
    settings: EvaluationSettings, reads: Sequence[str], refused: Mapping[str, str]
) -> EvaluationSettings:
    """The same without what scoring=reference has set for methods that are not asked: it sets all at once."""
    closed, fill = settings.zero_shot.closed, settings.fill
    if closed == ClosedScoring.reference() and ("zero_shot" not in reads or "zero_shot.closed" in refused):
        settings = replace(settings, zero_shot=replace(settings.zero_shot, closed=ClosedScoring()))
    if fill == FillSettings.reference() and {"fill", "fill.scoring"} & refused.keys():
        settings = replace(settings, fill=type(settings)().fill)
    return settings


def _unused_by(settings: EvaluationSettings, tasks: Sequence[Task]) -> Iterator[tuple[str, str]]:
    """Settings that none of the methods of `tasks` reads, each with what would read it.

    Raises SettingError for a method that answers none of the tasks.
    """
    suites = {task.suite for task in tasks}
    closed = CLOSED_METHODS if Suite.closed in suites else ()
    opened = OPEN_METHODS if Suite.open in suites else ()
    known = dict.fromkeys((*closed, *opened))
    for name in settings.method:
        if name not in known and name in (*CLOSED_METHODS, *OPEN_METHODS):
            raise SettingError(f"method {name} answers none of the tasks, whose methods are {', '.join(known)}")
    if any(name not in (*CLOSED_METHODS, *OPEN_METHODS) for name in settings.method):
        return  # that there is no such method is said where methods are made
    asked = settings.method or list(known)
    if not any(task.data.dates for task in tasks):
        yield "zero_shot.date", "a task with data.dates, such as templama"
    scoring, reference = settings.zero_shot.closed, type(settings.fill).reference()
    if not any(name in READS_FILL and name in opened for name in asked):
        reads_filters = READS_FILTERS in asked and READS_FILTERS in opened
        unread = [item.name for item in fields(FillSettings) if item.name not in FILTERS]
        yield from ((f"fill.{name}", "") for name in unread) if reads_filters else [("fill", "")]
    elif not any(name in READS_RETRIEVAL for name in settings.method) and (
        # scoring=reference sets fill.retrieval for every method that reads it
        settings.fill.retrieval is not reference.retrieval
        or settings.fill.scoring.normalisation is not reference.scoring.normalisation
    ):
        yield "fill.retrieval", f"method={READS_RETRIEVAL[0]}, whose retrieval it is"
    if not any(name in READS_CLOSED and name in closed for name in asked):
        yield "zero_shot.closed", ""
    elif scoring.k is not None and scoring.retrieval is not ClosedRetrieval.top_k:
        retrievals = {task.scoring.retrieval for task in tasks}
        if ClosedRetrieval.top_k not in retrievals or scoring.retrieval is ClosedRetrieval.exact:
            yield "zero_shot.closed.k", "zero_shot.closed.retrieval=top_k, which reads it"
    yield from _unused_models(settings, asked, suites)


def _unused_models(
    settings: EvaluationSettings, asked: Sequence[str], suites: Collection[Suite]
) -> Iterator[tuple[str, str]]:
    """Of `_unused_by` the baselines' models, where methods are named, and what only some of them read."""
    causal = settings.zero_shot.causal
    if settings.method:
        # without index= the language model says how long prompts may be, for all methods
        if settings.index and not any(name in READS_LANGUAGE_MODEL for name in asked):
            yield "zero_shot.mlm.encoder", "a method that asks it, such as mlm"
        if not any(name in READS_ITS_INDEX for name in asked):
            yield "zero_shot.mlm.index", f"method={READS_ITS_INDEX[0]}, which asks it"
        if not any(name in CAUSAL for name in asked):
            yield "zero_shot.causal.model", "a method that asks it, such as causal"
        if "t5" not in asked:
            yield "zero_shot.t5.model", "method=t5, which asks it"
    if "causal-knn" not in asked or Suite.closed not in suites or not causal.model:
        for name in ("knn_share", "knn_temperature", "knn_k"):
            yield f"zero_shot.causal.{name}", "method=causal-knn with zero_shot.causal.model=, which reads it"
