"""Groups of sequences that the masking tests share, and what batches of them were made from."""

from __future__ import annotations

import numpy as np
import torch

from npm.core.types import Sequences, Spans, TokenFlag
from npm.masking.batches import DenoisingBatch, MaskedBatch
from npm.masking.denoising import NO_TARGET, Sentinels

WORD = int(TokenFlag.WORD_START | TokenFlag.WORD_END)
CLAUSE_ID, SPECIAL_ID = 0, 1
"""In random groups these two token ids are clause punctuation and special; the others are ordinary."""


def group(*rows: list[int], flags: list[list[int]] | None = None) -> Sequences:
    """Sequences with these token ids; every token is a word of its own unless `flags` says otherwise."""
    flat = [token for row in rows for token in row]
    flat_flags = [WORD] * len(flat) if flags is None else [flag for row in flags for flag in row]
    return Sequences(
        token_ids=np.array(flat, dtype=np.int32),
        flags=np.array(flat_flags, dtype=np.uint8),
        offsets=np.cumsum([0, *(len(row) for row in rows)]),
    )


def random_group(
    rng: np.random.Generator, *, sequence_count: int, max_tokens: int, vocabulary: int, min_tokens: int = 0
) -> Sequences:
    """Sequences of random lengths, empty ones among them, with random word boundaries and stop-words."""
    sizes = rng.integers(min_tokens, max_tokens + 1, sequence_count)  # i64 [S]
    token_ids = rng.integers(0, vocabulary, sizes.sum()).astype(np.int32)  # i32 [T]
    flags = (rng.random(len(token_ids)) < 0.7) * np.uint8(TokenFlag.WORD_START)  # u8 [T]
    flags |= (rng.random(len(token_ids)) < 0.7) * np.uint8(TokenFlag.WORD_END)
    flags |= (rng.random(len(token_ids)) < 0.3) * np.uint8(TokenFlag.STOPWORD)
    flags[token_ids == CLAUSE_ID] |= np.uint8(TokenFlag.CLAUSE_PUNCTUATION | TokenFlag.PUNCTUATION)
    flags[token_ids == SPECIAL_ID] |= np.uint8(TokenFlag.SPECIAL)
    return Sequences(token_ids, flags, np.append(0, np.cumsum(sizes)))


def rich_group(rng: np.random.Generator, *, sequence_count: int = 16, tokens: int = 256) -> Sequences:
    """Every span of every sequence stands in another one too: the second half repeats the first."""
    half = rng.integers(2, 5000, (sequence_count // 2, tokens)).astype(np.int32)  # i32 [S / 2, tokens]
    token_ids = np.concatenate([half, half]).ravel()  # i32 [T]
    flags = np.full(len(token_ids), WORD, dtype=np.uint8)  # u8 [T]
    return Sequences(token_ids, flags, np.arange(sequence_count + 1) * tokens)


def pairs(spans: Spans) -> list[tuple[int, int]]:
    """(start, length) of each span."""
    return list(zip(spans.starts.tolist(), spans.lengths.tolist(), strict=True))


def spans_of(*spans: tuple[int, int]) -> Spans:
    """These (start, length) as spans."""
    table = np.array(spans, dtype=np.int64).reshape(-1, 2)  # i64 [n, 2]
    return Spans(table[:, 0], table[:, 1])


def without_padding(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> list[list[int]]:
    return [row[: int(mask.sum())].tolist() for row, mask in zip(input_ids, attention_mask, strict=True)]


def queries(batch: MaskedBatch) -> list[list[int]]:
    """The masked copies without padding."""
    return without_padding(batch.query_input_ids, batch.query_attention_mask)


def unmasked(batch: MaskedBatch) -> list[list[int]]:
    """The masked copies without padding, with the masks taken out and the masked tokens put in their places."""
    rows = queries(batch)
    for index in reversed(range(len(batch.span_sequences))):
        row = rows[int(batch.span_sequences[index])]
        tokens = [token for token in batch.span_token_ids[index].tolist() if token != -1]
        row[int(batch.start_slots[index]) : int(batch.end_slots[index]) + 1] = tokens
    return rows


def restored(sentinels: Sentinels, batch: DenoisingBatch) -> list[list[int]]:
    """The token ids of each text, put together again from its inputs and targets, which must name equal sentinels."""
    texts = []
    for row in range(len(batch.input_ids)):
        inputs = batch.input_ids[row][batch.attention_mask[row].bool()].tolist()[bool(sentinels.mode_ids) : -1]
        targets = batch.target_ids[row][batch.target_ids[row] != NO_TARGET].tolist()[:-1]
        spans: dict[int, list[int]] = {}
        span: list[int] = []  # what stood before the first sentinel would belong to none; no rendering puts any there
        for token_id in targets:
            if token_id in sentinels.sentinel_ids:
                span = spans[token_id] = []
            else:
                span.append(token_id)
        assert [token_id for token_id in inputs if token_id in sentinels.sentinel_ids] == list(spans)
        texts.append([part for token_id in inputs for part in spans.get(token_id, [token_id])])
    return texts
