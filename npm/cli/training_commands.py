"""The settings of the verbs that make, change and measure encoders: one root dataclass a verb, as in `commands.py`."""

from __future__ import annotations

from dataclasses import field

from pydantic import NonNegativeInt, PositiveInt

from npm.cli.commands import Command, Output
from npm.core.settings import PathText
from npm.corpus.artificial.generate import GenerateSettings
from npm.corpus.tokenizers import TokenizerSettings
from npm.evaluation.settings import EvaluationSettings
from npm.finetuning.settings import FinetuneSettings
from npm.models.edits.settings import EditSettings
from npm.training.plotting import CurveSettings
from npm.training.settings import TrainingSettings


class TrainCommand(TrainingSettings, Command):
    """Train an encoder; a run that was stopped goes on with the same command."""

    run: PathText = ""
    """Folder of the run: settings, metrics, checkpoints, and the finished encoder in RUN/encoder. Required."""
    sts_dir: PathText = ""
    """Folder with stsb-dev.jsonl: its Spearman correlation is measured too at every evaluation during training, as
    stsb_dev_spearman; for objectives over sentences."""


class FinetuneCommand(FinetuneSettings, Command):
    """Fine-tune an encoder on labelled tasks, each with several learning rates and seeds; one that was stopped goes on
    with the same command."""


class PlotCommand(CurveSettings, Command):
    """Draw the curves of training runs in one figure: npmlm plot RUN [RUN …] out=FILE.svg."""

    out: PathText = ""
    """The figure, FILE.svg or FILE.png; one that npmlm plot drew is replaced. Required."""
    output: Output = Output.table
    """Form of the numbers on stdout: `table` for people, `json` for programs."""


class EvaluateCommand(EvaluationSettings, Command):
    """Measure an encoder or an index on tasks; writes predictions.jsonl, metrics.json and (zero-shot) results.md."""


class CompareCommand(Command):
    """Compare two evaluations: npmlm compare A B, folders that evaluate wrote, or one of them and methods=."""

    methods: list[str] = field(default_factory=list)
    """Two methods, of the first and of the second folder; empty: those of equal names."""
    seed: NonNegativeInt = 0
    """Seed of the bootstrap."""
    resamples: PositiveInt = 10_000
    """Of the paired bootstrap, for 95 % confidence intervals."""
    output: Output = Output.table
    """`table` for people, `json` for programs."""


class EditCommand(EditSettings, Command):
    """Change a checkpoint without training it: layers, weights, embeddings, vocabulary; writes an encoder folder."""


class GenerateCommand(GenerateSettings, Command):
    """Generate artificial text from the grammar of a treebank; one that was stopped goes on with the same command."""

    out: PathText = ""
    """Folder of the texts, their tokenizer, grammar, lexicon and report. Required."""
    shard: str = "1/1"
    """Which of the files, as i/n: this job's number, from 1, and the number of jobs; the last one to end reports."""


class TokenizerCommand(TokenizerSettings, Command):
    """Learn a tokenizer from a corpus: the same text and settings give the same bytes."""

    out: PathText = ""
    """Folder of the tokenizer, as transformers loads it. Required."""
