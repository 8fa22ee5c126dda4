"""Token sequences of uneven length: put into batches of about equal cost, and encoded without gradient.

Shapes: S sequences, B sequences of a batch with N tokens in all, n slots whose vectors are wanted, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from npm.core.errors import ArtifactError
from npm.models.settings import LAST_LAYER_POOLERS, PoolerKind

if TYPE_CHECKING:
    from npm.models.encoder import Encoder


class EncodedBatch(NamedTuple):
    """Vectors of one pass."""

    vectors: np.ndarray  # f32 [n, d], at the slots of all sequences
    pooled: np.ndarray | None  # f32 [B, d], of length 1; None where no pooler was given


class EncodedSequences(NamedTuple):
    """Vectors of some sequences."""

    vectors: list[np.ndarray]  # f32 [n, d] of each sequence, at its slots
    pooled: np.ndarray | None  # f32 [S, d], of length 1; None where no pooler was given


def encode_sequences(
    encoder: Encoder,
    sequences: Sequence[np.ndarray],
    slots: Sequence[np.ndarray],
    pooler: PoolerKind | None = None,
    *,
    tokens_per_batch: int,
) -> EncodedSequences:
    """Encode sequences of token ids, batched by length: for each the vectors f32 [n, d] at its `slots` i64 [n].

    With a `pooler` in the same passes one vector of length 1 for each sequence, 0s for an empty one. Raises ValueError
    for a pooler that reads more than the last layer, ArtifactError for tokens unknown to the model.
    """
    vectors = [np.zeros((0, encoder.dimensions), dtype=np.float32)] * len(sequences)
    pooled = None if pooler is None else np.zeros((len(sequences), encoder.dimensions), dtype=np.float32)  # f32 [S, d]
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)  # i64 [S]
    filled = np.flatnonzero(lengths)  # i64 [not empty]
    for places in length_sorted_batches(lengths[filled], tokens_per_batch=tokens_per_batch):
        batch = filled[places]  # i64 [B]
        own = [slots[number] for number in batch]
        encoded = encode_batch(encoder, [sequences[number] for number in batch], own, pooler)
        parts = np.split(encoded.vectors, np.cumsum([len(each) for each in own])[:-1])
        for number, part in zip(batch.tolist(), parts, strict=True):
            vectors[number] = part
        if pooled is not None and encoded.pooled is not None:
            pooled[batch] = encoded.pooled
    return EncodedSequences(vectors, pooled)


def encode_batch(
    encoder: Encoder,
    sequences: Sequence[np.ndarray],
    slots: Sequence[np.ndarray],
    pooler: PoolerKind | None = None,
) -> EncodedBatch:
    """Encode sequences of token ids in one pass: the concatenated vectors at the `slots` i64 of each, and those pooled.

    Raises ValueError for a pooler that reads more than the last layer.
    """
    import torch

    if pooler is not None and pooler not in LAST_LAYER_POOLERS:
        raise ValueError(f"the pooler {pooler.name} reads more than the last layer")
    lengths = [len(sequence) for sequence in sequences]
    ids = torch.from_numpy(np.concatenate(sequences)).to(encoder.device)  # i64 [N]
    with torch.inference_mode():
        try:
            states = encoder.packed_vectors(ids, lengths)  # f32 [N, d]
        except IndexError:  # of torch's embedding, on the CPU; the ids of a foreign index may be anything
            raise ArtifactError(
                f"{encoder.name} has no token {int(ids.max())}: the stored blocks are damaged or forged; build again"
            ) from None
        starts = np.cumsum([0, *lengths[:-1]])  # i64 [B]
        rows = np.concatenate([start + own for start, own in zip(starts, slots, strict=True)])  # i64 [n]
        # chosen and pooled on the device: unwanted vectors are not copied to the host
        chosen = states.index_select(0, torch.from_numpy(rows).to(states.device)).cpu().numpy()  # f32 [n, d]
        if pooler is None:
            return EncodedBatch(chosen, None)
        parts = states.split(lengths)
        pooled = torch.stack([part.mean(0) if pooler is PoolerKind.avg else part[0] for part in parts])  # f32 [B, d]
    return EncodedBatch(chosen, torch.nn.functional.normalize(pooled, dim=1).cpu().numpy())


def length_sorted_batches(lengths: np.ndarray, *, tokens_per_batch: int) -> list[np.ndarray]:
    """Sequence numbers i64 [B] of each batch, longest first: a function of the lengths [S] alone.

    A batch, padded to its longest sequence, has at most `tokens_per_batch` tokens, or one sequence.

    >>> import numpy as np
    >>> [batch.tolist() for batch in length_sorted_batches(np.array([3, 9, 4, 4]), tokens_per_batch=10)]
    [[1], [2, 3], [0]]
    """
    order = np.argsort(-lengths, kind="stable")  # i64 [S]
    batches: list[np.ndarray] = []
    start = 0
    while start < len(order):
        count = max(1, tokens_per_batch // max(1, int(lengths[order[start]])))
        batches.append(order[start : start + count])
        start += count
    return batches
