"""What `scripts/pack_pairs.py` wrote, as batches for `scripts/distil_reader.py`.

Shapes: B pairs, L padded length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

CLS, SEP, MASK, PAD = 101, 102, 103, -1
FOUND, ABSENT = 1, 2
ABSENT_FRACTION = 0.2
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
WORKERS = 14 if CUDA else 0
Batch = Sequence[torch.Tensor]


class Pairs:
    """What `scripts/pack_pairs.py` wrote."""

    def __init__(self, path: Path) -> None:
        given = dict(np.load(path))
        self.passage_ids, self.passage_offsets = given["passage_ids"], given["passage_offsets"]
        self.question_ids, self.question_offsets = given["question_ids"], given["question_offsets"]
        self.title_sizes, self.mask_places = given["title_sizes"], given["mask_places"]
        self.spans, self.span_offsets = given["spans"], given["span_offsets"]
        self.shares = given["shares"]
        self.question, self.passage, self.kind, self.number = given["pairs"].T  # i32 [n] each
        texts = np.diff(self.question_offsets)[self.question] + np.diff(self.passage_offsets)[self.passage]
        self.lengths = texts + 5  # i32 [n], with the first token, two masks and two suffixes

    def batch(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """Ids i32 [B, L], keys bool [B, L], masks i64 [B, 2], edges bool [2, B, L] and rows i64 [B]."""
        size, longest = len(rows), int(self.lengths[rows].max())
        ids, keys = np.full((size, longest), PAD, np.int32), np.zeros((size, longest), bool)
        edges, masks = np.zeros((2, size, longest), bool), np.zeros((size, 2), np.int64)
        for place, row in enumerate(rows):
            question, passage = self.question[row], self.passage[row]
            asked = self.question_ids[slice(*self.question_offsets[question : question + 2])]
            read = self.passage_ids[slice(*self.passage_offsets[passage : passage + 2])]
            before = int(self.mask_places[question])
            parts = ([CLS], asked[:before], [MASK, MASK], asked[before:], [SEP], read, [SEP])
            whole = np.concatenate(parts)
            first = 4 + len(asked) + int(self.title_sizes[passage])
            ids[place, : len(whole)] = whole
            keys[place, first : len(whole) - 1] = keys[place, 0] = True
            masks[place] = 1 + before, 2 + before
            spans = self.spans[slice(*self.span_offsets[row : row + 2])].astype(np.int64) + first  # i64 [., 2]
            for side in (0, 1):
                edges[side, place, spans[:, side] if len(spans) else 0] = True
        return ids, keys, masks, edges, np.asarray(rows, dtype=np.int64)


def chunks(pairs: Pairs, shares: np.ndarray, size: int, seed: int) -> Callable[[int], Iterator[np.ndarray]]:
    """Endless rows i64 [size] for a worker, of like lengths; a short and a long chunk for neighbouring workers."""
    weights = np.zeros(len(pairs.kind))
    for number, share in enumerate(shares.tolist()):
        own = pairs.number == number
        absent = own & (pairs.kind == ABSENT)
        present = own & ~absent
        fraction = ABSENT_FRACTION if absent.any() else 0
        weights[present] = share * (1 - fraction) / max(1, present.sum())
        weights[absent] = share * fraction / max(1, absent.sum())
    totals = np.cumsum(weights / weights.sum())  # f64 [n]

    def drawn(worker: int) -> Iterator[np.ndarray]:
        rng, parts = np.random.default_rng([seed, worker]), 8
        while True:
            rows = np.minimum(np.searchsorted(totals, rng.random(size * parts)), len(totals) - 1)  # i64 [size parts]
            sorted_rows = rows[np.argsort(pairs.lengths[rows], kind="stable")].reshape(parts, size)
            for part in rng.permutation(parts // 2):
                yield from sorted_rows[[part, parts - 1 - part][:: -1 if worker % 2 else 1]]

    return drawn


class _Batches(torch.utils.data.IterableDataset[Batch]):
    def __init__(self, pairs: Pairs, rows_of: Callable[[int], Iterator[np.ndarray]]) -> None:
        self.pairs, self.rows_of = pairs, rows_of

    def __iter__(self) -> Iterator[Batch]:
        worker = torch.utils.data.get_worker_info()
        for rows in self.rows_of(worker.id if worker else 0):
            yield [torch.from_numpy(array) for array in self.pairs.batch(rows)]


def batches(pairs: Pairs, rows_of: Callable[[int], Iterator[np.ndarray]]) -> Iterator[Batch]:
    """Batches on the device, made by processes."""
    loader = torch.utils.data.DataLoader(
        _Batches(pairs, rows_of),
        batch_size=None,
        num_workers=WORKERS,
        pin_memory=CUDA,
        prefetch_factor=8 if WORKERS else None,
    )
    for batch in loader:
        yield [tensor.to(DEVICE, non_blocking=True) for tensor in batch]
