"""A toy corpus that can be learned in a few steps, and trainers of a tiny BERT on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from npm.core.types import Sequences
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.masking.masker import MaskingSettings, MaskingUnit, build_masker
from npm.masking.rendering import PHRASES, TOKENS, MaskRenderer, PhraseViews
from npm.models.encoder import Encoder
from npm.models.masked_lm import MaskedHead
from npm.models.settings import Precision
from npm.objectives.combine import WeightedSum
from npm.objectives.masked import MaskedTokens
from npm.objectives.nonparametric import NonparametricMasked
from npm.objectives.settings import NonparametricSettings
from npm.training.checkpoints import RunFolder
from npm.training.data import BlockSource, TrainingBatches
from npm.training.settings import (
    GroupSettings,
    ScheduleSettings,
    StartSettings,
    TrainerSettings,
    TrainingEvaluationSettings,
    TrainingSettings,
)
from npm.training.trainer import StepReport, Trainer
from npm.training.validation import Evaluator, HeldOut
from tests.helpers.groups import group
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

STEEP: dict[str, Any] = {"adam_epsilon": 1.0, "max_gradient_norm": 1e6, "learning_rate": 1e-2, "max_steps": 3}
"""Settings under which Adam's step is nearly proportional to the gradient: by itself it would hide a wrong factor, and
make full steps of gradients that are rounding error alone."""
FIRST_WORD_ID, THEME_COUNT, WORDS_PER_THEME = 20, 8, 2


def toy_settings(folder: Path, **changes: Any) -> TrainingSettings:
    """One step of a tiny BERT that is saved in `folder`, on a file beside it; `changes` stand in for these settings."""
    corpus, start = folder / "corpus.txt", folder / "start"
    if not start.exists():
        corpus.write_text("\n\n".join(f"{sentence} " * 8 for sentence in SENTENCES), encoding="utf-8")
        tiny_encoder("bert").save(start)
    given: dict[str, Any] = {
        "encoder": str(start),
        "corpus": CorpusSettings(files=[str(corpus)]),
        "blocks": BlockSettings(max_block_tokens=24),
        "groups": GroupSettings(sequences_per_group=4),
        "start": StartSettings(hidden_dropout=0.1),
        "trainer": TrainerSettings(log_every_steps=1),
        "schedule": ScheduleSettings(max_steps=1),
        "device": "cpu",
        "precision": Precision.float32,
    }
    return TrainingSettings(**{**given, **changes})


def toy_groups(count: int = 8, *, seed: int = 0) -> list[Sequences]:
    """Groups of three pairs of sequences; a pair has a theme, whose few words stand in it in any order."""
    rng = np.random.default_rng(seed)
    groups = []
    for _ in range(count):
        themes = rng.permutation(THEME_COUNT)[:3].repeat(2)  # i64 [6]
        first_ids = FIRST_WORD_ID + themes * WORDS_PER_THEME  # i64 [6]
        rows = [first + rng.integers(0, WORDS_PER_THEME, rng.integers(8, 15)) for first in first_ids]
        groups.append(group(*(row.tolist() for row in rows)))
    return groups


def toy_batches(
    encoder: Encoder,
    groups: Sequence[Sequences] | None = None,
    *,
    views: Sequence[str] = (PHRASES,),
    seed: int = 3,
    context_fraction: float = 0.0,
    **settings: int,
) -> TrainingBatches:
    """Batches with phrases, with single tokens, or with both."""
    sizes: dict[str, Any] = {
        "mask_id": encoder.mask_id,
        "pad_id": encoder.pad_id,
        "prefix_ids": tuple(encoder.prefix_ids),
        "suffix_ids": tuple(encoder.suffix_ids),
    }
    phrases = build_masker(MaskingSettings(masked_fraction=0.2, max_span_tokens=3))
    tokens = build_masker(MaskingSettings(masked_fraction=0.3, unit=MaskingUnit.token))
    makers = {
        PHRASES: PhraseViews(phrases, MaskRenderer(**sizes), context_fraction),
        TOKENS: PhraseViews(tokens, MaskRenderer(masks_per_span=1, **sizes)),
    }
    source = BlockSource(
        toy_groups() if groups is None else groups, {name: makers[name] for name in views}, seed=seed, **settings
    )
    return TrainingBatches([source])


def toy_encoder(*, dropout: float = 0.0) -> Encoder:
    return tiny_encoder("bert", hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)


def toy_objective(encoder: Encoder, *parts: str) -> WeightedSum:
    """The phrase loss, masked-token prediction, or both."""
    torch.manual_seed(1)
    embedding = encoder.model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    known = {
        "phrase": NonparametricMasked(NonparametricSettings(), similarity_scale=0.3),
        "masked": MaskedTokens(toy_head(embedding)),
    }
    return WeightedSum({name: known[name] for name in parts}, dict.fromkeys(parts, 1.0))


def toy_head(embedding: nn.Embedding) -> MaskedHead:
    """A random head of the usual form."""
    vocabulary_size, dimensions = embedding.weight.shape
    transform = nn.Sequential(nn.Linear(dimensions, dimensions), nn.GELU(), nn.LayerNorm(dimensions))
    return MaskedHead(transform, nn.Parameter(torch.zeros(vocabulary_size)), embedding)


def toy_trainer(
    run: Path,
    *,
    max_steps: int,
    parts: Sequence[str] = ("phrase", "masked"),
    dropout: float = 0.0,
    encoder: Encoder | None = None,
    objective: WeightedSum | None = None,
    learning_rate: float = 3e-3,
    rank: int = 0,
    world_size: int = 1,
    context_fraction: float = 0.0,
    groups: Sequence[Sequences] | None = None,
    evaluation: TrainingEvaluationSettings | None = None,
    evaluators: Sequence[Evaluator] = (),
    **settings: Any,
) -> Trainer:
    """A trainer in float32 on the CPU; runs of the same arguments are the same."""
    encoder = toy_encoder(dropout=dropout) if encoder is None else encoder
    schedule = ScheduleSettings(max_steps=max_steps, learning_rate=learning_rate)
    loop = TrainerSettings(**{"log_every_steps": 1, **settings})
    chosen = toy_objective(encoder, *parts) if objective is None else objective
    shares: dict[str, Any] = {"views": sorted(chosen.views), "rank": rank, "world_size": world_size}
    batches = toy_batches(
        encoder,
        groups,
        groups_per_device_batch=loop.groups_per_device_batch,
        context_fraction=context_fraction,
        **shares,
    )
    run_folder = RunFolder(run)
    if rank == 0:
        run_folder.start({"max_steps": max_steps})
    held_out = None
    if evaluation is not None:
        held_out_batches = toy_batches(encoder, toy_groups(4, seed=9), seed=5, **shares)
        held_out = HeldOut(evaluation, held_out_batches, evaluators=evaluators)

    return Trainer(
        encoder,
        chosen,
        batches,
        run_folder,
        settings=TrainingSettings(device="cpu", precision=Precision.float32, trainer=loop, schedule=schedule),
        held_out=held_out,
    )


def parameters_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Every weight of encoder and objective, by name, detached."""
    return {name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()}


class Stopped(Exception):
    """Stands for a kill: nothing in the trainer catches it."""


def stop_at(step: int) -> Callable[[StepReport], None]:
    """A report that kills the run after `step`."""

    def report(done: StepReport) -> None:
        if done.step == step:
            raise Stopped

    return report


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics of a run."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def untimed_metrics_of(run: Path) -> list[dict[str, Any]]:
    """The same without what the clock says."""
    clocks = ("seconds", "tokens_per_second", "data_fraction")
    return [{name: value for name, value in line.items() if name not in clocks} for line in metrics_of(run)]
