"""Settings of a training run, of its schedule and of its loop."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from npm.core.errors import SettingError, exclusive
from npm.core.settings import INNER, Fraction, PathText, Settings
from npm.corpus.blocks import BlockSettings
from npm.corpus.groups import GroupMixing
from npm.corpus.labeled import LabeledSettings
from npm.corpus.questions import SupervisionSettings
from npm.corpus.sentence_pairs import SentenceDataSettings
from npm.corpus.settings import CorpusSettings
from npm.masking.corruption import CorruptionSettings
from npm.masking.denoising import DenoisingSettings
from npm.masking.masker import MaskingSettings
from npm.masking.rendering import LABELED
from npm.masking.units import MAX_GROUP_TOKENS
from npm.models.settings import MINILM, EncoderChoice, FreshSettings, Precision
from npm.objectives.registry import chosen_objectives
from npm.objectives.settings import ObjectiveSettings


class ScheduleSettings(Settings):
    """Length and learning rate of a run. Set one of `max_steps`, `max_epochs` and `max_minutes`."""

    max_steps: PositiveInt | None = None
    """Optimizer steps in the whole run; such a run can be repeated exactly."""
    max_epochs: PositiveInt | None = None
    """Passes over labeled rows (`labeled.files`), each rounded up to whole steps; it is evaluated after each."""
    max_minutes: PositiveFloat | None = None
    """Minutes of training in the whole run, resumed time included; the learning rate follows the clock."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 5e-4
    """Peak learning rate."""
    warmup_fraction: Annotated[float, Field(ge=0, le=0.999)] = 0.06
    """Fraction of the run in which the learning rate rises linearly from zero; it then falls linearly."""
    constant_fraction: Annotated[float, Field(ge=0, le=0.999)] = 0.0
    """Fraction of the run, warm-up included, after which it begins to fall."""
    final_fraction: Fraction = 0.0
    """Learning rate at the end of the run, as a fraction of the peak."""

    def check(self) -> None:
        """Refuse a length that is given in several ways, or in none."""
        given = [name for name in ("max_steps", "max_epochs", "max_minutes") if getattr(self, name) is not None]
        if len(given) != 1:
            raise SettingError(
                "exactly one of schedule.max_steps, schedule.max_minutes and schedule.max_epochs must be set, "
                f"got {' and '.join(given) or 'none'}; set the others to null, such as "
                f"schedule.{given[0] if given else 'max_minutes'}=null"
            )

    def progress(self, *, steps_done: int, minutes_done: float) -> float:
        """Fraction of the run that is over, from 0 to 1."""
        if self.max_steps is not None:
            return min(1.0, steps_done / self.max_steps)
        assert self.max_minutes is not None, "checked in check"
        return min(1.0, minutes_done / self.max_minutes)

    def learning_rate_at(self, progress: float) -> float:
        """Linear warm-up to the peak, then linear fall to `final_fraction` of it, which may begin later.

        >>> settings = ScheduleSettings(max_steps=10, learning_rate=1.0, warmup_fraction=0.2)
        >>> [settings.learning_rate_at(p) for p in (0.1, 0.2, 0.6, 1.0)]
        [0.5, 1.0, 0.5, 0.0]
        """
        if progress < self.warmup_fraction:
            return self.learning_rate * progress / self.warmup_fraction
        left = min(1.0, (1.0 - progress) / (1.0 - max(self.warmup_fraction, self.constant_fraction)))
        return self.learning_rate * (self.final_fraction + (1.0 - self.final_fraction) * left)


HELD_OUT_PREFIX = "held_out_"
"""Prefix of the names of terms that were measured on held-out text."""
HELD_OUT_LOSS = f"{HELD_OUT_PREFIX}loss"


class FrozenSettings(Settings):
    """Parts of the encoder that training leaves as they are."""

    layers: NonNegativeInt = 0
    """Number of lowest layers that are not trained; in either half of an encoder-decoder."""
    embeddings: bool = False
    """Token and position embeddings and their norm are not trained. Where a masked-token head shares the token
    embeddings as its output matrix, that matrix is frozen with them; the head's transform and bias are trained."""
    word_embeddings: bool = False
    """Token embeddings alone are not trained; positions and norm are. A masked-token head as with `embeddings`, unless
    objective.masked.untied gives it its own matrix."""


class TrainingEvaluationSettings(Settings):
    """Evaluation during training: at its start, at fixed intervals, and at its end."""

    files: list[PathText] = field(default_factory=list)
    """Held-out text in the form of the training text; empty: the objective is not evaluated."""
    every_steps: PositiveInt = 500
    """Optimizer steps between two evaluations; ignored with schedule.max_epochs: then it is those of an epoch."""
    max_batches: PositiveInt = 50
    """Batches of held-out text that an evaluation reads on each device, always the same ones."""
    masked_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Fraction of held-out tokens that are masked for masked-token prediction, independent of the rate in training."""
    best: str = HELD_OUT_LOSS
    """Name in metrics.jsonl of the metric that decides which encoder is kept in RUN/best-encoder."""
    higher_is_better: bool = False
    """A higher value of that metric is better."""
    patience_evaluations: PositiveInt | None = None
    """Early stopping: end after this many evaluations in a row that were not the best; null: never."""


class Sharding(Enum):
    """Tensors that are sharded over the ranks."""

    none = "none"
    full = "full"


class OptimizerKind(Enum):
    """Update rule of the weights."""

    adamw = "adamw"
    lion = "lion"


class TrainerSettings(Settings):
    """The loop: batches, optimizer, and how often to log and save."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of group order, masks and dropout."""
    groups_per_device_batch: PositiveInt = 1
    """Groups of blocks that one device works on at once; their keys are each other's negatives."""
    accumulation_steps: PositiveInt = 1
    """Micro-batches between two optimizer steps; adds no negatives."""
    rows_per_pass: PositiveInt | None = None
    """Rows that go through the encoder at once; null: all. Fewer need less memory and a second forward pass, and leave
    the gradient unchanged, so that a contrastive batch may be larger than memory."""
    gradient_checkpointing: bool = False
    """Keep one activation per layer and compute the others again in the backward pass: less memory, more time."""
    compile: bool = False
    """Compile the encoder with `torch.compile`; needs a C++ compiler on a CPU, and minutes before the first step."""
    sharding: Sharding = Sharding.none
    """`full` shards weights and optimizer state over the ranks (FSDP); each has full weights and a full gradient
    only while it computes a step. `none` has all of it on each."""
    optimizer: OptimizerKind = OptimizerKind.adamw
    """`lion` moves every weight by the sign of its momentum: take a third to a tenth of AdamW's learning rate, and
    three to ten times its weight decay."""
    ema_decay: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Average the weights over the steps: average = decay · average + (1 − decay) · weights, the decay after t steps
    being at most (1 + t) / (10 + t). Evaluations and saved encoders have the average. null: no average."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1), INNER] = 0.98
    """Decay of the running mean of squared gradients."""
    adam_epsilon: Annotated[NonNegativeFloat, INNER] = 1e-6
    """Added to the root of the running mean of squared gradients."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled weight decay, on matrices and embeddings only (not on biases and norms)."""
    max_gradient_norm: Annotated[float, Field(ge=1e-9)] = 2.0
    """Gradients longer than this are shortened to it."""
    dropout_from_step: NonNegativeInt = 0
    """Late dropout: none before this step (Liu et al. 2023, arXiv 2303.01500)."""
    dropout_until_step: PositiveInt | None = None
    """Early dropout: none from this step on; null: to the end."""
    log_every_steps: PositiveInt = 10
    """Optimizer steps between two lines of metrics."""
    checkpoint_every_minutes: NonNegativeFloat = 10.0
    """Minutes between two checkpoints; 0 saves after every step."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard too, to RUN/tensorboard (extra `tensorboard`)."""
    wandb_project: str = ""
    """Project of Weights & Biases that the metrics are sent to (extra `wandb`); empty: none."""
    workers: NonNegativeInt = 0
    """Background processes that mask and render batches; 0 does it in the training process."""

    def check(self) -> None:
        """Refuse a dropout schedule that ends before it starts, or that gradient checkpointing would not see."""
        if self.dropout_until_step is not None and self.dropout_until_step <= self.dropout_from_step:
            raise SettingError(
                f"trainer.dropout_until_step must be above trainer.dropout_from_step={self.dropout_from_step}, "
                f"got {self.dropout_until_step}"
            )
        if self.gradient_checkpointing and (self.dropout_from_step or self.dropout_until_step):
            raise exclusive("trainer.gradient_checkpointing", "trainer.dropout_from_step or trainer.dropout_until_step")

    def has_dropout(self, step: int) -> bool:
        """Return True if dropout is on in the step after `step` steps."""
        return self.dropout_from_step <= step and (self.dropout_until_step is None or step < self.dropout_until_step)


class StartSettings(Settings):
    """The encoder that training starts from."""

    hidden_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout probability of hidden states in training."""
    attention_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout probability of attention weights in training."""
    fresh: FreshSettings = field(default_factory=FreshSettings)
    """Random weights instead of those of `encoder`, whose tokenizer is kept; encoder=bytes is a tokenizer of bytes."""
    encoder_half: bool = False
    """Start from the encoder of an encoder-decoder, such as encoder=google/byt5-small; its mask is a sentinel."""
    encoder_half_tokens: Annotated[int, Field(ge=8)] = 1024
    """Longest input in tokens of such a start, whose relative positions set no limit."""
    frozen: FrozenSettings = field(default_factory=FrozenSettings)
    """Parameters that training leaves unchanged."""
    from_run: PathText = ""
    """A run folder whose newest checkpoint this run continues: weights, averages, optimizer, generators and position in
    the data. The schedule begins there; only `schedule`, `evaluation`, `objective.reading_weight`, logging and saving
    may differ from that run."""


class GroupSettings(Settings):
    """Grouping of blocks for training."""

    sequences_per_group: Annotated[int, Field(ge=2)] = 16
    """Blocks masked together; a span is only masked if it occurs in another block of its group too."""
    mixing: GroupMixing = GroupMixing.document
    """`document`: consecutive blocks of one document, remainders mixed; `random`: any blocks."""


class TrainingSettings(EncoderChoice):
    """One training run."""

    encoder: PathText = MINILM
    """The start: folder, hub name, `minilm` (extra `pretrained`) or `encoder-mini` (the shipped one)."""
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    """The text to train on."""
    packed: PathText = ""
    """A run folder whose text, cut into blocks, is read instead of `corpus.files` and `evaluation.files`: on a
    machine that has neither the text nor what reads it, or for many runs on one text."""
    blocks: BlockSettings = field(default_factory=BlockSettings)
    """Cutting of the text into sequences."""
    groups: GroupSettings = field(default_factory=GroupSettings)
    """Grouping of sequences."""
    masking: MaskingSettings = field(default_factory=MaskingSettings)
    """Masked spans of the phrase loss."""
    corruption: CorruptionSettings = field(default_factory=CorruptionSettings)
    """Masked tokens of the prediction over the vocabulary, and of the contrast with a teacher."""
    denoising: DenoisingSettings = field(default_factory=DenoisingSettings)
    """Corrupted spans for encoder-decoders."""
    sentences: SentenceDataSettings = field(default_factory=SentenceDataSettings)
    """Sentences of the contrastive loss over sentences."""
    labeled: LabeledSettings = field(default_factory=LabeledSettings)
    """Labeled text for a head over the encoder."""
    questions: list[PathText] = field(default_factory=list)
    """Files with questions, their answers and the passages that contain them, for objective.reader_weight and
    objective.span_supervision_weight."""
    supervision: SupervisionSettings = field(default_factory=SupervisionSettings)
    """Presentation of these questions."""
    start: StartSettings = field(default_factory=StartSettings)
    """Setup of the encoder for training."""
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    """Minimized losses."""
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    """The loop."""
    schedule: ScheduleSettings = field(default_factory=lambda: ScheduleSettings(max_steps=1000))
    """Length of the run, and its learning rate."""
    evaluation: TrainingEvaluationSettings = field(default_factory=TrainingEvaluationSettings)
    """Measures during training, the best encoder so far, and early stopping."""

    def check(self) -> None:
        """Check dependencies between groups of settings, before any work."""
        if self.device not in ("auto", "cpu", "cuda"):
            raise SettingError(
                f"device must be auto, cpu or cuda, got {self.device}; CUDA_VISIBLE_DEVICES=N chooses among GPUs"
            )
        most_blocks = MAX_GROUP_TOKENS // self.blocks.max_block_tokens
        if self.groups.sequences_per_group > most_blocks:
            raise SettingError(
                f"groups.sequences_per_group must be at most {most_blocks} with "
                f"blocks.max_block_tokens={self.blocks.max_block_tokens}, got {self.groups.sequences_per_group}"
            )
        if self.precision is Precision.float16 and self.trainer.sharding is not Sharding.none:
            # no scale of gradients is shared
            raise exclusive("precision=float16", "trainer.sharding=full")
        chosen = chosen_objectives(self.objective)
        if self.schedule.max_epochs and LABELED not in {each.view for each in chosen.values()}:
            raise SettingError("schedule.max_epochs requires labeled rows: set objective.labeled_weight=1")
        self.objective.masked.check_masks(self.corruption.mask_probability)
        for each in chosen.values():
            each.check(self)
