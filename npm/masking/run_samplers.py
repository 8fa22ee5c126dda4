"""Samplers that lay runs over each sequence by itself: T5's span corruption, and one span at the end.

Both take candidates of one token each. A run that meets a token that is no candidate, such as a special token, is
split there and leaves that token as it is.

Shapes: T tokens of all sequences in a row, S sequences, m candidates, n spans, L candidates of one sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from npm.masking.units import Candidates, sequence_numbers
from npm.types import Sequences, Spans


@dataclass(frozen=True, slots=True)
class PartitionSampler:
    """Each sequence is cut into alternating runs, clean and masked (Raffel et al. 2020, arXiv 1910.10683, §3.3.4).

    Of a sequence with L candidates and a share N of the budget, S = max(1, round(N / mean_span_tokens)) runs are
    masked; the lengths of the masked runs, and those of the S clean ones, are compositions of N and of L - N into S
    parts, each composition as likely as any other.
    """

    mean_span_tokens: float = 3.0
    """μ; runs are longer where they have to be fewer than N/μ to stay apart."""
    roll: bool = True
    """Turn each sequence's mask by a random number of tokens, so that every place is masked with the same probability.
    Without it the first token is never masked and the last one always. A run that is turned over the end of its
    sequence becomes two, so that there may be S + 1."""

    def draw(self, candidates: Candidates, sequences: Sequences, budget_tokens: int, rng: np.random.Generator) -> Spans:
        """Exactly `budget_tokens` tokens in runs, or all candidates if there are fewer.

        The budget is shared among the sequences by their numbers of candidates, to within one token.
        """
        return _runs_by_sequence(
            candidates, sequences, budget_tokens, lambda size, budget: self._mask(size, budget, rng)
        )

    def _mask(self, size: int, budget: int, rng: np.random.Generator) -> np.ndarray:
        """Which of `size` places are masked, bool [size]; `budget` of them, from 1 to size."""
        clean = size - budget
        if not clean:
            return np.ones(size, dtype=bool)
        runs = run_count(size, budget, self.mean_span_tokens)
        lengths = np.empty(2 * runs, dtype=np.int64)  # i64 [2 runs], clean and masked in turn
        lengths[0::2] = random_composition(clean, runs, rng)
        lengths[1::2] = random_composition(budget, runs, rng)
        masked = np.repeat(np.arange(2 * runs) % 2 == 1, lengths)  # bool [size]
        return np.roll(masked, int(rng.integers(size))) if self.roll else masked


@dataclass(frozen=True, slots=True)
class SuffixSampler:
    """One span at the end of each sequence: what is left is a prefix to be continued (arXiv 2205.05131, §3.1.2)."""

    vary_length: bool = True
    """Draw each length evenly from an interval around its mean, the sequence's share N of the budget: 1 to 2N - 1, or
    less, so that one candidate stays. Else every length is N."""

    def draw(self, candidates: Candidates, sequences: Sequences, budget_tokens: int, rng: np.random.Generator) -> Spans:
        """`budget_tokens` tokens on average (exactly, without `vary_length`), or all candidates if there are fewer."""
        return _runs_by_sequence(
            candidates, sequences, budget_tokens, lambda size, budget: self._mask(size, budget, rng)
        )

    def _mask(self, size: int, budget: int, rng: np.random.Generator) -> np.ndarray:
        """Which of `size` places are masked, bool [size]; `budget` of them on average, from 1 to size."""
        reach = min(budget - 1, size - 1 - budget) if self.vary_length else 0
        length = budget + (int(rng.integers(-reach, reach + 1)) if reach > 0 else 0)
        return np.arange(size) >= size - length


def run_count(size: int, budget: int, mean_span_tokens: float) -> int:
    """S = max(1, round(N / μ)) for a budget N of `size` places, or as many runs as can stand apart from each other.

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


def _runs_by_sequence(
    candidates: Candidates, sequences: Sequences, budget_tokens: int, mask: Callable[[int, int], np.ndarray]
) -> Spans:
    """The spans where `mask`, called for each sequence with its number of candidates and its budget, is true."""
    if (candidates.lengths != 1).any():
        raise ValueError(f"candidates of one token expected, got lengths up to {candidates.lengths.max()}")
    places = np.sort(candidates.starts)  # i64 [m]
    owners = sequence_numbers(sequences)[places]  # i64 [m]
    sizes = np.bincount(owners, minlength=len(sequences))  # i64 [S]
    masked = np.zeros(len(places), dtype=bool)  # bool [m]
    begin = 0
    for size, budget in zip(sizes.tolist(), shared_budget(sizes, budget_tokens).tolist(), strict=True):
        if budget:
            masked[begin : begin + size] = mask(size, budget)
        begin += size
    positions, owners = places[masked], owners[masked]  # i64 [masked tokens] each
    if not len(positions):
        return Spans(positions, positions)
    is_start = np.ones(len(positions), dtype=bool)  # bool [masked tokens]
    is_start[1:] = (np.diff(positions) != 1) | (np.diff(owners) != 0)
    firsts = np.flatnonzero(is_start)  # i64 [n]
    return Spans(starts=positions[firsts], lengths=np.diff(firsts, append=len(positions)))


def shared_budget(sizes: np.ndarray, budget_tokens: int) -> np.ndarray:
    """A budget i64 [S] of at most `sizes` i64 [S] for each sequence, in proportion, with `budget_tokens` as its sum.

    Rounding the running sums, not the shares, keeps the sum exact and each share within one token.

    >>> shared_budget(np.array([10, 10, 20]), 5).tolist()
    [1, 2, 2]
    """
    total = int(sizes.sum())
    if not total:
        return np.zeros_like(sizes)
    budget = min(budget_tokens, total)
    sums = (2 * budget * np.cumsum(sizes) + total) // (2 * total)  # i64 [S], rounded half up
    return np.diff(sums, prepend=0)
