"""Settings of a training run and of its loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from npm.corpus.blocks import BlockSettings
from npm.corpus.documents import CorpusSettings
from npm.corpus.sentence_pairs import SentenceDataSettings
from npm.errors import SettingError, check_range
from npm.masking.corruption import CorruptionSettings
from npm.masking.denoising import DenoisingSettings
from npm.masking.masker import MaskingSettings, MaskingUnit
from npm.masking.units import MAX_GROUP_TOKENS
from npm.models.fresh import FreshSettings
from npm.models.loading import MINILM
from npm.objectives.combine import ObjectiveSettings
from npm.training.held_out import TrainingEvaluationSettings
from npm.training.parameter_groups import FrozenSettings
from npm.training.schedule import ScheduleSettings
from npm.training.trainer_settings import TrainerSettings


class Attention(Enum):
    """How attention is computed in training."""

    auto = "auto"
    fused = "fused"
    plain = "plain"


@dataclass(kw_only=True, slots=True)
class StartSettings:
    """The encoder that training starts from."""

    hidden_dropout: float = 0.0
    """Dropout probability of hidden states in training."""
    attention_dropout: float = 0.0
    """Dropout probability of attention weights in training."""
    attention: Attention = Attention.auto
    """`plain` is faster on a CPU, `fused` on a GPU; `auto` chooses so."""
    fresh: FreshSettings = field(default_factory=FreshSettings)
    """Random weights instead of those of `encoder`, whose tokenizer is kept."""
    frozen: FrozenSettings = field(default_factory=FrozenSettings)
    """What is left as it is in training."""

    def __post_init__(self) -> None:
        for name in ("hidden_dropout", "attention_dropout"):
            value = getattr(self, name)
            check_range(0 <= value < 1, f"start.{name}", expected="a probability from 0 to below 1", got=value)


@dataclass(kw_only=True, slots=True)
class GroupSettings:
    """How blocks are put together for training."""

    sequences_per_group: int = 16
    """Blocks masked together; a span is only masked if it stands in another block of its group too."""
    drop_mixed: bool = False
    """Leave out groups that hold blocks of several documents."""

    def __post_init__(self) -> None:
        if self.sequences_per_group < 2:
            raise SettingError(
                "a group needs other sequences to find its spans in",
                expected="at least 2",
                got=str(self.sequences_per_group),
                where="groups.sequences_per_group",
                fix="leave it at 16",
            )


@dataclass(kw_only=True, slots=True)
class TrainingSettings:
    """One training run."""

    encoder: str = MINILM
    """The start: folder, hub name, `minilm` (extra `pretrained`) or `encoder-mini` (the shipped one)."""
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    """The text to train on."""
    blocks: BlockSettings = field(default_factory=BlockSettings)
    """How it is cut into sequences."""
    groups: GroupSettings = field(default_factory=GroupSettings)
    """How sequences are put together."""
    masking: MaskingSettings = field(default_factory=MaskingSettings)
    """Which spans are masked for the phrase loss."""
    corruption: CorruptionSettings = field(default_factory=CorruptionSettings)
    """What is masked for the prediction over the vocabulary, and for the contrast with a teacher."""
    denoising: DenoisingSettings = field(default_factory=DenoisingSettings)
    """What is corrupted for encoder-decoders."""
    sentences: SentenceDataSettings = field(default_factory=SentenceDataSettings)
    """Where the sentences of the contrastive loss over sentences come from."""
    start: StartSettings = field(default_factory=StartSettings)
    """How the encoder is set up for training."""
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    """What is minimised."""
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    """The loop."""
    schedule: ScheduleSettings = field(default_factory=lambda: ScheduleSettings(max_steps=1000))
    """How long, and the learning rate."""
    evaluation: TrainingEvaluationSettings = field(default_factory=TrainingEvaluationSettings)
    """Measures during training, the best encoder so far, and when to stop early."""

    def __post_init__(self) -> None:
        most_blocks = MAX_GROUP_TOKENS // self.blocks.max_block_tokens
        check_range(
            self.groups.sequences_per_group <= most_blocks,
            "groups.sequences_per_group",
            expected=f"at most {most_blocks} with {self.blocks.max_block_tokens} tokens a block",
            got=self.groups.sequences_per_group,
            fix="choose a smaller one, or smaller blocks.max_block_tokens",
        )
        self._check_fit()

    def _check_fit(self) -> None:
        """What depends on several groups of settings, before any work."""
        phrases = self.masking.unit is MaskingUnit.phrase  # they have mask pairs, single tokens have one mask
        if self.objective.nonparametric_weight and self.objective.nonparametric.end_queries != phrases:
            raise SettingError(
                "masking and objective do not fit together",
                expected="end_queries=true with unit=phrase, end_queries=false with unit=token",
                got=f"end_queries={self.objective.nonparametric.end_queries}, unit={self.masking.unit.name}",
                where="masking.unit, objective.nonparametric.end_queries",
                fix="change one of the two",
            )
        self.objective.masked.check_masks(self.corruption.mask_probability)
        if self.objective.token_contrast_weight:
            self.objective.token_contrast.check_copies(self.corruption.copy_count)
        weights = {name: weight for name, weight in self.objective.weights().items() if weight}
        if "denoising_weight" in weights and len(weights) > 1:
            raise SettingError(
                "an encoder-decoder has no head for the other objectives",
                expected="denoising_weight alone",
                got=", ".join(weights),
                where="objective",
                fix="set the other weights to 0, or denoising_weight to 0",
            )
