"""Which tokens are masked and predicted in which copy: exact budgets, nothing split, at the right rate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from npm.core.types import Sequences, TokenFlag
from npm.masking.collocation_mining import mined_collocations
from npm.masking.collocations import CollocationSettings, CollocationVocabulary
from npm.masking.corruption import (
    SAMPLERS,
    CorruptedTokens,
    CorruptionSampler,
    CorruptionSettings,
    CorruptionUnit,
    Selector,
    build_selector,
)
from npm.masking.masker import Masker, MaskingSettings, MaskingUnit, build_masker, mask_rng, masked_positions
from tests.helpers.groups import SPECIAL_ID, WORD, group, pairs, random_group, rich_group
from tests.masking.plain_masking import ngrams_of, plain_candidates, plain_places, plain_select, plain_words

EVERY_STRATEGY = [(unit, sampler) for unit, samplers in SAMPLERS.items() for sampler in samplers]
RANDOM_GROUPS = [
    random_group(np.random.default_rng(seed), sequence_count=6, min_tokens=20, max_tokens=80, vocabulary=12)
    for seed in range(12)
]
VOCABULARY = CollocationVocabulary(mined_collocations(RANDOM_GROUPS, CollocationSettings(min_count=2, coverage=0.5)))


def selector(unit: CorruptionUnit, sampler: CorruptionSampler, **fields: Any) -> Selector:
    return build_selector(CorruptionSettings(unit=unit, sampler=sampler, **fields), VOCABULARY)


def selected(selecting: Selector, sequences: Sequences, seed: int = 0) -> list[CorruptedTokens]:
    return selecting.select(sequences, mask_rng(seed, 0, 0))


def tokens_per_sequence(sequences: Sequences, positions: np.ndarray) -> list[int]:
    owners = np.searchsorted(sequences.offsets, positions, side="right") - 1
    return np.bincount(owners, minlength=len(sequences)).tolist()


def maskable_per_sequence(sequences: Sequences) -> list[int]:
    return tokens_per_sequence(sequences, np.flatnonzero(sequences.token_ids != SPECIAL_ID))


@pytest.mark.parametrize(("unit", "sampler"), EVERY_STRATEGY)
def test_spans_are_sorted_disjoint_and_hold_nothing_special(unit: CorruptionUnit, sampler: CorruptionSampler) -> None:
    for seed, sequences in enumerate(RANDOM_GROUPS):
        (selection,) = selected(selector(unit, sampler, masked_fraction=0.4), sequences, seed)
        spans = selection.masked
        assert len(spans)
        assert (spans.starts[1:] >= (spans.starts + spans.lengths)[:-1]).all()
        positions = masked_positions(spans)
        assert not (sequences.token_ids[positions] == SPECIAL_ID).any()
        owners = np.searchsorted(sequences.offsets, [spans.starts, spans.starts + spans.lengths - 1], side="right")
        assert (owners[0] == owners[1]).all()
        assert selection.predicted.tolist() == positions.tolist()


@pytest.mark.parametrize("masked_fraction", [0.15, 0.4, 0.8])
@pytest.mark.parametrize(
    ("unit", "sampler"), [(u, s) for u, s in EVERY_STRATEGY if u in (CorruptionUnit.token, CorruptionUnit.word)]
)
def test_the_rate_of_each_sequence(unit: CorruptionUnit, sampler: CorruptionSampler, masked_fraction: float) -> None:
    units = selector(unit, sampler, masked_fraction=masked_fraction)
    for seed, sequences in enumerate(RANDOM_GROUPS):
        (selection,) = selected(units, sequences, seed)
        masked = tokens_per_sequence(sequences, masked_positions(selection.masked))
        for count, maskable in zip(masked, maskable_per_sequence(sequences), strict=True):
            # words that do not fit are left out, so that one or two tokens may be missing
            assert masked_fraction * maskable - 1 - 2 * (unit is CorruptionUnit.word) < count
            assert count < masked_fraction * maskable + 1


def test_the_budget_is_rounded_up_as_often_as_its_fraction_says() -> None:
    sequences = group([5] * 45)
    token = selector(CorruptionUnit.token, CorruptionSampler.uniform)
    counts = np.bincount([len(selected(token, sequences, seed)[0].predicted) for seed in range(2000)])
    assert set(np.flatnonzero(counts)) == {6, 7}  # 0.15 * 45 = 6.75
    assert abs(counts[7] - 1500) < 4 * np.sqrt(2000 * 0.75 * 0.25)


def test_every_token_may_be_masked_equally_often_though_it_stands_nowhere_else() -> None:
    sequences = RANDOM_GROUPS[0]
    token = selector(CorruptionUnit.token, CorruptionSampler.uniform)
    counts = np.zeros(len(sequences.token_ids))  # f64 [T]
    for seed in range(600):
        counts[selected(token, sequences, seed)[0].predicted] += 1
    maskable = sequences.token_ids != SPECIAL_ID  # bool [T]
    assert not counts[~maskable].any()
    assert (np.abs(counts[maskable] - 90) < 5 * np.sqrt(90)).all()


def test_words_and_collocations_are_never_split() -> None:
    places = [plain_places(sequences, set(ngrams_of(VOCABULARY.entries))) for sequences in RANDOM_GROUPS]
    seen = 0
    for seed, (sequences, entries) in enumerate(zip(RANDOM_GROUPS, places, strict=True)):
        words = set(plain_words(sequences))
        (selection,) = selected(selector(CorruptionUnit.word, CorruptionSampler.uniform), sequences, seed)
        assert set(pairs(selection.masked)) <= words
        (selection,) = selected(selector(CorruptionUnit.collocation, CorruptionSampler.uniform), sequences, seed)
        assert set(pairs(selection.masked)) <= words | entries
        seen += len(set(pairs(selection.masked)) - words)
    assert seen > 20


def copies_of(corrupted: float, predicted: float) -> Iterator[tuple[Sequences, list[CorruptedTokens]]]:
    for unit, sampler in (
        (CorruptionUnit.token, CorruptionSampler.uniform),
        (CorruptionUnit.word, CorruptionSampler.uniform),
        (CorruptionUnit.word, CorruptionSampler.geometric),
        (CorruptionUnit.collocation, CorruptionSampler.uniform),
    ):
        rates = {"masked_fraction": corrupted, "predicted_fraction": predicted, "copies": True}
        for seed, sequences in enumerate(RANDOM_GROUPS):
            yield sequences, selected(selector(unit, sampler, **rates), sequences, seed)


@pytest.mark.parametrize(
    ("corrupted", "predicted", "count"), [(0.1, 0.4, 4), (0.2, 0.4, 2), (0.15, 0.4, 3), (0.05, 0.4, 8)]
)
def test_copies_are_disjoint(corrupted: float, predicted: float, count: int) -> None:
    for sequences, selections in copies_of(corrupted, predicted):
        assert len(selections) == count
        masked = np.concatenate([masked_positions(selection.masked) for selection in selections])
        assert len(set(masked.tolist())) == len(masked)
        for selection in selections:
            assert set(selection.predicted) <= set(masked_positions(selection.masked))
            assert (np.diff(selection.predicted) > 0).all()
        for selection, maskable in itertools.product(selections, [maskable_per_sequence(sequences)]):
            per_sequence = tokens_per_sequence(sequences, masked_positions(selection.masked))
            assert all(n < corrupted * most + 1 for n, most in zip(per_sequence, maskable, strict=True))


@pytest.mark.parametrize(("corrupted", "predicted"), [(0.1, 0.4), (0.15, 0.4), (0.3, 0.9), (0.4, 0.2), (0.2, 0.2)])
def test_copies_cover_the_prediction_rate_exactly(corrupted: float, predicted: float) -> None:
    rates = {"masked_fraction": corrupted, "predicted_fraction": predicted, "copies": True}
    token = selector(CorruptionUnit.token, CorruptionSampler.uniform, **rates)
    sums = np.zeros(2)
    for seed, sequences in enumerate(RANDOM_GROUPS):
        selections = selected(token, sequences, seed)
        per_sequence = tokens_per_sequence(sequences, np.concatenate([s.predicted for s in selections]))
        for count, maskable in zip(per_sequence, maskable_per_sequence(sequences), strict=True):
            assert math.floor(predicted * maskable + 1e-9) <= count <= math.ceil(predicted * maskable - 1e-9)
            sums += count, predicted * maskable
        for selection in selections[:-1]:
            assert len(selection.predicted) == selection.masked.lengths.sum()
    assert abs(sums[0] / sums[1] - 1) < 0.02


def test_below_the_corruption_rate_any_masked_token_may_be_predicted() -> None:
    rates = {"masked_fraction": 0.4, "predicted_fraction": 0.1}
    spans = selector(CorruptionUnit.word, CorruptionSampler.geometric, **rates)
    sequences = group([5] * 60)
    masked, predicted = np.zeros(60), np.zeros(60)  # f64 [T] each
    for seed in range(1000):
        (selection,) = selected(spans, sequences, seed)
        assert selection.masked.lengths.sum() == 24
        assert len(selection.predicted) == 6
        masked[masked_positions(selection.masked)] += 1
        predicted[selection.predicted] += 1
    assert (np.abs(predicted - masked / 4) < 4 * np.sqrt(masked * 0.25 * 0.75)).all()


@pytest.mark.parametrize(("unit", "sampler"), EVERY_STRATEGY)
def test_empty_groups_and_sequences_give_empty_selections(unit: CorruptionUnit, sampler: CorruptionSampler) -> None:
    for sequences in (group(), group([], [])):
        (selection,) = selected(selector(unit, sampler), sequences)
        assert pairs(selection.masked) == []
        assert selection.predicted.tolist() == []


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
        masked_fraction=0.3, max_span_tokens=2, span_success_probability=1e-9, max_spans_per_sequence=20
    )
    sequences = rich_group(np.random.default_rng(0))
    spans = mask(build_masker(settings), sequences)
    assert {length for _, length in spans} == {1, 2}
    assert max(np.bincount([start // 256 for start, _ in spans])) == 20
