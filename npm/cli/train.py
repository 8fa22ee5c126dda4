"""`npmlm train`: the progress of a run, what is measured during it, and what to do with what came of it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from npm.cli.progress import StageProgress, say
from npm.cli.training_commands import FinetuneCommand, TrainCommand
from npm.core.errors import SettingError
from npm.evaluation.sts import read_set, sts_spearman
from npm.finetuning.run import finetune
from npm.finetuning.run import report as report_of
from npm.models.encoder import Encoder
from npm.models.sentences import SentenceEncoder
from npm.objectives.combine import WeightedSum
from npm.objectives.ranks import leave_ranks, rank
from npm.objectives.sentence import SentenceContrast
from npm.training.model import TrainableModel
from npm.training.run import run_training
from npm.training.trainer import StepReport
from npm.training.validation import Evaluator

STSB_DEV = "stsb_dev_spearman"
"""What the correlation with the development half of STS-B is called in metrics.jsonl."""


def train(settings: TrainCommand) -> int:
    """Train as the settings say, with progress on stderr; returns the exit status."""
    settings = let_sts_decide(settings)

    with StageProgress() as progress:

        def report_step(report: StepReport) -> None:
            show_step(progress, "training", report)

        def make_evaluators(trained: TrainableModel, objective: WeightedSum) -> Sequence[Evaluator]:
            return sts_evaluators(settings, trained, objective)

        encoder = run_training(
            Path(settings.run),
            settings,
            announce=say,
            progress=progress,
            report_step=report_step,
            make_evaluators=make_evaluators,
        )
    if rank() == 0:
        say(f"the encoder is in {encoder}: {next_command(settings, encoder)}")
    leave_ranks()
    return 0


def show_step(progress: StageProgress, stage: str, report: StepReport) -> None:
    """How far a run has come, and the terms of its loss."""
    terms = " ".join(f"{name} {value:.3f}" for name, value in report.terms.items())
    expected_tokens = report.tokens / max(report.progress, 1e-9)
    progress(stage, report.tokens, expected_tokens, note=f"step {report.step} {terms}")


def finetune_tasks(settings: FinetuneCommand) -> int:
    """`npmlm finetune`: runs with their progress on stderr, then the table of all tasks on stdout."""
    with StageProgress() as progress:
        found = finetune(
            settings, announce=progress.say, report_step=lambda name, report: show_step(progress, name, report)
        )
    if rank() == 0:
        sys.stdout.write(report_of(found) + "\n")
    leave_ranks()
    return 0


def let_sts_decide(settings: TrainCommand) -> TrainCommand:
    """Where the correlation with STS-B is all that is measured, it decides which encoder is the best."""
    chosen = settings.evaluation
    if settings.sts_dir and not chosen.files and chosen.best == type(chosen)().best:
        return replace(settings, evaluation=replace(chosen, best=STSB_DEV, higher_is_better=True))
    return settings


def next_command(settings: TrainCommand, encoder: Path) -> str:
    """What a user may want to do with what was trained."""
    weights, trained = settings.objective, shlex.quote(f"encoder={encoder}")
    if weights.denoising_weight:
        return f"npmlm evaluate task=denoising {trained} …"
    if weights.sentence_weight and not weights.nonparametric_weight:
        return f"npmlm evaluate task=sts {trained} …"
    if weights.labelled_weight and not weights.nonparametric_weight:
        return f"npmlm plot {shlex.quote(settings.run)} out=curves.png"
    if weights.masked_weight and not weights.nonparametric_weight and not weights.masked.visible_only:
        return f"npmlm evaluate task=masked_tokens {trained} …"
    return f"npmlm build {trained} …"


def sts_evaluators(settings: TrainCommand, trained: TrainableModel, objective: WeightedSum) -> Sequence[Evaluator]:
    """The correlation with the development half of STS-B, where `sts_dir` names its folder. Raises SettingError."""
    if not settings.sts_dir:
        return ()
    losses = [part for part in objective.objectives.values() if isinstance(part, SentenceContrast)]
    pairs = read_set("STS-B", Path(settings.sts_dir), split="dev")
    if pairs is None or not losses or not isinstance(trained, Encoder):
        raise SettingError(
            f"sts_dir requires stsb-dev.jsonl in {settings.sts_dir} and an encoder with an objective over sentences"
        )
    encoder = SentenceEncoder(trained, losses[0].pooler)

    def measure() -> dict[str, float]:
        return {STSB_DEV: sts_spearman(encoder.encode, pairs)}

    return (measure,)
