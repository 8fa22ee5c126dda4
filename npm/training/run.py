"""A training run from its settings: corpus → blocks → masked batches → encoder and objective → the loop."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import nn

from index.files import sha256_of_file
from index.store import folder_lock
from npm.corpus.blocks import BlockPacker
from npm.corpus.documents import read_corpus
from npm.corpus.groups import BlockGroups
from npm.corpus.sources import Source, find_sources
from npm.corpus.store import BlockStore, build_block_store
from npm.errors import SettingError, UserError
from npm.masking.masker import MaskingUnit, build_masker
from npm.masking.renderers import MaskPairRenderer, Renderer, SingleMaskRenderer
from npm.models.attention import use_plain_attention
from npm.models.encoder import ComputeDtype, Encoder, locate_encoder
from npm.models.masked_head import attach_masked_head
from npm.objectives.combine import WeightedSum
from npm.objectives.gather import rank, world_size
from npm.objectives.masked import MaskedTokens
from npm.objectives.nonparametric import NonparametricMasked
from npm.training.batches import MaskedBatches
from npm.training.memory import keep_freed_memory
from npm.training.run_folder import RunFolder
from npm.training.settings import Attention, TrainingSettings
from npm.training.trainer import StepReport, Trainer, make_accelerator


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

    Only the first rank calls `announce`, `report_blocks` and `report_step`. Raises SettingError if the folder was begun
    with other settings, CorpusError or EncoderError for bad input, ArtefactError while another process trains in it.
    """
    sources = find_sources(settings.corpus.files)  # a misspelt file is reported before anything is made
    encoder = load_start(settings)
    check_input_length(settings, encoder)
    accelerator = make_accelerator(settings.trainer)  # starts the process group, if there are several ranks
    with folder_lock(folder) if rank() == 0 else nullcontext():
        was_there = folder.exists()
        try:
            with accelerator.main_process_first():
                if rank() == 0:
                    RunFolder(folder).start(recorded_settings(settings) | recorded_input(sources, encoder))
                store = packed_corpus(folder / "corpus", settings, encoder, report_blocks if rank() == 0 else None)
            trainer, summary = prepared_trainer(folder, settings, encoder, store)
        except UserError:
            if rank() == 0 and not was_there:  # a run that never began leaves nothing behind
                shutil.rmtree(folder, ignore_errors=True)
            raise
        if rank() == 0:
            announce(summary)
        trainer.train(report_step if rank() == 0 else lambda _: None)
    return trainer.run_folder.encoder_path


def prepared_trainer(
    folder: Path, settings: TrainingSettings, encoder: Encoder, store: BlockStore
) -> tuple[Trainer, RunSummary]:
    """The loop over the blocks of `store`, ready to run. Raises CorpusError if there is too little text for a step."""
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
        context_fraction=settings.masking.context_fraction,
        question=settings.masking.question,
        rank=rank(),
        world_size=world_size(),
    )
    trainer = Trainer(
        encoder, objective, batches, RunFolder(folder), settings=settings.trainer, schedule=settings.schedule
    )
    groups_per_step = settings.trainer.groups_per_device_batch * settings.trainer.accumulation_steps * world_size()
    summary = RunSummary(
        device=str(trainer.accelerator.device),
        precision=str(trainer.accelerator.mixed_precision),
        groups=len(groups),
        mixed_share=groups.mixed_share,
        tokens=store.token_count,
        sequences_per_step=groups_per_step * settings.groups.sequences_per_group,
    )
    return trainer, summary


def load_start(settings: TrainingSettings) -> Encoder:
    """The encoder that training starts from, float32, with the scale, dropouts and attention of training."""
    encoder = Encoder.load(
        settings.encoder,
        device=settings.trainer.device,
        dtype=ComputeDtype.float32,
        similarity_scale=settings.objective.nonparametric.similarity_scale,
        hidden_dropout=settings.start.hidden_dropout,
        attention_dropout=settings.start.attention_dropout,
    )
    if encoder.device.type == "cpu":
        keep_freed_memory()
    if settings.start.attention is Attention.plain or (
        settings.start.attention is Attention.auto and encoder.device.type == "cpu"
    ):
        use_plain_attention(encoder.model)
    return encoder


def check_input_length(settings: TrainingSettings, encoder: Encoder) -> None:
    """Raise SettingError if a block, or its masked copy, may be longer than the encoder takes."""
    block_tokens = settings.blocks.max_block_tokens
    phrases = settings.masking.unit is MaskingUnit.phrase
    # a span of one token becomes two masks
    added_tokens = min(settings.masking.max_spans_per_sequence, block_tokens) if phrases else 0
    if block_tokens + added_tokens > encoder.max_input_tokens:
        raise SettingError(
            "masked blocks may be longer than the encoder takes",
            expected=f"at most {encoder.max_input_tokens} tokens, special tokens and masks included",
            got=f"{block_tokens} tokens of a block and up to {added_tokens} that its masks add",
            where="blocks.max_block_tokens, masking.max_spans_per_sequence",
            fix="make one of the two smaller",
        )


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
        head = attach_masked_head(encoder, locate_encoder(settings.encoder), trained=False)
        parts["masked"] = (MaskedTokens(head), chosen.masked_weight)
    modules = {name: part for name, (part, _) in parts.items()}
    return WeightedSum(modules, {name: weight for name, (_, weight) in parts.items()})


def make_renderer(settings: TrainingSettings, encoder: Encoder) -> Renderer:
    """Mask pairs for phrases, one mask for single tokens; the objective has the same number of queries."""
    phrases = settings.masking.unit is MaskingUnit.phrase
    renderer = MaskPairRenderer if phrases else SingleMaskRenderer
    return renderer(
        mask_id=encoder.mask_id,
        pad_id=encoder.pad_id,
        prefix_ids=tuple(encoder.prefix_ids),
        suffix_ids=tuple(encoder.suffix_ids),
        max_input_tokens=encoder.max_input_tokens,
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

    # a command adds settings of its own, such as where the run lies
    own = {item.name: asdict(settings)[item.name] for item in fields(TrainingSettings)}
    if Path(settings.encoder).is_dir():
        own["encoder"] = Path(settings.encoder).name
    visit("", recorded(own))
    flat["world_size"] = world_size()
    return flat


def recorded_input(sources: list[Source], encoder: Encoder) -> dict[str, str]:
    """What a run is made from, by content, with one key for each source; data sets of the hub by name only."""
    found = {"encoder_fingerprint": encoder.fingerprint}
    for number, source in enumerate(sources, start=1):
        digest = "" if source.format == "hub" else f" sha256:{sha256_of_file(Path(source.path))}"
        found[f"corpus.sources.{number}"] = source.name + digest
    return found


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
