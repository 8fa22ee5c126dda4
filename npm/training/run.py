"""A training run from its settings: texts → batches → model and objective → the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from index.locking import folder_lock
from npm.corpus.sentence_pairs import sentence_sources
from npm.corpus.sources import find_sources
from npm.errors import SettingError, UserError
from npm.masking.collocations import CollocationVocabulary
from npm.masking.corruption import CorruptionSettings, CorruptionUnit
from npm.masking.rendering import SENTENCES, reads_blocks
from npm.models.encoder import Encoder
from npm.models.sentences import SavedSentenceEncoder
from npm.objectives.combine import WeightedSum
from npm.objectives.ranks import rank, world_size
from npm.objectives.sentence import SentenceContrast
from npm.training.acceleration import make_accelerator
from npm.training.checkpoints import RunFolder
from npm.training.data import Texts, TrainingBatches, make_sources
from npm.training.model import TrainableModel, check_input_length, load_start, make_objective
from npm.training.settings import (
    TrainingEvaluationSettings,
    TrainingSettings,
    as_record,
    recorded_sources,
    refuse_unused,
    refuse_unused_of_start,
)
from npm.training.trainer import StepReport, Trainer
from npm.training.validation import Evaluator, HeldOut
from npm.types import Progress, silent

MakeEvaluators = Callable[[TrainableModel, WeightedSum], Sequence[Evaluator]]
"""Makes what else is measured during training, of the model and its objective."""


def run_training(
    folder: Path,
    settings: TrainingSettings,
    *,
    announce: Callable[[str], None] = lambda _: None,
    progress: Progress = silent,
    report_step: Callable[[StepReport], None] = lambda _: None,
    make_evaluators: MakeEvaluators = lambda *_: (),
) -> Path:
    """Train, or go on training, in `folder`; returns the folder of the finished encoder.

    Only the first rank calls `announce` (before the loop starts), `progress` (while blocks are made) and `report_step`.
    Raises SettingError if the folder was begun with other settings, CorpusError or EncoderError for bad input,
    ArtefactError while another process trains in it, or if it is no run folder to write into (`RunFolder.check`).
    """
    refuse_unused_of_start(settings)
    RunFolder(folder).check()
    trained = load_start(settings)
    torch.manual_seed(settings.trainer.seed)  # the heads of objectives start at random
    objective = make_objective(settings, trained)
    refuse_unused(settings, objective.views)
    check_input_length(settings, trained, objective.views)
    facts = recorded_facts(settings, trained, objective.views)  # a misspelt file is reported before anything is made
    evaluators = make_evaluators(trained, objective)
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
                texts, shown = training_texts(folder, settings), progress if rank() == 0 else silent
                sources = make_sources(texts, objective.views, settings, trained, progress=shown)
                held_out = _held_out(folder, settings, trained, objective, evaluators)
            trainer = make_trainer(RunFolder(folder), settings, trained, objective, sources.batches, held_out)
            if rank() == 0:
                device, precision = trainer.accelerator.device, trainer.accelerator.mixed_precision
                announce(f"training on {device} in {precision}: {'; '.join(sources.notes)}")
            trainer.train(report_step if rank() == 0 else lambda _: None)
        except UserError:
            # a run that never began leaves nothing behind
            if rank() == 0 and not was_there and not RunFolder(folder).has_begun:
                RunFolder(folder).discard()
            raise
    return trainer.run_folder.encoder_path


def recorded_facts(settings: TrainingSettings, trained: TrainableModel, views: set[str]) -> dict[str, str]:
    """What a run is made from, by content: the start and all texts. Raises CorpusError for a file that is not there."""
    facts = {"encoder_fingerprint": trained.fingerprint}
    sentences = sentence_sources(settings.sentences) if SENTENCES in views else []
    if reads_blocks(views) or not sentences:
        facts |= recorded_sources("corpus", find_sources(settings.corpus.files))
    facts |= recorded_sources("sentences", sentences)
    if settings.corruption.unit is CorruptionUnit.collocation and settings.corruption.collocations.vocabulary:
        vocabulary = CollocationVocabulary.open(
            Path(settings.corruption.collocations.vocabulary), tokenizer_fingerprint=trained.tokenizer_fingerprint
        )
        facts["collocations"] = vocabulary.digest
    if settings.evaluation.files:
        held_out = held_out_texts(Path(), settings, views)
        given = sentence_sources(held_out.sentences) or find_sources(held_out.corpus.files)
        facts |= recorded_sources("evaluation", given)
    return facts


def training_texts(folder: Path, settings: TrainingSettings) -> Texts:
    """The texts that are trained on."""
    return Texts(folder, settings.corpus, settings.sentences, settings.corruption, settings.trainer.seed)


def held_out_texts(folder: Path, settings: TrainingSettings, views: set[str]) -> Texts:
    """The texts of `evaluation.files`, in the place of the training text; tokens are masked as `evaluation` says.

    They are in the place of `sentences.files` where a run trains on those alone, else of `corpus.files`.
    """
    chosen = settings.evaluation
    pairs = bool(settings.sentences.files) and not reads_blocks(views)
    sentences = settings.sentences
    if pairs:  # files of the same columns
        sentences = replace(sentences, files=chosen.files)
    elif sentences.files:  # plain sentences of the held-out corpus
        sentences = replace(
            sentences,
            files=[],
            anchor_column="text",
            positive_column="",
            negative_column="",
            label_column="",
            score_column="",
        )
    return Texts(
        folder / "held-out",
        replace(settings.corpus, files=[] if pairs else chosen.files),
        sentences,
        CorruptionSettings(masked_fraction=chosen.masked_fraction),
        settings.trainer.seed + 1,
    )


def _held_out(
    folder: Path,
    settings: TrainingSettings,
    trained: TrainableModel,
    objective: WeightedSum,
    evaluators: Sequence[Evaluator],
) -> HeldOut | None:
    if not settings.evaluation.files and not evaluators:
        if settings.evaluation != TrainingEvaluationSettings():
            raise SettingError(
                "there is nothing to evaluate",
                expected="evaluation.files=[…], or sts_dir= for sentences",
                got="other settings of evaluation without them",
                where="evaluation.files",
                fix="give held-out text, or leave the settings of evaluation out",
            )
        return None
    batches = None
    if settings.evaluation.files:
        texts = held_out_texts(folder, settings, objective.views)
        batches = make_sources(texts, objective.views, settings, trained).batches
    return HeldOut(settings.evaluation, batches, evaluators=evaluators)


def make_trainer(
    run_folder: RunFolder,
    settings: TrainingSettings,
    trained: TrainableModel,
    objective: WeightedSum,
    batches: TrainingBatches,
    held_out: HeldOut | None = None,
) -> Trainer:
    """The loop, ready to run; what it saves is the encoder with what its objectives have learned for it."""
    sentence = next((part for part in objective.objectives.values() if isinstance(part, SentenceContrast)), None)
    saved: TrainableModel | SavedSentenceEncoder = trained
    if sentence is not None:
        assert isinstance(trained, Encoder), "sentences are for encoders"
        saved = SavedSentenceEncoder(trained, sentence.pooler)

    def keep_scale() -> None:
        if isinstance(trained, Encoder) and hasattr(objective, "similarity_scale"):
            trained.similarity_scale = objective.similarity_scale

    return Trainer(
        saved,
        objective,
        batches,
        run_folder,
        settings=settings,
        held_out=held_out,
        before_saving=keep_scale,
    )
