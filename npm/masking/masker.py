"""Units, sampler and rate together: the masks of a group as a pure function of seed, epoch and group."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np

from npm.errors import check_range
from npm.masking.contexts import Question
from npm.masking.samplers import CandidateThinning, GeometricSpanSampler, Sampler, UniformSampler
from npm.masking.units import CooccurringUnits, Units
from npm.types import Sequences, Spans


def mask_rng(seed: int, epoch: int, group_index: int, view_number: int = 0) -> np.random.Generator:
    """The generator of one group's masks in one view: they depend on these numbers and on nothing that ran before."""
    key = (epoch, group_index, view_number) if view_number else (epoch, group_index)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))


@dataclass(frozen=True, slots=True)
class Masker:
    """Selects the spans of one group; what the encoder sees instead of them is a renderer's matter."""

    units: Units
    sampler: Sampler
    masked_fraction: float = 0.15
    """Tokens to mask, as a share of all tokens of the group (not of each sequence)."""
    min_masked_fraction: float = 0.05
    """A group of whose tokens less than this share could be masked is dropped."""
    thinning: CandidateThinning | None = None

    def select(self, sequences: Sequences, rng: np.random.Generator) -> Spans | None:
        """The spans to mask in this group, or None if it has too few candidates to be worth a step."""
        token_count = len(sequences.token_ids)
        candidates = self.units.candidates(sequences)
        if self.thinning is not None:
            candidates = self.thinning.keep(candidates, sequences, rng)
        spans = self.sampler.draw(candidates, sequences, math.floor(self.masked_fraction * token_count), rng)
        if not len(spans) or spans.lengths.sum() < self.min_masked_fraction * token_count:
            return None
        return spans


class MaskingUnit(Enum):
    """What is masked."""

    phrase = "phrase"  # spans at word boundaries, lengths geometric
    token = "token"  # single tokens that stand in another sequence too, uniform (the token variant, NPM-single)


@dataclass(kw_only=True, slots=True)
class MaskingSettings:
    """How training text is masked for the phrase loss. With single tokens, the settings about spans have no meaning."""

    unit: MaskingUnit = MaskingUnit.phrase
    """`phrase`, or single tokens (`token`); either stands in another sequence of the group too."""
    masked_fraction: float = 0.15
    """Tokens to mask, as a share of all tokens of a group; above 0, below 1."""
    min_masked_fraction: float = 0.05
    """A group of whose tokens less than this share could be masked is dropped; from 0 to masked_fraction."""
    max_span_tokens: int = 10
    """Longest span, in tokens; at least 1."""
    span_success_probability: float = 0.5
    """p of the geometric distribution of span lengths (mean about 1/p tokens); above 0, at most 1."""
    max_spans_per_sequence: int = 64
    """Spans masked in one sequence at most; each may lengthen it by one token; at least 1."""
    max_repeats_per_phrase: int = 10
    """Occurrences of the same phrase masked in one group at most; at least 1."""
    clause_punctuation_skip_probability: float = 0.9
    """How often one of the tokens ! , . : ? is left out as a span of its own; from 0 to 1."""
    stopword_span_skip_probability: float = 0.0
    """How often a span of stop-words and punctuation only is left out (both units); from 0 to 1."""
    context_fraction: float = 0.0
    """Share of the masked copies that are questions: they have the sequence of their group behind them that holds most
    of what was masked; from 0 to 1. Trains queries for retrieval that reads (`fill`)."""
    question: Question = Question.whole
    """What a question keeps of its own sequence: `whole`, or one `sentence`."""

    def __post_init__(self) -> None:
        self._check("masked_fraction", 0 < self.masked_fraction < 1, "a share above 0 and below 1")
        self._check(
            "min_masked_fraction",
            0 <= self.min_masked_fraction <= self.masked_fraction,
            f"a share from 0 to masked_fraction, here {self.masked_fraction}",
        )
        self._check("span_success_probability", 0 < self.span_success_probability <= 1, "above 0, at most 1")
        for name in ("max_span_tokens", "max_spans_per_sequence", "max_repeats_per_phrase"):
            self._check(name, getattr(self, name) >= 1, "at least 1")
        for name in ("clause_punctuation_skip_probability", "stopword_span_skip_probability", "context_fraction"):
            self._check(name, 0 <= getattr(self, name) <= 1, "a probability from 0 to 1")

    def _check(self, name: str, right: bool, expected: str) -> None:
        check_range(right, f"masking.{name}", expected=expected, got=getattr(self, name))


def build_masker(settings: MaskingSettings) -> Masker:
    """The masker that `settings` describe."""
    units: Units
    sampler: Sampler
    if settings.unit is MaskingUnit.phrase:
        units = CooccurringUnits(max_span_tokens=settings.max_span_tokens)
        sampler = GeometricSpanSampler(
            success_probability=settings.span_success_probability,
            max_span_tokens=settings.max_span_tokens,
            max_spans_per_sequence=settings.max_spans_per_sequence,
            max_repeats_per_phrase=settings.max_repeats_per_phrase,
        )
        clause_punctuation_skip_probability = settings.clause_punctuation_skip_probability
    else:
        units = CooccurringUnits(max_span_tokens=1, word_boundaries=False)
        sampler = UniformSampler()
        clause_punctuation_skip_probability = 0.0
    return Masker(
        units=units,
        sampler=sampler,
        masked_fraction=settings.masked_fraction,
        min_masked_fraction=settings.min_masked_fraction,
        thinning=CandidateThinning(
            clause_punctuation_skip_probability=clause_punctuation_skip_probability,
            stopword_span_skip_probability=settings.stopword_span_skip_probability,
        ),
    )
