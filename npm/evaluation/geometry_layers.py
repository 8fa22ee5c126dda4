"""Token vectors layer by layer: how alike those of one sentence are, and those of any two places.

Shapes: B sentences, L padded length, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from npm.evaluation.geometry import mean_cosine_of_sum

if TYPE_CHECKING:
    from npm.models.encoder import Encoder

SENTENCES_PER_PASS = 32


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """One layer's token vectors; special tokens count like all others."""

    layer: int
    """0: the embeddings."""
    anisotropy: float
    """Mean cosine of two different tokens, of the same sentence or not."""
    self_similarity: float
    """Mean over sentences of the mean cosine of two different tokens of the sentence."""


def layer_geometry(encoder: Encoder, sentences: Sequence[str]) -> tuple[LayerGeometry, ...]:
    """The embeddings and the states behind each layer, over all tokens of `sentences` (at least one).

    Self-similarity 1/(n(n−1)) Σ_{i≠j} cos(hᵢ, hⱼ): Su et al. 2022 (TaCL, arXiv 2111.04198, §4.1); anisotropy of tokens:
    Ethayarajh 2019 (arXiv 1909.00512, §4.1), over all pairs. A sentence is cut to what the encoder takes.
    """
    layer_sums: np.ndarray | float = 0.0  # f64 [layers, d]
    similarity_sums: np.ndarray | float = 0.0  # f64 [layers]
    token_count = 0
    was_training = encoder.model.training
    encoder.model.eval()
    try:
        for start in range(0, len(sentences), SENTENCES_PER_PASS):
            sums, counts = _token_sums(encoder, sentences[start : start + SENTENCES_PER_PASS])
            layer_sums = layer_sums + sums.sum(1)  # f64 [layers, d]
            similarity_sums = similarity_sums + mean_cosine_of_sum(sums, counts).sum(1)  # f64 [layers]
            token_count += int(counts.sum())
    finally:
        encoder.model.train(was_training)
    anisotropies = mean_cosine_of_sum(np.asarray(layer_sums), np.array(token_count))  # f64 [layers]
    similarities = np.asarray(similarity_sums) / len(sentences)  # f64 [layers]
    return tuple(
        LayerGeometry(layer, float(anisotropy), float(similarity))
        for layer, (anisotropy, similarity) in enumerate(zip(anisotropies, similarities, strict=True))
    )


@torch.inference_mode()
def _token_sums(encoder: Encoder, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Sums f64 [layers, B, d] of the unit vectors of each sentence's tokens, and their numbers i64 [B]."""
    given = encoder.tokenizer(
        list(sentences),
        padding=True,
        truncation=True,
        max_length=encoder.max_input_tokens,
        split_special_tokens=True,
        return_tensors="pt",
    ).to(encoder.device)
    output = encoder.model(
        input_ids=given["input_ids"], attention_mask=given["attention_mask"], output_hidden_states=True
    )
    shown = given["attention_mask"].unsqueeze(-1)  # i64 [B, L, 1]
    sums = [
        (torch.nn.functional.normalize(states.double(), dim=-1) * shown).sum(1)  # f64 [B, d]
        for states in output.hidden_states
    ]
    return torch.stack(sums).cpu().numpy(), given["attention_mask"].sum(1).cpu().numpy()
