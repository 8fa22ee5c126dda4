"""The reader learned from a larger one on a GPU, in three parts of some minutes each, for machines lent by the minute.

    python -m scripts.distil_reader teach WORK MINUTES   a teacher on the spans: WORK/teacher.safetensors
    python -m scripts.distil_reader score WORK           its logits for all pairs: WORK/scores.npy
    python -m scripts.distil_reader learn WORK MINUTES   the reader on both: WORK/reader.safetensors, without embeddings

WORK holds pairs.npz and held-out.npz (`scripts/pack_pairs.py`) and two folders: teacher/ (all-mpnet-base-v2, or another
MPNet: its vocabulary is BERT's, moved by four) and reader/ (config.json and model.safetensors of a BERT, all weights).
Needs torch, transformers, numpy and safetensors.
WORK/metrics.jsonl grows by a line every 100 steps. The rate falls to zero with the time that is given.

The reader's loss (Hinton et al. 2015, arXiv 1503.02531, §2): 0.75 T² KL(teacher, reader) at temperature T = 1.5, and
0.25 of the loss of the spans (npm/objectives/reading.py), except for pairs whose passage was found by words.

Shapes: B pairs, L padded length, d dimensions.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from scripts.distil_models import Reader, Teacher, measure, read_weights, span_losses
from scripts.distil_pairs import CUDA, DEVICE, FOUND, PAD, WORKERS, Batch, Pairs, batches, chunks

TEMPERATURE, TEACHER_WEIGHT = 1.5, 0.75
BEGAN = time.monotonic()
MOST_STEPS = 10**9 if CUDA else 4
"""Without a GPU the parts are only tried."""


def say(*values: object) -> None:
    """A line with the time."""
    sys.stderr.write(f"{time.monotonic() - BEGAN:6.1f} s {' '.join(map(str, values))}\n")


def train(
    model: nn.Module,
    given: Iterator[Batch],
    loss_of: Callable[[torch.Tensor, Batch], torch.Tensor],
    *,
    seconds: float,
    rate: float,
    warmup: int,
    chunks_per_step: int,
    log: Path,
) -> None:
    """AdamW with a rate that falls to zero when the time is over; heads learn eight times as fast as the body."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    heads = [parameter for name, parameter in named if not name.startswith("body.")]
    flat = [parameter for name, parameter in named if name.startswith("body.") and parameter.ndim < 2]
    deep = [parameter for name, parameter in named if name.startswith("body.") and parameter.ndim >= 2]
    groups = [(deep, 0.01, 1), (flat, 0.0, 1), (heads, 0.01, 8)]
    optimizer = torch.optim.AdamW(
        [{"params": own, "weight_decay": decay, "factor": factor} for own, decay, factor in groups if own],
        betas=(0.9, 0.98),
        eps=1e-6,
        fused=CUDA,
    )
    if seconds <= 0:
        raise SystemExit("no time is left to train in: give more MINUTES")
    began, step, rows, tokens = time.monotonic(), 0, 0, 0
    loss_sum = torch.zeros((), device=DEVICE)
    model.train()
    while (spent := (time.monotonic() - began) / seconds) < 1 and step < MOST_STEPS:
        for group in optimizer.param_groups:
            group["lr"] = rate * group["factor"] * min((step + 1) / warmup, 1 - spent)
        optimizer.zero_grad(set_to_none=True)
        for _ in range(chunks_per_step):
            batch = next(given)
            ids, _, masks, *_ = batch
            with torch.autocast(DEVICE, torch.bfloat16, enabled=CUDA):
                logits = model(ids, masks)
            loss = loss_of(logits.float(), batch)
            (loss / chunks_per_step).backward()
            loss_sum += loss.detach() / chunks_per_step
            rows += len(ids)
            tokens += ids.numel()
        nn.utils.clip_grad_norm_([parameter for _, parameter in named], 1.0)
        optimizer.step()
        step += 1
        if step % 100 == 0 or step == MOST_STEPS:
            record = {"step": step, "rows": rows, "padded_tokens": tokens, "loss": float(loss_sum) / min(step, 100)}
            with log.open("a") as file:
                file.write(json.dumps(record | {"seconds": round(time.monotonic() - began, 1)}) + "\n")
            loss_sum.zero_()
            if step % 500 == 0 or step == MOST_STEPS:
                say(record)


def teach(work: Path, minutes: float, pairs: Pairs) -> None:
    """Train and keep the teacher."""
    teacher = Teacher(work / "teacher")
    read_weights(teacher.body, work / "teacher" / "model.safetensors")
    teacher.to(DEVICE)
    given = batches(pairs, chunks(pairs, pairs.shares[:, 1], 128 if CUDA else 8, seed=1))

    def loss_of(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        return span_losses(logits, batch[1], batch[3]).mean()

    seconds = 60 * minutes - (time.monotonic() - BEGAN)
    log = work / "metrics.jsonl"
    train(teacher, given, loss_of, seconds=seconds, rate=5e-5, warmup=200, chunks_per_step=1, log=log)
    save_file(teacher.state_dict(), work / "teacher.safetensors")
    say("teacher", measure(teacher, Pairs(work / "held-out.npz")))


@torch.no_grad()
def score(work: Path, pairs: Pairs) -> None:
    """Write the teacher's logits f16 [2, tokens of all pairs], of each pair minus the largest."""
    teacher = Teacher(work / "teacher")
    teacher.load_state_dict(load_file(work / "teacher.safetensors"))
    teacher.to(DEVICE).eval()
    order = np.argsort(-pairs.lengths, kind="stable")[: None if CUDA else 64]
    offsets = np.cumsum([0, *pairs.lengths.tolist()])
    scores = np.full((2, offsets[-1]), -30, np.float16)
    parts, start = [], 0
    while start < len(order):
        parts.append(order[start:][: max(1, 65536 // int(pairs.lengths[order[start]]))])
        start += len(parts[-1])
    for ids, keys, masks, _, own in batches(pairs, lambda worker: iter(parts[worker :: max(1, WORKERS)])):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=CUDA):
            logits = teacher(ids, masks).float().masked_fill(~keys, -1e4)  # [2, B, L]
        kept = (logits - logits.amax(-1, keepdim=True)).clamp(min=-30).half()
        rows = own.cpu().numpy()
        sizes = pairs.lengths[rows]
        places = np.repeat(offsets[rows] - np.cumsum([0, *sizes[:-1]]), sizes) + np.arange(sizes.sum())
        scores[:, places] = kept[:, ids != PAD].cpu().numpy()
    np.save(work / "scores.npy", scores)
    say("scored", len(order), "pairs")


def learn(work: Path, minutes: float, pairs: Pairs) -> None:
    """Train the reader and write its weights in half precision."""
    reader = Reader(work / "reader")
    read_weights(reader.body, work / "reader" / "model.safetensors")
    reader.to(DEVICE)
    say("before", measure(reader, held_out := Pairs(work / "held-out.npz")))
    scores = torch.from_numpy(np.load(work / "scores.npy")).to(DEVICE)
    offsets = torch.from_numpy(np.cumsum([0, *pairs.lengths.tolist()])).to(DEVICE)
    teaches = torch.from_numpy(pairs.kind != FOUND).to(DEVICE)
    given = batches(pairs, chunks(pairs, pairs.shares[:, 0], 256 if CUDA else 8, seed=2))

    def loss_of(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        ids, keys, _, edges, rows = batch
        places = offsets[rows][:, None] + torch.arange(ids.shape[1], device=DEVICE)  # i64 [B, L]
        taught = scores[:, places.clamp(max=scores.shape[1] - 1)].float().masked_fill(~keys, -1e4)  # [2, B, L]
        known = logits.masked_fill(~keys, -1e4)
        own, theirs = ((each / TEMPERATURE).log_softmax(-1) for each in (known, taught))  # [2, B, L] each
        divergence = (theirs.exp() * (theirs - own)).sum(-1) * TEMPERATURE**2  # [2, B]
        spans = span_losses(logits, keys, edges) * teaches[rows]  # [2, B]
        return (TEACHER_WEIGHT * divergence + (1 - TEACHER_WEIGHT) * spans).mean()

    seconds = 60 * minutes - (time.monotonic() - BEGAN) - (15 if CUDA else 0)
    log = work / "metrics.jsonl"
    train(reader, given, loss_of, seconds=seconds, rate=6e-4, warmup=100, chunks_per_step=2, log=log)
    state = {name: value.half().contiguous().cpu() for name, value in reader.body.state_dict().items()}
    kept = {name: value for name, value in state.items() if "word_embeddings" not in name and "_ids" not in name}
    save_file(kept, work / "reader.safetensors", {"format": "pt"})
    say("reader", measure(reader, held_out))


def main(part: str, work: Path, minutes: float) -> None:
    """One part."""
    torch.manual_seed(0)
    pairs = Pairs(work / "pairs.npz")
    say(part, len(pairs.kind), "pairs of", int(pairs.lengths.sum()), "tokens on", DEVICE)
    if part == "score":
        score(work, pairs)
    else:
        {"teach": teach, "learn": learn}[part](work, minutes, pairs)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0)
