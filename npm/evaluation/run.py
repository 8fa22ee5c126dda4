"""One evaluation from its settings: load, measure, write the results, return the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from npm.core.errors import SettingError, exclusive
from npm.core.files import sha256_of_file
from npm.core.types import Progress
from npm.evaluation.report import memory_console, written_on
from npm.evaluation.results import CheckRecord, any_record, check_out, refuse_other_results
from npm.evaluation.settings import EvaluationSettings, GeometryPairs, HeldOutSettings

if TYPE_CHECKING:
    from rich.console import Console


HeldOut = TypeVar("HeldOut", bound=HeldOutSettings)


class Result(Protocol):
    """Result of a task."""

    def write(self, out: str | Path) -> None:
        """Write the files of the folder `out`."""

    def show(self, console: Console) -> None:
        """Print the report."""


Evaluator = Callable[[EvaluationSettings, CheckRecord, Progress], Result]


def run_evaluation(
    settings: EvaluationSettings, *, task_folder: Path, progress: Progress, notice: Callable[[str], None]
) -> str:
    """Run the tasks, write `out`, and return the report as text for stdout; `task_folder` holds the shipped tasks.

    `notice` is told what was done in place of what was not said. Raises UserError for whatever is missing or does not
    fit, before the work begins where that can be known.
    """
    built_in = _built_in_task(settings)
    out = check_out(settings.out, report=built_in is None)
    check_record = any_record if settings.overwrite else partial(refuse_other_results, out)
    if built_in is None:
        from npm.evaluation.evaluate import chosen_tasks, evaluate_suite

        tasks = chosen_tasks(settings, task_folder, tuple(BUILT_IN_TASKS))
        if not (settings.method or settings.index):
            notice("note: without index=DIR no method that needs an index is asked")
        result: Result = evaluate_suite(settings, tasks, check_record=check_record, progress=progress)
    else:
        if not settings.task:
            _refuse_other_corpus(settings)
            notice("note: no task= was named: task=demo, the questions about the demo corpus")
        result = built_in(settings, check_record, progress)
    result.write(settings.out)
    console = memory_console(least=60, usual=100, most=120)
    result.show(console)
    return written_on(console)


def _refuse_other_corpus(settings: EvaluationSettings) -> None:
    """Raise SettingError unless the index that is asked holds the demo corpus, which the demo asks about."""
    from npm.evaluation.demo import shipped_questions_file
    from npm.indexing.generation import Generation

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
    from npm.evaluation.demo import evaluate_demo
    from npm.retrieval.fill import PhraseFiller

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
    from npm.corpus.documents import read_corpus
    from npm.evaluation.held_out import evaluate_in_batch, held_out_articles
    from npm.models.encoder import Encoder
    from npm.models.settings import check_leading_dimensions

    chosen = _held_out(settings, settings.in_batch)
    encoder = Encoder.load(settings.encoder, device=settings.device, dtype=settings.precision)
    check_leading_dimensions(chosen.dimensions, where="in_batch.dimensions", most=encoder.dimensions)
    articles = held_out_articles(read_corpus(settings.corpus), encoder, chosen, task="in_batch")
    return evaluate_in_batch(encoder, articles, chosen, settings, check_record=check_record, progress=progress)


def _masked_tokens(settings: EvaluationSettings, check_record: CheckRecord, progress: Progress) -> Result:
    from npm.corpus.documents import read_corpus
    from npm.evaluation.held_out import evaluate_masked_tokens, held_out_articles
    from npm.models.encoder import Encoder
    from npm.models.masked_lm import attach_masked_head
    from npm.models.names import locate_encoder

    chosen = _held_out(settings, settings.masked_tokens)
    _require(settings.encoder, "encoder", "a masked language model, such as npmlm train experiment=mlm_uniform makes")
    encoder = Encoder.load(settings.encoder, device=settings.device, dtype=settings.precision)
    head = attach_masked_head(encoder, locate_encoder(settings.encoder), trained=True)
    articles = held_out_articles(read_corpus(settings.corpus), encoder, chosen, task="masked_tokens")
    return evaluate_masked_tokens(
        encoder, head, articles, chosen, settings, check_record=check_record, progress=progress
    )


def _denoising(settings: EvaluationSettings, check_record: CheckRecord, progress: Progress) -> Result:
    from npm.corpus.documents import read_corpus
    from npm.evaluation.held_out import evaluate_denoising, held_out_articles
    from npm.models.denoiser import Denoiser

    chosen = _held_out(settings, settings.denoising)
    _require(settings.encoder, "encoder", "an encoder-decoder, such as npmlm train experiment=ul2_small makes")
    denoiser = Denoiser.load(settings.encoder, mode_tokens=(), device=settings.device, dtype=settings.precision)
    articles = held_out_articles(read_corpus(settings.corpus), denoiser, chosen, task="denoising")
    return evaluate_denoising(denoiser, articles, chosen, settings, check_record=check_record, progress=progress)


def _sts(settings: EvaluationSettings, check_record: CheckRecord, progress: Progress) -> Result:
    from npm.evaluation.sts import evaluate_sts, read_set, read_sets, sentence_vectors

    _require(settings.data_dir, "data_dir", "the folder with the files of STS12–16, STS-B and SICK-R, or some of them")
    chosen, split = settings.sts, settings.split.value
    sets = read_sets(settings.data_dir, split=split)
    measured = {GeometryPairs.all: ("train", "dev", "test"), GeometryPairs.split: (split,), GeometryPairs.none: ()}
    found = [read_set("STS-B", settings.data_dir, split=each) for each in measured[chosen.geometry.pairs]]
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


BUILT_IN_TASKS: dict[str, Evaluator] = {
    "demo": _demo,
    "masked_tokens": _masked_tokens,
    "denoising": _denoising,
    "sts": _sts,
    "in_batch": _in_batch,
}
"""Tasks with an evaluator of their own; each reads the group of its name and some shared settings."""


def _held_out(settings: EvaluationSettings, group: HeldOut) -> HeldOut:
    """The settings of a task on held-out text, with as many articles as limit= says. Raises SettingError."""
    _require(",".join(settings.corpus.files), "corpus.files", "held-out documents, such as the last file of the corpus")
    if settings.limit and group.takes_every_document:
        raise exclusive("limit", "masked_tokens.every_document")
    return replace(group, articles=settings.limit or group.articles)


def _require(value: str, name: str, what: str) -> None:
    if not value:
        raise SettingError(f"{name} is required: {what}")


def _built_in_task(settings: EvaluationSettings) -> Evaluator | None:
    """The evaluator of a built-in task, or None for zero-shot tasks; raises SettingError for a mixture."""
    named = [task for task in settings.task if task in BUILT_IN_TASKS]
    if not settings.task and settings.suite is None:
        return _demo
    if not named:
        return None
    if len(settings.task) > 1 or settings.suite is not None:
        others = ", ".join([*settings.task, *([f"suite={settings.suite.value}"] if settings.suite else [])])
        raise SettingError(f"task={named[0]} must be the only task, got {others}; evaluate one after the other")
    return BUILT_IN_TASKS[named[0]]
