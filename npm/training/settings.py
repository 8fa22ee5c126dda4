"""Settings of a training run and of its loop."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from npm.core.errors import SettingError, check_range
from npm.core.settings import Bounds, CheckedSettings, PathList, PathText, changed_settings
from npm.corpus.blocks import BlockSettings
from npm.corpus.documents import CorpusSettings
from npm.corpus.groups import GroupMixing
from npm.corpus.labelled import LabelledSettings
from npm.corpus.questions import SupervisionSettings
from npm.corpus.sentence_pairs import SentenceDataSettings
from npm.masking.corruption import CorruptionSettings
from npm.masking.denoising import DenoisingSettings
from npm.masking.masker import MaskingSettings, MaskingUnit
from npm.masking.rendering import DENOISING, LABELLED, PHRASES, QUESTIONS, SENTENCES, TOKENS, reads_blocks
from npm.masking.units import MAX_GROUP_TOKENS
from npm.models.settings import MINILM, FreshSettings, Precision
from npm.objectives.settings import KeyCopies, ObjectiveSettings
from npm.training.schedule import ScheduleSettings

HELD_OUT_LOSS = "held_out_loss"


@dataclass(kw_only=True, slots=True)
class FrozenSettings(CheckedSettings):
    """Parts of the encoder that training leaves as they are."""

    layers: Annotated[int, Bounds(0)] = 0
    """How many of the lowest layers are not trained; in either half of an encoder-decoder."""
    embeddings: bool = False
    """Token and position embeddings and their norm are not trained. Where a masked-token head shares the token
    embeddings as its output matrix, that matrix is frozen with them; the head's transform and bias are trained."""
    word_embeddings: bool = False
    """Token embeddings alone are not trained; positions and norm are. A masked-token head as with `embeddings`, unless
    objective.masked.untied gives it a matrix of its own."""


@dataclass(kw_only=True, slots=True)
class TrainingEvaluationSettings(CheckedSettings):
    """Evaluation during training: at its start, at fixed intervals, and at its end."""

    files: PathList = field(default_factory=list)
    """Held-out text in the form of the training text; empty: the objective is not evaluated."""
    every_steps: Annotated[int, Bounds(1)] = 500
    """Optimiser steps between two evaluations; with schedule.max_epochs it is those of an epoch, whatever this is."""
    max_batches: Annotated[int, Bounds(1)] = 50
    """Batches of held-out text that an evaluation reads on each device, always the same ones."""
    masked_fraction: Annotated[float, Bounds(above=0, below=1)] = 0.15
    """Share of the tokens that are masked in held-out text for masked-token prediction, at whatever rate is trained."""
    best: str = HELD_OUT_LOSS
    """Name in metrics.jsonl of the metric that decides which encoder is kept in RUN/best-encoder."""
    higher_is_better: bool = False
    """Whether more of that metric is better."""
    patience_evaluations: Annotated[int | None, Bounds(1)] = None
    """Early stopping: end after this many evaluations in a row that were not the best; null: never."""


class Sharding(Enum):
    """What the ranks share out among themselves."""

    none = "none"
    full = "full"


class OptimizerKind(Enum):
    """What moves the weights."""

    adamw = "adamw"
    muon = "muon"
    lion = "lion"


@dataclass(kw_only=True, slots=True)
class TrainerSettings(CheckedSettings):
    """The loop: batches, optimiser, and how often to log and save."""

    seed: Annotated[int, Bounds(0, below=2**63)] = 0
    """Seed of group order, masks and dropout."""
    groups_per_device_batch: Annotated[int, Bounds(1)] = 1
    """Groups of blocks that one device works on at once; their keys are each other's negatives."""
    accumulation_steps: Annotated[int, Bounds(1)] = 1
    """Micro-batches between two optimiser steps; adds no negatives."""
    rows_per_pass: Annotated[int | None, Bounds(1)] = None
    """Rows that go through the encoder at once; null: all. Fewer need less memory and a second forward pass, and leave
    the gradient as it is, so that a contrastive batch may be larger than memory."""
    gradient_checkpointing: bool = False
    """Keep one activation a layer and compute the others again in the backward pass: less memory, more time."""
    compile: bool = False
    """Compile the encoder with `torch.compile`; needs a C++ compiler on a CPU, and minutes before the first step."""
    sharding: Sharding = Sharding.none
    """`full` shares weights and optimiser state out among the ranks (FSDP); each has whole weights and a whole gradient
    only while it computes a step. `none` has all of it on each."""
    optimizer: OptimizerKind = OptimizerKind.adamw
    """`muon` moves the matrices of the encoder's layers by orthogonalised momentum (`torch.optim.Muon`, torch 2.9 or
    newer), scaled so that AdamW's learning rate and weight decay fit; all else is moved by AdamW. `lion` moves every
    weight by the sign of its momentum: take a third to a tenth of AdamW's learning rate, and three to ten times its
    weight decay."""
    layer_decay: Annotated[float, Bounds(above=0, most=1)] = 1.0
    """The learning rate of a layer is that of the layer above times this; embeddings have the lowest. Heads of
    objectives have the full rate."""
    ema_decay: Annotated[float | None, Bounds(0, below=1)] = None
    """Average the weights over the steps: average = decay · average + (1 − decay) · weights, the decay after t steps
    being at most (1 + t) / (10 + t). Evaluations and saved encoders have the average. null: no average."""
    adam_beta1: Annotated[float, Bounds(0, below=1)] = 0.9
    """Decay of the running mean of gradients."""
    adam_beta2: Annotated[float, Bounds(0, below=1)] = 0.98
    """Decay of the running mean of squared gradients."""
    adam_epsilon: Annotated[float, Bounds(0)] = 1e-6
    """Added to the root of the running mean of squared gradients."""
    weight_decay: Annotated[float, Bounds(0)] = 0.01
    """Decoupled weight decay, on matrices and embeddings only (not on biases and norms)."""
    max_gradient_norm: Annotated[float, Bounds(1e-9)] = 2.0
    """Gradients longer than this are shortened to it."""
    dropout_from_step: Annotated[int, Bounds(0)] = 0
    """Late dropout: without any before so many steps."""
    dropout_until_step: Annotated[int | None, Bounds(1)] = None
    """Early dropout: without any after so many steps; null: to the end."""
    log_every_steps: Annotated[int, Bounds(1)] = 10
    """Optimiser steps between two lines of metrics."""
    checkpoint_every_minutes: Annotated[float, Bounds(0)] = 10.0
    """Minutes between two checkpoints; 0 saves after every step."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard too, to RUN/tensorboard (extra `tensorboard`)."""
    wandb_project: str = ""
    """Project of Weights & Biases that the metrics are sent to (extra `wandb`); empty: none."""
    workers: Annotated[int, Bounds(0)] = 0
    """Background processes that mask and render batches; 0 does it in the training process."""

    def check(self) -> None:
        """Muon orthogonalises whole matrices; dropout is switched off as in evaluation."""
        switched = self.dropout_from_step > 0 or self.dropout_until_step is not None
        check_range(
            not (switched and self.gradient_checkpointing)
            and self.dropout_from_step < (self.dropout_until_step or math.inf),
            "dropout_until_step",
            expected="above dropout_from_step, and gradient_checkpointing=false where one of the two is set",
            got=f"dropout_from_step={self.dropout_from_step}, dropout_until_step={self.dropout_until_step}",
            fix="leave one of them out, or choose others",
        )
        check_range(
            self.optimizer is not OptimizerKind.muon or self.sharding is Sharding.none,
            "optimizer",
            expected="adamw with sharding=full",
            got=self.optimizer.name,
            fix="choose one of the two",
        )


class Attention(Enum):
    """How attention is computed in training."""

    auto = "auto"
    fused = "fused"
    plain = "plain"


@dataclass(kw_only=True, slots=True)
class StartSettings(CheckedSettings):
    """The encoder that training starts from."""

    hidden_dropout: Annotated[float, Bounds(0, below=1)] = 0.0
    """Dropout probability of hidden states in training."""
    attention_dropout: Annotated[float, Bounds(0, below=1)] = 0.0
    """Dropout probability of attention weights in training."""
    attention: Attention = Attention.auto
    """`plain` is faster on a CPU, `fused` on a GPU; `auto` chooses so."""
    fresh: FreshSettings = field(default_factory=FreshSettings)
    """Random weights instead of those of `encoder`, whose tokenizer is kept; encoder=bytes is a tokenizer of bytes."""
    encoder_half: bool = False
    """Start from the encoder of an encoder-decoder, such as encoder=google/byt5-small; its mask is a sentinel."""
    encoder_half_tokens: Annotated[int, Bounds(8)] = 1024
    """Longest input in tokens of such a start, whose relative positions set no limit."""
    frozen: FrozenSettings = field(default_factory=FrozenSettings)
    """What is left as it is in training."""
    from_run: PathText = ""
    """A run folder whose newest checkpoint this run goes on from: weights, averages, optimiser, generators and place in
    the data. The schedule begins there; only `schedule`, `evaluation`, `objective.reading_weight`, logging and saving
    may differ from that run."""


@dataclass(kw_only=True, slots=True)
class GroupSettings(CheckedSettings):
    """How blocks are put together for training."""

    sequences_per_group: Annotated[int, Bounds(2)] = 16
    """Blocks masked together; a span is only masked if it stands in another block of its group too."""
    drop_mixed: bool = False
    """Leave out groups that hold blocks of several documents."""
    mixing: GroupMixing = GroupMixing.document
    """`document`: consecutive blocks of one document, remainders mixed; `random`: any blocks; `lexical`: blocks with
    the same rarest token, of those that stand in two blocks at least."""

    def check(self) -> None:
        """Other groups than those of documents are mixed, nearly all of them."""
        check_range(
            self.mixing is GroupMixing.document or not self.drop_mixed,
            "drop_mixed",
            expected="drop_mixed=false with mixing=random or lexical",
            got="true",
            fix="leave one of the two out",
        )


@dataclass(kw_only=True, slots=True)
class TrainingSettings(CheckedSettings):
    """One training run."""

    encoder: PathText = MINILM
    """The start: folder, hub name, `minilm` (extra `pretrained`) or `encoder-mini` (the shipped one)."""
    device: str = "auto"
    """`cpu`, `cuda` or `auto`, which takes a GPU where there is one."""
    precision: Precision = Precision.auto
    """Number format of the forward pass; `auto` is bfloat16 where the hardware computes in it, `float16` is for GPUs
    without it. Weights and optimiser state stay float32."""
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    """The text to train on."""
    packed: PathText = ""
    """A run folder whose text, cut into blocks, is read in the place of `corpus.files` and `evaluation.files`: on a
    machine that has neither the text nor what reads it, or for many runs on one text."""
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
    labelled: LabelledSettings = field(default_factory=LabelledSettings)
    """Labelled text for a head over the encoder."""
    questions: PathList = field(default_factory=list)
    """Files with questions, their answers and the passages that contain them, for objective.span_supervision_weight."""
    supervision: SupervisionSettings = field(default_factory=SupervisionSettings)
    """How these questions are shown."""
    start: StartSettings = field(default_factory=StartSettings)
    """How the encoder is set up for training."""
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    """What is minimised."""
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    """The loop."""
    schedule: ScheduleSettings = field(default_factory=lambda: ScheduleSettings(max_steps=1000))
    """How long, and the learning rate."""
    evaluation: TrainingEvaluationSettings = field(default_factory=TrainingEvaluationSettings)
    """Measures during training, the best encoder so far, and early stopping."""

    def check(self) -> None:
        """What depends on several groups of settings, before any work."""
        check_range(
            self.device in ("auto", "cpu", "cuda"),
            "device",
            expected="auto, cpu or cuda",
            got=self.device,
            fix="choose one of these; CUDA_VISIBLE_DEVICES=N chooses among several GPUs",
        )
        most_blocks = MAX_GROUP_TOKENS // self.blocks.max_block_tokens
        check_range(
            self.groups.sequences_per_group <= most_blocks,
            "groups.sequences_per_group",
            expected=f"at most {most_blocks} with {self.blocks.max_block_tokens} tokens a block",
            got=self.groups.sequences_per_group,
            fix="choose a smaller one, or smaller blocks.max_block_tokens",
        )
        self._check_masks_of_phrases()
        check_range(
            self.precision is not Precision.float16 or self.trainer.sharding is Sharding.none,
            "precision",
            expected="auto, float32 or bfloat16 with trainer.sharding=full, where no scale of gradients is shared",
            got=self.precision.value,
            fix="choose another precision, or trainer.sharding=none",
        )
        check_range(
            self.schedule.max_epochs is None
            or self.objective.labelled_weight + self.objective.labelled_contrast_weight > 0,
            "schedule.max_epochs",
            expected="max_steps or max_minutes without labelled rows",
            got=self.schedule.max_epochs,
            fix="set objective.labelled_weight=1, or schedule.max_steps=N in its place",
        )
        if self.objective.labelled_contrast_weight:
            self.labelled.check_contrast()
        self.objective.masked.check_masks(self.corruption.mask_probability)
        if self.objective.token_contrast_weight:
            self.objective.token_contrast.check_copies(self.corruption.copy_count)
        weights = {name: weight for name, weight in self.objective.weights().items() if weight}
        mixed = weights.keys() - {
            "span_supervision_weight",
            "nonparametric_weight",
            "reading_weight",
            "block_teacher_weight",
        }
        check_range(
            "span_supervision_weight" not in weights or not mixed,
            "objective.span_supervision_weight",
            expected="next to it no weights but those of phrases, of reading and of the teacher of blocks",
            got=", ".join(sorted(mixed)),
            fix="set one of them to 0",
        )
        if "denoising_weight" in weights and len(weights) > 1:
            raise SettingError(
                "an encoder-decoder has no head for the other objectives",
                expected="denoising_weight alone",
                got=", ".join(weights),
                where="objective",
                fix="set the other weights to 0, or denoising_weight to 0",
            )

    def _check_masks_of_phrases(self) -> None:
        """What is masked for the phrase loss must fit the objectives that read it."""
        phrases = self.masking.unit.has_pairs  # they have mask pairs, single tokens have one mask
        if self.objective.nonparametric_weight and self.objective.nonparametric.end_queries != phrases:
            raise SettingError(
                "masking and objective do not fit together",
                expected="end_queries=true with unit=phrase or span, end_queries=false with unit=token",
                got=f"end_queries={self.objective.nonparametric.end_queries}, unit={self.masking.unit.name}",
                where="masking.unit, objective.nonparametric.end_queries",
                fix="change one of the two",
            )
        reads = self.masking.unit is MaskingUnit.phrase and self.masking.context_fraction > 0
        if self.objective.reading_weight and not reads:
            raise SettingError(
                "no masked copy reads a block",
                expected="masking.context_fraction above 0 and masking.unit=phrase beside objective.reading_weight",
                got=f"context_fraction={self.masking.context_fraction}, unit={self.masking.unit.name}",
                where="objective.reading_weight, masking.context_fraction",
                fix="set objective.reading_weight=0" + (", or masking.context_fraction=0.5" if phrases else ""),
            )
        check_range(
            self.objective.nonparametric.keys is KeyCopies.clean or not self.masking.context_fraction,
            "objective.nonparametric.keys",
            expected="clean where masked copies read other blocks (masking.context_fraction above 0)",
            got="masked",
            fix="set masking.context_fraction=0, or leave the keys clean",
        )


READ_BY_VIEW = {
    PHRASES: "masking",
    TOKENS: "corruption",
    DENOISING: "denoising",
    SENTENCES: "sentences",
    LABELLED: "labelled",
    QUESTIONS: "supervision",
}
"""Which group of settings says what a view shows."""
KEPT_WITH_THE_ENCODER = "objective.nonparametric.similarity_scale"
"""Saved with every encoder, whatever it is trained for."""


def refuse_unused(settings: TrainingSettings, views: set[str]) -> None:
    """Raise SettingError if a group of settings was changed that the objectives, reading `views`, have no use for."""
    unused = [group for view, group in READ_BY_VIEW.items() if view not in views]
    if not reads_blocks(views):
        unused += ["blocks", "groups"]
    losses = ["nonparametric", "masked", "sentence", "token_contrast", "labelled_contrast", "span_supervision"]
    if not settings.objective.span_supervision_weight:  # which has the same teacher
        losses.append("block_teacher")
    unused += [f"objective.{name}" for name in losses if not getattr(settings.objective, f"{name}_weight")]
    changed = [key for key in changed_settings(settings, TrainingSettings(), unused) if key != KEPT_WITH_THE_ENCODER]
    if changed:
        raise SettingError(
            f"unused settings: {', '.join(changed)}; remove them, or give the objective that reads them a weight"
        )


def refuse_unused_of_start(settings: TrainingSettings) -> None:
    """Raise SettingError for sizes of random weights where `encoder=` gives the weights, and those that T5 lacks."""
    fresh = "start.fresh"
    if not settings.start.fresh.layers:
        names, fix = [fresh], f"set {fresh}.layers too, or remove them"
    elif settings.objective.denoising_weight:
        names = [f"{fresh}.window_tokens", f"{fresh}.max_input_tokens"]
        fix = "remove them: an encoder-decoder takes inputs of any length"
    else:
        return
    if changed := changed_settings(settings, TrainingSettings(), names):
        raise SettingError(f"unused settings: {', '.join(changed)}; {fix}")
