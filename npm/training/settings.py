"""Settings of a training run and of its loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from npm.corpus.blocks import BlockSettings
from npm.corpus.documents import CorpusSettings
from npm.errors import SettingError, check_range
from npm.masking.masker import MaskingSettings, MaskingUnit
from npm.masking.units import MAX_GROUP_TOKENS
from npm.models.encoder import MINILM
from npm.objectives.nonparametric import NonparametricSettings
from npm.training.schedule import ScheduleSettings


class Precision(Enum):
    """Number format of the forward pass in training; weights and optimiser state stay float32."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


@dataclass(kw_only=True, slots=True)
class TrainerSettings:
    """The loop: batches, optimiser, and how often to log and save."""

    seed: int = 0
    """Seed of group order, masks and dropout."""
    groups_per_device_batch: int = 1
    """Groups of blocks that one device works on at once; their keys are each other's negatives."""
    accumulation_steps: int = 1
    """Micro-batches between two optimiser steps; adds no negatives."""
    precision: Precision = Precision.auto
    """Number format of the forward pass; `auto` is bfloat16 where the hardware computes in it."""
    adam_beta1: float = 0.9
    """Decay of the running mean of gradients."""
    adam_beta2: float = 0.98
    """Decay of the running mean of squared gradients."""
    adam_epsilon: float = 1e-6
    """Added to the root of the running mean of squared gradients."""
    weight_decay: float = 0.01
    """Decoupled weight decay, on matrices only (not on biases and norms)."""
    max_gradient_norm: float = 2.0
    """Gradients longer than this are shortened to it."""
    log_every_steps: int = 10
    """Optimiser steps between two lines of metrics."""
    checkpoint_every_minutes: float = 10.0
    """Minutes between two checkpoints; 0 saves after every step."""
    workers: int = 0
    """Background processes that mask and render batches; 0 does it in the training process."""
    device: str = "auto"
    """`cpu`, `cuda` or `auto`, which takes a GPU where there is one."""

    def __post_init__(self) -> None:
        lowest = {
            "groups_per_device_batch": 1,
            "accumulation_steps": 1,
            "log_every_steps": 1,
            "workers": 0,
            "checkpoint_every_minutes": 0,
            "weight_decay": 0,
            "max_gradient_norm": 1e-9,
            "adam_epsilon": 0,
            "seed": 0,
        }
        for name in ("adam_beta1", "adam_beta2"):
            value = getattr(self, name)
            check_range(0 <= value < 1, f"trainer.{name}", expected="a number from 0 to below 1", got=value)
        for name, low in lowest.items():
            value = getattr(self, name)
            check_range(value >= low, f"trainer.{name}", expected=f"at least {low}", got=value)
        check_range(self.seed < 2**63, "trainer.seed", expected="below 2**63", got=self.seed)
        check_range(
            self.device in ("auto", "cpu", "cuda"),
            "trainer.device",
            expected="auto, cpu or cuda",
            got=self.device,
            fix="choose one of these; CUDA_VISIBLE_DEVICES=N chooses among several GPUs",
        )


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
class ObjectiveSettings:
    """Which losses are summed, with which weight."""

    nonparametric: NonparametricSettings = field(default_factory=NonparametricSettings)
    """The contrastive loss over the tokens of the batch."""
    nonparametric_weight: float = 1.0
    """Weight of the contrastive loss."""
    masked_weight: float = 0.0
    """Weight of the prediction of masked tokens over the vocabulary; 0 leaves it out."""

    def __post_init__(self) -> None:
        if min(self.nonparametric_weight, self.masked_weight) < 0 or not self.nonparametric_weight + self.masked_weight:
            raise SettingError(
                "the weights of the objective leave nothing to train",
                expected="weights of at least 0, one of them above 0",
                got=f"nonparametric_weight={self.nonparametric_weight}, masked_weight={self.masked_weight}",
                where="objective",
                fix="set one of them to 1",
            )


@dataclass(kw_only=True, slots=True)
class TrainingSettings:
    """One training run."""

    encoder: str = MINILM
    """Folder, hub name, or `minilm`: what training starts from."""
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    """The text to train on."""
    blocks: BlockSettings = field(default_factory=BlockSettings)
    """How it is cut into sequences."""
    groups: GroupSettings = field(default_factory=GroupSettings)
    """How sequences are put together."""
    masking: MaskingSettings = field(default_factory=MaskingSettings)
    """Which spans are masked."""
    start: StartSettings = field(default_factory=StartSettings)
    """How the encoder is set up for training."""
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    """What is minimised."""
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    """The loop."""
    schedule: ScheduleSettings = field(default_factory=lambda: ScheduleSettings(max_steps=1000))
    """How long, and the learning rate."""

    def __post_init__(self) -> None:
        most_blocks = MAX_GROUP_TOKENS // self.blocks.max_block_tokens
        check_range(
            self.groups.sequences_per_group <= most_blocks,
            "groups.sequences_per_group",
            expected=f"at most {most_blocks} with {self.blocks.max_block_tokens} tokens a block",
            got=self.groups.sequences_per_group,
            fix="choose a smaller one, or smaller blocks.max_block_tokens",
        )
        # Checked here, before any work: mask pairs for phrases, one mask for single tokens.
        phrases = self.masking.unit is MaskingUnit.phrase
        if self.objective.nonparametric_weight and self.objective.nonparametric.end_queries != phrases:
            raise SettingError(
                "masking and objective do not fit together",
                expected="end_queries=true with unit=phrase, end_queries=false with unit=token",
                got=f"end_queries={self.objective.nonparametric.end_queries}, unit={self.masking.unit.name}",
                where="masking.unit, objective.nonparametric.end_queries",
                fix="change one of the two",
            )
