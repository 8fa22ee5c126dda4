"""What two gloo ranks compute of questions with known answers, compared with one process by the tests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import safetensors.torch
import torch
import torch.distributed as dist

from npm.corpus.questions import QuestionTable, SupervisionSettings
from npm.masking.batches import QuestionBatch
from npm.models.sentences import pool
from npm.models.settings import PoolerKind
from npm.objectives.encoded import EncodedRows, Passes
from npm.objectives.ranks import sum_over_ranks
from npm.objectives.settings import SpanSupervisionSettings
from npm.objectives.span_supervision import ReaderScores, SpanSupervision
from npm.training.questions import QuestionSource
from tests.helpers.sentence_batches import LAST_WORD_ID
from tests.training.sentence_ranks import SmallEncoder

FRAME: Any = SimpleNamespace(prefix_ids=[1], suffix_ids=[2], pad_id=0, mask_id=3, query_masks=2)
"""What a batch is made with of an encoder."""
GLOBAL_BATCH = 6
MICRO_STEPS = (0, 1)


def toy_table() -> QuestionTable:
    """Twelve rows of few words, so that answers recur in the blocks of others; every third without a wrong block."""
    rng = np.random.default_rng(0)
    texts: list[np.ndarray] = []
    text_counts, list_counts = [], []
    for number in range(12):
        before, after, title, block = (rng.integers(4, LAST_WORD_ID, size) for size in (3, 2, number % 2, 9))
        start, size = rng.integers(0, 6), 1 + number % 3
        answer = block[start : start + size]
        without = np.setdiff1d(np.arange(4, LAST_WORD_ID), answer)[:5]
        wrong = (without[:1], without[::-1]) if number % 3 else (without[:0], without[:0])
        negatives, rivals = [without] * (number % 2), [block[start + size :][:1]]
        texts += [before, after, title, block, *wrong, *negatives, *rivals, answer]
        text_counts.append(8 + len(negatives))
        list_counts.append((len(negatives), len(rivals)))
    return QuestionTable(
        token_ids=np.concatenate(texts).astype(np.uint16),
        text_offsets=np.cumsum([0, *map(len, texts)]),
        row_offsets=np.cumsum([0, *text_counts]),
        list_counts=np.array(list_counts),
        files=np.zeros(12, dtype=np.int64),
        probabilities=None,
        skipped={},
    )


def toy_questions(rank: int, world_size: int, *, seed: int = 0) -> QuestionSource:
    """The source of one rank of a global batch of six."""
    settings = SupervisionSettings(questions_per_device_batch=GLOBAL_BATCH // world_size, negative_fraction=0.7)
    return QuestionSource(toy_table(), FRAME, settings, seed=seed, rank=rank, world_size=world_size)


def gradients(rank: int, world_size: int, micro_step: int) -> dict[str, torch.Tensor]:
    """Gradients of Σ terms / global counts on this rank's questions, by parameter name."""
    torch.manual_seed(1)
    encoder = SmallEncoder(16)
    batch = toy_questions(rank, world_size).views(micro_step)["questions"]
    assert isinstance(batch, QuestionBatch)

    def distances(ids: torch.Tensor, mask: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        return 1 - torch.cosine_similarity(pool(PoolerKind.avg, states, mask), torch.ones(16), dim=1)  # f32 [n]

    teacher: Any = SimpleNamespace(pooler=PoolerKind.avg, distances=distances)
    reader: Any = SimpleNamespace(scores=scores_of_ids)
    objective = SpanSupervision(SpanSupervisionSettings(distill_weight=0.5, rival_weight=2.0), 0.5, teacher, reader)
    counts = sum_over_ranks(objective.counts(batch), torch.device("cpu"))
    terms = objective(EncodedRows(Passes(encoder), batch))
    torch.stack([term.weight * term.sum / max(1, counts[name]) for name, term in terms.items()]).sum().backward()
    return {name: weight.grad for name, weight in encoder.named_parameters() if weight.grad is not None}


def scores_of_ids(batch: QuestionBatch) -> ReaderScores:
    """What a reader might say, from token ids alone."""
    keys = [row[is_key].float() for row, is_key in zip(batch.input_ids, batch.block_tokens, strict=True)]
    keys = keys[batch.block_rows]
    shares = [(ids / 4).log_softmax(0) for ids in keys[: len(batch.start_slots)]]
    return ReaderScores(torch.cat(shares).expand(2, -1), torch.stack([ids.mean() / 8 for ids in keys]))


def write_gradients(rank: int, runs: Path) -> None:
    """Write the gradients summed over both ranks, as RUNS/<micro-step>.safetensors."""
    for micro_step in MICRO_STEPS:
        summed = gradients(rank, 2, micro_step)
        for gradient in summed.values():
            dist.all_reduce(gradient)
        if rank == 0:
            safetensors.torch.save_file(summed, runs / f"{micro_step}.safetensors")
