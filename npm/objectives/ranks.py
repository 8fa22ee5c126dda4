"""All ranks' rows as one tensor, with gradients flowing back to the rank that each row came from.

Shapes: r rows of this rank (ranks may differ), R rows of all ranks, d dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
import torch.distributed as dist


def world_size() -> int:
    """Number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Index of this rank; 0 without a process group."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def row_counts(rows: torch.Tensor) -> list[int]:
    """Number of rows on each rank, in rank order."""
    if world_size() == 1:
        return [rows.shape[0]]
    own = torch.tensor([rows.shape[0]], device=rows.device)  # i64 [1]
    counts = [torch.zeros_like(own) for _ in range(world_size())]
    dist.all_gather(counts, own)
    return [int(count) for count in counts]


def gather_rows(rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """Rows [r, …] of every rank, in rank order [R, …]; `counts` is the result of `row_counts`.

    Differentiable for floating-point rows: the gradient of a row is the sum over all ranks, so local
    anchors against gathered keys give exactly the gradient of one process. Integer rows travel as integers, apart
    from the vectors, because a float cannot carry every token id.
    """
    if world_size() == 1:
        return rows
    if rows.is_floating_point():
        gathered: torch.Tensor = _GatherRows.apply(rows, counts)
        return gathered  # [R, …]
    return _gather_padded(rows, counts)  # [R, …]


def _gather_padded(rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
    # all_gather needs equal shapes on all ranks, so every rank pads to the longest
    padded = rows.new_zeros((max(counts), *rows.shape[1:]))  # [max r, …]
    padded[: rows.shape[0]] = rows
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded.contiguous())
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])  # [R, …]


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:  # type: ignore[no-untyped-def]
        ctx.counts = counts
        return _gather_padded(rows, counts)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):  # type: ignore[no-untyped-def]
        # keys keep gradients: a row serves as key in the losses of all ranks, and each contributes to its gradient
        total = gradient.contiguous().clone()  # [R, …]
        dist.all_reduce(total)
        start = sum(ctx.counts[: rank()])
        return total[start : start + ctx.counts[rank()]], None


Shared = TypeVar("Shared")


def sum_over_ranks(values: Mapping[str, float], device: torch.device) -> dict[str, float]:
    """The sum of each number over all ranks, in float64; every rank gives the same names in the same order."""
    summed = torch.tensor(list(values.values()), dtype=torch.float64)
    if world_size() > 1:
        summed = summed.to("cpu" if dist.get_backend() == "gloo" else device)
        dist.all_reduce(summed)
    return dict(zip(values, summed.tolist(), strict=True))


def broadcast(own: Shared) -> Shared:
    """The value of the first rank, on all ranks."""
    if world_size() == 1:
        return own
    values = [own]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def shutdown_distributed() -> None:
    """Wait for all ranks, then end the process group, if there is one."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
