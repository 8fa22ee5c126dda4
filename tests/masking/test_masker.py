"""Whole masks: reproducible, at the right rate, lawful; and the settings behind them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from npm.core.types import Sequences, TokenFlag
from npm.masking.masker import Masker, MaskingSettings, MaskingUnit, build_masker, mask_rng
from tests.helpers.groups import SPECIAL_ID, WORD, group, pairs, random_group, rich_group
from tests.masking.plain_masking import plain_candidates, plain_select


def mask(
    masker: Masker, sequences: Sequences, *, seed: int = 0, epoch: int = 0, group_index: int = 0
) -> list[tuple[int, int]]:
    spans = masker.select(sequences, mask_rng(seed, epoch, group_index))
    assert spans is not None
    return pairs(spans)


@pytest.mark.parametrize("unit", MaskingUnit)
def test_a_mask_is_a_function_of_seed_epoch_and_group(unit: MaskingUnit) -> None:
    masker = build_masker(MaskingSettings(unit=unit))
    sequences = rich_group(np.random.default_rng(0))
    first = mask(masker, sequences, seed=1, epoch=2, group_index=3)
    assert mask(masker, sequences, seed=1, epoch=2, group_index=3) == first
    assert mask(masker, sequences, seed=2, epoch=2, group_index=3) != first
    assert mask(masker, sequences, seed=1, epoch=3, group_index=3) != first
    assert mask(masker, sequences, seed=1, epoch=2, group_index=4) != first


def test_generators_of_neighboring_numbers_differ() -> None:
    numbers = list(itertools.product(range(4), repeat=4))  # seed, epoch, group, view
    assert len({tuple(mask_rng(*four).integers(2**62, size=2)) for four in numbers}) == 256
    assert mask_rng(2**32, 0, 0).integers(2**62) != mask_rng(0, 1, 0).integers(2**62)


def test_phrase_masks_cover_fifteen_percent_of_the_group_not_of_each_sequence() -> None:
    sequences = rich_group(np.random.default_rng(0))
    spans = build_masker(MaskingSettings()).select(sequences, mask_rng(0, 0, 0))
    assert spans is not None
    assert 614 <= spans.lengths.sum() < 624  # 0.15 * 4096 = 614.4
    per_sequence = np.add.reduceat(spans.lengths, np.searchsorted(spans.starts, sequences.offsets[:-1]))
    assert len(set(per_sequence.tolist())) > 4


def test_token_masks_cover_exactly_fifteen_percent() -> None:
    sequences = rich_group(np.random.default_rng(0))
    spans = mask(build_masker(MaskingSettings(unit=MaskingUnit.token)), sequences)
    assert [length for _, length in spans] == [1] * 614


@pytest.mark.parametrize("unit", [MaskingUnit.phrase, MaskingUnit.token, MaskingUnit.span])
def test_masked_spans_stand_elsewhere_and_hold_no_special_token(unit: MaskingUnit) -> None:
    masker = build_masker(MaskingSettings(unit=unit))
    is_phrase = unit is not MaskingUnit.token
    rng = np.random.default_rng(3)
    for index in range(20):
        sequences = random_group(rng, sequence_count=8, min_tokens=20, max_tokens=60, vocabulary=12)
        spans = mask(masker, sequences, group_index=index)
        lawful = plain_candidates(sequences, max_span_tokens=10 if is_phrase else 1, word_boundaries=is_phrase)
        assert (set(spans) <= lawful) is (unit is not MaskingUnit.span)
        for start, length in spans:
            assert SPECIAL_ID not in sequences.token_ids[start : start + length]


def test_token_masks_take_clause_punctuation_as_often_as_anything_else() -> None:
    flags = [[WORD | int(TokenFlag.CLAUSE_PUNCTUATION)] * 100] * 2
    spans = mask(build_masker(MaskingSettings(unit=MaskingUnit.token)), group([0] * 100, [0] * 100, flags=flags))
    assert len(spans) == 30


def test_a_group_with_too_few_candidates_is_dropped() -> None:
    shared, masker = [2, 3, 4], build_masker(MaskingSettings())
    rows = [[*shared, *range(100, 147)], [*shared, *range(200, 247)]]  # 100 tokens, 6 of them shared
    assert masker.select(group(*rows), mask_rng(0, 0, 0)) is not None
    rows[1] += range(300, 320)  # 6 of 120 tokens are just 5 %
    assert masker.select(group(*rows), mask_rng(0, 0, 0)) is not None
    rows[1].append(400)
    assert masker.select(group(*rows), mask_rng(0, 0, 0)) is None


@pytest.mark.parametrize("rows", [[], [[]], [[2, 3], [4, 5]]])
def test_a_group_without_candidates_is_dropped_even_with_no_minimum(rows: list[list[int]]) -> None:
    masker = build_masker(MaskingSettings(min_masked_fraction=0.0))
    assert masker.select(group(*rows), mask_rng(0, 0, 0)) is None


def test_masks_are_like_those_of_plain_python() -> None:
    """The draws differ, so their statistics over many masks are compared: tokens masked, and lengths."""
    rng = np.random.default_rng(5)
    masker = build_masker(MaskingSettings())
    ours, plain = np.zeros(11), np.zeros(11)
    for index in range(30):
        sequences = random_group(rng, sequence_count=8, min_tokens=40, max_tokens=80, vocabulary=6)
        for counts, spans in (
            (ours, mask(masker, sequences, group_index=index)),
            (plain, plain_select(sequences, np.random.default_rng(index))),
        ):
            counts += np.bincount([length for _, length in spans], minlength=11)
    tokens = np.arange(11)
    assert abs((ours * tokens).sum() / (plain * tokens).sum() - 1) < 0.02
    assert (np.abs(ours - plain) < 4 * np.sqrt(ours + plain) + 1).all()


def test_config_settings_reach_the_masker() -> None:
    settings = MaskingSettings(
        masked_fraction=0.3,
        max_span_tokens=2,
        span_success_probability=1e-9,
        max_spans_per_sequence=20,
    )
    sequences = rich_group(np.random.default_rng(0))
    spans = mask(build_masker(settings), sequences)
    assert {length for _, length in spans} == {1, 2}
    assert max(np.bincount([start // 256 for start, _ in spans])) == 20
