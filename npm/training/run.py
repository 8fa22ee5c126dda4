"""A training run from its settings: corpus → blocks → masked batches → encoder and objective → the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import nn

from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.groups import BlockGroups
from npm.corpus.sources import find_sources
from npm.corpus.store import BlockStore, build_block_store
from npm.errors import SettingError
from npm.masking.masker import MaskingSettings, MaskingUnit, build_masker
from npm.masking.renderers import MaskPairRenderer, SingleMaskRenderer
from npm.models.attention import use_plain_attention
from npm.models.encoder import MINILM, ComputeDtype, Encoder
from npm.models.similarity import reference_scale
from npm.objectives.combine import WeightedSum
from npm.objectives.masked import MaskedTokens
from npm.objectives.nonparametric import NonparametricMasked, NonparametricSettings
from npm.training.batches import MaskedBatches, Renderer
from npm.training.gather import rank, world_size
from npm.training.memory import keep_freed_memory
from npm.training.run_folder import RunFolder
from npm.training.schedule import ScheduleSettings
from npm.training.trainer import StepReport, Trainer, TrainerSettings, make_accelerator


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
            if not 0 <= getattr(self, name) < 1:
                raise SettingError(
                    f"{name} is out of range",
                    expected="a probability from 0 to below 1",
                    got=str(getattr(self, name)),
                    where=f"start.{name}",
                    fix="choose a value such as 0.1",
                )


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


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What is worth saying before the loop starts."""

    device: str
    precision: str
    groups: int
    mixed_share: float
    tokens: int
    sequences_per_step: int


def run_training(
    folder: Path,
    settings: TrainingSettings,
    *,
    announce: Callable[[RunSummary], None] = lambda _: None,
    report_blocks: Callable[[int, int], None] | None = None,
    report_step: Callable[[StepReport], None] = lambda _: None,
) -> Path:
    """Train, or go on training, in `folder`; returns the folder of the finished encoder.

    Raises SettingError if the folder was begun with other settings, CorpusError or EncoderError for bad input.
    """
    find_sources(settings.corpus.files)  # a misspelt file is reported before anything is made
    encoder = load_start(settings)
    accelerator = make_accelerator(settings.trainer)  # starts the process group, if there are several ranks
    run_folder = RunFolder(folder)
    with accelerator.main_process_first():
        if rank() == 0:
            run_folder.start(recorded_settings(settings))
        store = packed_corpus(folder / "corpus", settings, encoder, report_blocks if rank() == 0 else None)
    groups = BlockGroups(
        store, sequences_per_group=settings.groups.sequences_per_group, drop_mixed=settings.groups.drop_mixed
    )
    torch.manual_seed(settings.trainer.seed)  # the heads of objectives start at random
    objective = make_objective(settings, encoder)
    batches = MaskedBatches(
        groups,
        build_masker(settings.masking),
        make_renderer(settings, encoder),
        seed=settings.trainer.seed,
        groups_per_device_batch=settings.trainer.groups_per_device_batch,
        rank=rank(),
        world_size=world_size(),
    )
    trainer = Trainer(encoder, objective, batches, run_folder, settings=settings.trainer, schedule=settings.schedule)
    if rank() == 0:
        groups_per_step = settings.trainer.groups_per_device_batch * settings.trainer.accumulation_steps * world_size()
        announce(
            RunSummary(
                device=str(trainer.accelerator.device),
                precision=str(trainer.accelerator.mixed_precision),
                groups=len(groups),
                mixed_share=groups.mixed_share,
                tokens=store.token_count,
                sequences_per_step=groups_per_step * settings.groups.sequences_per_group,
            )
        )
    trainer.train(report_step)
    return run_folder.encoder_path


def load_start(settings: TrainingSettings) -> Encoder:
    """The encoder that training starts from, float32, with the dropouts and attention of training."""
    scale = settings.objective.nonparametric.similarity_scale
    encoder = Encoder.load(
        settings.encoder,
        device=settings.trainer.device,
        dtype=ComputeDtype.float32,
        hidden_dropout=settings.start.hidden_dropout,
        attention_dropout=settings.start.attention_dropout,
    )
    encoder.similarity_scale = scale if scale is not None else reference_scale(encoder.dimensions)
    if encoder.device.type == "cpu":
        keep_freed_memory()
    if settings.start.attention is Attention.plain or (
        settings.start.attention is Attention.auto and encoder.device.type == "cpu"
    ):
        use_plain_attention(encoder.model)
    return encoder


def packed_corpus(
    folder: Path, settings: TrainingSettings, encoder: Encoder, progress: Callable[[int, int], None] | None
) -> BlockStore:
    """The training text as blocks, built in `folder` unless it is there."""
    return build_block_store(
        folder,
        read_corpus(settings.corpus),
        BlockPacker(encoder.tokenizer, settings.blocks),
        settings={"corpus": recorded(asdict(settings.corpus))},
        progress=progress,
    )


def make_objective(settings: TrainingSettings, encoder: Encoder) -> nn.Module:
    """The loss that the settings describe."""
    chosen = settings.objective
    parts: dict[str, tuple[nn.Module, float]] = {}
    if chosen.nonparametric_weight:
        phrase_loss = NonparametricMasked(chosen.nonparametric, similarity_scale=encoder.similarity_scale)
        parts["nonparametric"] = (phrase_loss, chosen.nonparametric_weight)
    if chosen.masked_weight:
        embedding = encoder.model.get_input_embeddings()
        assert isinstance(embedding, nn.Embedding), f"input embeddings of type {type(embedding).__name__}"
        parts["masked"] = (MaskedTokens(embedding), chosen.masked_weight)
    modules = {name: part for name, (part, _) in parts.items()}
    return WeightedSum(modules, {name: weight for name, (_, weight) in parts.items()})


def make_renderer(settings: TrainingSettings, encoder: Encoder) -> Renderer:
    """Mask pairs for phrases, one mask for single tokens; the objective must have the same number of queries."""
    phrases = settings.masking.unit is MaskingUnit.phrase
    if settings.objective.nonparametric_weight and settings.objective.nonparametric.end_queries != phrases:
        raise SettingError(
            "masking and objective do not fit together",
            expected="end_queries=true with unit=phrase, end_queries=false with unit=token",
            got=f"end_queries={settings.objective.nonparametric.end_queries}, unit={settings.masking.unit.name}",
            where="masking.unit, objective.nonparametric.end_queries",
            fix="change one of the two",
        )
    renderer = MaskPairRenderer if phrases else SingleMaskRenderer
    return renderer(
        mask_id=encoder.mask_id,
        pad_id=encoder.pad_id,
        prefix_ids=tuple(encoder.prefix_ids),
        suffix_ids=tuple(encoder.suffix_ids),
    )


def recorded_settings(settings: TrainingSettings) -> dict[str, Any]:
    """The settings as flat JSON values, by dotted name; files by name only, so that a run folder can be moved."""
    flat: dict[str, Any] = {}

    def visit(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                visit(f"{prefix}.{key}" if prefix else key, part)
        else:
            flat[prefix] = value

    visit("", recorded(asdict(settings)))
    flat["world_size"] = world_size()
    return flat


def recorded(value: Any) -> Any:
    """A settings value as JSON: enums by name, files and folders by their last name."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        return {key: _names(part) if key == "files" else recorded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [recorded(part) for part in value]
    return value


def _names(files: list[str]) -> list[str]:
    return [Path(file).name for file in files]
