"""Runs laid over single sequences: T5's span corruption with a roll, and spans at the end."""

from __future__ import annotations

import numpy as np
import pytest

from npm.core.types import Sequences, Spans, TokenFlag
from npm.masking.samplers import PartitionSampler, SuffixSampler, random_composition
from npm.masking.units import TokenUnits, has_flag
from tests.helpers.groups import WORD, group, pairs, random_group

Sampler = PartitionSampler | SuffixSampler


def draw(sampler: Sampler, sequences: Sequences, budget_tokens: int, seed: int = 0) -> Spans:
    rng = np.random.default_rng(seed)
    return sampler.draw(TokenUnits().candidates(sequences), sequences, budget_tokens, rng)


def masked_places(spans: Spans, token_count: int) -> np.ndarray:
    """Which tokens are masked, bool [T]."""
    masked = np.zeros(token_count, dtype=bool)
    for start, length in pairs(spans):
        masked[start : start + length] = True
    return masked


def test_every_composition_is_drawn_equally_often() -> None:
    rng = np.random.default_rng(0)
    drawn = [tuple(random_composition(6, 3, rng).tolist()) for _ in range(5000)]
    assert all(sum(lengths) == 6 and min(lengths) >= 1 for lengths in drawn)
    counts = np.unique(np.array(drawn), axis=0, return_counts=True)[1]
    assert len(counts) == 10  # C(5, 2)
    assert (np.abs(counts - 500) < 4.5 * np.sqrt(5000 * 0.1 * 0.9)).all()


@pytest.mark.parametrize(("mean_span_tokens", "budget"), [(3, 6), (64, 6), (3, 20)])
def test_with_the_roll_first_and_last_place_are_masked_at_the_rate(mean_span_tokens: float, budget: int) -> None:
    sequences, draws = group(list(range(40))), 3000
    sampler = PartitionSampler(mean_span_tokens=mean_span_tokens)
    counts = sum(masked_places(draw(sampler, sequences, budget, seed), 40).astype(int) for seed in range(draws))
    rate = budget / 40
    assert (np.abs(counts - draws * rate) < 4.5 * np.sqrt(draws * rate * (1 - rate))).all()


def test_the_budget_is_met_exactly_in_disjoint_spans_without_special_tokens() -> None:
    rng = np.random.default_rng(1)
    for seed in range(60):
        sequences = random_group(rng, sequence_count=1, max_tokens=70, vocabulary=6)
        candidates = TokenUnits().candidates(sequences)
        budget = int(rng.integers(0, len(candidates) + 10))
        for sampler in (PartitionSampler(mean_span_tokens=4), SuffixSampler(vary_length=False)):
            spans = draw(sampler, sequences, budget, seed)
            masked = masked_places(spans, len(sequences.token_ids))
            assert masked.sum() == spans.lengths.sum() == min(budget, len(candidates))
            assert not (masked & has_flag(sequences.flags, TokenFlag.SPECIAL)).any()
            assert (np.diff(spans.starts) > 0).all()


def test_a_special_token_splits_a_run() -> None:
    flags = [[WORD, WORD, int(TokenFlag.SPECIAL), WORD, WORD]]
    sequences = group([1, 2, 3, 4, 5], flags=flags)
    assert pairs(draw(SuffixSampler(vary_length=False), sequences, 3)) == [(1, 1), (3, 2)]


def test_a_suffix_reaches_the_end_and_its_length_is_even_around_the_mean() -> None:
    sequences, draws = group(list(range(20))), 3000
    spans = [draw(SuffixSampler(), sequences, 5, seed) for seed in range(draws)]
    assert all(len(each) == 1 and each.starts[0] + each.lengths[0] == 20 for each in spans)
    counts = np.bincount([each.lengths[0] for each in spans], minlength=11)
    assert counts[0] == counts[10:].sum() == 0
    assert (np.abs(counts[1:10] - draws / 9) < 4.5 * np.sqrt(draws / 9 * 8 / 9)).all()


def test_a_suffix_of_any_length_leaves_a_token_before_it() -> None:
    for tokens, budget in ((6, 4), (6, 5), (2, 1)):
        lengths = {
            int(draw(SuffixSampler(), group(list(range(tokens))), budget, seed).lengths[0]) for seed in range(99)
        }
        most = tokens - 1
        assert lengths == set(range(2 * budget - most, most + 1))


@pytest.mark.parametrize("sampler", [PartitionSampler(), SuffixSampler()])
def test_nothing_to_mask_gives_no_spans(sampler: Sampler) -> None:
    assert not len(draw(sampler, group([], []), 5))
    assert not len(draw(sampler, group([1, 2, 3]), 0))
