"""Batches whose vectors are given by hand, and a phrase loss in plain loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from npm.core.types import Sequences, Spans
from npm.masking.batches import MaskedBatch
from npm.masking.rendering import MaskRenderer
from npm.objectives.encoded import EncodedBatch
from tests.helpers.groups import group

PAD_ID, MASK_ID, FIRST_ID, LAST_ID = 0, 99, 97, 98


def batch_of(
    rows: Sequence[list[int]],
    spans: Sequence[tuple[int, int, int]],
    *,
    specials: bool = False,
    mask_pairs: bool = True,
) -> MaskedBatch:
    """Rows of token ids with spans (sequence, start, length), sorted, as the renderers make a batch of them."""
    sequences: Sequences = group(*rows)
    starts = np.array([sequences.offsets[row] + start for row, start, _ in spans], dtype=np.int64)  # i64 [n]
    lengths = np.array([length for _, _, length in spans], dtype=np.int64)  # i64 [n]
    masks_per_span = 2 if mask_pairs else 1
    around = {"prefix_ids": (FIRST_ID,), "suffix_ids": (LAST_ID,)} if specials else {}
    renderer = MaskRenderer(mask_id=MASK_ID, pad_id=PAD_ID, masks_per_span=masks_per_span, **around)
    return renderer.render(sequences, Spans(starts, lengths))


def random_vectors(batch: MaskedBatch, rng: np.random.Generator, *, dimensions: int) -> torch.Tensor:
    """Vectors f64 [2B, L, d] for masked and clean copies, which want gradients."""
    length = max(batch.query_input_ids.shape[1], batch.key_input_ids.shape[1])
    shape = (2 * len(batch.key_input_ids), length, dimensions)
    return torch.from_numpy(rng.standard_normal(shape)).requires_grad_()


def encoded_with(vectors: torch.Tensor, batch: MaskedBatch) -> EncodedBatch:
    """A batch whose encoder answers with these vectors [2B, L, d] whatever it is asked."""
    return EncodedBatch(lambda input_ids, attention_mask: vectors, batch)


def random_batch(
    rng: np.random.Generator, *, specials: bool, mask_pairs: bool = True, vocabulary: int = 4
) -> MaskedBatch:
    """A few sequences of uneven lengths over a small vocabulary; each span stands in another sequence as well.

    With four tokens in all, most spans have several positives, many of them at the ends of sequences.
    """
    sizes = rng.integers(1, 13, rng.integers(3, 7))  # i64 [S]
    rows = [rng.integers(1, vocabulary + 1, size).tolist() for size in sizes]
    spans: list[tuple[int, int, int]] = []
    for number, row in enumerate(rows):
        start = 0
        while start < len(row):
            length = int(rng.integers(1, 4)) if mask_pairs else 1
            tokens = row[start : start + length]
            if len(tokens) == length and rng.random() < 0.5 and _stands_elsewhere(rows, number, tokens):
                spans.append((number, start, length))
                start += length
            else:
                start += 1
    return batch_of(rows, spans, specials=specials, mask_pairs=mask_pairs)


def _stands_elsewhere(rows: list[list[int]], number: int, tokens: list[int]) -> bool:
    others = [row for other, row in enumerate(rows) if other != number]
    return any(row[at : at + len(tokens)] == tokens for row in others for at in range(len(row)))


@dataclass(frozen=True, slots=True)
class PlainTerms:
    """Sums over the spans of one batch."""

    start: torch.Tensor
    end: torch.Tensor
    start_top1: int
    end_top1: int


def plain_phrase_loss(vectors: torch.Tensor, batch: MaskedBatch, scale: torch.Tensor | float) -> PlainTerms:
    """The loss of Min et al. 2022 (arXiv 2212.01349, §3.2) one span, one key and one token at a time."""
    queries, keys = vectors.chunk(2)  # f64 [B, L, d] each
    rows = [
        [int(token) for token, there in zip(row, mask, strict=True) if there]
        for row, mask in zip(batch.key_input_ids, batch.key_attention_mask, strict=True)
    ]
    sums = {"start": torch.zeros((), dtype=vectors.dtype), "end": torch.zeros((), dtype=vectors.dtype)}
    best = {"start": 0, "end": 0}
    for span, own in enumerate(batch.span_sequences.tolist()):
        tokens = [int(token) for token in batch.span_token_ids[span] if token >= 0]
        for side, slot in (("start", batch.start_slots[span]), ("end", batch.end_slots[span])):
            every, positive = [], []
            for number, row in enumerate(rows):
                if number == own:
                    continue
                for place in range(len(row)):
                    logit = scale * (queries[own, slot] * keys[number, place]).sum()
                    first = place if side == "start" else place - len(tokens) + 1
                    matches = first >= 0 and row[first : first + len(tokens)] == tokens
                    every.append(logit)
                    if matches:
                        positive.append(logit)
            sums[side] = sums[side] + torch.stack(every).exp().sum().log() - torch.stack(positive).exp().sum().log()
            best[side] += math.isclose(max(every).item(), max(positive).item())
    return PlainTerms(sums["start"], sums["end"], best["start"], best["end"])


def masked_copies_as(vectors: torch.Tensor, batch: MaskedBatch) -> EncodedBatch:
    """A batch whose masked copies are encoded as `vectors` [Q, L, d], without clean copies."""
    return EncodedBatch(lambda input_ids, attention_mask: vectors, batch, with_clean_copies=False)
