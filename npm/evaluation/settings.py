"""What `npmlm evaluate` can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from npm.corpus.documents import CorpusSettings
from npm.errors import check_range
from npm.evaluation.sts.geometry import GeometrySettings
from npm.evaluation.zero_shot.task import ClosedScoring, Split
from npm.models.encoder import Precision
from npm.models.sentences import PoolerKind
from npm.retrieval.settings import FillSettings
from npm.settings import PathText

OLD_SPELLINGS: dict[str, str] = {}
"""Settings that are in the group of their task now: old key, new key; the command line rewrites them."""


class SuiteName(Enum):
    """Which of the shipped zero-shot tasks are asked together."""

    closed = "closed"  # nine tasks with a few labels
    open = "open"  # seven tasks answered by any phrase
    all = "all"


class MaskedUnit(Enum):
    """What task=masked_tokens masks as a whole."""

    token = "token"
    word = "word"


@dataclass(kw_only=True, slots=True)
class ParametricSettings:
    """The masked language model that stands beside the index."""

    encoder: PathText = ""
    """Folder or name of a masked language model (experiment=mlm_uniform trains one); the methods mlm, mlm-pmi,
    mlm-fuzzy, mlm-fuzzy-pmi and mlm-knn need it."""
    index: PathText = ""
    """Index that its encoder has built, or a folder of several as in index=; the method mlm-knn needs it."""


@dataclass(kw_only=True, slots=True)
class BeforeSettings:
    """A second encoder that the first is compared with on the same pairs, such as the one that it was trained from."""

    encoder: PathText = ""
    """Folder or name; empty: one encoder alone is evaluated."""
    pooler: PoolerKind | None = None
    """How it makes a sentence one vector; null: as it was saved. Refused without before.encoder=."""


@dataclass(kw_only=True, slots=True)
class EvaluationSettings:
    """One evaluation."""

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
    out: PathText = ""
    """Folder for predictions.jsonl and metrics.json. Required."""
    index: PathText = ""
    """Folder of the index that is asked; for zero-shot tasks also a folder of several, one for each reference corpus
    by its name (reviews, news, subj, wiki)."""
    encoder: PathText = ""
    """Folder or name of the encoder; empty: the shipped one, or the index's own copy."""
    device: str = "auto"
    """`cpu`, `cuda` or `auto`, which takes a GPU where there is one."""
    dtype: Precision = Precision.auto
    """Number format of the encoder's forward pass."""
    questions: PathText = ""
    """File of questions for task=demo; empty: those shipped with the demo corpus."""
    split: Split = Split.test
    """`dev`: the examples or questions to choose settings on; `test`: those to report."""
    limit: int | None = None
    """Examples of a task at most; null takes 3000 of a zero-shot task, all questions of demo, 200 articles (64 of
    denoising)."""
    seed: int = 0
    """Seed of samples, of masks and of the bootstrap."""
    resamples: int = 10_000
    """Of the bootstrap of zero-shot tasks and of task=sts, for 95 % confidence intervals."""
    closed: ClosedScoring = field(default_factory=ClosedScoring)
    """How npm, npm-single and mlm-knn score labels, where it is to differ from what the task says."""
    mlm: ParametricSettings = field(default_factory=ParametricSettings)
    """The parametric baseline."""
    fill: FillSettings = field(default_factory=FillSettings)
    """How questions and open tasks are answered."""
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    """Held-out documents for the tasks in_batch, masked_tokens and denoising."""
    masked_fraction: float = 0.15
    """Share of the tokens that task=masked_tokens masks, whatever rate the model was trained at; above 0, below 1."""
    masked_unit: MaskedUnit = MaskedUnit.token
    """What task=masked_tokens masks as a whole: `token` or `word`."""
    pooler: PoolerKind | None = None
    """How token vectors become the vector of a sentence for task=sts; null: as the encoder was saved."""
    before: BeforeSettings = field(default_factory=BeforeSettings)
    """For task=sts."""
    geometry: GeometrySettings = field(default_factory=GeometrySettings)
    """For task=sts."""
    dimensions: list[int] = field(default_factory=list)
    """Shorter lengths of vectors for task=in_batch, such as [64,128,256], measured beside the whole ones."""

    def __post_init__(self) -> None:
        for name, least in (("limit", 1), ("seed", 0), ("resamples", 1)):
            value = getattr(self, name)
            check_range(value is None or value >= least, name, expected=f"at least {least}", got=value)
        right = 0 < self.masked_fraction < 1
        check_range(right, "masked_fraction", expected="a share above 0 and below 1", got=self.masked_fraction)
