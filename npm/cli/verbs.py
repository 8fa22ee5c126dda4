"""The verbs of `npmlm`: one function each, and the one table that says what there is to know of them.

The one file that imports inside functions: a package comes when its verb is called, so that the overview and the help
are there at once.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from npm.cli.index_verbs import (
    run_add,
    run_build,
    run_compact,
    run_delete,
    run_estimate,
    run_fetch,
    run_inspect,
    run_partition,
    run_publish,
    run_tune,
    run_verify,
)
from npm.cli.progress import StageProgress, say
from npm.core.errors import SettingError

if TYPE_CHECKING:
    from npm.cli.commands import FillCommand, ServeCommand
    from npm.cli.training_commands import (
        CompareCommand,
        EditCommand,
        EvaluateCommand,
        FinetuneCommand,
        GenerateCommand,
        PlotCommand,
        TokenizerCommand,
        TrainCommand,
    )
    from npm.models.encoder import Encoder


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the command line."""

    summary: str
    """What it does, in the overview."""
    settings: str
    """The class of its settings, in `commands.py` or `training_commands.py`."""
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

        if not hasattr(commands, self.settings):
            from npm.cli import training_commands

            return cast(type, getattr(training_commands, self.settings))
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


def run_serve(settings: ServeCommand) -> int:
    """`npmlm serve`."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise SettingError(
            f"npmlm serve requires {error.name}: pip install fastapi uvicorn prometheus-client"
        ) from error
    from npm.cluster.settings import Engine
    from npm.indexing.partitions import local_searcher
    from npm.indexing.verify import index_encoder
    from npm.serving.server import serve

    folder, precision = Path(settings.index), settings.precision

    def load_encoder() -> Encoder:
        return index_encoder(folder, settings.encoder, device=settings.device, dtype=precision)

    with ExitStack() as stack:
        open_searcher = None
        if settings.cluster.engine is Engine.ray:
            from npm.cluster.ray_partitions import serving_on_ray

            timeout_seconds = settings.timeout_seconds
            on_ray = serving_on_ray(settings.cluster, settings.partitions, timeout_seconds=timeout_seconds, notice=say)
            open_searcher = stack.enter_context(on_ray)
        elif settings.partitions is not None:
            open_searcher = local_searcher(settings.partitions)
        serve(folder, load_encoder, settings, notice=say, open_searcher=open_searcher)
    return 0


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
            "npmlm compare takes two folders of results, or one and methods=[A,B], "
            f"got {len(folders)} folders and {len(methods)} methods"
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


def run_finetune(settings: FinetuneCommand) -> int:
    """`npmlm finetune`."""
    from npm.cli.train import finetune_tasks

    return finetune_tasks(settings)


def run_generate(settings: GenerateCommand) -> int:
    """`npmlm generate`."""
    from npm.cli.tables import generated_text
    from npm.core.settings import Shard
    from npm.corpus.artificial.generate import generate

    with StageProgress() as progress:
        made = generate(settings.out, settings, shard=Shard.parse(settings.shard), progress=progress)
    if made.was_finished:
        say(f"{settings.out} is finished already, with the same settings: nothing to do")
    if made.report is None:
        say(f"the files of shard {settings.shard} are in {settings.out}: the other jobs are not finished")
    else:
        sys.stdout.write(generated_text(made.report))
    return 0


def run_tokenizer(settings: TokenizerCommand) -> int:
    """`npmlm tokenizer`."""
    from npm.corpus.tokenizers import learn_tokenizer

    with StageProgress() as progress:
        learned = learn_tokenizer(settings.out, settings, progress=progress)
    if learned.was_finished:
        say(f"{settings.out} is finished already, with the same text and settings: nothing to do")
    encoder = shlex.quote(f"encoder={settings.out}")
    say(f"{learned.pieces:,} pieces are in {settings.out}: npmlm train {encoder} start.fresh.layers=4 …")
    return 0


def run_edit(settings: EditCommand) -> int:
    """`npmlm edit`."""
    steps = settings.steps()
    from npm.models.edits.edits import write_edited

    edited = write_edited(settings.encoder, Path(settings.out), steps, seed=settings.seed)
    tensors = len(edited.record["tensors"])
    say(f"{edited.changed_count} of {tensors} tensors changed; the encoder is in {settings.out}")
    return 0


def run_plot(settings: PlotCommand, folders: list[str]) -> int:
    """`npmlm plot`: the curves of training runs in one figure, and their numbers on stdout."""
    from npm.cli.commands import Output
    from npm.cli.tables import number_tables
    from npm.core.figures import check_figure, save_figure
    from npm.training.plotting import draw_runs

    out = Path(settings.out)
    check_figure(out)
    drawn = draw_runs([Path(folder) for folder in folders], settings)
    save_figure(drawn.figure, out)
    if settings.output is Output.json:
        sys.stdout.write(json.dumps(drawn.record, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        sys.stdout.write(number_tables(drawn.tables))
    say(f"the figure is in {out}")
    return 0


VERBS = {
    "build": Verb(
        "build a phrase index over a corpus",
        "BuildCommand",
        run_build,
        first="index corpus.files encoder device precision blocks.max_block_tokens vectors.pruning search.tier "
        "dimensions rotation copy_encoder segments jobs",
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
        "estimate disk, memory and encoding time of a build",
        "EstimateCommand",
        run_estimate,
        first="corpus.files encoder device precision vectors.pruning search.tier dimensions rotation "
        "sample_documents output tokens",
        example='npmlm estimate "corpus.files=[docs/*.jsonl]"',
        required=None,
    ),
    "serve": Verb(
        "answer over HTTP and on a web page",
        "ServeCommand",
        run_serve,
        first="index encoder host port key_file examples log timeout_seconds reload_seconds partitions fill.k "
        "device precision",
        example="npmlm serve index=DIR port=8080",
        group="cluster",
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
    "publish": Verb(
        "copy an index or a corpus to an object store",
        "PublishCommand",
        run_publish,
        first="index corpus.files address parallel",
        example="npmlm publish index=DIR address=s3://bucket/name",
        required="address",
        resumes=True,
    ),
    "fetch": Verb(
        "copy what was published back to a disk, and check it",
        "FetchCommand",
        run_fetch,
        first="index corpus address parallel",
        example="npmlm fetch index=DIR address=s3://bucket/name",
        required="address",
        resumes=True,
    ),
    "partition": Verb(
        "cut an index into parts that are searched by themselves",
        "PartitionCommand",
        run_partition,
        first="index partitions",
        example="npmlm partition index=DIR partitions=4",
        resumes=True,
    ),
    "tune": Verb(
        "measure search settings of an index and choose some",
        "TuneCommand",
        run_tune,
        first="index encoder device precision queries seed recall_goal agreement_goal write out",
        example="npmlm tune index=DIR out=runs/tune write=true",
    ),
    "generate": Verb(
        "generate artificial text from the grammar of a treebank",
        "GenerateCommand",
        run_generate,
        first="treebank out sentences sentences_per_document seed shard lexicon.kind lexicon.types lexicon.temperature "
        "grammar.form grammar.relations target",
        example="npmlm generate treebank=[fr_gsd-train.conllu] out=DIR lexicon.kind=zipf",
        required="out",
        resumes=True,
    ),
    "tokenizer": Verb(
        "learn a tokenizer from a corpus",
        "TokenizerCommand",
        run_tokenizer,
        first="corpus.files out kind size lowercase",
        example='npmlm tokenizer "corpus.files=[docs/*.jsonl]" out=DIR size=4096',
        required="out",
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
    "finetune": Verb(
        "fine-tune an encoder on labelled tasks",
        "FinetuneCommand",
        run_finetune,
        first="encoder task data_dir out seeds learning_rates epochs examples_per_device_batch layer limit "
        "keep_encoders device precision",
        example='npmlm finetune encoder=DIR "task=[cola,stsb]" data_dir=DIR out=runs/glue',
        required="out",
        resumes=True,
    ),
    "edit": Verb(
        "change a checkpoint without training it",
        "EditCommand",
        run_edit,
        first="out encoder edits donor tokenizer seed",
        example="npmlm edit encoder=runs/mlm/encoder edit=reversed out=runs/reversed",
        required="out",
        group="edit",
    ),
    "plot": Verb(
        "draw the curves of training runs",
        "PlotCommand",
        run_plot,
        first="out terms x smoothed_points output",
        example="npmlm plot runs/mine runs/other out=curves.svg",
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
