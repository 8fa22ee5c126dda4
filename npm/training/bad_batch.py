"""A batch that spoilt the loss, written down to be looked at.

RUN/bad-batch/step-00000004-rank-0/   manifest (step, terms of each micro-batch), micro-0.safetensors: `<view>.<tensor>`
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from index.files import storage_errors
from index.store import write_folder
from npm.types import TrainingBatch

BAD_BATCH_KIND = "training batch of a loss that is not finite"


def save_bad_batches(
    folder: Path, *, step: int, rank: int, window: Sequence[TrainingBatch], sums: Sequence[Mapping[str, float]]
) -> Path:
    """Write the micro-batches of a window whose terms are not finite; all of them if only its gradient is not.

    `sums` holds each micro-batch's terms on this rank. Returns the folder that was written.
    """
    bad = [number for number, terms in enumerate(sums) if not all(math.isfinite(value) for value in terms.values())]
    path = folder / f"step-{step:08d}-rank-{rank}"
    with storage_errors(path):
        shutil.rmtree(path, ignore_errors=True)  # of the same step of a run that was started again
    terms = [{name: str(value) for name, value in part.items()} for part in sums]  # JSON has no infinity
    with write_folder(path, kind=BAD_BATCH_KIND, settings={"step": step, "rank": rank, "terms": terms}) as writer:
        for number in bad or range(len(window)):
            writer.open_binary(f"micro-{number}.safetensors").write(safetensors.torch.save(_tensors(window[number])))
    return path


def _tensors(batch: TrainingBatch) -> dict[str, torch.Tensor]:
    named: dict[str, torch.Tensor] = {}
    for view_name, view in batch.views.items():
        for item in fields(view):  # type: ignore[arg-type]
            value: Any = getattr(view, item.name)
            named[f"{view_name}.{item.name}"] = torch.as_tensor(value).cpu().contiguous().clone()
    return named
