"""Settings of the objectives, and of their sum."""

from __future__ import annotations

from dataclasses import field, fields
from enum import Enum
from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat

from npm.core.errors import SettingError, exclusive
from npm.core.settings import PathText, Settings
from npm.models.settings import PoolerKind, check_leading_dimensions


class OwnSequence(Enum):
    """Role of the keys of a query's own sequence."""

    ignored = "ignored"  # neither positive nor negative
    negatives = "negatives"


class NonparametricSettings(Settings):
    """Settings of the contrastive loss over token vectors."""

    similarity_scale: Annotated[float, Field(gt=0, le=1)] | None = None
    """Factor between an inner product and a logit, saved with the encoder; null keeps the one saved with the encoder
    that training starts from, or takes the reference's 1/√d where there is none."""
    own_sequence: OwnSequence = OwnSequence.ignored
    """Role of the keys of a query's own sequence: `ignored`, or `negatives`."""
    dimensions: list[int] = field(default_factory=list)
    """Shorter lengths at which the loss is taken too, such as [64,128,256], so that an index can be built with
    dimensions= of these; each length, the full one included, has the same weight. Empty: full vectors only."""

    def check(self) -> None:
        """Raise SettingError for invalid or repeated lengths."""
        check_leading_dimensions(self.dimensions, where="objective.nonparametric.dimensions")


class MaskedSettings(Settings):
    """Settings of masked-token prediction over the vocabulary."""

    visible_only: bool = False
    """Encode only the tokens that are not masked, and predict from a light decoder that is not kept; cheaper above
    about a third of the tokens masked. Needs a corruption that only masks."""
    untied: bool = False
    """Give a head that shares the token embeddings a separate output matrix, initially a copy of them."""

    def check_masks(self, mask_probability: float) -> None:
        """Raise SettingError if tokens that are kept or replaced (all but `mask_probability`) would be seen."""
        if self.visible_only and mask_probability < 1:
            raise SettingError(
                "objective.masked.visible_only requires a corruption that masks every target: set "
                "corruption.random_fraction=0 and corruption.unchanged_fraction=0"
            )


class SentenceSettings(Settings):
    """The contrastive loss over sentences (SimCSE)."""

    pooler: PoolerKind = PoolerKind.cls
    """Pooler of sentence vectors: `cls`, `cls_before_pooler` or `avg`."""
    mlp_only_train: bool = False
    """With `cls`: the MLP serves in training only and is discarded afterwards; best without labeled pairs."""

    def check(self) -> None:
        """Raise SettingError for an MLP that this pooler does not have."""
        if self.mlp_only_train and self.pooler is not PoolerKind.cls:
            raise exclusive("objective.sentence.mlp_only_train", f"objective.sentence.pooler={self.pooler.value}")


class BlockTeacherSettings(Settings):
    """Settings of the teacher of block vectors."""

    encoder: PathText = ""
    """The teacher: folder, hub name, `minilm` or `encoder-mini`; empty: the start of the run. Its tokenizer is that of
    the start."""
    token_weight: NonNegativeFloat = 0.0
    """Weight of staying near each of its token vectors too, so that what reads them, such as `label`, is not unlearned;
    relative to that of its block vectors."""


class SpanSupervisionSettings(Settings):
    """Weights of the terms of questions with known answers, next to those of the joint pass, which have 1."""

    absent_weight: NonNegativeFloat = 0.5
    """Weight of "not here" for a question read with a passage that does not contain its answer."""
    alone_weight: NonNegativeFloat = 0.5
    """Weight of finding the answer among the tokens of all passages of the batch with the query of the question."""
    read_weight: NonNegativeFloat = 0.5
    """Weight of the same with the query of the question read with its passage."""
    rank_weight: NonNegativeFloat = 0.5
    """Weight of ranking a question's own passage first by vectors of questions and passages; with `reader`, to the
    degree that it does."""
    teacher_weight: NonNegativeFloat = 3.0
    """Weight of 1 − cosine to the passage vectors of `objective.block_teacher.encoder`, or of the start."""
    rival_weight: PositiveFloat = 1.0
    """Weight of each of a question's `rivals` among the negatives of the joint pass."""
    distill_weight: NonNegativeFloat = 0.0
    """Weight of teaching the vectors of an index the distribution over the tokens of a passage of `reader`."""
    reader: PathText = ""
    """A frozen reader: folder, hub name or `reader-mini`, with the tokenizer of the start; empty: `distill_weight`
    takes the joint pass of the encoder that is trained."""


class ObjectiveSettings(Settings):
    """Losses to sum, each with its weight."""

    nonparametric: NonparametricSettings = field(default_factory=NonparametricSettings)
    """The contrastive loss over the tokens of the batch."""
    nonparametric_weight: NonNegativeFloat = 1.0
    """Weight of the contrastive loss; 0 omits it, as for all weights."""
    masked: MaskedSettings = field(default_factory=MaskedSettings)
    """The prediction of masked tokens over the vocabulary."""
    masked_weight: NonNegativeFloat = 0.0
    """Weight of the prediction of masked tokens; the masks are set under `corruption`."""
    sentence: SentenceSettings = field(default_factory=SentenceSettings)
    """The contrastive loss over sentences (SimCSE)."""
    sentence_weight: NonNegativeFloat = 0.0
    """Weight of the contrastive loss over sentences; their source is set under `sentences`."""
    token_contrast_weight: NonNegativeFloat = 0.0
    """Weight of the contrast of the masked copies of `corruption` with the clean ones of a frozen teacher (TaCL)."""
    reading_weight: NonNegativeFloat = 0.0
    """Weight of finding a masked span among the tokens of the block read with it; needs masking.context_fraction above
    0."""
    block_teacher: BlockTeacherSettings = field(default_factory=BlockTeacherSettings)
    """The frozen teacher of block vectors."""
    block_teacher_weight: NonNegativeFloat = 0.0
    """Weight of staying near the teacher's block vectors, 1 − cosine; the encoder then ranks blocks too (`fill`)."""
    span_supervision: SpanSupervisionSettings = field(default_factory=SpanSupervisionSettings)
    """Training on questions with known answers."""
    span_supervision_weight: NonNegativeFloat = 0.0
    """Weight of questions with known answers; the files are set by `questions`."""
    reader_weight: NonNegativeFloat = 0.0
    """Weight of finding the answer of a question in a passage read with it; the files are set by `questions`."""
    labeled_weight: NonNegativeFloat = 0.0
    """Weight of predicting labels or scores with a new head; the labeled text is set under `labeled`."""
    labeled_contrast_weight: NonNegativeFloat = 0.0
    """Weight of supervised contrast: texts of a batch with one label are drawn together, others apart."""
    denoising_weight: NonNegativeFloat = 0.0
    """Weight of restoring corrupted text, for encoder-decoders; the corruption is set under `denoising`."""

    def weights(self) -> dict[str, float]:
        """The weights of all known losses by the names of their settings."""
        names = [item.name for item in fields(self) if item.name.endswith("_weight")]
        return {name: getattr(self, name) for name in names}
