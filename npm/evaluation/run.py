"""One evaluation from its settings: load, measure, write the results, return the table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from npm.core.artifact import MANIFEST_NAME
from npm.core.errors import SettingError, exclusive, missing
from npm.core.types import Progress
from npm.evaluation.results import CheckRecord, Result, any_record, check_out, refuse_other_results
from npm.evaluation.settings import EvaluationSettings

Evaluator = Callable[[EvaluationSettings, CheckRecord, Progress], Result]


def run_evaluation(
    settings: EvaluationSettings, *, task_folder: Path, progress: Progress, notice: Callable[[str], None]
) -> str:
    """Run the tasks, write `out`, and return the report as text for stdout; `task_folder` holds the shipped tasks.

    `notice` is called with what was not run. Raises UserError for anything missing or incompatible, before the work
    begins where that can be known.
    """
    if not settings.task and settings.suite is None:
        raise missing("task", "task=demo")
    named = [task for task in settings.task if task in BUILT_IN_TASKS]
    if named and (len(settings.task) > 1 or settings.suite is not None):
        others = ", ".join([*settings.task, *([f"suite={settings.suite}"] if settings.suite else [])])
        raise SettingError(f"task={named[0]} must be the only task, got {others}; evaluate one after the other")
    out = check_out(settings.out, report=not named)
    check_record = any_record if settings.overwrite else partial(refuse_other_results, out)
    if named:
        result = BUILT_IN_TASKS[named[0]](settings, check_record, progress)
    else:
        from npm.evaluation.evaluate import chosen_tasks, evaluate_suite

        tasks = chosen_tasks(settings, task_folder, tuple(BUILT_IN_TASKS))
        if not (settings.method or settings.index):
            notice("note: without index=DIR no method that needs an index is asked")
        result = evaluate_suite(settings, tasks, show=settings.show, check_record=check_record, progress=progress)
    result.write(settings.out)
    return result.text()


def _held_out(settings: EvaluationSettings, check_record: CheckRecord, progress: Progress) -> Result:
    """Load the model of a task on held-out text and measure it on the beginnings of articles."""
    from npm.corpus.documents import read_corpus
    from npm.evaluation.held_out import (
        evaluate_denoising,
        evaluate_in_batch,
        evaluate_masked_tokens,
        held_out_articles,
    )
    from npm.models.encoder import Encoder
    from npm.models.masked_lm import load_masked_lm

    (task,) = settings.task
    _require(",".join(settings.corpus.files), "corpus.files", "held-out documents, such as the last file of the corpus")
    chosen = settings.held_out
    if settings.limit and chosen.every_document and task == "masked_tokens":
        raise exclusive("limit", "held_out.every_document")
    load: dict[str, Any] = {"device": settings.device, "dtype": settings.precision}
    articles = partial(held_out_articles, read_corpus(settings.corpus), limit=settings.limit, task=task)
    tell: dict[str, Any] = {"check_record": check_record, "progress": progress}
    if task == "denoising":
        from npm.models.denoiser import Denoiser

        _require(settings.encoder, "encoder", "an encoder-decoder, such as npmlm train experiment=ul2_small makes")
        denoiser = Denoiser.load(settings.encoder, mode_tokens=(), **load)
        return evaluate_denoising(denoiser, articles(denoiser, chosen), chosen, settings, **tell)
    if task == "masked_tokens":
        what = "a masked language model, such as npmlm train experiment=mlm_uniform makes"
        _require(settings.encoder, "encoder", what)
        encoder, head = load_masked_lm(settings.encoder, **load)
        return evaluate_masked_tokens(encoder, head, articles(encoder, chosen), chosen, settings, **tell)
    encoder = Encoder.load(settings.encoder, **load)
    return evaluate_in_batch(encoder, articles(encoder, chosen), chosen, settings, **tell)


def _sts(settings: EvaluationSettings, check_record: CheckRecord, progress: Progress) -> Result:
    from npm.evaluation.sts import evaluate_sts, read_sets, sentence_vectors

    _require(settings.data_dir, "data_dir", "the folder with the files of STS12–16, STS-B and SICK-R, or some of them")
    chosen, split = settings.sts, settings.split
    sets = read_sets(settings.data_dir, split=split)
    places = [(settings.encoder, chosen.pooler, chosen.pooler_post)]
    if chosen.before.encoder:
        places.insert(0, (chosen.before.encoder, chosen.before.pooler, "none"))
    encoders = [
        sentence_vectors(place, pooler=pooler, post=post, device=settings.device, dtype=settings.precision)
        for place, pooler, post in places
    ]
    return evaluate_sts(encoders, sets, settings, check_record=check_record, progress=progress)


def _reading(settings: EvaluationSettings, check_record: CheckRecord, progress: Progress) -> Result:
    from npm.evaluation.reading import build_passages, evaluate_reading, read_passages
    from npm.retrieval.filler import PhraseFiller

    _require(",".join(settings.reading.questions), "reading.questions", "files of questions with their passages")
    _require(settings.index, "index", "the folder of an index over the passages, built if it is not there")
    asked, documents, skipped = read_passages(settings.reading.questions, settings)
    folder = Path(settings.index)
    opened: dict[str, Any] = {"device": settings.device, "dtype": settings.precision}
    if not (folder / MANIFEST_NAME).is_file():
        build_passages(documents, folder, settings, progress)
    with PhraseFiller.open(folder, settings.encoder or None, settings=settings.fill, **opened) as filler:
        return evaluate_reading(filler, asked, settings, skipped=skipped, check_record=check_record, progress=progress)


BUILT_IN_TASKS: dict[str, Evaluator] = {
    "masked_tokens": _held_out,
    "denoising": _held_out,
    "sts": _sts,
    "in_batch": _held_out,
    "reading": _reading,
}
"""Tasks with their own evaluator; each reads the group of its name and some shared settings."""


def _require(value: str, name: str, what: str) -> None:
    if not value:
        raise SettingError(f"{name} is required: {what}")
