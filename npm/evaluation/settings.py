"""The settings of `npmlm evaluate`: those shared by all tasks, and a group for each task with further ones."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from npm.core.settings import Fraction, PathText, Settings
from npm.corpus.settings import CorpusSettings
from npm.evaluation.tasks import ClosedScoring, Split
from npm.models.settings import EncoderChoice, PoolerKind
from npm.retrieval.settings import FillSettings, Overlaps


class SampleSettings(Settings):
    """The sample, and the bootstrap over it."""

    split: Split = "test"
    """`dev`: the examples or questions to choose settings on; `test`: those to report."""
    limit: PositiveInt | None = None
    """Examples of a task at most; null takes 3000 of a zero-shot task, 64 articles of denoising
    and 200 of the other tasks on held-out text."""
    seed: NonNegativeInt = 0
    """Seed of samples, of masks and of the bootstrap."""
    resamples: PositiveInt = 10_000
    """Of the bootstrap, for 95 % confidence intervals."""


class ParametricSettings(Settings):
    """The masked language model that is compared with the index."""

    encoder: PathText = ""
    """Folder or name of a masked language model (experiment=mlm_uniform trains one); the methods mlm, mlm-n, mlm-pmi,
    mlm-fuzzy, mlm-fuzzy-pmi, mlm-fuzzy-corpus and mlm-knn need it."""
    index: PathText = ""
    """Index that its encoder has built, or a folder of several as in index=; the method mlm-knn needs it."""


class CausalSettings(Settings):
    """The decoder that is compared with the index."""

    model: PathText = ""
    """Folder or name of a decoder (GPT-2, OPT, Pythia, Llama, …); the methods causal, causal-pmi, causal-knn and
    causal-bm25 need it."""
    knn_share: Fraction = 0.3
    """λ of causal-knn, the weight of the neighbors; to be chosen with split=dev."""
    knn_temperature: PositiveFloat = 10.0
    """T of causal-knn, which divides squared distances; to be chosen with split=dev."""
    knn_k: PositiveInt = 1024
    """Neighbours of causal-knn."""


class T5Settings(Settings):
    """The encoder-decoder that is compared with the index."""

    model: PathText = ""
    """Folder or name of an encoder-decoder with sentinels (T5, mT5, UL2, …); the method t5 needs it."""


class ZeroShotSettings(Settings):
    """Zero-shot tasks."""

    closed: ClosedScoring = field(default_factory=ClosedScoring)
    """Scoring of labels by npm, npm-single and mlm-knn, where it differs from the task's."""
    mlm: ParametricSettings = field(default_factory=ParametricSettings)
    """The parametric baseline."""
    causal: CausalSettings = field(default_factory=CausalSettings)
    """Baselines that continue the text before the mask."""
    t5: T5Settings = field(default_factory=T5Settings)
    """The baseline that writes the content of the mask."""


class ZeroShotEvaluation(SampleSettings, EncoderChoice):
    """All that a zero-shot evaluation reads; other tasks read some of it."""

    given: ClassVar[frozenset[str]] = frozenset()
    """Keys that the command line gave, of those with the value of the default too; empty in Python."""
    task: list[PathText] = field(default_factory=list)
    """Tasks: zero-shot ones by name (`demo`, which asks about the demo corpus, sst2, agn, trex, …) or your own by the
    path of its YAML file; on held-out text, with corpus.files=: `in_batch` (retrieval), `masked_tokens` (masked
    language models), `denoising` (encoder-decoders); `sts` (sentence pairs, with data_dir=); `reading` (questions
    with their passages, with reading.questions=)."""
    suite: Literal["closed", "open", "all"] | None = None
    """`closed`, `open` or `all` shipped zero-shot tasks, in addition to those of task=."""
    method: list[str] = field(default_factory=list)
    """Methods of zero-shot tasks: npm, npm-single, mlm, mlm-pmi, mlm-fuzzy, mlm-fuzzy-pmi, mlm-fuzzy-corpus, mlm-knn,
    causal, causal-pmi, causal-knn, t5, majority, random; for open tasks npm, npm-dense, npm-bm25, npm-hybrid,
    oracle-blocks, mlm, mlm-n, causal, causal-bm25, t5, majority, random. Empty: all that the settings serve, for
    open tasks except npm, mlm-n and oracle-blocks; the last two get more information than the others."""
    data_dir: PathText = ""
    """Folder to look for the files of tasks in, if they are not next to the task's own file; for task=sts the
    folder of the sentence pairs."""
    index: PathText = ""
    """Folder of the index to query; for zero-shot tasks also a folder of several, one for each reference corpus
    by its name (reviews, news, subj, wiki)."""
    fill: FillSettings = field(default_factory=lambda: FillSettings(overlaps=Overlaps.keep))
    """Filling for questions and open tasks; phrases that overlap are kept, so that hits do not depend on it."""
    zero_shot: ZeroShotSettings = field(default_factory=ZeroShotSettings)
    """Zero-shot tasks."""


class HeldOutSettings(Settings):
    """Held-out articles (the first `limit` of sufficient length), their division into blocks, and their masks."""

    least_tokens: PositiveInt | None = None
    """Shortest article, in tokens; null takes 2048 of in_batch, 1024 of masked_tokens and 512 of denoising."""
    blocks_per_article: Annotated[int, Field(ge=2)] | None = None
    """Blocks from the beginning of each article; null takes 16 of in_batch, masked together, 8 of masked_tokens and 4
    of denoising."""
    max_block_tokens: Annotated[int, Field(ge=4)] = 128
    """Tokens of a block, the encoder's special tokens included, where blocks are cut from documents."""
    unit: Literal["token", "word"] = "token"
    """Unit that is masked: a `token` or a complete `word`. With `word`, in_batch counts masks in words, and other
    occurrences are complete words: to compare encoders of different tokens, above all of bytes."""
    masked_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """masked_tokens: fraction of each block's tokens that is masked and predicted, independent of the model's training
    rate."""
    every_document: bool = False
    """masked_tokens: evaluate every document of the corpus once, complete and however short, instead of the beginnings
    of long articles: for text of single sentences. limit, least_tokens and blocks_per_article are not read then."""


class BeforeSettings(Settings):
    """A second encoder that the first is compared with on the same pairs, such as the one that it was trained from."""

    encoder: PathText = ""
    """Folder or name; empty: one encoder alone is evaluated."""
    pooler: PoolerKind | None = None
    """Its pooling of a sentence into one vector, which is not transformed; null: as it was saved."""


class StsSettings(Settings):
    """Task `sts`: how sentences become vectors."""

    pooler: PoolerKind | None = None
    """Pooling of token vectors into the vector of a sentence; null: as the encoder was saved."""
    pooler_post: Literal["none", "whiten"] = "none"
    """`whiten`: the vectors of all sentences of a set are shifted and scaled to mean 0 and covariance 1."""
    before: BeforeSettings = field(default_factory=BeforeSettings)
    """A second encoder."""


class ReadingSettings(Settings):
    """Task `reading`: questions with the passages that answer them."""

    questions: list[PathText] = field(default_factory=list)
    """Files of {question, answers, context}, or SQuAD's own JSON; of their contexts an index is built in index=, unless
    there is one."""


class EvaluationSettings(ZeroShotEvaluation):
    """Measure an encoder or an index on tasks; writes predictions.jsonl, metrics.json and (zero-shot) results.md."""

    out: PathText = ""
    """Folder for predictions.jsonl and metrics.json; its other files stay. Required."""
    overwrite: bool = False
    """Replace results of another task, or of other settings, in `out`."""
    show: NonNegativeInt = 0
    """Predictions of each zero-shot task that are printed after the tables."""
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    """Held-out documents for the tasks in_batch, masked_tokens and denoising."""
    held_out: HeldOutSettings = field(default_factory=HeldOutSettings)
    """The tasks in_batch, masked_tokens and denoising."""
    sts: StsSettings = field(default_factory=StsSettings)
    """Task sts."""
    reading: ReadingSettings = field(default_factory=ReadingSettings)
    """Task reading."""
