"""What zero-shot tasks and the methods that answer them read."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from npm.evaluation.sampling import SampleSettings
from npm.evaluation.zero_shot.task import ClosedScoring
from npm.models.settings import Precision
from npm.retrieval.settings import FillSettings
from npm.settings import CheckedSettings, PathText


class SuiteName(Enum):
    """Which of the shipped zero-shot tasks are asked together."""

    closed = "closed"  # nine tasks with a few labels
    open = "open"  # seven tasks answered by any phrase
    all = "all"


@dataclass(kw_only=True, slots=True)
class ParametricSettings(CheckedSettings):
    """The masked language model that is compared with the index."""

    encoder: PathText = ""
    """Folder or name of a masked language model (experiment=mlm_uniform trains one); the methods mlm, mlm-pmi,
    mlm-fuzzy, mlm-fuzzy-pmi and mlm-knn need it."""
    index: PathText = ""
    """Index that its encoder has built, or a folder of several as in index=; the method mlm-knn needs it."""


@dataclass(kw_only=True, slots=True)
class ZeroShotSettings(CheckedSettings):
    """Zero-shot tasks."""

    closed: ClosedScoring = field(default_factory=ClosedScoring)
    """How npm, npm-single and mlm-knn score labels, where it is to differ from what the task says."""
    mlm: ParametricSettings = field(default_factory=ParametricSettings)
    """The parametric baseline."""


@dataclass(kw_only=True, slots=True)
class ZeroShotEvaluation(SampleSettings):
    """All that a zero-shot evaluation reads; other tasks read some of it."""

    task: list[str] = field(default_factory=list)
    """Tasks: `demo` (questions about the demo corpus); on held-out text, with corpus.files=: `in_batch` (retrieval),
    `masked_tokens` (masked language models), `denoising` (encoder-decoders); `sts` (sentence pairs, with data_dir=);
    zero-shot tasks by name (sst2, agn, trex, …) or your own by the path of its YAML file; without suite= `demo`."""
    suite: SuiteName | None = None
    """`closed`, `open` or `all` shipped zero-shot tasks, those of task= beside them."""
    method: list[str] = field(default_factory=list)
    """Methods of zero-shot tasks: npm, npm-single, mlm, mlm-pmi, mlm-fuzzy, mlm-fuzzy-pmi, mlm-fuzzy-corpus, mlm-knn,
    majority, random; for open tasks npm, npm-dense, npm-bm25, npm-hybrid, mlm, majority, random. Empty: all that the
    settings serve."""
    data_dir: PathText = ""
    """Folder that the files of tasks are looked for in, if they do not lie beside the task's own file; for task=sts the
    folder of the sentence pairs."""
    index: PathText = ""
    """Folder of the index that is asked; for zero-shot tasks also a folder of several, one for each reference corpus
    by its name (reviews, news, subj, wiki)."""
    encoder: PathText = ""
    """Folder or name of the encoder; empty: the shipped one, or the index's own copy."""
    device: str = "auto"
    """`cpu`, `cuda` or `auto`, which takes a GPU where there is one."""
    precision: Precision = Precision.auto
    """Number format of the encoder's forward pass."""
    fill: FillSettings = field(default_factory=FillSettings)
    """How questions and open tasks are answered."""
    zero_shot: ZeroShotSettings = field(default_factory=ZeroShotSettings)
    """Zero-shot tasks."""
