"""Spans of whole words as in SpanBERT: lengths, boundaries, budgets."""

from __future__ import annotations

import itertools

import numpy as np

from npm.core.types import Sequences, Spans, TokenFlag
from npm.masking.samplers import WordSpanSampler
from npm.masking.units import WordUnits
from tests.helpers.groups import SPECIAL_ID, group, pairs, random_group
from tests.masking.plain_masking import plain_neighbors, plain_words

START, END = int(TokenFlag.WORD_START), int(TokenFlag.WORD_END)


def draw(sampler: WordSpanSampler, sequences: Sequences, budget_tokens: int, seed: int = 0) -> Spans:
    candidates = WordUnits().candidates(sequences)
    return sampler.draw(candidates, sequences, budget_tokens, np.random.default_rng(seed))


def two_token_words(word_count: int) -> Sequences:
    return group([5, 6] * word_count, flags=[[START, END] * word_count])


def test_spans_are_almost_four_words_long_on_average() -> None:
    sequences = two_token_words(80_000)
    words = []
    for seed in range(30):
        # so little of the text is masked that spans hardly ever meet, and few are the last, which is cut
        words += (draw(WordSpanSampler(), sequences, 2000, seed).lengths / 2).tolist()
    assert abs(np.mean(words) - 3.80) < 0.05
    assert set(words) >= set(range(1, 11))


def test_every_token_is_masked_about_as_often_as_any_other() -> None:
    counts = np.zeros(60)  # f64 [T]
    for seed in range(1000):
        spans = draw(WordSpanSampler(max_span_words=1), group([5] * 60), 9, seed)
        counts[spans.starts] += 1
    assert (np.abs(counts - 150) < 5 * np.sqrt(150)).all()


def test_only_the_last_span_is_cut_and_all_others_are_whole_words_in_a_row() -> None:
    rng = np.random.default_rng(2)
    for seed in range(60):
        sequences = random_group(rng, sequence_count=4, max_tokens=40, vocabulary=8)
        words = plain_words(sequences)
        budget = int(sum(length for _, length in words) * 0.4)
        spans = pairs(draw(WordSpanSampler(), sequences, budget, seed))
        assert sum(length for _, length in spans) == budget
        runs = [
            {(run[i][0], sum(run[j]) - run[i][0]) for i in range(len(run)) for j in range(i, min(i + 10, len(run)))}
            for run in plain_neighbors(sequences)
        ]
        whole = set().union(*runs)
        cut = [span for span in spans if span not in whole]
        assert len(cut) <= 1
        assert all(start in {word for word, _ in words} for start, _ in cut)
        assert all(SPECIAL_ID not in sequences.token_ids[start : start + length] for start, length in spans)
        assert all(before[0] + before[1] <= start for before, (start, _) in itertools.pairwise(spans))
