"""Contrast of tokens with a frozen teacher (TaCL, Su et al. 2022, arXiv 2111.04198, §2).

The student sees a masked copy x̃ of a sequence x, the teacher the clean one. A masked position i is to be nearer to the
teacher's vector there than to its vectors at the other positions of the same sequence:

    loss_i = −log ( exp(cos(S(x̃)_i, T(x)_i) / τ) / Σ_j exp(cos(S(x̃)_i, T(x)_j) / τ) ),

with the sum over all tokens of x, special ones included. Selected positions count whether a mask, a random token or
the token itself is there.

Shapes: B sequences, L padded length, n masked positions, d dimensions.
"""

from __future__ import annotations

import torch
from torch import nn

from npm.core.errors import SettingError
from npm.masking.batches import MaskedBatch
from npm.objectives.combine import Term, classification_terms
from npm.objectives.encoded import EncodedBatch, FrozenModel


class TokenContrast(nn.Module):
    """Terms `token_contrast` and, of weight 0, `token_contrast_top1`: positions whose nearest one is right."""

    view = "tokens"
    reads_clean_copies = False
    """The student need not run on the clean copies; the teacher does."""

    def __init__(self, teacher: nn.Module, *, temperature: float = 0.01) -> None:
        """The teacher is a frozen copy of `teacher` in its current state."""
        super().__init__()
        self.temperature = temperature
        self._teacher = FrozenModel(teacher)

    @property
    def teacher(self) -> nn.Module:
        """The frozen model."""
        return self._teacher.model

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Masked positions of this rank. Raises SettingError where masked and clean positions do not coincide."""
        shapes = tuple(batch.query_input_ids.shape), tuple(batch.key_input_ids.shape)
        if shapes[0] != shapes[1] or bool((batch.start_slots != batch.end_slots).any()):
            raise SettingError(
                "objective.token_contrast_weight needs each sequence masked once, in place and by single masks, got"
                f" copies of shape {shapes[0]} for {shapes[1]}: change corruption"
            )
        return dict.fromkeys(("token_contrast", "token_contrast_top1"), len(batch.span_sequences))

    def forward(self, encoded: EncodedBatch) -> dict[str, Term]:
        """The terms of one batch."""
        batch = encoded.batch
        students = encoded.query_vectors  # [B, L, d]
        teachers = self._teacher.token_vectors(batch.key_input_ids, batch.key_attention_mask)  # [B, L, d]
        with torch.autocast(students.device.type, enabled=False):  # a temperature of 0.01 needs float32
            students = nn.functional.normalize(students.float(), dim=-1)  # f32 [B, L, d]
            teachers = nn.functional.normalize(teachers.float(), dim=-1)  # f32 [B, L, d]
            cosines = torch.bmm(students, teachers.transpose(1, 2))  # f32 [B, L, L]
            logits = cosines[batch.span_sequences, batch.start_slots] / self.temperature  # f32 [n, L]
        compared = batch.key_attention_mask[batch.span_sequences].bool()  # bool [n, L]
        logits = logits.masked_fill(~compared, -torch.inf)
        return classification_terms("token_contrast", logits, batch.start_slots)
