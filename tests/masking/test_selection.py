"""Which tokens are masked and predicted in which copy: exact budgets, disjoint copies, nothing split."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from npm.core.types import Sequences
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
from npm.masking.masker import mask_rng, masked_positions
from tests.helpers.groups import SPECIAL_ID, group, pairs, random_group
from tests.masking.plain_collocations import ngrams_of, plain_places
from tests.masking.plain_masking import plain_candidates, plain_words

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
def test_the_rate_of_each_sequence_is_within_one_token_of_its_budget(
    unit: CorruptionUnit, sampler: CorruptionSampler, masked_fraction: float
) -> None:
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


def test_cooccurring_units_stand_in_another_sequence_of_the_group() -> None:
    for sampler, longest in ((CorruptionSampler.uniform, 1), (CorruptionSampler.geometric, 10)):
        for seed, sequences in enumerate(RANDOM_GROUPS):
            (selection,) = selected(selector(CorruptionUnit.cooccurring, sampler), sequences, seed)
            lawful = plain_candidates(sequences, max_span_tokens=longest, word_boundaries=longest > 1)
            assert set(pairs(selection.masked)) <= lawful


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
def test_copies_cover_the_prediction_rate_exactly_and_only_the_last_is_trimmed(
    corrupted: float, predicted: float
) -> None:
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
