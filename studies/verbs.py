"""The verbs of studies, with their settings: `npm/cli/registry.py` names them where this folder is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt

from npm.cli.base import OutputCommand, say, write_report
from npm.cli.progress import StageProgress
from npm.cli.registry import verb
from npm.cli.train import show_step
from npm.core.files import json_bytes
from npm.core.settings import PathText
from npm.models.settings import EncoderChoice, PoolerKind
from studies.artificial.generate import GenerateSettings
from studies.edits.settings import EditSettings
from studies.finetuning.settings import FinetuneSettings
from studies.plotting import CurveSettings


@verb(
    FinetuneSettings,
    'npmlm finetune encoder=DIR "task=[cola,stsb]" data_dir=DIR out=runs/glue',
    "encoder task data_dir out seeds learning_rates epochs examples_per_device_batch layer limit keep_encoders device "
    "precision",
    required="out",
    resumes=True,
    groups={
        "start": "hidden_dropout attention_dropout",
        "start.fresh": "layers dimensions attention_heads max_input_tokens",
        "start.frozen": "",
        "trainer": "optimizer weight_decay dropout_from_step dropout_until_step",
    },
)
def run_finetune(settings: FinetuneSettings) -> int:
    """Fine-tune, and print the table of all tasks."""
    from npm.objectives.ranks import rank, shutdown_distributed
    from studies.finetuning.run import finetune, report

    with StageProgress() as progress:
        found = finetune(
            settings, announce=progress.say, report_step=lambda name, step: show_step(progress, name, step)
        )
    if rank() == 0:
        sys.stdout.write(report(found) + "\n")
    shutdown_distributed()
    return 0


class GenerateCommand(GenerateSettings):
    """Generate artificial text from the grammar of a treebank; the same command resumes."""

    out: PathText = ""
    """Folder of the texts, their tokenizer, grammar, lexicon and report. Required."""


@verb(
    GenerateCommand,
    "npmlm generate treebank=[fr_gsd-train.conllu] out=DIR lexicon.kind=zipf",
    "treebank out sentences sentences_per_document seed lexicon.kind lexicon.types lexicon.temperature "
    "grammar.relations target",
    required="out",
    resumes=True,
)
def run_generate(settings: GenerateCommand) -> int:
    """Generate, and report statistics."""
    from studies.artificial.generate import generate

    with StageProgress() as progress:
        made = generate(settings.out, settings, progress=progress)
    if made.was_finished:
        say(f"{settings.out} is finished already, with the same settings: nothing to do")
    sys.stdout.write(json_bytes({name: made.report[name] for name in ("grammar", "text", "ceilings")}).decode())
    return 0


@verb(
    EditSettings,
    "npmlm edit encoder=runs/mlm/encoder edit=reversed out=runs/reversed",
    "out encoder edit edits donor tokenizer seed",
    required="out",
)
def run_edit(settings: EditSettings) -> int:
    """Edit, and count the tensors that differ."""
    steps = settings.steps()
    from studies.edits.edits import write_edited

    tensors = write_edited(settings.encoder, Path(settings.out), steps, seed=settings.seed)
    changed = sum(entry["changed"] for entry in tensors.values())
    say(f"{changed} of {len(tensors)} tensors changed; the encoder is in {settings.out}")
    return 0


class GeometryCommand(OutputCommand, EncoderChoice):
    """Measure the vectors of the sentences of STS-B, and of their tokens, layer by layer."""

    data_dir: PathText = ""
    """Folder with stsb-train.jsonl, stsb-dev.jsonl and stsb-test.jsonl, or some of them. Required."""
    split: Literal["all", "train", "dev", "test"] = "all"
    """The sentences that are measured: those of all splits, as in the paper, or of one."""
    pooler: PoolerKind | None = None
    """Pooling of token vectors into the vector of a sentence; null: as each encoder was saved."""
    pooler_post: Literal["none", "whiten"] = "none"
    """`whiten`: the vectors are shifted and scaled to mean 0 and covariance 1."""
    seed: NonNegativeInt = 0
    """Seed of the sample of sentences whose tokens are measured."""


@verb(
    GeometryCommand,
    "npmlm geometry encoder=runs/simcse/encoder data_dir=sts",
    "data_dir encoder split pooler pooler_post seed device precision output",
    required="data_dir",
)
def run_geometry(settings: GeometryCommand) -> int:
    """Measure, and print the tables."""
    from npm.core.display import report_text
    from studies.geometry import geometry_tables, measured_encoder

    found = measured_encoder(
        settings.encoder,
        settings.data_dir,
        ("train", "dev", "test") if settings.split == "all" else (settings.split,),
        seed=settings.seed,
        pooler=settings.pooler,
        post=settings.pooler_post,
        device=settings.device,
        dtype=settings.precision,
    )
    write_report(settings.output, found, report_text([*geometry_tables(found)]))
    return 0


class PlotCommand(OutputCommand, CurveSettings):
    """Draw the curves of training runs in one figure: npmlm plot RUN [RUN …] out=FILE.svg."""

    out: PathText = ""
    """The figure, FILE.svg or FILE.png; one that npmlm plot drew is replaced. Required."""


@verb(
    PlotCommand,
    "npmlm plot runs/mine runs/other out=curves.svg",
    "out terms x smoothed_points output",
    required="out",
    takes_texts=True,
)
def run_plot(settings: PlotCommand, folders: list[str]) -> int:
    """Draw, and print the numbers."""
    from npm.core.display import report_text
    from studies.plotting import check_figure, draw_runs, save_figure

    out = Path(settings.out)
    check_figure(out)
    drawn = draw_runs([Path(folder) for folder in folders], settings)
    save_figure(drawn.figure, out)
    write_report(settings.output, drawn.record, report_text([drawn.table]))
    say(f"the figure is in {out}")
    return 0
