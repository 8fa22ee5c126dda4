"""A penalty for leaving the sentence space of the start: 1 − cosine with a frozen copy of the encoder as it began.

    L = (1/B) Σ_b (1 − cos(m(S(x_b)), m(T(x_b))))

with x_b the clean copies of a batch, S the encoder that is trained, T its frozen start, and m the mean of a sequence's
token vectors.

Shapes: B clean copies, L padded length, T tokens of all clean copies, d dimensions.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from npm.models.encoder import Encoder
from npm.objectives.encoded import EncodedBatch
from npm.types import MaskedBatch, Term


class FrozenTeacher(nn.Module):
    """Term `frozen_teacher`; it reads the clean copies that are the keys of the phrase loss, in the same pass."""

    view = "phrases"

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        teacher = copy.deepcopy(encoder.model).eval().requires_grad_(False)
        self._teacher = (teacher,)  # in a tuple: neither the optimiser nor a checkpoint shall know it

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Clean copies of this rank."""
        return {"frozen_teacher": len(batch.key_input_ids)}

    def forward(self, encoded: EncodedBatch) -> dict[str, Term]:
        """The term of one batch."""
        batch = encoded.batch
        model = self._teacher[0].to(batch.key_input_ids.device)
        with torch.no_grad():
            output = model(input_ids=batch.key_input_ids, attention_mask=batch.key_attention_mask)
        taught = output.last_hidden_state.float()[batch.key_attention_mask.bool()]  # f32 [T, d]
        sums = [
            _sums(vectors, encoded.key_sequences, len(batch.key_input_ids)) for vectors in (encoded.key_vectors, taught)
        ]
        cosines = nn.functional.cosine_similarity(*sums, dim=1)  # f32 [B]; a sum points where the mean does
        return {"frozen_teacher": Term((1 - cosines).sum(), len(cosines))}


def _sums(vectors: torch.Tensor, sequences: torch.Tensor, sequence_count: int) -> torch.Tensor:
    """Sum f32 [B, d] of the vectors f32 [T, d] of each sequence."""
    return vectors.new_zeros(sequence_count, vectors.shape[1]).index_add(0, sequences, vectors)
