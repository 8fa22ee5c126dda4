"""Sampling of masked spans: candidates are thinned, then drawn until a budget of tokens is spent.

The partition and suffix samplers, for denoising, take one sequence with candidates of one token each. A run that meets
a token that is no candidate, such as a special token, is split there and leaves that token unchanged.

Shapes: T tokens of all sequences in a row, S sequences, m candidates, n spans, L candidates of one sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from npm.core.types import Sequences, Spans, TokenFlag
from npm.masking.units import MaskableSpans, has_flag, sequence_numbers, words_that_go_on

CLAUSE_SKIP_PROBABILITY = 0.9
"""As in the reference: probability of skipping one of the tokens ! , . : ? as a span."""


class Sampler(Protocol):
    """Draws disjoint spans among candidates."""

    def draw(
        self, candidates: MaskableSpans, sequences: Sequences, budget_tokens: int, rng: np.random.Generator
    ) -> Spans:
        """Spans with about `budget_tokens` tokens, fewer where the candidates do not suffice."""


def geometric_lengths(success_probability: float, longest: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` draws from a geometric distribution, those above `longest` rejected and drawn again; i64 [count].

    P(n) is proportional to p (1 - p)^(n - 1) for n from 1 to `longest`.
    """
    weights = (1 - success_probability) ** np.arange(longest)  # f64 [longest]
    cumulative = np.cumsum(weights) / weights.sum()  # f64 [longest]
    # The last sum may fall short of 1 by rounding, hence cumulative[:-1].
    return np.searchsorted(cumulative[:-1], rng.random(count), side="right") + 1


@dataclass(frozen=True, slots=True)
class CandidateThinning:
    """Thins candidates at random by the kind of their tokens, so that frequent small words do not fill the budget."""

    clause_punctuation_skip_probability: float = CLAUSE_SKIP_PROBABILITY
    """Probability of skipping a span that is one CLAUSE_PUNCTUATION token."""
    stopword_span_skip_probability: float = 0.0
    """Probability of skipping a span of STOPWORD and PUNCTUATION tokens only."""

    def keep(self, candidates: MaskableSpans, sequences: Sequences, rng: np.random.Generator) -> MaskableSpans:
        """The candidates that stay, in their order."""
        keep_probabilities = np.ones(len(candidates))  # f64 [m]
        if self.clause_punctuation_skip_probability:
            is_clause = has_flag(sequences.flags[candidates.starts], TokenFlag.CLAUSE_PUNCTUATION)  # bool [m]
            is_clause &= candidates.lengths == 1
            keep_probabilities[is_clause] *= 1 - self.clause_punctuation_skip_probability
        if self.stopword_span_skip_probability:
            is_content = ~has_flag(sequences.flags, TokenFlag.STOPWORD | TokenFlag.PUNCTUATION)  # bool [T]
            content_before = np.append(0, np.cumsum(is_content))  # i64 [T + 1]
            ends = candidates.starts + candidates.lengths  # i64 [m]
            without_content = content_before[ends] == content_before[candidates.starts]  # bool [m]
            keep_probabilities[without_content] *= 1 - self.stopword_span_skip_probability
        return candidates.where(rng.random(len(candidates)) < keep_probabilities)


@dataclass(frozen=True, slots=True)
class GeometricSpanSampler:
    """Spans with lengths from a geometric distribution up to `max_span_tokens` (arXiv 2212.01349, section 3.2)."""

    success_probability: float = 0.5
    """p; the mean length is about 1/p tokens."""
    max_span_tokens: int = 10
    """Longest span, in words where the candidates' lengths are drawn in words."""
    max_spans_per_sequence: int = 64
    max_repeats_per_phrase: int = 10
    """Maximum number of masked occurrences of the same phrase in a group."""
    overshoot: bool = True
    """Mask a last span that is longer than the rest of the budget; without it only those that fit are masked."""

    def draw(
        self, candidates: MaskableSpans, sequences: Sequences, budget_tokens: int, rng: np.random.Generator
    ) -> Spans:
        """Draw lengths, and for each the next acceptable candidate of that length from a shuffled list.

        Where no acceptable candidate of a length is left, the next shorter lengths are tried, then the longer ones.
        Drawing ends when `budget_tokens` tokens are masked, or when no candidate is left.
        """
        sizes = candidates.lengths if candidates.word_counts is None else candidates.word_counts  # i64 [m]
        shuffled = [
            rng.permutation(np.flatnonzero(sizes == length)).tolist() for length in range(1, self.max_span_tokens + 1)
        ]
        # Plain lists: single elements of numpy arrays are an order of magnitude slower to read.
        starts, lengths, phrases = (
            np.asarray(each).tolist() for each in (candidates.starts, candidates.lengths, candidates.phrase_ids)
        )
        owners = sequence_numbers(sequences)[candidates.starts].tolist()
        masked = bytearray(len(sequences.token_ids))  # 1 where a token is masked
        spans_in_sequence, repeats_of_phrase = [0] * len(sequences), [0] * (max(phrases, default=-1) + 1)
        chosen: list[int] = []

        def accept(candidate: int) -> int:
            """Tokens of the candidate; 0 where it overlaps a span, or its sequence or phrase has had enough."""
            start, length = starts[candidate], lengths[candidate]
            owner, phrase = owners[candidate], phrases[candidate]
            if (
                spans_in_sequence[owner] >= self.max_spans_per_sequence
                or repeats_of_phrase[phrase] >= self.max_repeats_per_phrase
                or masked.find(1, start, start + length) >= 0
            ):
                return 0
            masked[start : start + length] = b"\1" * length
            spans_in_sequence[owner] += 1
            repeats_of_phrase[phrase] += 1
            chosen.append(candidate)
            return int(length)

        left = budget_tokens
        # Every round masks at least one token, so this many draws always suffice.
        for drawn in geometric_lengths(self.success_probability, self.max_span_tokens, budget_tokens, rng).tolist():
            taken = 0
            for length in (*range(drawn, 0, -1), *range(drawn + 1, self.max_span_tokens + 1)):
                queue = shuffled[length - 1] if self.overshoot or length <= left else []
                while queue and not taken:
                    taken = accept(queue.pop())
            left -= taken
            if not taken or left <= 0:
                break
        spans = candidates.where(np.array(chosen, dtype=np.int64))
        return sorted_spans(spans.starts, spans.lengths)


@dataclass(frozen=True, slots=True)
class UniformSampler:
    """Every candidate with the same probability, without replacement.

    One that overlaps a masked one, or is longer than the rest of the budget, is skipped.
    """

    def draw(
        self, candidates: MaskableSpans, sequences: Sequences, budget_tokens: int, rng: np.random.Generator
    ) -> Spans:
        """`budget_tokens` tokens of candidates in a random order; fewer where no candidate is left that fits."""
        order = rng.permutation(len(candidates))  # i64 [m]
        if (candidates.lengths == 1).all():  # different tokens, which cannot overlap
            chosen = candidates.where(order[:budget_tokens])
            return sorted_spans(chosen.starts, chosen.lengths)
        all_starts, all_lengths = candidates.starts.tolist(), candidates.lengths.tolist()
        masked = bytearray(len(sequences.token_ids))  # 1 where a token is masked
        starts: list[int] = []
        lengths: list[int] = []
        left = budget_tokens
        for number in order.tolist():
            if left <= 0:
                break
            start, length = all_starts[number], all_lengths[number]
            if length > left or masked.find(1, start, start + length) >= 0:
                continue
            masked[start : start + length] = b"\1" * length
            starts.append(start)
            lengths.append(length)
            left -= length
        return sorted_spans(np.array(starts, dtype=np.int64), np.array(lengths, dtype=np.int64))


def sorted_spans(starts: np.ndarray, lengths: np.ndarray) -> Spans:
    """Disjoint spans, i64 [n] each, in the order of the text."""
    order = np.argsort(starts)  # i64 [n]
    return Spans(starts=starts[order], lengths=lengths[order])


@dataclass(frozen=True, slots=True)
class PartitionSampler:
    """A sequence is cut into alternating runs, clean and masked (Raffel et al. 2020, arXiv 1910.10683, §3.3.4).

    Of its L candidates with a budget of N, S = max(1, round(N / mean_span_tokens)) runs are masked; the lengths of the
    masked runs, and those of the S clean ones, are compositions of N and of L - N into S parts, each composition as
    likely as any other. The mask is then rolled by a random number of tokens, so that every position is masked with the
    same probability; a run that is rolled over the end becomes two: there may be S + 1.
    """

    mean_span_tokens: float = 3.0
    """μ; runs are longer where they have to be fewer than N/μ to stay apart."""

    def draw(self, candidates: MaskableSpans, _: Sequences, budget_tokens: int, rng: np.random.Generator) -> Spans:
        """Exactly `budget_tokens` tokens of one sequence in runs, or all candidates if there are fewer."""
        return _runs(candidates, budget_tokens, partial(self._mask, rng=rng))

    def _mask(self, size: int, budget: int, *, rng: np.random.Generator) -> np.ndarray:
        """Mask bool [size] with `budget` positions, from 1 to size."""
        clean = size - budget
        if not clean:
            return np.ones(size, dtype=bool)
        runs = run_count(size, budget, self.mean_span_tokens)
        lengths = np.empty(2 * runs, dtype=np.int64)  # i64 [2 runs], clean and masked in turn
        lengths[0::2] = random_composition(clean, runs, rng)
        lengths[1::2] = random_composition(budget, runs, rng)
        masked = np.repeat(np.arange(2 * runs) % 2 == 1, lengths)  # bool [size]
        return np.roll(masked, int(rng.integers(size)))


@dataclass(frozen=True, slots=True)
class SuffixSampler:
    """One span at the end of a sequence: the rest is a prefix to be continued (arXiv 2205.05131, §3.1.2)."""

    vary_length: bool = True
    """Draw the length evenly from an interval around its mean, the budget N: 1 to 2N - 1, or
    less, so that one candidate stays. Else every length is N."""

    def draw(self, candidates: MaskableSpans, _: Sequences, budget_tokens: int, rng: np.random.Generator) -> Spans:
        """`budget_tokens` tokens on average (exactly, without `vary_length`), or all candidates if there are fewer."""
        return _runs(candidates, budget_tokens, partial(self._mask, rng=rng))

    def _mask(self, size: int, budget: int, *, rng: np.random.Generator) -> np.ndarray:
        """Mask bool [size] with `budget` positions on average, from 1 to size."""
        reach = min(budget - 1, size - 1 - budget) if self.vary_length else 0
        length = budget + (int(rng.integers(-reach, reach + 1)) if reach > 0 else 0)
        return np.arange(size) >= size - length


def run_count(size: int, budget: int, mean_span_tokens: float) -> int:
    """S = max(1, round(N / μ)) for a budget N of `size` positions, or as many runs as fit with gaps between them.

    >>> run_count(100, 15, 3.0), run_count(100, 90, 3.0)
    (5, 10)
    """
    return min(max(1, round(budget / mean_span_tokens)), budget, size - budget)


def random_composition(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Lengths i64 [parts] of at least 1 that sum to `total`, each such sequence with the same probability.

    >>> random_composition(4, 4, np.random.default_rng(0)).tolist()
    [1, 1, 1, 1]
    """
    cuts = np.sort(rng.choice(total - 1, parts - 1, replace=False, shuffle=False)) + 1  # i64 [parts - 1]
    return np.diff(cuts, prepend=0, append=total)


def _runs(candidates: MaskableSpans, budget_tokens: int, mask: Callable[[int, int], np.ndarray]) -> Spans:
    """The spans where `mask`, called with the number of candidates and a budget of at most as many, is true."""
    places = np.sort(candidates.starts)  # i64 [L]
    budget = min(budget_tokens, len(places))
    positions = places[mask(len(places), budget)] if budget else places[:0]  # i64 [masked tokens]
    firsts = np.flatnonzero(np.diff(positions, prepend=-2) != 1)  # i64 [n]
    return Spans(starts=positions[firsts], lengths=np.diff(firsts, append=len(positions)))


@dataclass(frozen=True, slots=True)
class WordSpanSampler:
    """Word-aligned spans (Joshi et al. 2020, arXiv 1907.10529, section 3.1).

    A span's length in words is geometric with parameter p, draws above `max_span_words` drawn again (mean 3.797 words
    with the defaults). Its anchor is a token drawn evenly; one that is masked already is drawn again. The span starts
    at the anchor's word and ends early where the next word is masked, is not a candidate, or is in another sequence.
    The last span is cut where the budget ends, in the middle of a word too.
    """

    success_probability: float = 0.2
    max_span_words: int = 10

    def draw(
        self, candidates: MaskableSpans, sequences: Sequences, budget_tokens: int, rng: np.random.Generator
    ) -> Spans:
        """Spans of neighboring candidates, which must be disjoint, such as words, with `budget_tokens` tokens."""
        words = sorted_spans(candidates.starts, candidates.lengths)
        ends = words.starts + words.lengths  # i64 [m]
        if (ends[:-1] > words.starts[1:]).any():
            raise ValueError("candidates that do not overlap expected, such as words")
        goes_on = words_that_go_on(sequences, words)  # bool [m]
        # An anchor that was drawn is masked afterwards, so drawing without replacement is drawing again.
        anchors = rng.permutation(np.repeat(np.arange(len(words)), words.lengths))  # i64 [tokens of words]
        lengths = geometric_lengths(self.success_probability, self.max_span_words, len(anchors), rng)
        starts, stops, follows = words.starts.tolist(), ends.tolist(), goes_on.tolist()
        is_masked = bytearray(len(words))  # 1 where a word is masked
        chosen: list[tuple[int, int]] = []  # start and length in tokens
        left = budget_tokens
        for first, word_count in zip(anchors.tolist(), lengths.tolist(), strict=True):
            if left <= 0:
                break
            if is_masked[first]:
                continue
            last = first
            while last - first + 1 < word_count and follows[last] and not is_masked[last + 1]:
                last += 1
            length = min(stops[last] - starts[first], left)
            is_masked[first : last + 1] = b"\1" * (last - first + 1)
            chosen.append((starts[first], length))
            left -= length
        table = np.array(chosen, dtype=np.int64).reshape(-1, 2)  # i64 [n, 2]
        return sorted_spans(table[:, 0], table[:, 1])
