"""The tasks of `npmlm evaluate` that are no zero-shot tasks: each is one function and one entry of OWN_TASKS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npm.errors import SettingError
from npm.evaluation.settings import EvaluationSettings

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[str, float, float | None], None]
"""Called with the task, the examples done so far and their number."""
QUESTIONS_SHOWN = 24
DEFAULT_ARTICLES = 200
READ_BY_ALL = ("task", "out", "encoder", "device", "dtype", "seed")
"""Settings that are never refused."""


@dataclass(frozen=True, slots=True)
class OwnTask:
    """A task with an evaluator of its own: it measures, writes `settings.out` and prints its tables."""

    name: str
    run: Callable[[EvaluationSettings, Progress, Console], None]
    reads: tuple[str, ...]
    """Settings that it has a use for, beside those of READ_BY_ALL; whatever else was set is refused."""


def run_demo(settings: EvaluationSettings, progress: Progress, console: Console) -> None:
    """Task `demo`."""
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


def run_in_batch(settings: EvaluationSettings, progress: Progress, console: Console) -> None:
    """Task `in_batch`."""
    from npm.evaluation.report import print_in_batch
    from npm.evaluation.tasks.in_batch import InBatchSettings, evaluate_held_out
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
    from npm.evaluation.report import print_masked_tokens
    from npm.evaluation.tasks.masked_tokens import MaskedTokensSettings, evaluate_held_out_masks
    from npm.models.encoder import Encoder
    from npm.models.masked_head import attach_masked_head
    from npm.models.places import locate_encoder

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
    from npm.evaluation.report import print_denoising
    from npm.evaluation.tasks.denoising import DenoisingTaskSettings, evaluate_held_out_denoising
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
    from npm.evaluation.geometry import GeometryPairs
    from npm.evaluation.sts_files import STS_B, read_set, read_sets
    from npm.evaluation.sts_report import print_sts
    from npm.evaluation.tasks.sts import StsSettings, evaluate_sts, sentence_vectors

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


OWN_TASKS = {
    task.name: task
    for task in (
        OwnTask("demo", run_demo, reads=("index", "questions", "split", "limit", "fill")),
        OwnTask("masked_tokens", run_masked_tokens, reads=("corpus", "limit", "masked_fraction", "masked_unit")),
        OwnTask("denoising", run_denoising, reads=("corpus", "limit")),
        OwnTask("sts", run_sts, reads=("data_dir", "split", "resamples", "pooler", "before", "geometry")),
        OwnTask("in_batch", run_in_batch, reads=("corpus", "limit", "dimensions")),
    )
}
DEFAULT_TASK = OWN_TASKS["demo"]
"""What is asked where the settings name no task."""
