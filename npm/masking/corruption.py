"""Masking for masked language modeling: the settings, and the samplers and views built from them.

The fractions of tokens that are masked (the corruption rate) and that are predicted are set separately (Wettig et al.
2023, arXiv 2202.08005). Where more is to be predicted than masked, a sequence is shown in several copies
whose masked tokens are disjoint.

Shapes: T tokens of all sequences in a row, S sequences, c copies, m candidates, n masked spans,
p predicted tokens.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from npm.core.errors import SettingError, exclusive
from npm.core.settings import INNER, Fraction, Settings
from npm.core.types import Sequences, Spans, TokenFlag
from npm.masking.batches import MaskedBatch
from npm.masking.collocations import CollocationSettings, CollocationUnits, CollocationVocabulary, LongestUnits
from npm.masking.masker import masked_positions
from npm.masking.rendering import merge_groups, padded_rows
from npm.masking.samplers import (
    GeometricSpanSampler,
    PartitionSampler,
    Sampler,
    SuffixSampler,
    UniformSampler,
    WordSpanSampler,
)
from npm.masking.units import CooccurringUnits, MaskableSpans, TokenUnits, Units, WordUnits, has_flag


@dataclass(frozen=True, slots=True)
class CorruptedTokens:
    """Masked and predicted tokens of one copy of the sequences of a group."""

    masked: Spans  # positions in [0, T) of the group's flat tokens
    predicted: np.ndarray  # i64 [p], sorted positions in [0, T), of masked tokens all


@dataclass(frozen=True, slots=True)
class Selector:
    """Selects the masked and the predicted tokens of each copy of the sequences of a group.

    Each sequence has its own budget: of its n tokens that are not special, ⌊m·n + u⌋ are masked, u drawn evenly
    from [0, 1), so that the mean is m·n exactly. Only a last unit that is too long for the sampler, and too
    few candidates, can change that.
    """

    units: Units
    sampler: Sampler
    masked_fraction: float = 0.15
    """m, of one copy."""
    predicted_fraction: float | None = None
    """Fraction of a sequence's tokens to predict, in all copies together; None: all that are masked."""
    copy_count: int = 1
    filter: LongestUnits | None = None

    def select(self, sequences: Sequences, rng: np.random.Generator) -> list[CorruptedTokens]:
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
            within = replace(own, starts=own.starts - first)
            for copy, (spans, predicted) in zip(drawn, self._select_one(within, alone, rng), strict=True):
                copy.append((Spans(spans.starts + first, spans.lengths), predicted + first))
        return [_joined(copy) for copy in drawn]

    def _select_one(
        self, candidates: MaskableSpans, sequence: Sequences, rng: np.random.Generator
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
    # 20 · 0.15 is a hair below 3; without the allowance an exact fraction would sometimes fall one short
    return math.floor(tokens + rounding + 1e-9)


def _joined(parts: list[tuple[Spans, np.ndarray]]) -> CorruptedTokens:
    none = np.zeros(0, dtype=np.int64)
    starts = np.concatenate([none, *(spans.starts for spans, _ in parts)])  # i64 [n]
    lengths = np.concatenate([none, *(spans.lengths for spans, _ in parts)])  # i64 [n]
    return CorruptedTokens(Spans(starts, lengths), np.concatenate([none, *(predicted for _, predicted in parts)]))


@dataclass(frozen=True, slots=True)
class InPlaceViews:
    """Makes the view for masked language modeling; a group's masks depend on its own generator only.

    A masked token becomes the mask token, a random token, or stays unchanged (Devlin et al. 2019, section 3.1).
    `prefix_ids` and `suffix_ids` are the special tokens that the encoder wants around a sequence.
    """

    selector: Selector
    mask_id: int
    pad_id: int
    ordinary_ids: np.ndarray
    """i64 [v], what a random token is drawn from, evenly: the vocabulary without special tokens."""
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    random_fraction: float = 0.0
    unchanged_fraction: float = 0.0

    def view(self, groups: Sequence[Sequences], rngs: Sequence[np.random.Generator]) -> MaskedBatch:
        """The groups masked one by one, in one batch: the first copy of each sequence of a group, then the second, ….

        Its spans are the predicted tokens, each one by itself.
        """
        import torch

        copies: list[tuple[Sequences, Spans]] = []
        targets: list[np.ndarray] = []  # i32 [p of a copy]
        for group, rng in zip(groups, rngs, strict=True):
            for selection in self.selector.select(group, rng):
                token_ids = group.token_ids.astype(np.int64)  # i64 [T]
                positions = masked_positions(selection.masked)  # i64 [masked tokens]
                token_ids[positions] = self._replacements(token_ids[positions], rng)
                predicted = Spans(selection.predicted, np.ones_like(selection.predicted))
                copies.append((Sequences(token_ids, group.flags, group.offsets), predicted))
                targets.append(group.token_ids[selection.predicted])
        seen, spans = merge_groups(copies)
        clean, _ = merge_groups([(group, Spans(group.offsets[:0], group.offsets[:0])) for group in groups])
        # Empty sequences share their offset with the next one; side="right" skips them.
        rows = np.searchsorted(seen.offsets, spans.starts, side="right") - 1  # i64 [p]
        slots = torch.from_numpy(spans.starts - seen.offsets[rows] + len(self.prefix_ids))  # i64 [p]
        framed = partial(padded_rows, pad_id=self.pad_id, prefix_ids=self.prefix_ids, suffix_ids=self.suffix_ids)
        query_input_ids, query_attention_mask = framed(seen.token_ids, seen.offsets)
        key_input_ids, key_attention_mask = framed(clean.token_ids, clean.offsets)
        return MaskedBatch(
            query_input_ids=query_input_ids,
            query_attention_mask=query_attention_mask,
            key_input_ids=key_input_ids,
            key_attention_mask=key_attention_mask,
            span_sequences=torch.from_numpy(rows),
            start_slots=slots,
            end_slots=slots,
            span_token_ids=torch.from_numpy(np.concatenate(targets).astype(np.int64)[:, None]),  # i64 [p, 1]
            pad_id=self.pad_id,
        )

    def _replacements(self, token_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Replacements of masked `token_ids`, i64 [masked tokens] each."""
        seen = np.full(len(token_ids), self.mask_id, dtype=np.int64)  # i64 [masked tokens]
        if not self.random_fraction and not self.unchanged_fraction:
            return seen
        draws = rng.random(len(token_ids))  # f64 [masked tokens]
        is_random = draws < self.random_fraction  # bool [masked tokens]
        is_unchanged = ~is_random & (draws < self.random_fraction + self.unchanged_fraction)  # bool [masked tokens]
        seen[is_random] = rng.choice(self.ordinary_ids, int(is_random.sum()))
        seen[is_unchanged] = token_ids[is_unchanged]
        return seen


class CorruptionUnit(Enum):
    """Units whose tokens are masked together."""

    token = "token"
    word = "word"
    collocation = "collocation"  # the longest entry of a vocabulary mined by mutual information, else a word
    cooccurring = "cooccurring"  # a span that occurs in another sequence of the group too, as for the phrase loss


class CorruptionSampler(Enum):
    """Ways to draw units."""

    uniform = "uniform"  # each unit with the same probability
    geometric = "geometric"  # spans of units with geometric lengths
    partition = "partition"  # alternating clean and masked runs of tokens (T5)
    suffix = "suffix"  # the end of each sequence


SAMPLERS = {
    CorruptionUnit.token: (CorruptionSampler.uniform, CorruptionSampler.partition, CorruptionSampler.suffix),
    CorruptionUnit.word: (CorruptionSampler.uniform, CorruptionSampler.geometric),
    CorruptionUnit.collocation: (CorruptionSampler.uniform,),
    CorruptionUnit.cooccurring: (CorruptionSampler.uniform, CorruptionSampler.geometric),
}
"""The samplers that go with each unit."""
SAMPLERS_WITH_COPIES = (CorruptionSampler.uniform, CorruptionSampler.geometric)
"""Samplers that can omit tokens that other copies of a sequence have masked."""


MAX_SPAN_UNITS = 10
"""Longest span of the geometric sampler, in words, or in tokens with unit=cooccurring."""


class CorruptionSettings(Settings):
    """Settings of masking for masked language modeling."""

    unit: CorruptionUnit = CorruptionUnit.token
    """Unit that is masked entirely: `token`, `word`, `collocation`, or one that occurs in another sequence too
    (`cooccurring`: single tokens with the uniform sampler, phrases with the geometric one)."""
    sampler: CorruptionSampler = CorruptionSampler.uniform
    """Sampler of units: `uniform`, `geometric` (spans of words or cooccurring phrases), or for tokens `partition`
    (runs as in T5) and `suffix`."""
    masked_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Corruption rate: tokens masked in one copy, as a fraction of the sequence's tokens that are not special; above 0,
    below 1."""
    predicted_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Prediction rate: tokens predicted, as a fraction of the same; null: all that are masked. Below masked_fraction, a
    random part of the masked tokens is predicted; above it, `copies` is needed."""
    copies: bool = False
    """Show each sequence in as many copies, with disjoint masks, as predicted_fraction needs."""
    random_fraction: Fraction = 0.0
    """Fraction of the masked tokens that become a random token instead of a mask (0.1 in BERT); from 0 to 1."""
    unchanged_fraction: Fraction = 0.0
    """Fraction of the masked tokens that stay unchanged (0.1 in BERT); from 0 to 1."""
    span_success_probability: Annotated[float, Field(gt=0, le=1)] = 0.2
    """p of the geometric distribution of span lengths, in words (0.2 in SpanBERT), or in tokens with unit=cooccurring
    (0.5 in NPM); above 0, at most 1."""
    mean_span_tokens: Annotated[float, Field(ge=1), INNER] = 3.0
    """Mean length of the runs of the partition sampler, in tokens; at least 1."""
    collocations: CollocationSettings = field(default_factory=CollocationSettings)
    """The vocabulary of unit=collocation."""
    allow_bytes: bool = False
    """Mask single bytes where the tokens are bytes, which is refused else: the bytes around one all but name it."""

    def check(self) -> None:
        """Raise SettingError for incompatible settings."""
        replaced = self.random_fraction + self.unchanged_fraction
        if replaced > 1 + 1e-9:
            raise SettingError(
                "corruption.random_fraction and corruption.unchanged_fraction must be at most 1 together, "
                f"got {replaced:g}"
            )
        if self.sampler not in SAMPLERS[self.unit]:
            fitting = " or ".join(sampler.name for sampler in SAMPLERS[self.unit])
            raise SettingError(
                f"corruption.sampler must be {fitting} with corruption.unit={self.unit.name}, got {self.sampler.name}"
            )
        if self.copy_count == 1:
            return
        if not self.copies:
            raise SettingError(
                f"corruption.predicted_fraction must be at most corruption.masked_fraction={self.masked_fraction}, "
                f"got {self.predicted_fraction}; corruption.copies=true shows each sequence {self.copy_count} times"
            )
        if self.sampler not in SAMPLERS_WITH_COPIES:
            raise exclusive("corruption.copies", f"corruption.sampler={self.sampler.name}")
        if self.copy_count * self.masked_fraction > 1 + 1e-9:
            raise SettingError(
                f"corruption.predicted_fraction={self.predicted_fraction} takes {self.copy_count} copies, whose "
                f"disjoint masks of {self.masked_fraction} are more than all tokens: choose a smaller one"
            )

    def check_tokens(self, *, of_bytes: bool) -> None:
        """Raise SettingError for masks of single tokens that are bytes, unless that is allowed."""
        alone = self.unit in (CorruptionUnit.token, CorruptionUnit.cooccurring)
        if of_bytes and alone and self.sampler is CorruptionSampler.uniform and not self.allow_bytes:
            raise SettingError(
                f"corruption.unit={self.unit.name} would mask single bytes: set corruption.unit=word, or "
                "corruption.sampler=partition with corruption.mean_span_tokens=20, or corruption.allow_bytes=true"
            )

    @property
    def copy_count(self) -> int:
        """Copies of each sequence: ⌈predicted / masked⌉."""
        # rounded first: 0.9 / 0.3 is a hair above 3
        return math.ceil(round((self.predicted_fraction or self.masked_fraction) / self.masked_fraction, 9))

    @property
    def mask_probability(self) -> float:
        """Probability that a masked token becomes the mask token."""
        return 1 - self.random_fraction - self.unchanged_fraction


def build_selector(settings: CorruptionSettings, vocabulary: CollocationVocabulary | None = None) -> Selector:
    """The selection that `settings` describe; `vocabulary` is needed with unit=collocation."""
    is_geometric = settings.sampler is CorruptionSampler.geometric
    units: Units = TokenUnits()
    if settings.unit is CorruptionUnit.collocation:
        if vocabulary is None:
            raise ValueError("unit=collocation needs a vocabulary")
        units = CollocationUnits(vocabulary)
    elif settings.unit is CorruptionUnit.cooccurring:
        units = CooccurringUnits(MAX_SPAN_UNITS if is_geometric else 1, word_boundaries=is_geometric)
    elif settings.unit is CorruptionUnit.word:
        units = WordUnits()
    sampler: Sampler = UniformSampler()
    if settings.sampler is CorruptionSampler.partition:
        sampler = PartitionSampler(mean_span_tokens=settings.mean_span_tokens)
    elif settings.sampler is CorruptionSampler.suffix:
        sampler = SuffixSampler(vary_length=False)
    elif is_geometric and settings.unit is CorruptionUnit.word:
        sampler = WordSpanSampler(settings.span_success_probability, MAX_SPAN_UNITS)
    elif is_geometric:
        # masks in place lengthen nothing, so a sequence may have any number
        lengths = settings.span_success_probability, MAX_SPAN_UNITS
        sampler = GeometricSpanSampler(*lengths, max_spans_per_sequence=sys.maxsize, overshoot=False)
    return Selector(
        units=units,
        sampler=sampler,
        masked_fraction=settings.masked_fraction,
        predicted_fraction=settings.predicted_fraction,
        copy_count=settings.copy_count,
        filter=LongestUnits() if settings.unit is CorruptionUnit.collocation else None,
    )


def build_in_place_views(
    settings: CorruptionSettings, *, vocabulary: CollocationVocabulary | None = None, **tokens: Any
) -> InPlaceViews:
    """The views for masked language modeling that `settings` describe.

    `tokens` are those of `InPlaceViews`, such as `mask_id`; `vocabulary` is needed with unit=collocation.
    """
    return InPlaceViews(
        build_selector(settings, vocabulary),
        **tokens,
        random_fraction=settings.random_fraction,
        unchanged_fraction=settings.unchanged_fraction,
    )
