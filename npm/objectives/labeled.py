"""Labeled text: a head over the encoder predicts the label or the score of a text, of a pair, or of each word.

    sequences   z = W₂ tanh(W₁ h + b₁) + b₂, dropout before both maps, h the first token or the mean of all tokens
    words       z = W h_t + b, dropout before the map, h_t at the first piece of a word
    L = −(1/n) Σ_i log softmax(z_i)[y_i],   or (1/n) Σ_i (z_i − y_i)² for scores

(Devlin et al. 2019, arXiv 1810.04805, §4.1 and §5.3; the head of sequences as Liu et al. 2019, arXiv 1907.11692, have
it in code.) In addition, supervised contrast of the texts of a batch, those of one label being each other's
positives (Gunel et al. 2021, arXiv 2011.01403, equation 3; Khosla et al. 2020, arXiv 2004.11362):

    L = −(1/N) Σ_i 1/(N_{y_i} − 1) Σ_{j ≠ i, y_j = y_i} log  exp(h_i·h_j / τ) / Σ_{k ≠ i} exp(h_i·h_k / τ)

h is divided by its length, N the texts of all ranks, N_y those with label y; a text that is alone with its label
adds nothing to the sum.

Shapes: N texts of all ranks, n targets, B rows, L padded length, d dimensions, C labels (1 for scores).
"""

from __future__ import annotations

import torch
from torch import nn

from npm.masking.batches import LabeledBatch
from npm.models.sentences import pool
from npm.models.settings import PoolerKind
from npm.objectives.combine import Term, classification_terms
from npm.objectives.encoded import EncodedRows
from npm.objectives.ranks import gather_rows, rank, row_counts

HEAD_DROPOUT = 0.1


class LabeledText(nn.Module):
    """Cross entropy or squared error: term `labeled`; `labeled_top1` of weight 0 counts right labels."""

    view = "labeled"
    reads_clean_copies = False

    def __init__(
        self,
        dimensions: int,
        outputs: int,
        *,
        of_words: bool = False,
        mean_pooled: bool = False,
        layer: int | None = None,
    ) -> None:
        """The head starts from torch's default generator; it reads the states after `layer`, None: the last one."""
        super().__init__()
        self.outputs, self.layer, self.mean_pooled = outputs, layer, mean_pooled and not of_words
        parts: list[nn.Module] = [nn.Dropout(HEAD_DROPOUT), nn.Linear(dimensions, outputs)]
        if not of_words:
            parts = [nn.Dropout(HEAD_DROPOUT), nn.Linear(dimensions, dimensions), nn.Tanh(), *parts]
        self.head = nn.Sequential(*parts)
        for part in parts:
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=0.02)
                nn.init.zeros_(part.bias)

    def counts(self, batch: LabeledBatch) -> dict[str, int]:
        """Targets of this rank; scores are never right."""
        count = len(batch.targets)
        return {"labeled": count} | ({"labeled_top1": count} if self.outputs > 1 else {})

    def predictions(self, encoded: EncodedRows[LabeledBatch]) -> torch.Tensor:
        """Outputs of the head for each target, f32 [n, C]."""
        vectors = target_vectors(encoded, self.layer, mean_pooled=self.mean_pooled)  # [n, d]
        outputs: torch.Tensor = self.head(vectors).float()  # f32 [n, C]
        return outputs

    def forward(self, encoded: EncodedRows[LabeledBatch]) -> dict[str, Term]:
        """The terms of one batch."""
        outputs, targets = self.predictions(encoded), encoded.batch.targets  # f32 [n, C], [n]
        if self.outputs == 1:
            return {"labeled": Term(((outputs[:, 0] - targets) ** 2).sum(), len(targets))}
        return classification_terms("labeled", outputs, targets)


class LabeledContrast(nn.Module):
    """Supervised contrast: term `labeled_contrast`."""

    view = "labeled"
    reads_clean_copies = False

    def __init__(self, temperature: float = 0.3, *, mean_pooled: bool = False) -> None:
        super().__init__()
        self.temperature, self.mean_pooled = temperature, mean_pooled

    def counts(self, batch: LabeledBatch) -> dict[str, int]:
        """Texts of this rank."""
        return {"labeled_contrast": len(batch.targets)}

    def forward(self, encoded: EncodedRows[LabeledBatch]) -> dict[str, Term]:
        """The term of one batch."""
        vectors = target_vectors(encoded, mean_pooled=self.mean_pooled).float()  # f32 [n, d]
        vectors = nn.functional.normalize(vectors, dim=1)  # f32 [n, d]
        loss = supervised_contrast(vectors, encoded.batch.targets, temperature=self.temperature)
        return {"labeled_contrast": Term(loss, len(vectors))}


def target_vectors(encoded: EncodedRows[LabeledBatch], layer: int | None = None, *, mean_pooled: bool) -> torch.Tensor:
    """Vectors [n, d] of the targets after a layer, None: the last one; with `mean_pooled` the mean of the row."""
    batch, states = encoded.batch, encoded.states(layer)  # [B, L, d]
    if mean_pooled:
        return pool(PoolerKind.avg, states, batch.attention_mask)[batch.rows]  # [n, d]
    return states[batch.rows, batch.slots]  # [n, d]


def supervised_contrast(vectors: torch.Tensor, labels: torch.Tensor, *, temperature: float) -> torch.Tensor:
    """The sum over the texts of this rank, of unit vectors f32 [n, d] and labels i64 [n], with those of all ranks."""
    counts = row_counts(vectors)
    keys, key_labels = gather_rows(vectors, counts), gather_rows(labels, counts)  # f32 [N, d], i64 [N]
    with torch.autocast(vectors.device.type, enabled=False):
        logits = vectors @ keys.T / temperature  # f32 [n, N]
    own = sum(counts[: rank()]) + torch.arange(len(vectors), device=vectors.device)  # i64 [n]
    is_own = torch.arange(len(keys), device=vectors.device) == own[:, None]  # bool [n, N]
    log_shares = logits - logits.masked_fill(is_own, -torch.inf).logsumexp(1, keepdim=True)  # f32 [n, N]
    positives = (labels[:, None] == key_labels) & ~is_own  # bool [n, N]
    per_text = log_shares.masked_fill(~positives, 0.0).sum(1) / positives.sum(1).clamp_min(1)  # f32 [n]
    return -per_text.sum()
