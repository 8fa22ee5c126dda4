"""Settings of the objectives, and of their sum."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from npm.core.errors import SettingError, exclusive
from npm.core.settings import PathText, Settings
from npm.models.settings import PoolerKind, check_leading_dimensions


class Negatives(Enum):
    """Whose keys a query is compared with."""

    all = "all"  # those of all ranks
    half = "half"  # those of the first or the second half of the ranks, as the reference does
    rank = "rank"  # those of its own rank


class KeyCopies(Enum):
    """Which copies of the text give keys."""

    clean = "clean"
    masked = "masked"  # what is not masked of those that the queries are in; half the work of the encoder


class OwnSequence(Enum):
    """What the keys of a query's own sequence are."""

    ignored = "ignored"  # neither positive nor negative
    negatives = "negatives"


class NonparametricSettings(Settings):
    """How the contrastive loss over token vectors is computed."""

    similarity_scale: Annotated[float, Field(gt=0, le=1)] | None = None
    """Factor between an inner product and a logit, saved with the encoder; null keeps the one saved with the encoder
    that training starts from, or takes the reference's 1/√d where there is none."""
    learned_scale: bool = False
    """Train the scale, starting from `similarity_scale`, instead of leaving it as it is."""
    end_queries: bool = True
    """Two queries a span (phrase model); false is the single-token model, which has start queries only."""
    negatives: Negatives = Negatives.all
    """Keys of `all` ranks, of `half` of them (those of the first or the second half), or of a query's own `rank`."""
    keys: KeyCopies = KeyCopies.clean
    """`clean`: an unmasked copy of each sequence; `masked`: the copies that the queries stand in, without their masks,
    which saves half of the encoder's work. Spans that then have no second occurrence are left out of the mean."""
    own_sequence: OwnSequence = OwnSequence.ignored
    """Whether keys of a query's own sequence are `ignored`, or `negatives`."""
    max_logits_per_chunk: PositiveInt = 16_777_216
    """Largest number of query-key logits held at once; bounds memory by working through the queries in chunks."""
    dimensions: list[int] = field(default_factory=list)
    """Shorter lengths at which the loss is taken too, such as [64,128,256], so that an index can be built with
    dimensions= of these; each length, the whole one included, counts alike. Empty: whole vectors only."""

    def check(self) -> None:
        """Raise SettingError for lengths that are none, or come twice."""
        check_leading_dimensions(self.dimensions, where="objective.nonparametric.dimensions")


class MaskedSettings(Settings):
    """How masked tokens are predicted over the vocabulary."""

    visible_only: bool = False
    """Encode only the tokens that are not masked, and predict from a light decoder that is not kept; cheaper above
    about a third of the tokens masked. Needs a corruption that only masks."""
    decoder_layers: PositiveInt = 1
    """Layers of that decoder."""
    untied: bool = False
    """Give the head an output matrix of its own, at first a copy of the token embeddings, where it shares theirs."""

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
    """What gives a sentence its vector: `cls`, `cls_before_pooler` or `avg`."""
    mlp_only_train: bool = False
    """With `cls`: the MLP serves in training only and is thrown away afterwards; best without labelled pairs."""
    temperature: PositiveFloat = 0.05
    """Cosines are divided by it; above 0."""
    hard_negative_weight: PositiveFloat = 1.0
    """How much a sentence's own hard negative counts among all negatives, α; above 0."""

    def check(self) -> None:
        """Raise SettingError for an MLP that this pooler has not."""
        if self.mlp_only_train and self.pooler is not PoolerKind.cls:
            raise exclusive("objective.sentence.mlp_only_train", f"objective.sentence.pooler={self.pooler.value}")


class TokenContrastSettings(Settings):
    """How masked copies are contrasted with the teacher's clean ones."""

    temperature: PositiveFloat = 0.01
    """Divides cosines to make logits."""
    repeated_tokens: bool = True
    """Other positions with the masked token's own id are negatives too, as published; false leaves them out."""

    def check_copies(self, copy_count: int) -> None:
        """Raise SettingError if each sequence is shown in several copies: their rows are not those of the teacher."""
        if copy_count > 1:
            raise SettingError(
                "objective.token_contrast_weight requires one masked copy of each sequence: set "
                "corruption.predicted_fraction to at most corruption.masked_fraction"
            )


class BlockTeacherSettings(Settings):
    """Whose block vectors are kept."""

    encoder: PathText = ""
    """The teacher: folder, hub name, `minilm` or `encoder-mini`; empty: the start of the run. Its tokenizer is that of
    the start."""


class SpanSupervisionSettings(Settings):
    """Weights of the terms of questions with known answers, next to those of the joint pass, which have 1."""

    absent_weight: NonNegativeFloat = 0.5
    """Weight of "not here" for a question read with a passage that does not contain its answer."""
    alone_weight: NonNegativeFloat = 0.5
    """Weight of finding the answer among the tokens of all passages of the batch with the query of the question."""
    read_weight: NonNegativeFloat = 0.5
    """Weight of the same with the query of the question read with its passage."""
    rank_weight: NonNegativeFloat = 0.5
    """Weight of ranking a question's own passage first by vectors of questions and passages."""
    teacher_weight: NonNegativeFloat = 3.0
    """Weight of 1 − cosine to the passage vectors of `objective.block_teacher.encoder`, or of the start."""
    rival_weight: PositiveFloat = 1.0
    """How many times each of a question's `rivals` counts among the negatives of the joint pass."""
    distill_weight: NonNegativeFloat = 0.0
    """Weight of teaching the vectors of an index the joint pass's distribution over the tokens of a passage."""
    rank_scale: PositiveFloat = 20.0
    """Factor of the cosines that rank passages."""


class LabelledContrastSettings(Settings):
    """How the texts of a batch are contrasted by their labels."""

    temperature: PositiveFloat = 0.3
    """Cosines are divided by it; above 0."""


class OtherObjective(Settings):
    """A loss that stands in a file of its own and is not known here; docs/own-objective.md shows one."""

    target: str = ""
    """Where its class is, as module.Class; it is called with the encoder and `settings`."""
    weight: PositiveFloat = 1.0
    """Weight of its terms; above 0."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What the class takes besides the encoder."""

    def check(self) -> None:
        """Raise SettingError if the target is no class of a module."""
        module, _, name = self.target.rpartition(".")
        if not (module and name):
            raise SettingError(f"objective.others: target must be module.Class, got {self.target or 'nothing'}")


class ObjectiveSettings(Settings):
    """Which losses are summed, with which weight; at least one weight is above 0."""

    nonparametric: NonparametricSettings = field(default_factory=NonparametricSettings)
    """The contrastive loss over the tokens of the batch."""
    nonparametric_weight: NonNegativeFloat = 1.0
    """Weight of the contrastive loss; 0 leaves it out, as with all weights."""
    masked: MaskedSettings = field(default_factory=MaskedSettings)
    """The prediction of masked tokens over the vocabulary."""
    masked_weight: NonNegativeFloat = 0.0
    """Weight of the prediction of masked tokens; what is masked for it stands under `corruption`."""
    sentence: SentenceSettings = field(default_factory=SentenceSettings)
    """The contrastive loss over sentences (SimCSE)."""
    sentence_weight: NonNegativeFloat = 0.0
    """Weight of the contrastive loss over sentences; where they come from stands under `sentences`."""
    token_contrast: TokenContrastSettings = field(default_factory=TokenContrastSettings)
    """The contrast of masked copies with the clean copies of a frozen teacher (TaCL)."""
    token_contrast_weight: NonNegativeFloat = 0.0
    """Weight of the contrast with the teacher; it reads the masked copies of `corruption`."""
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
    """Weight of questions with known answers; which they are is set by `questions`."""
    labelled_weight: NonNegativeFloat = 0.0
    """Weight of predicting labels or scores with a new head; what is labelled stands under `labelled`."""
    labelled_contrast: LabelledContrastSettings = field(default_factory=LabelledContrastSettings)
    """The contrast of texts by their labels."""
    labelled_contrast_weight: NonNegativeFloat = 0.0
    """Weight of supervised contrast: texts of a batch with one label are drawn together, others apart."""
    denoising_weight: NonNegativeFloat = 0.0
    """Weight of writing back what was corrupted, for encoder-decoders; what is corrupted stands under `denoising`."""
    others: dict[str, OtherObjective] = field(default_factory=dict)
    """Further losses by a name of your own: {name: {target: module.Class, weight: 1.0, settings: {}}}."""

    def check(self) -> None:
        """Raise SettingError for weights that leave nothing to train, and for a name that is taken."""
        weights = self.weights()
        if taken := sorted(name for name in self.others if f"{name}_weight" in weights):
            raise SettingError(f"objective.others.{taken[0]} has the name of a known objective: choose another")
        if not (sum(weights.values()) or self.others):
            raise SettingError(f"one of {', '.join(f'objective.{name}' for name in weights)} must be above 0")

    def weights(self) -> dict[str, float]:
        """The weights of all known losses by the names of their settings."""
        names = (
            *("nonparametric", "masked", "sentence", "token_contrast", "reading", "block_teacher"),
            *("span_supervision", "labelled", "labelled_contrast", "denoising"),
        )
        return {f"{name}_weight": getattr(self, f"{name}_weight") for name in names}
