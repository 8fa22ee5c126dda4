"""Which tokens of each sequence are masked in which copy, and which of these are predicted.

The share of tokens that are masked (the corruption rate) and the share that are predicted are set apart (Wettig et al.
2023, arXiv 2202.08005). Where more is to be predicted than masked, a sequence is shown in several copies
whose masked tokens are disjoint.

Shapes: T tokens of all sequences in a row, S sequences, m candidates, n masked spans, p predicted tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from npm.masking.contexts import masked_positions
from npm.masking.samplers import Sampler
from npm.masking.units import Candidates, Units, has_flag
from npm.types import Sequences, Spans, TokenFlag


@dataclass(frozen=True, slots=True)
class Selection:
    """What is masked in one copy of the sequences of a group, and what of it is to be predicted."""

    masked: Spans  # positions in [0, T) of the group's flat tokens
    predicted: np.ndarray  # i64 [p], sorted positions in [0, T), of masked tokens all


class CandidateFilter(Protocol):
    """Takes some of the candidates of a group, such as `LongestUnits`."""

    def keep(self, candidates: Candidates, sequences: Sequences, rng: np.random.Generator) -> Candidates:
        """Those that stay."""


@dataclass(frozen=True, slots=True)
class Selector:
    """Selects the masked and the predicted tokens of each copy of the sequences of a group.

    Each sequence has a budget of its own: of its n tokens that are not special, ⌊m·n + u⌋ are masked, u drawn evenly
    from [0, 1), so that the mean is m·n exactly. Only what the sampler does with a last unit that is too long, and a
    lack of candidates, can change that.
    """

    units: Units
    sampler: Sampler
    masked_fraction: float = 0.15
    """m, of one copy."""
    predicted_fraction: float | None = None
    """Share of a sequence's tokens to predict, in all copies together; None: all that are masked."""
    copy_count: int = 1
    filter: CandidateFilter | None = None

    def select(self, sequences: Sequences, rng: np.random.Generator) -> list[Selection]:
        """One selection for each copy; their masked tokens are disjoint."""
        candidates = self.units.candidates(sequences)
        if self.filter is not None:
            candidates = self.filter.keep(candidates, sequences, rng)
        candidates = candidates.where(np.argsort(candidates.starts, kind="stable"))
        bounds = np.searchsorted(candidates.starts, sequences.offsets)  # i64 [S + 1]
        drawn: list[list[tuple[Spans, np.ndarray]]] = [[] for _ in range(self.copy_count)]
        for number in range(len(sequences)):
            first, stop = sequences.offsets[number : number + 2].tolist()
            own = candidates.where(np.arange(bounds[number], bounds[number + 1]))
            alone = Sequences(sequences.token_ids[first:stop], sequences.flags[first:stop], np.array([0, stop - first]))
            within = Candidates(own.starts - first, own.lengths, own.phrase_ids)
            for copy, (spans, predicted) in zip(drawn, self._select_one(within, alone, rng), strict=True):
                copy.append((Spans(spans.starts + first, spans.lengths), predicted + first))
        return [_joined(copy) for copy in drawn]

    def _select_one(
        self, candidates: Candidates, sequence: Sequences, rng: np.random.Generator
    ) -> list[tuple[Spans, np.ndarray]]:
        """The masked spans and the predicted positions i64 [p] of each copy of one sequence."""
        maskable = int((~has_flag(sequence.flags, TokenFlag.SPECIAL)).sum())
        # One u for all copies: rounded sums, so that c copies of m/c mask as much as one copy of m.
        rounding = rng.random()
        sums = [_rounded(copy * self.masked_fraction * maskable, rounding) for copy in range(self.copy_count + 1)]
        to_predict = maskable
        if self.predicted_fraction is not None:
            to_predict = _rounded(self.predicted_fraction * maskable, rounding)
        is_used = np.zeros(len(sequence.token_ids), dtype=bool)  # bool [T]
        chosen = []
        for copy in range(self.copy_count):
            if copy:
                used_before = np.append(0, np.cumsum(is_used))  # i64 [T + 1]
                ends = candidates.starts + candidates.lengths  # i64 [m]
                candidates = candidates.where(used_before[ends] == used_before[candidates.starts])
            spans = self.sampler.draw(candidates, sequence, sums[copy + 1] - sums[copy], rng)
            positions = masked_positions(spans)  # i64 [masked tokens]
            is_used[positions] = True
            predicted = positions
            if len(positions) > to_predict:
                predicted = np.sort(rng.permutation(positions)[:to_predict])  # i64 [p]
            to_predict -= len(predicted)
            chosen.append((spans, predicted))
        return chosen


def _rounded(tokens: float, rounding: float) -> int:
    # 20 · 0.15 is a hair below 3; without the allowance an exact share would fall one short once in a while
    return math.floor(tokens + rounding + 1e-9)


def _joined(parts: list[tuple[Spans, np.ndarray]]) -> Selection:
    none = np.zeros(0, dtype=np.int64)
    starts = np.concatenate([none, *(spans.starts for spans, _ in parts)])  # i64 [n]
    lengths = np.concatenate([none, *(spans.lengths for spans, _ in parts)])  # i64 [n]
    return Selection(Spans(starts, lengths), np.concatenate([none, *(predicted for _, predicted in parts)]))
