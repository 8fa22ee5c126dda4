"""The verbs that make encoders and tokenizers, with their settings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npm.cli.base import TEXT_SETTINGS, say
from npm.cli.progress import StageProgress
from npm.cli.registry import verb
from npm.core.errors import SettingError
from npm.core.settings import PathText
from npm.corpus.tokenizers import TokenizerSettings
from npm.training.settings import TrainingSettings

if TYPE_CHECKING:
    from npm.objectives.combine import WeightedSum
    from npm.training.model import TrainableModel
    from npm.training.trainer import StepReport
    from npm.training.validation import Evaluator

STSB_DEV = "stsb_dev_spearman"
"""Name in metrics.jsonl of the correlation with the development half of STS-B."""


class TrainCommand(TrainingSettings):
    """Train an encoder; a run that was stopped resumes with the same command."""

    run: PathText = ""
    """Folder of the run: settings, metrics, checkpoints, and the finished encoder in RUN/encoder. Required."""
    sts_dir: PathText = ""
    """Folder with stsb-dev.jsonl: its Spearman correlation is measured too at every evaluation during training, as
    stsb_dev_spearman; for objectives over sentences."""

    def sts_decides(self) -> TrainCommand:
        """The same, with STS-B choosing the best encoder where it is all that is measured."""
        chosen = self.evaluation
        if self.sts_dir and not chosen.files and chosen.best == type(chosen)().best:
            return replace(self, evaluation=replace(chosen, best=STSB_DEV, higher_is_better=True))
        return self


@verb(
    TrainCommand,
    'npmlm train experiment=encoder_mini encoder=encoder-mini run=runs/mine "corpus.files=[docs/*.jsonl]"',
    "run encoder corpus.files sentences.files schedule.max_steps schedule.max_minutes schedule.learning_rate "
    "groups.sequences_per_group evaluation.files device precision trainer.seed",
    required="run",
    presets="experiment size",
    resumes=True,
    groups={"corpus": f"{TEXT_SETTINGS} title_field"},
)
def run_train(settings: TrainCommand) -> int:
    """Train, with progress on stderr."""
    from npm.objectives.ranks import rank, shutdown_distributed
    from npm.training.run import run_training

    with StageProgress() as progress:
        encoder = run_training(
            Path(settings.run),
            settings.sts_decides(),
            announce=progress.say,
            progress=progress,
            report_step=lambda report: show_step(progress, "training", report),
            make_evaluators=lambda trained, objective: _sts_evaluators(settings.sts_dir, trained, objective),
        )
    if rank() == 0:
        say(f"the encoder is in {encoder}")
    shutdown_distributed()
    return 0


class TokenizerCommand(TokenizerSettings):
    """Learn a tokenizer from a corpus: the same text and settings give the same bytes."""

    out: PathText = ""
    """Folder of the tokenizer, as transformers loads it. Required."""


@verb(
    TokenizerCommand,
    'npmlm tokenizer "corpus.files=[docs/*.jsonl]" out=DIR size=4096',
    "corpus.files out kind size lowercase",
    required="out",
    groups={"corpus": TEXT_SETTINGS},
)
def run_tokenizer(settings: TokenizerCommand) -> int:
    """Learn pieces."""
    from npm.corpus.tokenizers import learn_tokenizer

    with StageProgress() as progress:
        learned = learn_tokenizer(settings.out, settings, progress=progress)
    if learned.was_finished:
        say(f"{settings.out} is finished already, with the same text and settings: nothing to do")
    encoder = shlex.quote(f"encoder={settings.out}")
    say(f"{learned.pieces:,} pieces are in {settings.out}: npmlm train {encoder} start.fresh.layers=4 …")
    return 0


def show_step(progress: StageProgress, stage: str, report: StepReport) -> None:
    """Show the progress of a run, and below it the terms of its loss."""
    terms = "  ".join(f"{name} {value:.3f}" for name, value in report.terms.items())
    progress(stage, report.tokens, report.tokens / max(report.progress, 1e-9), note=f"step {report.step}  {terms}")


def _sts_evaluators(folder: str, trained: TrainableModel, objective: WeightedSum) -> Sequence[Evaluator]:
    """The correlation with the development half of STS-B, where `sts_dir` names its folder. Raises SettingError."""
    if not folder:
        return ()
    from npm.evaluation.sts import read_set, sts_spearman
    from npm.models.encoder import Encoder
    from npm.models.sentences import SentenceEncoder
    from npm.objectives.sentence import SentenceContrast

    losses = [part for part in objective.objectives.values() if isinstance(part, SentenceContrast)]
    pairs = read_set("STS-B", Path(folder), split="dev")
    if pairs is None or not losses or not isinstance(trained, Encoder):
        raise SettingError(f"sts_dir requires stsb-dev.jsonl in {folder} and an objective over sentences")
    encoder = SentenceEncoder(trained, losses[0].pooler)
    return (lambda: {STSB_DEV: sts_spearman(encoder.encode, pairs)},)
