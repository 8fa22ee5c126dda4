"""Rendering: masks where they belong, in place or in copies, nothing lost, padding and special tokens in place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from npm.core.types import MASKS_PER_SPAN, Sequences, Spans
from npm.masking.batches import MaskedBatch
from npm.masking.corruption import (
    CorruptedTokens,
    CorruptionSampler,
    CorruptionSettings,
    CorruptionUnit,
    InPlaceViews,
    build_in_place_views,
)
from npm.masking.masker import MaskingSettings, build_masker, mask_rng
from npm.masking.rendering import MaskRenderer, merge_groups
from tests.helpers.groups import group, random_group, spans_of, unmasked, without_padding

MASK, PAD, CLS, SEP = 900, 901, 902, 903
BARE = MaskRenderer(mask_id=MASK, pad_id=PAD)
WRAPPED = MaskRenderer(mask_id=MASK, pad_id=PAD, prefix_ids=(CLS,), suffix_ids=(SEP, SEP + 1))


def random_masked_group(seed: int) -> tuple[Sequences, Spans]:
    sequences = random_group(np.random.default_rng(seed), sequence_count=6, max_tokens=40, vocabulary=6)
    spans = build_masker(MaskingSettings(min_masked_fraction=0.0)).select(sequences, mask_rng(seed, 0, 0))
    assert spans is not None
    return sequences, spans


def clean(batch: MaskedBatch) -> list[list[int]]:
    return without_padding(batch.key_input_ids, batch.key_attention_mask)


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
def test_putting_the_masked_tokens_back_gives_the_clean_copy(renderer: MaskRenderer) -> None:
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


def test_recorded_groups_change_by_their_spans_parity(parity_groups: list[tuple[Sequences, Spans]]) -> None:
    for sequences, spans in parity_groups:
        batch = BARE.render(sequences, spans)
        sizes = np.diff(sequences.offsets)  # i64 [S]
        in_sequence = np.searchsorted(sequences.offsets, spans.starts, side="right") - 1  # i64 [n]
        change = np.bincount(in_sequence, MASKS_PER_SPAN - spans.lengths, minlength=len(sequences))  # f64 [S]
        assert batch.query_attention_mask.sum(1).tolist() == (sizes + change).tolist()
        assert batch.key_attention_mask.sum(1).tolist() == sizes.tolist()
        assert unmasked(batch) == clean(batch)
        assert (batch.end_slots - batch.start_slots == 1).all()


ORDINARY = np.arange(100, 900)
"""Disjoint from the ids of random groups, so that a random replacement can be told from what stood there."""
AROUND = {"prefix_ids": (CLS,), "suffix_ids": (SEP, SEP)}


def selection(*spans: tuple[int, int], predicted: list[int]) -> CorruptedTokens:
    return CorruptedTokens(spans_of(*spans), np.array(predicted, dtype=np.int64))


def rendered(sequences: Sequences, *selections: CorruptedTokens, **fields: Any) -> MaskedBatch:
    selector: Any = SimpleNamespace(select=lambda *_: selections)
    views = InPlaceViews(selector, mask_id=MASK, pad_id=PAD, ordinary_ids=ORDINARY, **fields)
    return views.view([sequences], [np.random.default_rng(0)])


def random_batch(seed: int, **fields: Any) -> tuple[Sequences, MaskedBatch]:
    sequences = random_group(np.random.default_rng(seed), sequence_count=6, max_tokens=40, vocabulary=9)
    views = build_in_place_views(
        CorruptionSettings(**fields),
        mask_id=MASK,
        pad_id=PAD,
        ordinary_ids=ORDINARY,
        prefix_ids=(CLS,),
        suffix_ids=(SEP,),
    )
    return sequences, views.view([sequences], [mask_rng(seed, 0, 0, 1)])


def test_only_predicted_tokens_are_spans_though_more_are_masked() -> None:
    batch = rendered(group([5, 6, 7, 8], [9, 10]), selection((1, 2), (4, 1), predicted=[2, 4]), **AROUND)
    assert batch.query_input_ids.tolist() == [[CLS, 5, MASK, MASK, 8, SEP, SEP], [CLS, MASK, 10, SEP, SEP, PAD, PAD]]
    assert batch.query_attention_mask.tolist() == [[1] * 7, [1] * 5 + [0] * 2]
    assert batch.span_sequences.tolist() == [0, 1]
    assert batch.start_slots.tolist() == batch.end_slots.tolist() == [3, 1]
    assert batch.span_token_ids.tolist() == [[7], [9]]
    assert batch.key_input_ids.tolist() == [[CLS, 5, 6, 7, 8, SEP, SEP], [CLS, 9, 10, SEP, SEP, PAD, PAD]]


def test_copies_of_a_group_stand_one_behind_the_other_and_its_text_counts_once() -> None:
    selections = selection((0, 1), (2, 1), predicted=[0, 2]), selection((1, 1), (3, 1), predicted=[1, 3])
    batch = rendered(group([5, 6], [7, 8]), *selections)
    assert batch.query_input_ids.tolist() == [[MASK, 6], [MASK, 8], [5, MASK], [7, MASK]]
    assert batch.key_input_ids.tolist() == [[5, 6], [7, 8]]
    assert batch.token_count == 4
    assert batch.span_sequences.tolist() == [0, 1, 2, 3]
    assert batch.start_slots.tolist() == [0, 0, 1, 1]
    assert batch.span_token_ids.tolist() == [[5], [7], [6], [8]]


def test_with_masks_only_it_is_the_batch_of_the_single_mask_renderer() -> None:
    for seed in range(20):
        sequences = random_group(np.random.default_rng(seed), sequence_count=6, max_tokens=40, vocabulary=6)
        positions = np.flatnonzero(np.random.default_rng(seed).random(len(sequences.token_ids)) < 0.2)
        spans = Spans(positions, np.ones_like(positions))
        ours = rendered(sequences, CorruptedTokens(spans, positions), **AROUND)
        expected = MaskRenderer(masks_per_span=1, mask_id=MASK, pad_id=PAD, **AROUND).render(sequences, spans)
        for name in MaskedBatch.__dataclass_fields__:
            value, wanted = getattr(ours, name), getattr(expected, name)
            assert value is wanted if value is None or name == "pad_id" else value.equal(wanted), name


@pytest.mark.parametrize(
    "fields",
    [
        {"masked_fraction": 0.4, "random_fraction": 0.3, "unchanged_fraction": 0.3},
        {"masked_fraction": 0.1, "predicted_fraction": 0.35, "copies": True, "random_fraction": 0.2},
        {"masked_fraction": 0.5, "predicted_fraction": 0.1},
        {"unit": CorruptionUnit.word, "sampler": CorruptionSampler.geometric},
    ],
)
def test_labels_are_what_stood_there_and_all_else_is_unchanged_or_masked(fields: dict[str, Any]) -> None:
    for seed in range(10):
        _, batch = random_batch(seed, **fields)
        copies = len(batch.query_input_ids) // len(batch.key_input_ids)
        clean = batch.key_input_ids.repeat(copies, 1)  # i64 [Q, L]
        assert batch.query_attention_mask.equal(batch.key_attention_mask.repeat(copies, 1))
        assert clean[batch.span_sequences, batch.start_slots].equal(batch.span_token_ids[:, 0])
        changed = batch.query_input_ids != clean
        seen = batch.query_input_ids[changed]
        assert (((seen >= 100) & (seen < 900)) | (seen == MASK)).all()
        if "predicted_fraction" not in fields:  # what is changed is predicted
            assert set(zip(*map(list, changed.nonzero().T.tolist()), strict=True)) <= set(
                zip(batch.span_sequences.tolist(), batch.start_slots.tolist(), strict=True)
            )


def test_replacements_have_their_shares_and_random_tokens_are_even() -> None:
    count = 100_000
    shares = {"random_fraction": 0.1, "unchanged_fraction": 0.1}
    batch = rendered(group([5] * count), selection((0, count), predicted=[]), **shares)
    seen = batch.query_input_ids[0].numpy()
    found = np.array([(seen == MASK).sum(), (seen == 5).sum(), ((seen >= 100) & (seen < 900)).sum()])
    expected = np.array([0.8, 0.1, 0.1]) * count
    assert found.sum() == count
    assert (np.abs(found - expected) < 4 * np.sqrt(expected * (1 - expected / count))).all()
    drawn = np.bincount(seen[(seen >= 100) & (seen < 900)], minlength=900)[100:]
    assert abs((drawn - drawn.mean()).std() / np.sqrt(drawn.mean()) - 1) < 0.15
    assert drawn.min() > 0


def test_groups_share_a_batch_without_changing_each_other() -> None:
    views = build_in_place_views(
        CorruptionSettings(masked_fraction=0.2, predicted_fraction=0.4, copies=True, random_fraction=0.2),
        mask_id=MASK,
        pad_id=PAD,
        ordinary_ids=ORDINARY,
    )
    groups = [random_group(np.random.default_rng(s), sequence_count=4, max_tokens=30, vocabulary=9) for s in range(3)]
    whole = views.view(groups, [mask_rng(0, 0, number, 1) for number in range(3)])
    first_row = 0
    for number, sequences in enumerate(groups):
        alone = views.view([sequences], [mask_rng(0, 0, number, 1)])
        rows, width = alone.query_input_ids.shape
        assert whole.query_input_ids[first_row : first_row + rows, :width].equal(alone.query_input_ids)
        own = (whole.span_sequences >= first_row) & (whole.span_sequences < first_row + rows)
        assert (whole.span_sequences[own] - first_row).equal(alone.span_sequences)
        assert whole.start_slots[own].equal(alone.start_slots)
        assert whole.span_token_ids[own].equal(alone.span_token_ids)
        first_row += rows
    assert first_row == len(whole.query_input_ids) == 2 * len(whole.key_input_ids)
