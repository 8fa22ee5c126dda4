"""Sequences and their masked spans as inputs and targets of an encoder-decoder: every span becomes a sentinel.

    text      a b c d e f g          masked: b c and f
    inputs    [R] a <0> d e <1> g </s>
    targets   <0> b c <1> f </s>

(Raffel et al. 2020, arXiv 1910.10683, §3.1.4, without the sentinel at the end of the targets; mode tokens as in
Tay et al. 2022, arXiv 2205.05131, §3.1.3.)

Shapes: T tokens of all sequences in a row, B = S sequences, n spans, L padded length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from npm.corpus.blocks import concatenated_ranges
from npm.errors import EncoderError
from npm.masking.contexts import masked_positions
from npm.types import DenoisingBatch, Sequences, Spans

NO_TARGET = -100
"""What stands in targets behind their end; the models of `transformers` and the loss pass over it."""


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The special tokens that inputs and targets are made with; draws nothing at random."""

    sentinel_ids: tuple[int, ...]
    """One for each span of a sequence, in the order of the text."""
    end_id: int
    """Ends inputs and targets."""
    pad_id: int
    mode_ids: tuple[int, ...] = ()
    """What inputs begin with, by the number of their denoiser; empty: no input has such a token."""

    def render(self, sequences: Sequences, spans: Spans, denoisers: np.ndarray) -> DenoisingBatch:
        """The batch, on the CPU; `denoisers` i64 [S] says which denoiser drew the spans of each sequence.

        Raises EncoderError if a sequence has more spans than there are sentinels.
        """
        # Empty sequences share their offset with the next one; side="right" passes over them.
        owners = np.searchsorted(sequences.offsets, spans.starts, side="right") - 1  # i64 [n]
        span_counts = np.bincount(owners, minlength=len(sequences))  # i64 [S]
        check_sentinel_count(len(self.sentinel_ids), int(span_counts.max(initial=0)))
        first_spans = np.cumsum(span_counts) - span_counts  # i64 [S]
        within = np.arange(len(spans)) - first_spans[owners]  # i64 [n], number of a span in its sequence
        sentinels = np.array(self.sentinel_ids, dtype=np.int64)[within]  # i64 [n]
        input_ids, attention_mask = self._inputs(sequences, spans, sentinels, denoisers)
        target_flat, target_sizes = self._targets(sequences, spans, sentinels, owners)
        return DenoisingBatch(
            input_ids=torch.from_numpy(input_ids),
            attention_mask=torch.from_numpy(attention_mask),
            target_ids=torch.from_numpy(_padded(target_flat, target_sizes, NO_TARGET)),
            denoisers=torch.from_numpy(np.asarray(denoisers, dtype=np.int64)),
            text_token_count=len(sequences.token_ids),
        )

    def _inputs(
        self, sequences: Sequences, spans: Spans, sentinels: np.ndarray, denoisers: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Padded inputs and their attention mask, i64 [B, L] each."""
        kept = np.ones(len(sequences.token_ids), dtype=bool)  # bool [T]
        kept[masked_positions(spans)] = False
        kept[spans.starts] = True
        replaced = sequences.token_ids.astype(np.int64)  # i64 [T]
        replaced[spans.starts] = sentinels
        offsets = np.append(0, np.cumsum(kept))[sequences.offsets]  # i64 [S + 1]
        sizes = np.diff(offsets) + 1  # i64 [S], with the end
        flat = np.insert(replaced[kept], offsets[1:], self.end_id)  # i64 [tokens of the inputs]
        if self.mode_ids:
            modes = np.array(self.mode_ids, dtype=np.int64)[denoisers]  # i64 [S]
            flat = np.insert(flat, np.cumsum(sizes) - sizes, modes)
            sizes += 1
        attention = np.arange(sizes.max(initial=0)) < sizes[:, None]  # bool [B, L]
        return _padded(flat, sizes, self.pad_id), attention.astype(np.int64)

    def _targets(
        self, sequences: Sequences, spans: Spans, sentinels: np.ndarray, owners: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Targets in a row, and how many tokens of them each sequence has, i64 [S]."""
        ends = np.cumsum(spans.lengths)  # i64 [n], in the masked tokens in a row
        masked = sequences.token_ids[masked_positions(spans)].astype(np.int64)  # i64 [masked tokens]
        flat = np.insert(masked, ends - spans.lengths, sentinels)  # i64 [masked tokens + n]
        sizes = np.bincount(owners, weights=spans.lengths + 1, minlength=len(sequences)).astype(np.int64)  # i64 [S]
        return np.insert(flat, np.cumsum(sizes), self.end_id), sizes + 1

    def restored(self, batch: DenoisingBatch) -> list[list[int]]:
        """The texts of a rendered batch, put together again from its inputs and targets.

        Raises ValueError where inputs and targets do not name the same sentinels.
        """
        texts = []
        for row in range(len(batch.input_ids)):
            inputs = batch.input_ids[row][batch.attention_mask[row].bool()].tolist()
            targets = batch.target_ids[row][batch.target_ids[row] != NO_TARGET].tolist()
            texts.append(self._restored_text(inputs[bool(self.mode_ids) : -1], targets[:-1]))
        return texts

    def _restored_text(self, inputs: list[int], targets: list[int]) -> list[int]:
        known = set(self.sentinel_ids)
        spans: dict[int, list[int]] = {}
        span: list[int] = []  # what stood before the first sentinel would belong to none; no rendering puts any there
        for token_id in targets:
            if token_id in known:
                span = spans[token_id] = []
            else:
                span.append(token_id)
        named = [token_id for token_id in inputs if token_id in known]
        if named != list(spans):
            raise ValueError(f"inputs name the sentinels {named}, targets {list(spans)}")
        return [part for token_id in inputs for part in spans.get(token_id, [token_id])]


def check_sentinel_count(available: int, needed: int) -> None:
    """Raise EncoderError if a sequence may have more spans than there are sentinels."""
    if needed > available:
        raise EncoderError(
            "the tokenizer has too few sentinels",
            expected=f"{needed} sentinels (<extra_id_0>, <extra_id_1>, …), one for each span of the longest block",
            got=str(available),
            where="denoising, blocks.max_block_tokens",
            fix="make blocks shorter, spans longer or rates lower, or choose a tokenizer with more sentinels",
        )


def _padded(flat: np.ndarray, sizes: np.ndarray, fill: int) -> np.ndarray:
    """Ragged rows as i64 [B, L] with `fill` on the right."""
    rows = np.full((len(sizes), sizes.max(initial=0)), fill, dtype=np.int64)  # i64 [B, L]
    columns = concatenated_ranges(np.zeros_like(sizes), sizes)  # i64 [tokens]
    rows[np.repeat(np.arange(len(sizes)), sizes), columns] = flat
    return rows
