"""Token sequences of uneven length: put into padded batches of about equal cost, and encoded without gradient.

Shapes: S sequences, B sequences of a batch, L padded length, n slots whose vectors are wanted, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

    from npm.models.encoder import Encoder


def encode_sequences(
    encoder: Encoder, sequences: Sequence[np.ndarray], slots: Sequence[np.ndarray], *, tokens_per_batch: int
) -> list[np.ndarray]:
    """Encode sequences of token ids, batched by length: for each the vectors f32 [n, d] at its `slots` i64 [n]."""
    vectors = [np.zeros((0, encoder.dimensions), dtype=np.float32)] * len(sequences)
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)  # i64 [S]
    for batch in length_sorted_batches(lengths, tokens_per_batch=tokens_per_batch):
        own = [slots[number] for number in batch]
        encoded = encode_batch(encoder, [sequences[number] for number in batch], own)  # f32 [n of the batch, d]
        parts = np.split(encoded, np.cumsum([len(each) for each in own])[:-1])
        for number, part in zip(batch.tolist(), parts, strict=True):
            vectors[number] = part
    return vectors


def encode_batch(encoder: Encoder, sequences: Sequence[np.ndarray], slots: Sequence[np.ndarray]) -> np.ndarray:
    """Encode sequences of token ids in one pass: the vectors f32 [n, d] at the `slots` i64 of all, in a row."""
    import torch

    states = encode_padded(encoder, sequences)  # f32 [B, L, d]
    rows = [number * states.shape[1] + own for number, own in enumerate(slots)]
    # Chosen on the device: padding and unwanted vectors are not copied to the host.
    chosen = states.flatten(0, 1).index_select(0, torch.from_numpy(np.concatenate(rows)).to(states.device))
    vectors: np.ndarray = chosen.cpu().numpy()  # f32 [n, d]
    return vectors


def encode_padded(encoder: Encoder, sequences: Sequence[np.ndarray]) -> torch.Tensor:
    """Token vectors f32 [B, L, d] of sequences of token ids, on the encoder's device, without gradient."""
    import torch

    input_ids, attention_mask = padded(sequences, pad_id=encoder.pad_id)  # i64 [B, L] each
    with torch.inference_mode():
        return encoder.token_vectors(
            torch.from_numpy(input_ids).to(encoder.device), torch.from_numpy(attention_mask).to(encoder.device)
        )  # f32 [B, L, d]


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


def padded(sequences: Sequence[np.ndarray], *, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Input ids and attention mask, i64 [B, L] each, of sequences of token ids."""
    longest = max(len(sequence) for sequence in sequences)
    input_ids = np.full((len(sequences), longest), pad_id, dtype=np.int64)  # [B, L]
    attention_mask = np.zeros((len(sequences), longest), dtype=np.int64)  # [B, L]
    for number, sequence in enumerate(sequences):
        input_ids[number, : len(sequence)] = sequence
        attention_mask[number, : len(sequence)] = 1
    return input_ids, attention_mask
