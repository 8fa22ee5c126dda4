"""Drawing spans: lengths, budgets, and the rules by which candidates are rejected."""

from __future__ import annotations

import numpy as np
import pytest

from npm.core.types import Sequences, Spans, TokenFlag
from npm.masking import samplers
from npm.masking.samplers import CandidateThinning, GeometricSpanSampler, UniformSampler, geometric_lengths
from npm.masking.units import CooccurringUnits, MaskableSpans
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


def test_the_budget_is_reached_and_exceeded_by_less_than_one_span() -> None:
    sequences = rich_group(np.random.default_rng(0))
    for seed, budget_tokens in enumerate((0, 1, 7, 100, 614)):
        masked = draw(GeometricSpanSampler(), sequences, budget_tokens, seed).lengths.sum()
        assert budget_tokens <= masked < budget_tokens + 10


def test_spans_are_disjoint_sorted_and_candidates() -> None:
    rng = np.random.default_rng(1)
    for seed in range(20):
        sequences = random_group(rng, sequence_count=8, max_tokens=60, vocabulary=6)
        candidates = CooccurringUnits().candidates(sequences)
        spans = draw(GeometricSpanSampler(), sequences, 10_000, seed)
        assert (spans.starts[1:] >= (spans.starts + spans.lengths)[:-1]).all()
        assert set(pairs(spans)) <= set(zip(candidates.starts.tolist(), candidates.lengths.tolist(), strict=True))


def test_no_phrase_is_masked_more_often_than_allowed_and_a_frequent_one_as_often_as_allowed() -> None:
    sequences = group(*[[5, 6] * 10] * 4)
    spans = draw(GeometricSpanSampler(max_repeats_per_phrase=3), sequences, 10_000)
    phrases = [plain_phrase(sequences, span) for span in pairs(spans)]
    assert max(phrases.count(phrase) for phrase in phrases) == 3
    assert phrases.count((5,)) == 3


def test_no_sequence_has_more_spans_than_allowed() -> None:
    sequences = rich_group(np.random.default_rng(0), sequence_count=4, tokens=200)
    spans = draw(GeometricSpanSampler(), sequences, 10_000)
    assert np.bincount(spans.starts // 200).tolist() == [64, 64, 64, 64]


def test_where_a_length_has_run_out_shorter_ones_are_taken_then_longer_ones() -> None:
    sequences = group(list(range(20)))
    sampler = GeometricSpanSampler(success_probability=1.0)
    candidates = spans_of((0, 1), (5, 3), (10, 2))
    rng = np.random.default_rng(0)
    assert pairs(sampler.draw(candidates, sequences, 1, rng)) == [(0, 1)]
    assert pairs(sampler.draw(candidates, sequences, 2, rng)) == [(0, 1), (10, 2)]
    assert pairs(sampler.draw(candidates, sequences, 20, rng)) == [(0, 1), (5, 3), (10, 2)]
    long_only = GeometricSpanSampler(success_probability=1e-9)
    assert pairs(long_only.draw(spans_of((0, 1)), sequences, 20, rng)) == [(0, 1)]


def test_the_next_shorter_length_comes_first_and_longer_ones_only_after_the_shortest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(samplers, "geometric_lengths", lambda p, most, count, rng: np.full(count, 3))
    candidates = spans_of((0, 1), (2, 2), (5, 4), (10, 5))
    for budget_tokens, starts in ((1, [2]), (3, [0, 2]), (4, [0, 2, 5]), (8, [0, 2, 5, 10])):
        spans = GeometricSpanSampler().draw(candidates, group(list(range(20))), budget_tokens, np.random.default_rng(0))
        assert spans.starts.tolist() == starts


def test_overlapping_candidates_are_rejected_and_adjacent_ones_are_not() -> None:
    sequences = group(list(range(10)))
    for seed in range(10):
        rng = np.random.default_rng(seed)
        spans = GeometricSpanSampler().draw(spans_of((0, 2), (1, 2), (2, 2)), sequences, 10, rng)
        assert pairs(spans) in ([(0, 2), (2, 2)], [(1, 2)])


def test_uniform_draws_meet_the_budget_exactly_without_repeats() -> None:
    candidates = spans_of(*((start, 1) for start in range(0, 100, 2)))
    sequences = group(list(range(100)))
    for seed, (budget_tokens, count) in enumerate(((0, 0), (1, 1), (15, 15), (50, 50), (80, 50))):
        spans = UniformSampler().draw(candidates, sequences, budget_tokens, np.random.default_rng(seed))
        assert len(set(spans.starts.tolist())) == len(spans) == count
        assert (np.diff(spans.starts) > 0).all()
        assert (spans.starts % 2 == 0).all()


def test_uniform_draws_take_every_candidate_equally_often() -> None:
    candidates, sequences = spans_of(*((start, 1) for start in range(10))), group(list(range(10)))
    counts = np.zeros(10)
    for seed in range(1000):
        counts[UniformSampler().draw(candidates, sequences, 3, np.random.default_rng(seed)).starts] += 1
    assert (np.abs(counts - 300) < 4 * np.sqrt(1000 * 0.3 * 0.7)).all()


def test_uniform_draws_pass_over_what_overlaps_a_masked_span() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        spans = UniformSampler().draw(spans_of((0, 2), (1, 2), (2, 2)), group(list(range(4))), 4, rng)
        assert pairs(spans) in ([(0, 2), (2, 2)], [(1, 2)])


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
