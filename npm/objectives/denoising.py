"""Restoring corrupted text: the cross entropy of an encoder-decoder over its targets.

    L = −(1/|T|) Σ_{t ∈ T} log softmax(logits_t)[x_t]

over the tokens T of all targets, sentinels and ends included (Raffel et al. 2020, arXiv 1910.10683, §3.1.2).

Shapes: B rows, L padded length of the targets, V vocabulary, t target tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from npm.masking.batches import DenoisingBatch
from npm.masking.denoising import NO_TARGET
from npm.masking.rendering import DENOISING
from npm.objectives.combine import Term
from npm.objectives.encoded import EncodedDenoising


class Denoising(nn.Module):
    """Term `denoising`, and of weight 0 `denoising_top1` (right predictions) and `denoising_R` and so on by family."""

    view = DENOISING

    def __init__(self, families: Sequence[str] = ()) -> None:
        """`families` names the family of each denoiser, by its index; without it there are no terms of families."""
        super().__init__()
        self.families = tuple(families)

    def counts(self, view: DenoisingBatch) -> dict[str, int]:
        """Target tokens of this rank, in all and by family."""
        by_row = (view.target_ids != NO_TARGET).sum(1)  # i64 [B]
        total = int(by_row.sum())
        by_family = {name: int(by_row[rows].sum()) for name, rows in self._rows_by_family(view.denoisers).items()}
        return {"denoising": total, "denoising_top1": total, **by_family}

    def forward(self, encoded: EncodedDenoising) -> dict[str, Term]:
        """The terms of one batch."""
        batch = encoded.batch
        is_target = batch.target_ids != NO_TARGET  # bool [B, L]
        token_ids = batch.target_ids[is_target]  # i64 [t]
        logits = encoded.logits[is_target]  # [t, V]
        losses = nn.functional.cross_entropy(logits.float(), token_ids, reduction="none")  # f32 [t]
        correct = (logits.detach().argmax(1) == token_ids).sum()
        owners = is_target.nonzero()[:, 0]  # i64 [t]
        count = len(token_ids)
        terms = {
            "denoising": Term(losses.sum(), count),
            "denoising_top1": Term(correct, count, weight=0.0),
        }
        for name, rows in self._rows_by_family(batch.denoisers).items():
            own = rows[owners]  # bool [t]
            terms[name] = Term(losses.detach()[own].sum(), int(own.sum()), weight=0.0)
        return terms

    def _rows_by_family(self, denoisers: torch.Tensor) -> dict[str, torch.Tensor]:
        """The rows of each family, bool [B], by the name of its term."""
        found = {}
        for family in dict.fromkeys(self.families):
            numbers = [number for number, own in enumerate(self.families) if own == family]
            found[f"denoising_{family}"] = torch.isin(denoisers, torch.tensor(numbers, device=denoisers.device))
        return found
