"""The verbs of `npmlm`: one function each, and the one table that says what there is to know of them.

The one file that imports inside functions: a package comes when its verb is called, so that the overview and the help
are there at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from npm.cli.progress import StageProgress, say
from npm.errors import SettingError
from npm.types import MASK_TEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npm.cli.commands import (
        AddCommand,
        BuildCommand,
        CompactCommand,
        CompareCommand,
        DeleteCommand,
        EstimateCommand,
        EvaluateCommand,
        FillCommand,
        InspectCommand,
        PlotCommand,
        TrainCommand,
        TuneCommand,
        VerifyCommand,
    )
    from npm.indexing.changes import ChangeResult
    from npm.objectives.combine import WeightedSum
    from npm.training.model import TrainableModel
    from npm.training.trainer import StepReport
    from npm.training.validation import Evaluator


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the command line."""

    summary: str
    """What it does, in the overview."""
    settings: str
    """The class of its settings in npm.cli.commands."""
    run: Callable[..., int]
    """Runs it, given the settings, and the texts where it takes some; returns the exit status."""
    first: str
    """Names of the settings that `--help` shows; `--help all` shows the others too."""
    example: str
    """A whole command."""
    required: str | None = "index"
    """The setting without which it cannot begin."""
    takes_texts: bool = False
    """Whether more than settings may stand on its command line: texts, or folders."""
    group: str | None = None
    """The folder of YAML files, each of which sets several of its settings at once."""
    resumes: bool = False
    """Whether the same command goes on where it was stopped."""

    @property
    def root(self) -> type:
        """The class of its settings, which comes with every package."""
        from npm.cli import commands

        return cast(type, getattr(commands, self.settings))

    @property
    def choices(self) -> dict[str, list[str]]:
        """The files of its group, by the name of the group."""
        return (
            {self.group: sorted(file.stem for file in (config_folder() / self.group).glob("*.yaml"))}
            if self.group
            else {}
        )


def config_folder() -> Path:
    """The folder of the YAML files: in the package when installed, beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def compose(verb: str, overrides: list[str]) -> Any:
    """The settings of `verb` with `overrides`. Raises SettingError."""
    from npm.cli.settings import compose_settings

    return compose_settings(verb, overrides)


def run_fill(settings: FillCommand, texts: list[str]) -> int:
    """`npmlm fill`."""
    if not texts and not settings.texts and sys.stdin is not None and sys.stdin.isatty():
        say("loading…")  # before what takes the time is imported
    from npm.cli.fill import fill_texts

    return fill_texts(settings, texts)


def run_build(settings: BuildCommand) -> int:
    """`npmlm build`."""
    from npm.indexing.build import build_index
    from npm.indexing.stages import Shard

    shard = Shard.parse(settings.shard)
    if settings.stage is None and shard.count > 1:
        raise SettingError(
            "a shard needs a stage",
            expected="stage=encode|quantise|code|merge beside shard=",
            got=f"shard={settings.shard} alone",
            where="shard",
            fix="give the stage too, or leave shard out to run all stages here",
        )
    with StageProgress() as progress:
        built = build_index(
            Path(settings.index), settings, stage=settings.stage, shard=shard, progress=progress, notice=progress.say
        )
    if built.was_finished:
        say(f"{settings.index} is finished already, with the same settings: nothing to do")
    elif built.manifest is None:
        name = "" if settings.stage is None else settings.stage.value
        say(f"stage {name}, shard {shard.number} of {shard.count}: done")
    else:
        say(f'the index is in {settings.index}: npmlm fill index={settings.index} "… {MASK_TEXT} …"')
    return 0


def run_verify(settings: VerifyCommand) -> int:
    """`npmlm verify`."""
    from npm.api import verify

    with StageProgress() as progress:
        found = verify(
            settings.index,
            settings.encoder or None,
            reencoded_batches=settings.reencoded_batches,
            seed=settings.seed,
            device=settings.device,
            precision=settings.precision,
            progress=progress,
        )
    sys.stdout.write(f"{settings.index} is whole: {found.bytes:,} bytes checked\n")
    for note in found.notes:
        say(f"note: {note}")
    if found.vectors:
        sys.stdout.write(f"{found.vectors:,} vectors encoded again, the least cosine {found.least_cosine:.5f}\n")
    return 0


def run_add(settings: AddCommand) -> int:
    """`npmlm add`."""
    from npm.indexing.changes import add_documents
    from npm.indexing.inspection import index_encoder

    encoder = index_encoder(Path(settings.index), settings.encoder, device=settings.device, dtype=settings.precision)
    with StageProgress() as progress:
        changed = add_documents(settings.index, settings, encoder, progress=progress)
    _report_change(settings.index, changed, "these documents are in the index already: nothing to do")
    return 0


def run_delete(settings: DeleteCommand) -> int:
    """`npmlm delete`."""
    from npm.indexing.changes import delete_documents

    _report_change(settings.index, delete_documents(settings.index, settings), "nothing to do")
    return 0


def run_compact(settings: CompactCommand) -> int:
    """`npmlm compact`."""
    from npm.indexing.compact import compact_index

    with StageProgress() as progress:
        changed = compact_index(settings.index, settings, progress=progress)
    if changed.was_finished:
        say(f"{settings.index}: one segment without deleted documents: nothing to do")
        return 0
    manifest, count = changed.manifest, changed.deleted_documents
    taken_out = f", without the {count:,} documents that had been deleted" if count else ""
    say(
        f"{settings.index} is generation {manifest.generation} now: {manifest.counts.documents:,} documents in one "
        f"segment{taken_out}"
    )
    return 0


def run_tune(settings: TuneCommand) -> int:
    """`npmlm tune`."""
    from npm.cli.tables import tune_text
    from npm.tuning.tune import tune_index

    with StageProgress() as progress:
        result = tune_index(settings, progress=progress)
    sys.stdout.write(tune_text(result))
    return 0


def run_inspect(settings: InspectCommand) -> int:
    """`npmlm inspect`."""
    from npm.cli.commands import Output
    from npm.cli.tables import inspection_json, inspection_text
    from npm.indexing.inspection import inspect_index

    inspection = inspect_index(Path(settings.index))
    sys.stdout.write(inspection_json(inspection) if settings.output is Output.json else inspection_text(inspection))
    return 0


def run_estimate(settings: EstimateCommand) -> int:
    """`npmlm estimate`."""
    from npm.cli.commands import Output
    from npm.cli.tables import estimate_text
    from npm.indexing.estimate import estimate_build, summary, table_rows
    from npm.models.encoder import Encoder

    with StageProgress() as progress:
        encoder = Encoder.load(settings.encoder, device=settings.device, dtype=settings.precision)
        estimate = estimate_build(settings, encoder, progress=progress)
    if settings.output is Output.json:
        sys.stdout.write(json.dumps(estimate.record(), ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(estimate_text(table_rows(estimate), summary(estimate)))
    return 0


def _report_change(index: str, changed: ChangeResult, nothing: str) -> None:
    """What a change did, and what may be worth doing next."""
    if changed.was_finished:
        say(f"{index}: {nothing}")
        return
    live = changed.manifest.counts.documents - changed.manifest.deleted_documents
    say(
        f"{index} is generation {changed.manifest.generation} now: {changed.added_documents:,} documents "
        f"added, {changed.deleted_documents:,} deleted, {live:,} answer"
    )
    if changed.skipped:
        say(changed.skipped)
    if changed.advice:
        say(f"note: {changed.advice}")


def run_evaluate(settings: EvaluateCommand) -> int:
    """`npmlm evaluate`."""
    from npm.evaluation.run import run_evaluation

    with StageProgress() as progress:
        report = run_evaluation(settings, task_folder=config_folder() / "task", progress=progress, notice=progress.say)
        sys.stdout.write(report + "\n")
    return 0


def run_compare(settings: CompareCommand, folders: list[str]) -> int:
    """`npmlm compare`: two folders of results, or two methods in one."""
    from npm.cli.commands import Output
    from npm.cli.tables import plain_table
    from npm.evaluation.compare import compare_results, comparison_rows

    methods = tuple(settings.methods)
    if len(folders) not in (1, 2) or len(methods) not in (0, 2) or (len(folders) == 1 and not methods):
        raise SettingError(
            "compare needs two things to compare",
            expected="two folders of results, or one and methods=[A,B]",
            got=f"{len(folders)} folders and {len(methods)} methods",
            where="npmlm compare",
            fix="npmlm compare A B, or npmlm compare A methods=[npm,mlm]",
        )
    comparison = compare_results(
        Path(folders[0]),
        Path(folders[-1]),
        methods=(methods[0], methods[1]) if methods else None,
        seed=settings.seed,
        resamples=settings.resamples,
    )
    for note in comparison.notes:
        say(f"note: {note}")
    if settings.output is Output.json:
        sys.stdout.write(json.dumps(comparison.record(), ensure_ascii=False, allow_nan=False) + "\n")
    else:
        sys.stdout.write(plain_table(*comparison_rows(comparison)))
    return 0


STSB_DEV = "stsb_dev_spearman"
"""What the correlation with the development half of STS-B is called in metrics.jsonl."""


def run_train(settings: TrainCommand) -> int:
    """`npmlm train`."""
    from npm.objectives.ranks import leave_ranks, rank
    from npm.training.run import run_training

    let_sts_decide(settings)

    with StageProgress() as progress:

        def report_step(report: StepReport) -> None:
            terms = " ".join(f"{name} {value:.3f}" for name, value in report.terms.items())
            expected_tokens = report.tokens / max(report.progress, 1e-9)
            progress("training", report.tokens, expected_tokens, note=f"step {report.step} {terms}")

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


def let_sts_decide(settings: TrainCommand) -> None:
    """Where the correlation with STS-B is all that is measured, it decides which encoder is the best."""
    chosen = settings.evaluation
    if settings.sts_dir and not chosen.files and chosen.best == type(chosen)().best:
        chosen.best, chosen.higher_is_better = STSB_DEV, True


def next_command(settings: TrainCommand, encoder: Path) -> str:
    """What a user may want to do with what was trained."""
    weights = settings.objective
    if weights.denoising_weight:
        return f"npmlm evaluate task=denoising encoder={encoder} …"
    if weights.sentence_weight and not weights.nonparametric_weight:
        return f"npmlm evaluate task=sts encoder={encoder} …"
    if weights.masked_weight and not weights.nonparametric_weight and not weights.masked.visible_only:
        return f"npmlm evaluate task=masked_tokens encoder={encoder} …"
    return f"npmlm build encoder={encoder} …"


def sts_evaluators(settings: TrainCommand, trained: TrainableModel, objective: WeightedSum) -> Sequence[Evaluator]:
    """The correlation with the development half of STS-B, where `sts_dir` names its folder. Raises SettingError."""
    if not settings.sts_dir:
        return ()
    from npm.evaluation.sts.correlation import sts_spearman
    from npm.evaluation.sts.data import STS_B, read_set
    from npm.models.encoder import Encoder
    from npm.models.sentences import SentenceEncoder
    from npm.objectives.sentence import SentenceContrast

    losses = [part for part in objective.objectives.values() if isinstance(part, SentenceContrast)]
    pairs = read_set(STS_B, Path(settings.sts_dir), split="dev")
    if pairs is None or not losses or not isinstance(trained, Encoder):
        raise SettingError(
            "the correlation with STS-B cannot be measured during training",
            expected="a folder with stsb-dev.jsonl, and an objective over sentences",
            got="no such file" if pairs is None else "no objective over sentences",
            where="sts_dir",
            fix="check the folder, or leave sts_dir out",
        )
    encoder = SentenceEncoder(trained, losses[0].pooler)

    def measure() -> dict[str, float]:
        return {STSB_DEV: sts_spearman(encoder.encode, pairs)}

    return (measure,)


def run_plot(settings: PlotCommand, runs: list[str]) -> int:
    """`npmlm plot`: the curves of several runs in one picture."""
    from npm.training.plotting import plot_runs

    picture = plot_runs([Path(run) for run in runs], settings)
    say(f"the curves are in {picture}")
    return 0


VERBS = {
    "build": Verb(
        "build a phrase index over a corpus",
        "BuildCommand",
        run_build,
        first="index corpus.files encoder device precision blocks.max_block_tokens vectors.pruning search.tier "
        "search.factory dimensions copy_encoder stage shard",
        example='npmlm build "corpus.files=[docs/*.jsonl]" index=DIR',
        resumes=True,
    ),
    "fill": Verb(
        "answer texts that hold <mask>",
        "FillCommand",
        run_fill,
        first="index encoder k occurrences retrieval documents where texts output device precision",
        example='npmlm fill index=DIR "The capital of Iceland is <mask>."',
        takes_texts=True,
        group="scoring",
    ),
    "verify": Verb(
        "check every byte of an index, and encode a sample again",
        "VerifyCommand",
        run_verify,
        first="index encoder device precision reencoded_batches seed",
        example="npmlm verify index=DIR",
    ),
    "inspect": Verb(
        "show what is in an index, and how large each part is",
        "InspectCommand",
        run_inspect,
        first="index output",
        example="npmlm inspect index=DIR",
    ),
    "estimate": Verb(
        "estimate memory, disk and time of a build",
        "EstimateCommand",
        run_estimate,
        first="corpus.files encoder device precision vectors.pruning search.tier search.factory dimensions "
        "sample_documents sample_seconds output",
        example='npmlm estimate "corpus.files=[docs/*.jsonl]"',
        required=None,
    ),
    "add": Verb(
        "add documents to an index",
        "AddCommand",
        run_add,
        first="index corpus.files corpus.id_field corpus.text_field replace encoder device precision",
        example='npmlm add index=DIR "corpus.files=[new.jsonl]"',
        resumes=True,
    ),
    "delete": Verb(
        "delete documents of an index",
        "DeleteCommand",
        run_delete,
        first="index ids ids_file",
        example='npmlm delete index=DIR "ids=[17,some page]"',
    ),
    "compact": Verb(
        "rewrite an index without what was deleted",
        "CompactCommand",
        run_compact,
        first="index retrain",
        example="npmlm compact index=DIR",
        resumes=True,
    ),
    "tune": Verb(
        "measure search settings of an index and choose some",
        "TuneCommand",
        run_tune,
        first="index encoder device precision queries seed recall_goal agreement_goal write out",
        example="npmlm tune index=DIR out=runs/tune write=true",
    ),
    "train": Verb(
        "train an encoder",
        "TrainCommand",
        run_train,
        first="run encoder corpus.files sentences.files schedule.max_steps schedule.max_minutes "
        "schedule.learning_rate groups.sequences_per_group evaluation.files device precision trainer.seed",
        example='npmlm train experiment=encoder_mini encoder=encoder-mini run=runs/mine "corpus.files=[docs/*.jsonl]"',
        required="run",
        group="experiment",
        resumes=True,
    ),
    "plot": Verb(
        "draw the curves of training runs in one picture",
        "PlotCommand",
        run_plot,
        first="out terms x smoothed_points",
        example="npmlm plot runs/mine runs/other out=curves.png",
        required="out",
        takes_texts=True,
    ),
    "evaluate": Verb(
        "measure an encoder or an index on tasks",
        "EvaluateCommand",
        run_evaluate,
        first="out task suite method index encoder data_dir corpus.files split limit seed device precision",
        example="npmlm evaluate task=demo index=DIR out=runs/evaluation",
        required="out",
        group="scoring",
    ),
    "compare": Verb(
        "compare the results of two evaluations, example by example",
        "CompareCommand",
        run_compare,
        first="methods seed resamples output",
        example="npmlm compare runs/first runs/second",
        required=None,
        takes_texts=True,
    ),
}
"""Everything that is declared of a verb."""
