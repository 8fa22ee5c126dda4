"""Which of the candidate spans are masked: candidates are thinned, then drawn until a budget of tokens is spent.

Shapes: T tokens of all sequences in a row, S sequences, m candidates, n spans.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np

from npm.masking.units import Candidates, has_flag, sequence_numbers
from npm.types import Sequences, Spans, TokenFlag


class Sampler(Protocol):
    """Draws disjoint spans among candidates."""

    def draw(
        self,
        candidates: Candidates,
        sequences: Sequences,
        budget_tokens: int,
        rng: np.random.Generator,
    ) -> Spans:
        """Spans with about `budget_tokens` tokens, fewer where the candidates do not suffice."""


class Overflow(Enum):
    """What becomes of a drawn span that is longer than what is left of the budget."""

    skip = "skip"  # it is left out, and shorter ones may follow
    truncate = "truncate"  # it is cut, in the middle of a word too
    overshoot = "overshoot"  # it is masked whole

    def tokens_taken(self, length: int, left: int) -> int:
        """How many tokens are masked of a span of `length` tokens, when `left` tokens are left to mask.

        >>> [rule.tokens_taken(5, 3) for rule in Overflow], [rule.tokens_taken(2, 3) for rule in Overflow]
        ([0, 3, 5], [2, 2, 2])
        """
        if length <= left:
            return length
        return {Overflow.skip: 0, Overflow.truncate: left, Overflow.overshoot: length}[self]


def geometric_lengths(success_probability: float, longest: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` draws from a geometric distribution, those above `longest` thrown away and drawn again; i64 [count].

    P(n) is proportional to p (1 - p)^(n - 1) for n from 1 to `longest`.
    """
    weights = (1 - success_probability) ** np.arange(longest)  # f64 [longest]
    cumulative = np.cumsum(weights) / weights.sum()  # f64 [longest]
    # The last sum may fall short of 1 by rounding, hence cumulative[:-1].
    return np.searchsorted(cumulative[:-1], rng.random(count), side="right") + 1


@dataclass(frozen=True, slots=True)
class CandidateThinning:
    """Leaves candidates out at random by what they are made of, so that frequent small words do not fill the budget."""

    clause_punctuation_skip_probability: float = 0.9
    """How often a span that is one CLAUSE_PUNCTUATION token is left out."""
    stopword_span_skip_probability: float = 0.0
    """How often a span made of STOPWORD and PUNCTUATION tokens only is left out."""

    def keep(self, candidates: Candidates, sequences: Sequences, rng: np.random.Generator) -> Candidates:
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
    max_spans_per_sequence: int = 64
    max_repeats_per_phrase: int = 10
    """How many occurrences of the same phrase may be masked in a group."""
    overflow: Overflow = Overflow.overshoot
    """What becomes of the last span; it may exceed the budget by `max_span_tokens` - 1 where it may overshoot."""

    def draw(
        self,
        candidates: Candidates,
        sequences: Sequences,
        budget_tokens: int,
        rng: np.random.Generator,
    ) -> Spans:
        """Draw lengths, and for each the next acceptable candidate of that length from a shuffled list.

        Where no acceptable candidate of a length is left, the next shorter lengths are tried, then the longer ones.
        Drawing ends when `budget_tokens` tokens are masked, or when nothing is left.
        """
        selection = _Selection(self, candidates, sequences)
        shuffled = [
            rng.permutation(np.flatnonzero(candidates.lengths == length)).tolist()
            for length in range(1, self.max_span_tokens + 1)
        ]
        masked_tokens = 0
        # Every round masks at least one token, so this many draws always suffice.
        for drawn in geometric_lengths(self.success_probability, self.max_span_tokens, budget_tokens, rng).tolist():
            left = budget_tokens - masked_tokens
            if left <= 0:
                break
            length = self._accept_one(selection, shuffled, drawn, left)
            if not length:
                break
            masked_tokens += length
        chosen = candidates.where(np.array(selection.chosen, dtype=np.int64))
        if self.overflow is Overflow.truncate and masked_tokens > budget_tokens:
            chosen.lengths[-1] -= masked_tokens - budget_tokens
        return sorted_spans(chosen.starts, chosen.lengths)

    def _accept_one(self, selection: _Selection, shuffled: list[list[int]], drawn: int, left: int) -> int:
        """Accept one candidate, of length `drawn` if possible; its length, or 0 if nothing is left."""
        for length in (*range(drawn, 0, -1), *range(drawn + 1, self.max_span_tokens + 1)):
            queue = shuffled[length - 1] if self.overflow.tokens_taken(length, left) else []
            while queue:
                if selection.accept(queue.pop(), length):
                    return length
        return 0


class _Selection:
    """The candidates accepted so far, with what the rules of rejection need to know of them."""

    def __init__(self, rules: GeometricSpanSampler, candidates: Candidates, sequences: Sequences) -> None:
        self.chosen: list[int] = []
        self._rules = rules
        # Plain lists: single elements of numpy arrays are an order of magnitude slower to read.
        self._starts = candidates.starts.tolist()
        self._phrases = candidates.phrase_ids.tolist()
        self._sequences = sequence_numbers(sequences)[candidates.starts].tolist()
        self._masked = bytearray(len(sequences.token_ids))  # 1 where a token is masked
        self._spans_in_sequence = [0] * len(sequences)
        self._repeats_of_phrase = [0] * (max(self._phrases, default=-1) + 1)

    def accept(self, candidate: int, length: int) -> bool:
        """Take `candidate` if it overlaps no span taken and its sequence and its phrase have not had enough."""
        start, sequence, phrase = self._starts[candidate], self._sequences[candidate], self._phrases[candidate]
        if (
            self._spans_in_sequence[sequence] >= self._rules.max_spans_per_sequence
            or self._repeats_of_phrase[phrase] >= self._rules.max_repeats_per_phrase
            or self._masked.find(1, start, start + length) >= 0
        ):
            return False
        self._masked[start : start + length] = b"\1" * length
        self._spans_in_sequence[sequence] += 1
        self._repeats_of_phrase[phrase] += 1
        self.chosen.append(candidate)
        return True


@dataclass(frozen=True, slots=True)
class UniformSampler:
    """Every candidate with the same probability, without replacement; one that overlaps a masked one is passed over."""

    overflow: Overflow = Overflow.skip
    """What becomes of a candidate that is longer than what is left of the budget."""

    def draw(
        self,
        candidates: Candidates,
        sequences: Sequences,
        budget_tokens: int,
        rng: np.random.Generator,
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
            start = all_starts[number]
            length = self.overflow.tokens_taken(all_lengths[number], left)
            if not length or masked.find(1, start, start + length) >= 0:
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
