"""Nearest centroids of k-means on a GPU with torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from index.kmeans import Assign, Assigner

SCORES_PER_CHUNK = 1 << 28
"""Distances held on the device at once, 1 GiB of them."""


def cuda_device() -> str | None:
    """`cuda` if torch finds a GPU, else None."""
    return "cuda" if torch.cuda.is_available() else None


def torch_assigner(device: str) -> Assigner:
    """Makes functions that find nearest centroids by Euclidean distance with torch on `device`, in float32.

    The nearest x maximises ⟨v, x⟩ − |x|²/2; among equal ones the first is taken.
    """

    def assigner(centroids: np.ndarray) -> Assign:
        held = torch.from_numpy(np.ascontiguousarray(centroids, dtype=np.float32)).to(device)  # [K, d]
        half_norms = held.square().sum(dim=1) / 2  # [K]
        rows_at_once = max(1, SCORES_PER_CHUNK // len(held))

        def assign(vectors: np.ndarray) -> np.ndarray:
            lists = np.empty(len(vectors), dtype=np.int64)  # [n]
            for start in range(0, len(vectors), rows_at_once):
                chunk = torch.from_numpy(vectors[start : start + rows_at_once]).to(device)  # [c, d]
                nearest = (chunk @ held.T - half_norms).argmax(dim=1)  # [c]
                lists[start : start + len(chunk)] = nearest.cpu().numpy()
            return lists

        return assign

    return assigner
