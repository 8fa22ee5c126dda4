"""Masked-token prediction over the vocabulary.

    L = −(1/|T|) Σ_{t ∈ T} log softmax(head(h_t))[x_t]

(Devlin et al. 2019, arXiv 1810.04805, §3.1; the head is in `npm/models/masked_head.py`.) With mask pairs the start
mask predicts the first token of the span and the end mask the last; where a span has one mask, that mask predicts its
token.

Shapes: n spans, t targets, d dimensions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from npm.models.masked_head import MaskedHead
from npm.objectives.encoded import EncodedBatch
from npm.types import MaskedBatch, Term


@dataclass(frozen=True, slots=True)
class Targets:
    """Vectors at masks and the tokens they should predict."""

    vectors: torch.Tensor  # f32 [t, d]
    token_ids: torch.Tensor  # i64 [t]


class MaskedTokens(nn.Module):
    """Cross entropy at the mask slots only: term `masked`; term `masked_top1` of weight 0 counts right predictions."""

    reads_clean_copies = False
    """The encoder need not run on the clean copies for this loss."""

    def __init__(self, head: MaskedHead) -> None:
        super().__init__()
        self.head = head

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Targets of this rank: two a span with mask pairs, else one."""
        spans = len(batch.span_sequences)
        targets = 2 * spans if has_mask_pairs(batch) else spans
        return {"masked": targets, "masked_top1": targets}

    def forward(self, encoded: EncodedBatch) -> dict[str, Term]:
        """The terms of one batch."""
        targets = mask_targets(encoded)
        logits = self.head(targets.vectors)  # [t, V]
        losses = nn.functional.cross_entropy(logits.float(), targets.token_ids, reduction="sum")
        correct = (logits.detach().argmax(1) == targets.token_ids).sum()
        count = len(targets.token_ids)
        return {"masked": Term(losses, count), "masked_top1": Term(correct, count, weight=0.0)}


def has_mask_pairs(batch: MaskedBatch) -> bool:
    """Whether spans stand as two masks in this batch."""
    return bool((batch.start_slots != batch.end_slots).any())


def mask_targets(encoded: EncodedBatch) -> Targets:
    """What each mask of a batch should predict."""
    spans = encoded.batch.span_token_ids  # i64 [n, m]
    if not has_mask_pairs(encoded.batch):
        return Targets(encoded.start_queries, spans[:, 0])
    lengths = (spans >= 0).sum(1, keepdim=True)  # i64 [n, 1]
    last = spans.gather(1, (lengths - 1).clamp_min(0))[:, 0]  # i64 [n]
    vectors = torch.cat([encoded.start_queries, encoded.end_queries])  # f32 [2n, d]
    return Targets(vectors, torch.cat([spans[:, 0], last]))
