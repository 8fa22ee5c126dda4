"""The contrastive loss over sentences.

    L = −(1/N) Σ_i log  exp s(h_i, h_i⁺) / Σ_j [exp s(h_i, h_j⁺) + exp s(h_i, h_j⁻)],  s(a, b) = cos(a, b) / τ

(Gao et al. 2021, arXiv 2104.08821, equations 1, 4 and 5; the terms with h⁻ only where there are hard negatives.) One
direction only. Without pairs, h_i and h_i⁺ are the same sentence under two dropouts. N is the number of anchors over
all ranks: positives and negatives of all ranks are in every sum, anchors stay on their rank.

Shapes: n pairs of this rank, N pairs of all ranks, d dimensions, L padded length.
"""

from __future__ import annotations

import torch
from torch import nn

from npm.masking.batches import SentenceBatch
from npm.models.sentences import Pooler
from npm.objectives.combine import Term, classification_terms
from npm.objectives.encoded import EncodedRows
from npm.objectives.ranks import gather_rows, rank, row_counts
from npm.objectives.settings import SentenceSettings


class SentenceContrast(nn.Module):
    """Each anchor finds its positive: term `sentence`; `sentence_top1` of weight 0 counts those that do."""

    view = "sentences"
    reads_clean_copies = False

    def __init__(self, settings: SentenceSettings, *, dimensions: int, temperature: float = 0.05) -> None:
        super().__init__()
        self.temperature = temperature
        self.pooler = Pooler(settings.pooler, dimensions, mlp_only_train=settings.mlp_only_train)

    @property
    def saved_pooler(self) -> Pooler:
        """The pooler that is saved with the encoder."""
        return self.pooler

    def counts(self, batch: SentenceBatch) -> dict[str, int]:
        """Anchors of this rank."""
        return {"sentence": batch.pair_count, "sentence_top1": batch.pair_count}

    def forward(self, encoded: EncodedRows[SentenceBatch]) -> dict[str, Term]:
        """The terms of one batch."""
        parts = self.row_vectors(encoded).split(encoded.batch.pair_count)  # 2 or 3 of f32 [n, d]
        with torch.autocast(parts[0].device.type, enabled=False):  # bfloat16 cosines over 0.05 would be off by 0.1
            logits = contrast_logits(*parts, temperature=self.temperature)  # f32 [n, N] or [n, 2N]
        return classification_terms("sentence", logits, own_columns(parts[0]))

    def row_vectors(self, encoded: EncodedRows[SentenceBatch]) -> torch.Tensor:
        """The vectors f32 [2n or 3n, d] of all rows, pooled within each pass, so that none keeps its token vectors."""

        def pooled(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.pooler(encoded.passes.model(input_ids=ids, attention_mask=mask).last_hidden_state, mask)

        vectors: torch.Tensor = encoded.passes.piecewise(pooled, encoded.batch.input_ids, encoded.batch.attention_mask)
        return vectors


def contrast_logits(anchors: torch.Tensor, *keys: torch.Tensor, temperature: float) -> torch.Tensor:
    """Logits f32 [n, N], or [n, 2N] with hard negatives, of local anchors [n, d] with keys [n, d] of all ranks."""
    anchors = nn.functional.normalize(anchors.float(), dim=1)  # f32 [n, d]
    parts = (gather_rows(nn.functional.normalize(each.float(), dim=1), row_counts(each)) for each in keys)  # [N, d]
    return torch.cat([anchors @ part.T / temperature for part in parts], dim=1)  # f32 [n, N or 2N]


def own_columns(anchors: torch.Tensor) -> torch.Tensor:
    """Columns of the positives of this rank's anchors [n, d] among those of all ranks, i64 [n]."""
    first = sum(row_counts(anchors)[: rank()])
    return torch.arange(first, first + len(anchors), device=anchors.device)  # i64 [n]
