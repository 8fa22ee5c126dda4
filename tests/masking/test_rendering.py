"""Rendering: masks where they belong, nothing lost, padding and special tokens in place."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from npm.core.types import MaskedBatch, Sequences, Spans
from npm.masking.masker import MaskingSettings, build_masker, mask_rng
from npm.masking.rendering import MASKS_PER_SPAN, MaskRenderer, merge_groups
from tests.helpers.groups import group, random_group

MASK, PAD, CLS, SEP = 900, 901, 902, 903
BARE = MaskRenderer(mask_id=MASK, pad_id=PAD)
WRAPPED = MaskRenderer(mask_id=MASK, pad_id=PAD, prefix_ids=(CLS,), suffix_ids=(SEP, SEP + 1))


def spans_of(*spans: tuple[int, int]) -> Spans:
    table = np.array(spans, dtype=np.int64).reshape(-1, 2)  # i64 [n, 2]
    return Spans(table[:, 0], table[:, 1])


def random_masked_group(seed: int) -> tuple[Sequences, Spans]:
    sequences = random_group(np.random.default_rng(seed), sequence_count=6, max_tokens=40, vocabulary=6)
    spans = build_masker(MaskingSettings(min_masked_fraction=0.0)).select(sequences, mask_rng(seed, 0, 0))
    assert spans is not None
    return sequences, spans


def unmasked(batch: MaskedBatch) -> list[list[int]]:
    """The query copies without padding, with the masks taken out and the masked tokens put in their places."""
    rows = _without_padding(batch.query_input_ids, batch.query_attention_mask)
    for index in reversed(range(len(batch.span_sequences))):
        row = rows[int(batch.span_sequences[index])]
        tokens = [token for token in batch.span_token_ids[index].tolist() if token != -1]
        row[int(batch.start_slots[index]) : int(batch.end_slots[index]) + 1] = tokens
    return rows


def clean(batch: MaskedBatch) -> list[list[int]]:
    return _without_padding(batch.key_input_ids, batch.key_attention_mask)


def _without_padding(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> list[list[int]]:
    return [row[: int(mask.sum())].tolist() for row, mask in zip(input_ids, attention_mask, strict=True)]


def test_a_span_becomes_a_mask_pair() -> None:
    batch = BARE.render(group([5, 6, 7, 8], [9, 10]), spans_of((1, 3), (4, 1)))
    assert batch.query_input_ids.tolist() == [[5, MASK, MASK], [MASK, MASK, 10]]
    assert batch.query_attention_mask.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert batch.key_input_ids.tolist() == [[5, 6, 7, 8], [9, 10, PAD, PAD]]
    assert batch.key_attention_mask.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch.span_sequences.tolist() == [0, 1]
    assert batch.start_slots.tolist() == [1, 0]
    assert batch.end_slots.tolist() == [2, 1]
    assert batch.span_token_ids.tolist() == [[6, 7, 8], [9, -1, -1]]


def test_special_tokens_stand_around_each_copy_and_shift_the_slots() -> None:
    batch = WRAPPED.render(group([5, 6], [7]), spans_of((1, 1)))
    assert batch.query_input_ids.tolist() == [[CLS, 5, MASK, MASK, SEP, SEP + 1], [CLS, 7, SEP, SEP + 1, PAD, PAD]]
    assert batch.key_input_ids.tolist() == [[CLS, 5, 6, SEP, SEP + 1], [CLS, 7, SEP, SEP + 1, PAD]]
    assert batch.key_attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert (batch.start_slots.tolist(), batch.end_slots.tolist()) == ([2], [3])


def test_single_masks_stand_in_the_places_of_the_tokens() -> None:
    renderer = MaskRenderer(masks_per_span=1, mask_id=MASK, pad_id=PAD, prefix_ids=(CLS,), suffix_ids=(SEP,))
    batch = renderer.render(group([5, 6, 7, 8], [9]), spans_of((1, 2), (4, 1)))
    assert batch.query_input_ids.tolist() == [[CLS, 5, MASK, MASK, 8, SEP], [CLS, MASK, SEP, PAD, PAD, PAD]]
    assert batch.start_slots.tolist() == batch.end_slots.tolist() == [2, 3, 1]
    assert batch.span_sequences.tolist() == [0, 0, 1]
    assert batch.span_token_ids.tolist() == [[6], [7], [9]]


@pytest.mark.parametrize("renderer", [BARE, WRAPPED, MaskRenderer(masks_per_span=1, mask_id=MASK, pad_id=PAD)])
def test_putting_the_masked_tokens_back_gives_the_clean_copy(
    renderer: MaskRenderer,
) -> None:
    for seed in range(20):
        batch = renderer.render(*random_masked_group(seed))
        assert unmasked(batch) == clean(batch)
        assert (batch.query_input_ids == PAD).equal(batch.query_attention_mask == 0)
        assert (batch.key_input_ids == PAD).equal(batch.key_attention_mask == 0)


def test_without_spans_the_query_copies_are_the_clean_copies() -> None:
    batch = WRAPPED.render(group([5, 6], [7]), spans_of())
    assert batch.query_input_ids.equal(batch.key_input_ids)
    assert batch.query_attention_mask.equal(batch.key_attention_mask)
    assert batch.start_slots.shape == batch.end_slots.shape == batch.span_sequences.shape == (0,)
    assert batch.span_token_ids.shape == (0, 1)


def test_empty_sequences_keep_their_row() -> None:
    batch = WRAPPED.render(group([], [5, 6], [], [7]), spans_of((0, 1), (2, 1)))
    assert batch.span_sequences.tolist() == [1, 3]
    assert clean(batch) == [[CLS, SEP, SEP + 1], [CLS, 5, 6, SEP, SEP + 1], [CLS, SEP, SEP + 1], [CLS, 7, SEP, SEP + 1]]


def test_no_sequences_give_an_empty_batch() -> None:
    assert BARE.render(group(), spans_of()).query_input_ids.shape == (0, 0)


def test_merged_groups_render_like_the_groups_one_after_the_other() -> None:
    groups = [random_masked_group(seed) for seed in range(3)]
    sequences, spans = merge_groups(groups)
    merged = WRAPPED.render(sequences, spans)
    parts = [WRAPPED.render(*part) for part in groups]
    assert clean(merged) == [row for part in parts for row in clean(part)]
    assert unmasked(merged) == clean(merged)
    assert merged.start_slots.tolist() == [slot for part in parts for slot in part.start_slots.tolist()]
    assert len(sequences) == sum(len(part) for part, _ in groups)


def test_recorded_groups_become_shorter_or_longer_by_their_spans_parity(
    parity_groups: list[tuple[Sequences, Spans]],
) -> None:
    for sequences, spans in parity_groups:
        batch = BARE.render(sequences, spans)
        sizes = np.diff(sequences.offsets)  # i64 [S]
        in_sequence = np.searchsorted(sequences.offsets, spans.starts, side="right") - 1  # i64 [n]
        change = np.bincount(in_sequence, MASKS_PER_SPAN - spans.lengths, minlength=len(sequences))  # f64 [S]
        assert batch.query_attention_mask.sum(1).tolist() == (sizes + change).tolist()
        assert batch.key_attention_mask.sum(1).tolist() == sizes.tolist()
        assert unmasked(batch) == clean(batch)
        assert (batch.end_slots - batch.start_slots == 1).all()
