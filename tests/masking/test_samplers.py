"""Drawing spans and runs: lengths, budgets, and the rules by which candidates are rejected."""

from __future__ import annotations

import numpy as np
import pytest

from npm.core.types import Sequences, Spans, TokenFlag
from npm.masking import samplers
from npm.masking.samplers import (
    CandidateThinning,
    GeometricSpanSampler,
    PartitionSampler,
    SuffixSampler,
    UniformSampler,
    geometric_lengths,
    random_composition,
)
from npm.masking.units import CooccurringUnits, MaskableSpans, TokenUnits, has_flag
from tests.helpers.groups import CLAUSE_ID, WORD, group, pairs, random_group, rich_group
from tests.masking.plain_masking import plain_phrase


def spans_of(*spans: tuple[int, int]) -> MaskableSpans:
    """These (start, length) as candidates, each a phrase of its own."""
    table = np.array(spans, dtype=np.int64).reshape(-1, 2)  # i64 [m, 2]
    return MaskableSpans(table[:, 0], table[:, 1], np.arange(len(table)))


def draw(
    sampler: GeometricSpanSampler | UniformSampler, sequences: Sequences, budget_tokens: int, seed: int = 0
) -> Spans:
    candidates = CooccurringUnits().candidates(sequences)
    return sampler.draw(candidates, sequences, budget_tokens, np.random.default_rng(seed))


def test_span_lengths_follow_the_geometric_distribution() -> None:
    rng = np.random.default_rng(0)
    counts = np.zeros(11)
    for seed in range(40):
        counts += np.bincount(draw(GeometricSpanSampler(), rich_group(rng), 600, seed).lengths, minlength=11)
    total = counts.sum()
    expected = 0.5 ** np.arange(1, 11) / (1 - 0.5**10)  # draws above 10 are drawn again
    standard_errors = np.sqrt(total * expected * (1 - expected))
    assert total > 10_000
    assert (np.abs(counts[1:] - total * expected) < 4 * standard_errors).all()


def test_no_phrase_is_masked_more_often_than_allowed_and_a_frequent_one_as_often_as_allowed() -> None:
    sequences = group(*[[5, 6] * 10] * 4)
    spans = draw(GeometricSpanSampler(max_repeats_per_phrase=3), sequences, 10_000)
    phrases = [plain_phrase(sequences, span) for span in pairs(spans)]
    assert max(phrases.count(phrase) for phrase in phrases) == 3
    assert phrases.count((5,)) == 3


def test_where_a_length_has_run_out_shorter_ones_are_taken_then_longer_ones() -> None:
    sequences = group(list(range(20)))
    sampler = GeometricSpanSampler(success_probability=1.0, max_span_tokens=3)  # no longer than the longest candidate
    candidates = spans_of((0, 1), (5, 3), (10, 2))
    rng = np.random.default_rng(0)
    assert pairs(sampler.draw(candidates, sequences, 1, rng)) == [(0, 1)]
    assert pairs(sampler.draw(candidates, sequences, 2, rng)) == [(0, 1), (10, 2)]
    assert pairs(sampler.draw(candidates, sequences, 20, rng)) == [(0, 1), (5, 3), (10, 2)]
    long_only = GeometricSpanSampler(success_probability=1e-9)
    assert pairs(long_only.draw(spans_of((0, 1)), sequences, 20, rng)) == [(0, 1)]


def test_shorter_lengths_come_before_longer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "geometric_lengths", lambda p, most, count, rng: np.full(count, 3))
    candidates = spans_of((0, 1), (2, 2), (5, 4), (10, 5))
    for budget_tokens, starts in ((1, [2]), (3, [0, 2]), (4, [0, 2, 5]), (8, [0, 2, 5, 10])):
        spans = GeometricSpanSampler().draw(candidates, group(list(range(20))), budget_tokens, np.random.default_rng(0))
        assert spans.starts.tolist() == starts


@pytest.mark.parametrize("sampler", [GeometricSpanSampler(), UniformSampler()])
def test_overlapping_candidates_are_rejected(sampler: GeometricSpanSampler | UniformSampler) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        spans = sampler.draw(spans_of((0, 2), (1, 2), (2, 2)), group(list(range(4))), 4, rng)
        assert pairs(spans) in ([(0, 2), (2, 2)], [(1, 2)])


def test_uniform_draws_meet_the_budget_exactly_without_repeats() -> None:
    candidates = spans_of(*((start, 1) for start in range(0, 100, 2)))
    sequences = group(list(range(100)))
    for seed, (budget_tokens, count) in enumerate(((0, 0), (1, 1), (15, 15), (50, 50), (80, 50))):
        spans = UniformSampler().draw(candidates, sequences, budget_tokens, np.random.default_rng(seed))
        assert len(set(spans.starts.tolist())) == len(spans) == count
        assert (np.diff(spans.starts) > 0).all()
        assert (spans.starts % 2 == 0).all()


@pytest.mark.parametrize(("overshoot", "most"), [(False, 0), (True, 9)])
def test_geometric_draws_keep_to_the_budget_unless_they_may_overshoot(overshoot: bool, most: int) -> None:
    sequences = rich_group(np.random.default_rng(0))
    excess = []
    for seed in range(40):
        spans = draw(GeometricSpanSampler(success_probability=0.1, overshoot=overshoot), sequences, 101, seed)
        assert (spans.starts[1:] >= (spans.starts + spans.lengths)[:-1]).all()
        excess.append(int(spans.lengths.sum()) - 101)
    assert min(excess) >= 0
    assert max(excess) <= most
    assert (max(excess) > 0) is overshoot


def test_geometric_lengths_have_the_probabilities_of_span_bert() -> None:
    lengths = geometric_lengths(0.2, 10, 200_000, np.random.default_rng(0))
    shares = np.bincount(lengths, minlength=11)[1:] / len(lengths)
    expected = [0.224, 0.179, 0.143, 0.115, 0.092, 0.073, 0.059, 0.047, 0.038, 0.030]
    assert np.abs(shares - expected).max() < 0.004
    assert abs(lengths.mean() - 3.797) < 0.02


def test_clause_punctuation_alone_is_left_out_nine_times_in_ten() -> None:
    flags = [[WORD | int(TokenFlag.CLAUSE_PUNCTUATION)] * 1000 + [WORD] * 1000] * 2
    sequences = group(*[[CLAUSE_ID] * 1000 + list(range(2, 1002))] * 2, flags=flags)
    candidates = CooccurringUnits(max_span_tokens=2).candidates(sequences)
    kept = CandidateThinning().keep(candidates, sequences, np.random.default_rng(0))
    is_clause = sequences.token_ids[kept.starts] == CLAUSE_ID
    assert abs(is_clause.sum() - 200) < 4 * np.sqrt(2000 * 0.1 * 0.9)
    assert (~is_clause).sum() == 2000 + 1998


@pytest.mark.parametrize(("probability", "expected"), [(0.0, [1, 2, 3, 4, 5]), (1.0, [2, 3, 4])])
def test_spans_of_stop_words_and_punctuation_only_can_be_left_out(probability: float, expected: list[int]) -> None:
    stopword = WORD | int(TokenFlag.STOPWORD)
    punctuation = WORD | int(TokenFlag.PUNCTUATION | TokenFlag.CLAUSE_PUNCTUATION)
    sequences = group([7, 8, 9], flags=[[stopword, punctuation, WORD]])
    candidates = MaskableSpans(np.array([0, 2, 1, 0, 0]), np.array([1, 1, 2, 3, 2]), np.array([1, 2, 3, 4, 5]))
    thinning = CandidateThinning(clause_punctuation_skip_probability=1.0, stopword_span_skip_probability=probability)
    kept = thinning.keep(candidates, sequences, np.random.default_rng(0))
    assert kept.phrase_ids.tolist() == expected


Sampler = PartitionSampler | SuffixSampler


def draw_runs(sampler: Sampler, sequences: Sequences, budget_tokens: int, seed: int = 0) -> Spans:
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
    counts = sum(masked_places(draw_runs(sampler, sequences, budget, seed), 40).astype(int) for seed in range(draws))
    rate = budget / 40
    assert (np.abs(counts - draws * rate) < 4.5 * np.sqrt(draws * rate * (1 - rate))).all()


def test_the_budget_is_met_exactly_in_disjoint_spans_without_special_tokens() -> None:
    rng = np.random.default_rng(1)
    for seed in range(60):
        sequences = random_group(rng, sequence_count=1, max_tokens=70, vocabulary=6)
        candidates = TokenUnits().candidates(sequences)
        budget = int(rng.integers(0, len(candidates) + 10))
        for sampler in (PartitionSampler(mean_span_tokens=4), SuffixSampler(vary_length=False)):
            spans = draw_runs(sampler, sequences, budget, seed)
            masked = masked_places(spans, len(sequences.token_ids))
            assert masked.sum() == spans.lengths.sum() == min(budget, len(candidates))
            assert not (masked & has_flag(sequences.flags, TokenFlag.SPECIAL)).any()
            assert (np.diff(spans.starts) > 0).all()


def test_a_special_token_splits_a_run() -> None:
    flags = [[WORD, WORD, int(TokenFlag.SPECIAL), WORD, WORD]]
    sequences = group([1, 2, 3, 4, 5], flags=flags)
    assert pairs(draw_runs(SuffixSampler(vary_length=False), sequences, 3)) == [(1, 1), (3, 2)]


def test_a_suffix_reaches_the_end_and_its_length_is_even_around_the_mean() -> None:
    sequences, draws = group(list(range(20))), 3000
    spans = [draw_runs(SuffixSampler(), sequences, 5, seed) for seed in range(draws)]
    assert all(len(each) == 1 and each.starts[0] + each.lengths[0] == 20 for each in spans)
    counts = np.bincount([each.lengths[0] for each in spans], minlength=11)
    assert counts[0] == counts[10:].sum() == 0
    assert (np.abs(counts[1:10] - draws / 9) < 4.5 * np.sqrt(draws / 9 * 8 / 9)).all()


def test_a_suffix_of_any_length_leaves_a_token_before_it() -> None:
    for tokens, budget in ((6, 4), (6, 5), (2, 1)):
        lengths = {
            int(draw_runs(SuffixSampler(), group(list(range(tokens))), budget, seed).lengths[0]) for seed in range(99)
        }
        most = tokens - 1
        assert lengths == set(range(2 * budget - most, most + 1))


@pytest.mark.parametrize("sampler", [PartitionSampler(), SuffixSampler()])
def test_nothing_to_mask_gives_no_spans(sampler: Sampler) -> None:
    assert not len(draw_runs(sampler, group([], []), 5))
    assert not len(draw_runs(sampler, group([1, 2, 3]), 0))
