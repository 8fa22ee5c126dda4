"""Batches of sentences that are the same in every process: tokenizers trained on the spot are not."""

from __future__ import annotations

import torch

from npm.masking.batches import SentenceBatch

PAD_ID, FIRST_WORD_ID, LAST_WORD_ID = 0, 20, 300
LENGTHS = (9, 4, 12, 6, 12, 3, 8)
"""Tokens of the sentences, one after the other."""


def sentences(count: int, *, seed: int = 0) -> list[torch.Tensor]:
    """Token ids i64 [length] of some sentences of uneven length."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [LENGTHS[number % len(LENGTHS)] for number in range(count)]
    return [torch.randint(FIRST_WORD_ID, LAST_WORD_ID, (length,), generator=generator) for length in lengths]


def batch_of(*columns: list[torch.Tensor]) -> SentenceBatch:
    """Anchors, positives and perhaps hard negatives as one batch."""
    rows = [row for column in columns for row in column]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD_ID)  # i64 [rows, L]
    shown = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)  # i64 [rows, L]
    return SentenceBatch(ids, shown, len(columns[0]), PAD_ID)
