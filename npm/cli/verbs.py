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
        ServeCommand,
        TrainCommand,
        TuneCommand,
        VerifyCommand,
    )
    from npm.indexing.changes import ChangeResult
    from npm.models.encoder import Encoder


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
    from npm.cli.settings import missing_setting

    if not texts and not settings.texts and sys.stdin is not None and sys.stdin.isatty():
        say("loading…")  # before what takes the time is imported
        from npm.cli.prompt import run_prompt

        return run_prompt(settings)
    if not settings.index and not texts:
        raise missing_setting("fill")
    from npm.cli.fill import fill_texts

    return fill_texts(settings, texts)


def run_build(settings: BuildCommand) -> int:
    """`npmlm build`."""
    from npm.cluster.settings import Engine
    from npm.indexing.stages import Shard

    shard = Shard.parse(settings.shard)
    if settings.stage is None and shard.count > 1:
        raise SettingError(
            "a shard needs a stage",
            expected="stage=pack|encode|quantise|code|merge beside shard=",
            got=f"shard={settings.shard} alone",
            where="shard",
            fix="give the stage too, or leave shard out to run all stages here",
        )
    with StageProgress() as progress:
        reports: dict[str, Any] = {"progress": progress, "notice": progress.say}
        if settings.cluster.engine is Engine.ray:
            from npm.cluster.ray_engine import build_on_ray

            built = build_on_ray(settings.index, settings, settings.cluster, settings.jobs, **reports)
        elif settings.cluster.engine is Engine.local:
            from npm.cluster.jobs import build_by_jobs

            built = build_by_jobs(settings.index, settings, settings.jobs or 1, **reports)
        else:
            from npm.indexing.build import build_index

            built = build_index(settings.index, settings, stage=settings.stage, shard=shard, **reports)
    if built.was_finished:
        say(f"{settings.index} is finished already, with the same settings: nothing to do")
    elif built.manifest is None:
        name = "" if settings.stage is None else settings.stage.value
        say(f"stage {name}, shard {shard.number} of {shard.count}: done")
    else:
        say(f'the index is in {settings.index}: npmlm fill index={settings.index} "… {MASK_TEXT} …"')
    return 0


def run_serve(settings: ServeCommand) -> int:
    """`npmlm serve`."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise SettingError(
            "the libraries of the server are not installed",
            expected="the extra serve",
            got=f"no {error.name}",
            where="npmlm serve",
            fix="pip install fastapi uvicorn prometheus-client",
        ) from error
    from npm.indexing.inspection import index_encoder
    from npm.serving.server import serve

    folder, precision = Path(settings.index), settings.precision

    def load_encoder() -> Encoder:
        return index_encoder(folder, settings.encoder, device=settings.device, dtype=precision)

    serve(folder, load_encoder, settings, notice=say)
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


def run_train(settings: TrainCommand) -> int:
    """`npmlm train`."""
    from npm.cli.train import train

    return train(settings)


def run_plot(settings: PlotCommand, folders: list[str]) -> int:
    """`npmlm plot`: several runs, tunes or evaluations in one picture."""
    from npm.cli.plot import plot

    plot(settings, [Path(folder) for folder in folders])
    return 0


VERBS = {
    "build": Verb(
        "build a phrase index over a corpus",
        "BuildCommand",
        run_build,
        first="index corpus.files encoder device precision blocks.max_block_tokens vectors.pruning search.tier "
        "search.factory dimensions copy_encoder segments jobs",
        example='npmlm build "corpus.files=[docs/*.jsonl]" index=DIR',
        group="cluster",
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
    "serve": Verb(
        "answer over HTTP and on a web page",
        "ServeCommand",
        run_serve,
        first="index encoder host port key_file examples log timeout_seconds reload_seconds fill.k "
        "fill.retrieval device precision",
        example="npmlm serve index=DIR port=8080",
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
        "draw runs, tunes or evaluations in one picture",
        "PlotCommand",
        run_plot,
        first="out picture terms x smoothed_points tasks methods bins arrows output",
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
