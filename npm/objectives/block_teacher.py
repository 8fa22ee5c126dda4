"""Block vectors like those of a frozen teacher, so that phrases are learned without losing the space of sentences.

    L = (1/B) Σ_b (1 − cos(p(S(x_b)), p(T(x_b)))) + (w/B) Σ_b mean_t (1 − cos(S(x_b)_t, T(x_b)_t))

with x_b the clean copies of a batch, S the encoder that is trained, T the teacher, p what pools the token vectors of a
sequence: their mean, or the first of them; t its tokens, special ones and titles included, and w the weight that holds
each token vector near the teacher's (the features of Romero et al. 2015, arXiv 1412.6550, §2.2, of the last layer).

Shapes: B clean copies or sequences, L padded length, d dimensions.
"""

from __future__ import annotations

import torch
from torch import nn

from npm.core.errors import SettingError
from npm.masking.batches import MaskedBatch
from npm.models.encoder import Encoder
from npm.models.sentences import Pooler, pool
from npm.models.settings import PoolerKind
from npm.objectives.combine import Term
from npm.objectives.encoded import EncodedBatch, FrozenModel


def check_alike(encoder: Encoder, teacher: Encoder, *names: str, setting: str) -> None:
    """Raise SettingError, naming `setting`, unless a teacher has the same attributes `names` as the encoder."""
    for name in names:
        expected, got = getattr(encoder, name), getattr(teacher, name)
        if expected != got:
            raise SettingError(
                f"{setting} must have the {name.replace('_', ' ')} of {encoder.name}, {expected}, got {got}"
            )


class BlockTeacher(nn.Module):
    """Term `block_teacher`, a sum over clean copies; it reads the pass that makes the keys of the phrase loss."""

    view = "phrases"
    reads_clean_copies = True

    def __init__(self, encoder: Encoder, teacher: Encoder, *, token_weight: float = 0.0) -> None:
        """`teacher` may be `encoder` itself, in its current state; `token_weight` is that of its token vectors.

        Raises SettingError unless both read the same tokens and their vectors are as long.
        """
        super().__init__()
        setting = "objective.block_teacher.encoder"
        check_alike(encoder, teacher, "tokenizer_fingerprint", "dimensions", setting=setting)
        self.pooler = teacher.block_pooler or PoolerKind.avg
        self.fingerprint = teacher.fingerprint
        self._token_weight = token_weight
        self._teacher = FrozenModel(teacher.model)

    @property
    def saved_pooler(self) -> Pooler:
        """The pooler that is saved with the encoder."""
        return Pooler(self.pooler, 0)

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Clean copies of this rank."""
        return {"block_teacher": len(batch.key_input_ids)}

    def forward(self, encoded: EncodedBatch) -> dict[str, Term]:
        """The term of one batch."""
        ids, mask = encoded.batch.key_input_ids, encoded.batch.key_attention_mask  # i64 [B, L] each
        distances = self.distances(ids, mask, encoded.clean_vectors)  # f32 [B]
        return {"block_teacher": Term(distances.sum(), len(distances))}

    def distances(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Distances f32 [B] of `states` [B, L, d] to those of the teacher for the same ids i64 [B, L].

        1 − cosine of the pooled vectors and, `token_weight` times, its mean over the tokens.
        """
        taught = self._teacher.token_vectors(input_ids, attention_mask).float()  # f32 [B, L, d]
        learned, wanted = (pool(self.pooler, each, attention_mask) for each in (states, taught))  # f32 [B, d] each
        distances = 1 - nn.functional.cosine_similarity(learned, wanted, dim=1)  # f32 [B]
        if not self._token_weight:
            return distances
        of_tokens = 1 - nn.functional.cosine_similarity(states, taught, dim=2)  # f32 [B, L]
        of_tokens = (of_tokens * attention_mask).sum(1) / attention_mask.sum(1)  # f32 [B]
        return distances + self._token_weight * of_tokens
