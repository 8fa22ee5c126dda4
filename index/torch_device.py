"""The GPU, where torch finds one: nearest centroids there, and the choice of the device in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from index.clustering import Assign, Assigner

SCORES_PER_CHUNK = 1 << 28
"""Distances held on the device at once, 1 GiB of them."""


def cuda_device() -> str | None:
    """`cuda` if torch is installed and finds a GPU, else None."""
    try:
        import torch
    except ImportError:
        return None
    return "cuda" if torch.cuda.is_available() else None


def torch_assigner(device: str) -> Assigner:
    """Makes functions that find nearest centroids by Euclidean distance with torch on `device`, in float32.

    The nearest x maximises ⟨v, x⟩ − |x|²/2; among equal ones the first is taken.
    """
    import torch

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


def fitting_device(vector_bytes: int) -> str | None:
    """The GPU, if there is one with room for so many bytes of vectors and as much again for scores; else None."""
    device = cuda_device()
    if device is None:
        return None
    import torch

    free_bytes, _ = torch.cuda.mem_get_info(device)
    return device if 2 * vector_bytes <= free_bytes else None
