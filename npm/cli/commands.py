"""The settings of the verbs about an index: one root dataclass a verb, put together from those beside the code that
uses them. Those of the verbs that make and measure encoders are in `training_commands.py`: importing the settings of
everything takes longer than filling a text.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from pydantic import NonNegativeInt, PositiveInt

from npm.cluster.settings import BuildCluster, Engine, ServeCluster
from npm.core.errors import SettingError, exclusive
from npm.core.settings import PathText, Settings
from npm.indexing.settings import (
    AddSettings,
    CompactSettings,
    DeleteSettings,
    EstimateSettings,
    IndexBuildSettings,
    PublishedFiles,
    Stage,
    TransferSettings,
)
from npm.models.settings import Precision
from npm.retrieval.settings import FillSettings
from npm.serving.settings import ServeSettings
from npm.tuning.settings import TuneSettings


class Output(Enum):
    """Form of the answers on stdout."""

    table = "table"
    json = "json"
    sentences = "sentences"


class Command(Settings):
    """What every verb has. Without slots, so that a class can extend these settings and those of a package."""

    debug: bool = False
    """Show the full traceback of an error."""


class IndexCommand(Command):
    """A verb about one index."""

    index: PathText = ""
    """Folder of the index. Required."""


class EncoderCommand(IndexCommand):
    """A verb about one index that encodes texts as its encoder does."""

    encoder: PathText = ""
    """Folder or name of the encoder; empty: the shipped one if it made the index, else the index's own copy."""
    device: str = "auto"
    """`cpu`, `cuda` or `auto`, which takes a GPU where there is one."""
    precision: Precision = Precision.auto
    """Number format of the encoder's forward pass."""


class BuildCommand(IndexBuildSettings, IndexCommand):
    """Build a phrase index over a corpus; a build that was stopped goes on with the same command."""

    stage: Stage | None = None
    """Only this stage, as one of several jobs; unset: all of them, one after the other."""
    shard: str = "1/1"
    """Which shard of the stage, as i/n: this job's number, from 1, and the number of jobs."""
    partitions: PositiveInt = 1
    """Cut the finished index into as many parts, as npmlm partition does; not with stage."""
    cluster: BuildCluster = field(default_factory=BuildCluster)
    """What runs the jobs of a build that is divided by this command."""
    jobs: PositiveInt | None = None
    """With cluster=ray, the jobs that each stage is divided among; unset: four for each that runs at once."""

    def check(self) -> None:
        """Refuse jobs without a cluster, and a job of its own with one, besides what no build takes."""
        super().check()
        is_divided = self.cluster.engine is not Engine.none
        if self.jobs is not None and not is_divided:
            raise SettingError("jobs requires cluster=ray")
        if is_divided and self.stage is not None:
            raise exclusive("cluster", "stage")
        if self.stage is not None and self.partitions > 1:
            raise SettingError("partitions requires a build of all stages: run npmlm partition after the last one")


class FillCommand(FillSettings, EncoderCommand):
    """Answer texts that hold <mask>, once or several times, with phrases of the corpus."""

    index: PathText = ""
    """Folder of the index; empty: texts on the command line and at the prompt are answered from a demo corpus, whose
    index is built once into the user's cache (XDG_CACHE_HOME)."""
    texts: PathText = ""
    """File with one text a line; all lines are checked before the first is answered, 64 at once, so that in bfloat16
    scores may differ by about 0.02, and now and then the order, from those of lines in a pipe, answered one by one."""
    output: Output = Output.table
    """`table` for people, `json` for programs: one object per line; `sentences`: the k best sentences for a text with
    one mask, with the phrases in them."""
    history: bool = True
    """Keep what is typed at the prompt for the next time, in npmlm/history under XDG_STATE_HOME."""


class ServeCommand(ServeSettings, EncoderCommand):
    """Answer texts over HTTP and on a web page, until the process is told to stop."""

    partitions: PositiveInt | None = None
    """Parts that the vectors are searched in, each by itself; unset: those that the index is stored in."""
    cluster: ServeCluster = field(default_factory=ServeCluster)
    """Where the partitions are: with `cluster=ray` each in a process of its own, on any machine of the cluster."""


class VerifyCommand(EncoderCommand):
    """Read and check every byte of an index, and encode a sample of it again."""

    reencoded_batches: NonNegativeInt = 2
    """Random batches of each segment, at most, that are encoded again and compared with the stored vectors; 0: none."""
    seed: NonNegativeInt = 0
    """Seed of the sample."""


class AddCommand(AddSettings, EncoderCommand):
    """Add documents to an index; an addition that was stopped goes on with the same command."""


class DeleteCommand(DeleteSettings, IndexCommand):
    """Delete documents of an index; they no longer answer, and compact takes their space back."""


class CompactCommand(CompactSettings, IndexCommand):
    """Rewrite an index without its deleted documents, as one segment, in the tier that suits its size now."""


class PartitionCommand(IndexCommand):
    """Cut the vectors of an index into partitions, for machines that share a search, or put them together again."""

    partitions: PositiveInt = 1
    """Parts of consecutive vector shards, each searched by itself, such as on a machine of its own; 1: one search over
    all vectors, as a build leaves it."""


class TuneCommand(TuneSettings, Command):
    """Measure search settings of an index against exact search, with questions made from its own documents."""


class InspectCommand(IndexCommand):
    """Show the contents of an index, how it was built, and the size of each part."""

    output: Output = Output.table
    """`table` for people, `json` for programs."""


class EstimateCommand(EstimateSettings, Command):
    """Estimate disk, memory and encoding time of a build from a sample of the corpus."""

    output: Output = Output.table
    """`table` for people, `json` for programs."""


class PublishCommand(TransferSettings, Command):
    """Copy an index, or corpus files, to an address; one that was stopped goes on with the same command."""

    index: PathText = ""
    """Folder of the index; its present generation is copied."""
    corpus: PublishedFiles = field(default_factory=PublishedFiles)
    """A corpus in its place."""


class FetchCommand(TransferSettings, Command):
    """Copy what was published, checked on arrival; one that was stopped goes on with the same command."""

    index: PathText = ""
    """Folder for the index that is at the address."""
    corpus: PathText = ""
    """Folder for the corpus files that are at the address, in place of an index."""
