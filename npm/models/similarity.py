"""The one similarity of the project, used in training, search and tests: scale × inner product.

The reference uses scale = 1/√d (Min et al. 2022, arXiv 2212.01349, §3). The scale belongs to the encoder and is
saved with it, because a small encoder whose last LayerNorm keeps vectors short cannot reach sharp logits at 1/√d.
The leading dimensions of its vectors have a separate scale, which follows from that of full vectors.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch

Scale = TypeVar("Scale", torch.Tensor, float, "torch.Tensor | float")
Scores = TypeVar("Scores", np.ndarray, torch.Tensor, float)


def reference_scale(dimensions: int) -> float:
    """The scale of the reference, 1/√d.

    >>> reference_scale(256)
    0.0625
    """
    return float(dimensions) ** -0.5


def scaled_similarity(inner_products: Scores, scale: float | torch.Tensor) -> Scores:
    """sim(a, b) = scale × a·b, of any shape, from the inner products a·b.

    >>> scaled_similarity(8.0, 0.25)
    2.0
    """
    return inner_products * scale  # type: ignore[return-value]


def leading_scale(scale: Scale, dimensions: int, whole: int) -> Scale:
    """The scale of the leading `dimensions` of vectors of `whole` dimensions: scale × √(whole / dimensions).

    As 1/√d, which it continues: inner products of fewer numbers are smaller, and logits stay about as sharp.

    >>> leading_scale(0.25, 64, 256)
    0.5
    """
    return scale * (whole / dimensions) ** 0.5
