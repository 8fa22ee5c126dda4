"""A training run from its settings: texts → batches → model and objective → the loop."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from npm.core.artifact import MANIFEST_NAME, folder_lock, read_manifest
from npm.core.errors import SettingError, UserError, missing, named
from npm.core.types import Progress, silent
from npm.corpus.labeled import labeled_sources
from npm.corpus.sentence_pairs import sentence_sources
from npm.corpus.sources import Source, find_sources
from npm.masking.collocations import CollocationVocabulary
from npm.masking.corruption import CorruptionSettings, CorruptionUnit
from npm.masking.rendering import LABELED, PASSAGES, QUESTIONS, SENTENCES, TOKENS, reads_blocks
from npm.models.sentences import SentenceEncoder
from npm.models.settings import Precision
from npm.objectives.combine import WeightedSum
from npm.objectives.ranks import rank, world_size
from npm.training.acceleration import launched_ranks, make_accelerator
from npm.training.checkpoints import HELD_OUT, RunFolder
from npm.training.data import TrainingBatches, make_sources
from npm.training.model import MakeObjectives, TrainableModel, check_input_length, load_start, make_objective
from npm.training.record import as_record, recorded_sources
from npm.training.settings import TrainingEvaluationSettings, TrainingSettings
from npm.training.trainer import StepReport, Trainer
from npm.training.validation import Evaluator, HeldOut

MakeEvaluators = Callable[[TrainableModel, WeightedSum], Sequence[Evaluator]]
"""Makes further evaluators from the model and its objective."""


def run_training(
    folder: Path,
    settings: TrainingSettings,
    *,
    announce: Callable[[str], None] = lambda _: None,
    progress: Progress = silent,
    report_step: Callable[[StepReport], None] = lambda _: None,
    make_objectives: MakeObjectives = lambda _: {},
    make_evaluators: MakeEvaluators = lambda *_: (),
    most_minutes: float | None = None,
) -> Path:
    """Train, or continue training, in `folder`; returns the folder of the finished encoder.

    After `most_minutes` it saves a checkpoint and returns; called again, it continues. Only the first rank calls
    `announce`, `progress` and `report_step`. Raises SettingError if the folder was begun with other settings,
    CorpusError or EncoderError for bad input, ArtifactError if another process trains in it or it is not a run folder.
    """
    RunFolder(folder).check()
    refuse_no_text(settings)  # before an encoder is looked for that may not be installed
    trained = load_start(settings)
    torch.manual_seed(settings.trainer.seed)  # the heads of objectives start at random
    objective = make_objective(settings, trained, make_objectives)
    check_input_length(settings, trained, objective.views)
    facts = recorded_facts(settings, trained, objective.views)  # a misspelled file is reported before anything is made
    facts |= _teacher_facts(settings, objective)
    evaluators = make_evaluators(trained, objective)
    if launched_ranks() > world_size() and os.environ.get("RANK", "0") == "0":
        announce(f"waiting for {launched_ranks()} ranks (WORLD_SIZE)")
    accelerator = make_accelerator(settings)  # starts the process group, if there are several ranks
    with folder_lock(folder) if rank() == 0 else nullcontext():
        was_there = folder.exists()
        try:
            with accelerator.main_process_first():
                if rank() == 0:
                    RunFolder(folder).start(as_record(settings, ranks=world_size()) | facts)
                if RunFolder(folder).is_finished:
                    if rank() == 0:
                        announce(f"{folder} is finished already, with the same settings: nothing to do")
                    return RunFolder(folder).encoder_path
                if settings.start.from_run and rank() == 0:
                    RunFolder(folder).continue_from(RunFolder(Path(settings.start.from_run)))
                place = text_folder(folder, settings, objective.views)
                shown = progress if rank() == 0 else silent
                batches, notes = make_sources(place, settings, objective.views, trained, progress=shown)
                timed = in_steps(settings, batches)
                held_out = _held_out(folder, settings, trained, objective, evaluators)
                if held_out is not None:
                    held_out.settings = timed.evaluation
            trainer = make_trainer(RunFolder(folder), timed, trained, objective, batches, held_out)
            if rank() == 0:
                announce(f"training {number_format(settings, trainer)}: {'; '.join(notes)}")
            trainer.train(report_step if rank() == 0 else lambda _: None, most_minutes=most_minutes)
        except (UserError, OSError):
            # a run that never began leaves no files
            if rank() == 0 and not was_there and not RunFolder(folder).has_begun:
                shutil.rmtree(folder, ignore_errors=True)
            raise
    return trainer.run_folder.encoder_path


def _teacher_facts(settings: TrainingSettings, objective: WeightedSum) -> dict[str, str]:
    """Fingerprints of the frozen models that teach, other than the start of the run."""
    facts: dict[str, str] = {}
    for part in objective.modules():
        if settings.objective.block_teacher.encoder and hasattr(part, "fingerprint"):
            facts["teacher_fingerprint"] = str(part.fingerprint)
    for part in objective.objectives.values():
        if reader := getattr(part, "reader", None):
            facts["reader_fingerprint"] = reader.fingerprint
    return facts


def number_format(settings: TrainingSettings, trainer: Trainer) -> str:
    """The device and the number format of a run, with the reason where it is float32 by itself."""
    device, precision = trainer.accelerator.device, trainer.accelerator.mixed_precision
    name = {"no": "float32", "bf16": "bfloat16", "fp16": "float16"}[precision]
    emulated = settings.precision is Precision.auto and name == "float32"
    return f"on {device} in {name}" + (", as it would only emulate bfloat16" if emulated else "")


def refuse_no_text(settings: TrainingSettings) -> None:
    """Raise CorpusError if there is no text; that of labeled rows is checked where they are read."""
    objective = settings.objective
    if objective.span_supervision_weight + objective.reader_weight and not settings.questions:
        raise missing("questions", "questions=FILE.jsonl")
    given = settings.corpus.files or settings.sentences.files or settings.labeled.files or settings.questions
    if not (given or settings.packed or objective.labeled_weight + objective.labeled_contrast_weight):
        find_sources([])


def recorded_facts(settings: TrainingSettings, trained: TrainableModel, views: set[str]) -> dict[str, str]:
    """The inputs of a run by content: the start and all texts. Raises CorpusError for a missing file."""
    facts = {"encoder_fingerprint": trained.fingerprint}
    if settings.packed:
        if files := (*settings.corpus.files, *settings.evaluation.files):
            raise SettingError(f"packed replaces corpus.files and evaluation.files: remove {named(files)}")
        if others := sorted(views & {SENTENCES, LABELED}):
            raise SettingError(f"packed has blocks only, but an objective reads {others[0]}: remove packed")
        folders = {"packed": Path(settings.packed)}
        if has_held_out(settings):
            folders["packed_held_out"] = Path(settings.packed) / HELD_OUT
        return facts | {name: read_manifest(folder / "corpus").digest for name, folder in folders.items()}
    for kind, sources in text_sources(settings, views).items():
        facts |= recorded_sources(kind, sources)
    collocations = settings.corruption.collocations.vocabulary
    if collocations and settings.corruption.unit is CorruptionUnit.collocation:
        fingerprint = trained.tokenizer_fingerprint
        facts["collocations"] = CollocationVocabulary.open(Path(collocations), tokenizer_fingerprint=fingerprint).digest
    if settings.evaluation.files:
        held_out = text_sources(held_out_settings(settings, views), views).values()
        facts |= recorded_sources("evaluation", [source for sources in held_out for source in sources])
    return facts


def text_sources(settings: TrainingSettings, views: set[str]) -> dict[str, list[Source]]:
    """The files that `views` are made from, by kind."""
    found = {
        "sentences": sentence_sources(settings.sentences) if SENTENCES in views else [],
        "labeled": labeled_sources(settings.labeled) if LABELED in views else [],
        "questions": find_sources(settings.questions) if views & {QUESTIONS, PASSAGES} and settings.questions else [],
    }
    if reads_blocks(views) or not any(found.values()):
        found["corpus"] = find_sources(settings.corpus.files)
    return found


def has_held_out(settings: TrainingSettings) -> bool:
    """Return True if there is text to evaluate on: given as files, or packed."""
    packed = bool(settings.packed) and (Path(settings.packed) / HELD_OUT / "corpus").is_dir()
    return packed or bool(settings.evaluation.files)


def text_folder(folder: Path, settings: TrainingSettings, views: set[str]) -> Path:
    """The folder of the packed text: `folder`, or that of a run that has cut it into the same blocks.

    A run that continued another may have none of its own; nothing is ever made in the folder of another run.
    """
    corruption, origin = settings.corruption, Path(settings.start.from_run)
    mines = TOKENS in views and corruption.unit is CorruptionUnit.collocation and not corruption.collocations.vocabulary
    needed = {"corpus": reads_blocks(views), "sentences": SENTENCES in views, "collocations": mines}
    names = [name for name, is_needed in needed.items() if is_needed]
    if settings.start.from_run and all((origin / name / MANIFEST_NAME).is_file() for name in names):
        folder = origin
    return Path(settings.packed or folder)


def held_out_settings(settings: TrainingSettings, views: set[str]) -> TrainingSettings:
    """The settings under which the text of `evaluation.files` is read; tokens are masked as `evaluation` says.

    It replaces `sentences.files`, `labeled.files` or `questions` where a run trains on those alone, else
    `corpus.files`. Raises SettingError where labeled rows are trained on next to other text.
    """
    if LABELED in views and views != {LABELED}:
        raise SettingError("evaluation.files cannot be measured where a run trains on labeled rows and other text")
    files, sentences = settings.evaluation.files, settings.sentences
    of_pairs = bool(sentences.files) and not reads_blocks(views)
    if of_pairs:  # files of the same columns
        sentences = replace(sentences, files=files)
    elif sentences.files:  # plain sentences of the held-out corpus
        plain = dict.fromkeys(("positive_column", "negative_column", "label_column", "score_column"), "")
        sentences = replace(sentences, files=[], anchor_column="text", **plain)  # type: ignore[arg-type]
    of_rows, of_questions = views == {LABELED}, views in ({QUESTIONS}, {PASSAGES})
    return replace(
        settings,
        corpus=replace(settings.corpus, files=[] if of_pairs or of_rows or of_questions else files),
        sentences=sentences,
        corruption=CorruptionSettings(masked_fraction=settings.evaluation.masked_fraction),
        labeled=replace(settings.labeled, files=files if of_rows else [], max_examples=None),
        questions=files if of_questions else [],
        supervision=replace(settings.supervision, file_weights=[]),  # those of the files trained on
        trainer=replace(settings.trainer, seed=settings.trainer.seed + 1),
    )


def in_steps(settings: TrainingSettings, batches: TrainingBatches) -> TrainingSettings:
    """The settings with epochs counted in steps: how long the run is, and that it is evaluated after each."""
    epochs = settings.schedule.max_epochs
    if epochs is None:
        return settings
    steps = -(-batches.micro_steps_per_epoch // settings.trainer.accumulation_steps)
    return replace(
        settings,
        schedule=replace(settings.schedule, max_steps=steps * epochs, max_epochs=None),
        evaluation=replace(settings.evaluation, every_steps=steps),
    )


def _held_out(
    folder: Path,
    settings: TrainingSettings,
    trained: TrainableModel,
    objective: WeightedSum,
    evaluators: Sequence[Evaluator],
) -> HeldOut | None:
    if not has_held_out(settings) and not evaluators:
        if settings.evaluation != TrainingEvaluationSettings():
            raise SettingError("evaluation.files (or sts_dir) is required by other settings of evaluation")
        return None
    batches: TrainingBatches | None = None
    if has_held_out(settings):
        place = Path(settings.packed or folder) / HELD_OUT
        batches, _ = make_sources(place, held_out_settings(settings, objective.views), objective.views, trained)
    return HeldOut(settings.evaluation, batches, evaluators=evaluators)


def make_trainer(
    run_folder: RunFolder,
    settings: TrainingSettings,
    trained: TrainableModel,
    objective: WeightedSum,
    batches: TrainingBatches,
    held_out: HeldOut | None = None,
) -> Trainer:
    """The loop, ready to run; it saves the encoder with the pooler that an objective has trained."""
    poolers = (getattr(part, "saved_pooler", None) for part in objective.objectives.values())
    pooler: Any = next(filter(None, poolers), None)
    start: Any = trained
    saved = start if pooler is None else SentenceEncoder(start, pooler)
    return Trainer(saved, objective, batches, run_folder, settings=settings, held_out=held_out)
