"""The settings of every verb: one root dataclass a verb, put together from those beside the code that uses them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from npm.errors import check_range
from npm.evaluation.settings import EvaluationSettings
from npm.indexing.changes import AddSettings, DeleteSettings
from npm.indexing.compact import CompactSettings
from npm.indexing.estimate import EstimateSettings
from npm.indexing.settings import IndexBuildSettings
from npm.indexing.stages import Stage
from npm.models.encoder import Precision
from npm.retrieval.settings import FillSettings
from npm.settings import PathText
from npm.training.plotting import PlotSettings
from npm.training.settings import TrainingSettings
from npm.tuning.measures import TuneSettings


class Output(Enum):
    """Form of the answers on stdout."""

    table = "table"
    json = "json"


@dataclass(kw_only=True, slots=True)
class TrainCommand(TrainingSettings):
    """Train an encoder; a run that was stopped goes on with the same command."""

    run: PathText = ""
    """Folder of the run: settings, metrics, checkpoints, and the finished encoder in RUN/encoder. Required."""
    sts_dir: PathText = ""
    """Folder with stsb-dev.jsonl: its Spearman correlation is measured too at every evaluation during training, as
    stsb_dev_spearman; for objectives over sentences."""
    debug: bool = False
    """Show the full traceback of an error."""


@dataclass(kw_only=True, slots=True)
class PlotCommand(PlotSettings):
    """Draw the curves of several runs in one picture: npmlm plot RUN [RUN …] out=FILE.png."""

    debug: bool = False
    """Show the full traceback of an error."""


@dataclass(kw_only=True, slots=True)
class BuildCommand(IndexBuildSettings):
    """Build a phrase index over a corpus; a build that was stopped goes on with the same command."""

    index: PathText = ""
    """Folder of the index. Required."""
    stage: Stage | None = None
    """Only this stage, as one of several jobs; unset: all of them, one after the other."""
    shard: str = "1/1"
    """Which shard of the stage, as i/n: this job's number, from 1, and the number of jobs."""
    debug: bool = False
    """Show the full traceback of an error."""


@dataclass(kw_only=True, slots=True)
class FillCommand(FillSettings):
    """Answer texts that hold one <mask> each with phrases of the corpus."""

    index: PathText = ""
    """Folder of the index. Required."""
    encoder: PathText = ""
    """Folder or name of the encoder; empty: the shipped one if it made the index, else the index's own copy."""
    device: str = "auto"
    """`cpu`, `cuda` or `auto`, which takes a GPU where there is one."""
    precision: Precision = Precision.auto
    """Number format of the encoder's forward pass."""
    texts: PathText = ""
    """File with one text a line; all lines are checked before the first is answered."""
    output: Output = Output.table
    """`table` for people, `json` for programs: one object a line."""
    debug: bool = False
    """Show the full traceback of an error."""


@dataclass(kw_only=True, slots=True)
class VerifyCommand:
    """Read and check every byte of an index, and encode a sample of it again."""

    index: PathText = ""
    """Folder of the index. Required."""
    encoder: PathText = ""
    """Folder or name of the encoder; empty: as `fill` finds it."""
    device: str = "auto"
    """`cpu`, `cuda` or `auto`, which takes a GPU where there is one."""
    precision: Precision = Precision.auto
    """Number format of the encoder's forward pass."""
    reencoded_batches: int = 2
    """Random batches of each segment that are encoded again and compared with the stored vectors; 0: none."""
    seed: int = 0
    """Seed of the sample."""
    debug: bool = False
    """Show the full traceback of an error."""

    def __post_init__(self) -> None:
        for name in ("reencoded_batches", "seed"):
            value = getattr(self, name)
            check_range(value >= 0, name, expected="0 or more", got=value)


@dataclass(kw_only=True, slots=True)
class EvaluateCommand(EvaluationSettings):
    """Measure an encoder or an index on tasks; writes predictions.jsonl, metrics.json and (zero-shot) results.md."""

    debug: bool = False
    """Show the full traceback of an error."""


@dataclass(kw_only=True, slots=True)
class CompareCommand:
    """Compare two evaluations: npmlm compare A B, folders that evaluate wrote, or one of them and methods=."""

    methods: list[str] = field(default_factory=list)
    """Two methods, of the first and of the second folder; empty: those of equal names."""
    seed: int = 0
    """Seed of the bootstrap."""
    resamples: int = 10_000
    """Of the paired bootstrap, for 95 % confidence intervals."""
    output: Output = Output.table
    """`table` for people, `json` for programs."""
    debug: bool = False
    """Show the full traceback of an error."""

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("resamples", 1)):
            value = getattr(self, name)
            check_range(value >= least, name, expected=f"at least {least}", got=value)


@dataclass(kw_only=True, slots=True)
class AddCommand(AddSettings):
    """Add documents to an index; an addition that was stopped goes on with the same command."""

    index: PathText = ""
    """Folder of the index. Required."""
    encoder: PathText = ""
    """Folder or name of the encoder that made the index; empty: as `fill` finds it."""
    device: str = "auto"
    """`cpu`, `cuda` or `auto`, which takes a GPU where there is one."""
    precision: Precision = Precision.auto
    """Number format of the encoder's forward pass."""
    debug: bool = False
    """Show the full traceback of an error."""


@dataclass(kw_only=True, slots=True)
class DeleteCommand(DeleteSettings):
    """Delete documents of an index; they no longer answer, and compact takes their space back."""

    index: PathText = ""
    """Folder of the index. Required."""
    debug: bool = False
    """Show the full traceback of an error."""


@dataclass(kw_only=True, slots=True)
class CompactCommand(CompactSettings):
    """Rewrite an index without its deleted documents, as one segment, in the tier that suits its size now."""

    index: PathText = ""
    """Folder of the index. Required."""
    debug: bool = False
    """Show the full traceback of an error."""


@dataclass(kw_only=True, slots=True)
class TuneCommand(TuneSettings):
    """Measure search settings of an index against exact search, with questions made from its own documents."""

    debug: bool = False
    """Show the full traceback of an error."""


@dataclass(kw_only=True, slots=True)
class InspectCommand:
    """Show what is in an index, what made it, and how large each part is."""

    index: PathText = ""
    """Folder of the index. Required."""
    output: Output = Output.table
    """`table` for people, `json` for programs."""
    debug: bool = False
    """Show the full traceback of an error."""


@dataclass(kw_only=True, slots=True)
class EstimateCommand(EstimateSettings):
    """Estimate memory, disk and time of a build, stage by stage, from a sample measured on this machine."""

    output: Output = Output.table
    """`table` for people, `json` for programs."""
    debug: bool = False
    """Show the full traceback of an error."""


COMMANDS: dict[str, type] = {
    "train": TrainCommand,
    "plot": PlotCommand,
    "build": BuildCommand,
    "fill": FillCommand,
    "verify": VerifyCommand,
    "evaluate": EvaluateCommand,
    "compare": CompareCommand,
    "add": AddCommand,
    "delete": DeleteCommand,
    "compact": CompactCommand,
    "tune": TuneCommand,
    "inspect": InspectCommand,
    "estimate": EstimateCommand,
}
