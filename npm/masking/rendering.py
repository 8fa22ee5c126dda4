"""Rendering of selected spans for the encoder: masked copies as queries, clean copies as keys.

Shapes: T tokens of all sequences in a row, S sequences, n spans, B = S padded sequences, L padded length.

A group's masks depend on the generator given for it alone, so they do not depend on the rest of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from npm.core.types import MASKS_PER_SPAN, Sequences, Spans, TokenFlag
from npm.corpus.blocks import concatenated_ranges
from npm.corpus.text import is_title
from npm.masking.batches import MaskedBatch, View
from npm.masking.masker import (
    Contexts,
    Masker,
    QuestionForm,
    draw_contexts,
    masked_positions,
    merge_contexts,
    spans_kept,
)

if TYPE_CHECKING:
    import torch

EDGE_BITS = 32
"""Bits of a token id; if only full words count, the flags of a word's ends are above them."""


@dataclass(frozen=True, slots=True)
class MaskRenderer:
    """Turns sequences and their selected spans into one device batch; draws nothing at random.

    A span of any length becomes two mask tokens (arXiv 2212.01349, section 3.2); with `masks_per_span=1` each
    of its tokens becomes one and is a separate span (NPM-single). `prefix_ids` and `suffix_ids` are the special
    tokens that the encoder wants around a sequence; empty where the sequences contain them. Padding is on the right.
    """

    mask_id: int
    pad_id: int
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    max_input_tokens: int = 512
    """Longest input of the encoder in tokens; what a masked copy reads is cut to fit."""
    whole_words: bool = False
    """Count an occurrence only if it begins and ends with a word, as in `CooccurringWordUnits`."""
    masks_per_span: int = MASKS_PER_SPAN

    def render(self, sequences: Sequences, spans: Spans, contexts: Contexts | None = None) -> MaskedBatch:
        """The batch, on the CPU: masked copies as queries, clean copies as keys, the slots of each span's masks.

        `contexts` says what each masked copy keeps and which sequence it reads: its other spans are omitted, and the
        suffix and that sequence, unmasked, follow it.
        """
        import torch

        spans = split_into_tokens(spans) if self.masks_per_span == 1 else spans
        token_count = len(sequences.token_ids)
        copies = np.ones(token_count, dtype=np.int64)  # i64 [T], number of times a position is in the masked text
        if contexts is not None:
            spans = spans_kept(spans, sequences, contexts)
            positions = np.arange(token_count)  # i64 [T]
            sizes = np.diff(sequences.offsets)  # i64 [S]
            copies[
                (positions < np.repeat(contexts.starts, sizes)) | (positions >= np.repeat(contexts.stops, sizes))
            ] = 0
        copies[masked_positions(spans)] = 0
        copies[spans.starts] = self.masks_per_span
        query_positions = np.append(0, np.cumsum(copies))  # i64 [T + 1], where a position went
        query_offsets = query_positions[sequences.offsets]  # i64 [S + 1]
        token_ids = sequences.token_ids.astype(np.int64)  # i64 [T]
        masked_ids = token_ids.copy()
        masked_ids[spans.starts] = self.mask_id
        masked_flat = np.repeat(masked_ids, copies)  # i64 [masked copies in a row]
        shown_flat, shown_offsets, read_flat = masked_flat, query_offsets, None
        if contexts is not None:
            shown_flat, shown_offsets, read_flat = self._with_contexts(masked_flat, query_offsets, sequences, contexts)
        framed = partial(padded_rows, pad_id=self.pad_id, prefix_ids=self.prefix_ids, suffix_ids=self.suffix_ids)
        query_input_ids, query_attention_mask = framed(shown_flat, shown_offsets)
        key_input_ids, key_attention_mask = framed(token_ids, sequences.offsets)

        known_as, key_identities = token_ids, None
        if self.whole_words:
            edges = sequences.flags & np.uint8(TokenFlag.WORD_START | TokenFlag.WORD_END)  # u8 [T]
            known_as = token_ids | edges.astype(np.int64) << EDGE_BITS  # i64 [T]
            key_identities, _ = framed(known_as, sequences.offsets)
        # Empty sequences share their offset with the next one; side="right" skips them.
        span_sequences = np.searchsorted(sequences.offsets, spans.starts, side="right") - 1  # i64 [n]
        start_slots = query_positions[spans.starts] - query_offsets[span_sequences] + len(self.prefix_ids)  # i64 [n]
        return MaskedBatch(
            query_input_ids=query_input_ids,
            query_attention_mask=query_attention_mask,
            key_input_ids=key_input_ids,
            key_attention_mask=key_attention_mask,
            span_sequences=torch.from_numpy(span_sequences),
            start_slots=torch.from_numpy(start_slots),
            end_slots=torch.from_numpy(start_slots + self.masks_per_span - 1),
            span_token_ids=torch.from_numpy(_span_token_ids(known_as, spans)),
            pad_id=self.pad_id,
            key_identities=key_identities,
            key_titles=self._padded_marks(is_title(sequences.flags), sequences.offsets),
            read_tokens=None if read_flat is None else self._padded_marks(read_flat, shown_offsets),
        )

    def _padded_marks(self, marked: np.ndarray, offsets: np.ndarray) -> torch.Tensor | None:
        """Marks bool [T] of ragged tokens as rows bool [B, L] of the padded ones; None where nothing is marked."""
        if not marked.any():
            return None
        around = {"prefix_ids": (0,) * len(self.prefix_ids), "suffix_ids": (0,) * len(self.suffix_ids)}
        return padded_rows(marked.astype(np.int64), offsets, pad_id=0, **around)[0].bool()  # bool [B, L]

    def _with_contexts(
        self, masked_flat: np.ndarray, offsets: np.ndarray, sequences: Sequences, contexts: Contexts
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Masked copies i64 [.], each followed by the suffix and the clean sequence it reads, and their offsets.

        Last, bool [.], the mask of tokens of a sequence that is read, without its title.
        """
        parts: list[np.ndarray] = []
        is_read: list[np.ndarray] = []
        for number, context in enumerate(contexts.numbers.tolist()):
            part = masked_flat[offsets[number] : offsets[number + 1]]
            room = self.max_input_tokens - len(self.prefix_ids) - 2 * len(self.suffix_ids) - len(part)
            read = slice(0, 0)
            if context >= 0 and room > 0:
                first, stop = sequences.offsets[context : context + 2].tolist()
                read = slice(first, min(stop, first + room))
                ids = sequences.token_ids[read].astype(np.int64)  # i64 [read]
                part = np.concatenate([part, np.array(self.suffix_ids, dtype=np.int64), ids])
            parts.append(part)
            of_text = ~is_title(sequences.flags[read])  # bool [read]
            is_read.append(np.concatenate([np.zeros(len(part) - len(of_text), dtype=bool), of_text]))
        shown_offsets = np.append(0, np.cumsum([len(part) for part in parts]))  # i64 [S + 1]
        return np.concatenate(parts), shown_offsets, np.concatenate(is_read)


def padded_rows(
    flat_ids: np.ndarray,
    offsets: np.ndarray,
    *,
    pad_id: int,
    prefix_ids: tuple[int, ...] = (),
    suffix_ids: tuple[int, ...] = (),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ragged ids i64 [T] with offsets i64 [B + 1] as rows with prefix and suffix, padded on the right, and attention.

    Returns i64 [B, L] each; attention is 1 on all that is not padding.
    """
    import torch

    prefix_size, suffix_size = len(prefix_ids), len(suffix_ids)
    sizes = np.diff(offsets)  # i64 [B]
    full_sizes = sizes + prefix_size + suffix_size  # i64 [B]
    columns = np.arange(full_sizes.max(initial=0))  # i64 [L]
    padded = np.full((len(sizes), len(columns)), pad_id, dtype=np.int64)  # i64 [B, L]
    padded[:, :prefix_size] = prefix_ids
    text_columns = concatenated_ranges(np.full(len(sizes), prefix_size), prefix_size + sizes)  # i64 [T]
    padded[np.repeat(np.arange(len(sizes)), sizes), text_columns] = flat_ids
    suffix_columns = (prefix_size + sizes)[:, None] + np.arange(suffix_size)  # i64 [B, suffix]
    np.put_along_axis(padded, suffix_columns, np.array([suffix_ids], dtype=np.int64), axis=1)
    attention = (columns < full_sizes[:, None]).astype(np.int64)  # i64 [B, L]
    return torch.from_numpy(padded), torch.from_numpy(attention)


def split_into_tokens(spans: Spans) -> Spans:
    """Each token of each span as a separate span."""
    positions = masked_positions(spans)  # i64 [masked tokens]
    return Spans(starts=positions, lengths=np.ones_like(positions))


def merge_groups(groups: Sequence[tuple[Sequences, Spans]]) -> tuple[Sequences, Spans]:
    """Several masked groups, at least one, as one, so that they can share a device batch; the order is kept."""
    shifts = np.cumsum([0, *(len(sequences.token_ids) for sequences, _ in groups)])  # i64 [groups + 1]
    offsets = [sequences.offsets[:-1] + shift for (sequences, _), shift in zip(groups, shifts[:-1], strict=True)]
    starts = [spans.starts + shift for (_, spans), shift in zip(groups, shifts[:-1], strict=True)]
    merged_sequences = Sequences(
        token_ids=np.concatenate([sequences.token_ids for sequences, _ in groups]),  # i32 [T]
        flags=np.concatenate([sequences.flags for sequences, _ in groups]),  # u8 [T]
        offsets=np.concatenate([*offsets, shifts[-1:]]),  # i64 [S + 1]
    )
    merged_spans = Spans(
        starts=np.concatenate(starts),  # i64 [n]
        lengths=np.concatenate([spans.lengths for _, spans in groups]),  # i64 [n]
    )
    return merged_sequences, merged_spans


def _span_token_ids(token_ids: np.ndarray, spans: Spans) -> np.ndarray:
    """The tokens of each span, i64 [n, longest span], padded with -1; one column at least."""
    columns = np.arange(spans.lengths.max(initial=1))  # i64 [longest span]
    inside = columns < spans.lengths[:, None]  # bool [n, longest span]
    positions = np.where(inside, spans.starts[:, None] + columns, 0)  # i64 [n, longest span]
    if not len(spans):
        return np.full(inside.shape, -1, dtype=np.int64)
    return np.where(inside, token_ids[positions], -1)


PHRASES, TOKENS, DENOISING, SENTENCES = "phrases", "tokens", "denoising", "sentences"
LABELED, QUESTIONS, PASSAGES = "labeled", "questions", "passages"
"""Names of the views; an objective names the ones it reads."""
VIEW_NUMBERS = {PHRASES: 0, TOKENS: 1, DENOISING: 2, SENTENCES: 3, LABELED: 4, QUESTIONS: 5, PASSAGES: 6}
"""Different views of one group draw from different generators."""


def reads_blocks(views: set[str]) -> bool:
    """Return True if any of `views` is made from blocks; masked tokens next to sentences are made from those."""
    others = views - {LABELED, QUESTIONS, PASSAGES}
    return bool(others) and (SENTENCES not in others or not others <= {SENTENCES, TOKENS})


class ViewMaker(Protocol):
    """Makes one view of the groups that share a device batch."""

    def view(self, groups: Sequence[Sequences], rngs: Sequence[np.random.Generator]) -> View:
        """The view, on the CPU; `rngs` holds one generator for each group."""


@dataclass(frozen=True, slots=True)
class PhraseViews:
    """Masked copies for the phrase loss, and the clean copies that they are compared with."""

    masker: Masker
    renderer: MaskRenderer
    context_fraction: float = 0.0
    """Fraction of the masked copies that are questions, as in `draw_contexts`."""
    question: QuestionForm = QuestionForm.whole

    def view(self, groups: Sequence[Sequences], rngs: Sequence[np.random.Generator]) -> MaskedBatch:
        """The groups masked one by one and merged."""
        masked: list[tuple[Sequences, Spans, Contexts]] = []
        for group, rng in zip(groups, rngs, strict=True):
            # a group with too little to mask still serves as keys
            spans = self.masker.select(group, rng) or Spans(np.zeros(0, np.int64), np.zeros(0, np.int64))
            contexts = draw_contexts(
                group, spans, context_fraction=self.context_fraction, question=self.question, rng=rng
            )
            masked.append((group, spans, contexts))
        merged = merge_groups([(sequences, spans) for sequences, spans, _ in masked])
        if not self.context_fraction:
            return self.renderer.render(*merged)
        return self.renderer.render(*merged, merge_contexts([(sequences, own) for sequences, _, own in masked]))
