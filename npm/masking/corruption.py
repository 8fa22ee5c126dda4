"""How text is masked for masked language modelling: the settings, and what is built from them."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, fields
from enum import Enum

import numpy as np

from npm.errors import SettingError, check_range
from npm.masking.collocations import CollocationSettings, CollocationUnits, CollocationVocabulary, LongestUnits
from npm.masking.copies import InPlaceRenderer, InPlaceViews
from npm.masking.run_samplers import PartitionSampler, SuffixSampler
from npm.masking.samplers import GeometricSpanSampler, Overflow, Sampler, UniformSampler
from npm.masking.selection import Selector
from npm.masking.units import CooccurringUnits, TokenUnits, Units, WordUnits
from npm.masking.word_spans import WordSpanSampler


class CorruptionUnit(Enum):
    """What is masked as a whole."""

    token = "token"
    word = "word"
    collocation = "collocation"  # the longest entry of a vocabulary mined by mutual information, else a word
    cooccurring = "cooccurring"  # what stands in another sequence of the group too, as for the phrase loss


class CorruptionSampler(Enum):
    """How units are drawn."""

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
"""Those that can leave out what other copies of a sequence have masked."""


@dataclass(kw_only=True, slots=True)
class CorruptionSettings:
    """How text is masked for masked language modelling. Settings that the unit or sampler does not read are refused."""

    unit: CorruptionUnit = CorruptionUnit.token
    """What is masked as a whole: `token`, `word`, `collocation`, or what stands in another sequence of the group too
    (`cooccurring`: single tokens with the uniform sampler, phrases with the geometric one)."""
    sampler: CorruptionSampler = CorruptionSampler.uniform
    """How units are drawn: `uniform`, `geometric` (spans of words or cooccurring phrases), or for tokens `partition`
    (runs as in T5) and `suffix`."""
    masked_fraction: float = 0.15
    """Corruption rate: tokens masked in one copy, as a share of the sequence's tokens that are not special; above 0,
    below 1."""
    predicted_fraction: float | None = None
    """Prediction rate: tokens predicted, as a share of the same; null: all that are masked. Below masked_fraction, a
    random part of the masked tokens is predicted; above it, `copies` is needed."""
    copies: bool = False
    """Show each sequence in as many copies, with disjoint masks, as predicted_fraction needs."""
    random_fraction: float = 0.0
    """Share of the masked tokens that become a random token instead of a mask (0.1 in BERT); from 0 to 1."""
    unchanged_fraction: float = 0.0
    """Share of the masked tokens that stay as they are (0.1 in BERT); from 0 to 1."""
    decide_per_unit: bool = False
    """Replace all tokens of a masked unit or span in the same way, instead of drawing for each token."""
    overflow: Overflow | None = None
    """What becomes of a unit longer than what is left of a sequence's budget: `skip`, `truncate` or `overshoot`;
    null: `truncate` for spans of words, `skip` else. Not for single tokens."""
    span_success_probability: float = 0.2
    """p of the geometric distribution of span lengths, in words (0.2 in SpanBERT), or in tokens with unit=cooccurring
    (0.5 in NPM); above 0, at most 1."""
    max_span_units: int = 10
    """Longest span of the geometric sampler, in words, or in tokens with unit=cooccurring; at least 1."""
    mean_span_tokens: float = 3.0
    """Mean length of the runs of the partition sampler, in tokens; at least 1."""
    collocations: CollocationSettings = field(default_factory=CollocationSettings)
    """The vocabulary of unit=collocation."""

    def __post_init__(self) -> None:
        self._check("masked_fraction", 0 < self.masked_fraction < 1, "a share above 0 and below 1")
        if self.predicted_fraction is not None:
            self._check("predicted_fraction", 0 < self.predicted_fraction < 1, "a share above 0 and below 1")
        for name in ("random_fraction", "unchanged_fraction"):
            self._check(name, 0 <= getattr(self, name) <= 1, "a share from 0 to 1")
        replaced = self.random_fraction + self.unchanged_fraction
        check_range(
            replaced <= 1 + 1e-9,
            "corruption.random_fraction, corruption.unchanged_fraction",
            expected="at most 1 together",
            got=f"{replaced:g}",
            fix="make one of the two smaller",
        )
        self._check("span_success_probability", 0 < self.span_success_probability <= 1, "above 0, at most 1")
        self._check("max_span_units", self.max_span_units >= 1, "at least 1")
        self._check("mean_span_tokens", self.mean_span_tokens >= 1, "at least 1")
        self._check_sampler()
        self._check_unread()
        self._check_copies()

    @property
    def copy_count(self) -> int:
        """How often each sequence is shown: ⌈predicted / masked⌉."""
        # rounded first: 0.9 / 0.3 is a hair above 3
        return math.ceil(round((self.predicted_fraction or self.masked_fraction) / self.masked_fraction, 9))

    @property
    def mask_probability(self) -> float:
        """How often a masked token becomes the mask token."""
        return 1 - self.random_fraction - self.unchanged_fraction

    def _check(self, name: str, right: bool, expected: str) -> None:
        check_range(right, f"corruption.{name}", expected=expected, got=getattr(self, name))

    def _check_sampler(self) -> None:
        fitting = SAMPLERS[self.unit]
        if self.sampler not in fitting:
            raise SettingError(
                f"the sampler {self.sampler.name} and the unit {self.unit.name} do not fit together",
                expected=f"sampler {' or '.join(sampler.name for sampler in fitting)} with unit={self.unit.name}",
                got=f"sampler={self.sampler.name}",
                where="corruption.sampler, corruption.unit",
                fix="change one of the two",
            )

    def _check_unread(self) -> None:
        """A setting that nothing reads is a slip: whoever gives the length of spans wants spans."""
        geometric, partition = (
            self.sampler is each for each in (CorruptionSampler.geometric, CorruptionSampler.partition)
        )
        of_single_tokens = self.unit in (CorruptionUnit.token, CorruptionUnit.cooccurring) and not geometric
        replaces = self.random_fraction + self.unchanged_fraction > 0
        needs = {
            "span_success_probability": (geometric, "sampler=geometric"),
            "max_span_units": (geometric, "sampler=geometric"),
            "mean_span_tokens": (partition, "sampler=partition"),
            "overflow": (not of_single_tokens, "unit=word or unit=collocation"),
            "decide_per_unit": (replaces, "random_fraction or unchanged_fraction above 0"),
            "collocations": (self.unit is CorruptionUnit.collocation, "unit=collocation"),
        }
        default = {item.name: item.default for item in fields(self)} | {"collocations": CollocationSettings()}
        for name, (is_read, needed) in needs.items():
            if not is_read and getattr(self, name) != default[name]:
                raise SettingError(
                    f"this way to mask has no use for corruption.{name}",
                    expected=f"corruption.{needed} beside it",
                    got=f"unit={self.unit.name}, sampler={self.sampler.name}, {name}={getattr(self, name)}",
                    where=f"corruption.{name}",
                    fix=f"set corruption.{needed}, or leave corruption.{name} out",
                )

    def _check_copies(self) -> None:
        if self.copy_count == 1:
            return
        if not self.copies:
            raise SettingError(
                "more is to be predicted than is masked",
                expected=f"corruption.predicted_fraction of at most {self.masked_fraction}, or corruption.copies=true",
                got=f"predicted_fraction={self.predicted_fraction}, copies=false",
                where="corruption.predicted_fraction",
                fix=f"set corruption.copies=true to show each sequence {self.copy_count} times with disjoint masks",
            )
        if self.sampler not in SAMPLERS_WITH_COPIES:
            raise SettingError(
                f"the sampler {self.sampler.name} cannot draw disjoint masks for several copies",
                expected="corruption.sampler=uniform or geometric with copies",
                got=f"sampler={self.sampler.name}, {self.copy_count} copies",
                where="corruption.sampler, corruption.predicted_fraction",
                fix="choose sampler=uniform, or a predicted_fraction of at most masked_fraction",
            )
        check_range(
            self.copy_count * self.masked_fraction <= 1 + 1e-9,
            "corruption.predicted_fraction",
            expected="copies that mask at most all tokens in all, since their masks are disjoint",
            got=f"{self.copy_count} copies of masked_fraction={self.masked_fraction}",
            fix="choose a smaller predicted_fraction or masked_fraction",
        )


def build_selector(settings: CorruptionSettings, vocabulary: CollocationVocabulary | None = None) -> Selector:
    """The selection that `settings` describe; `vocabulary` is needed with unit=collocation."""
    collocations = settings.unit is CorruptionUnit.collocation
    return Selector(
        units=_units(settings, vocabulary),
        sampler=_sampler(settings),
        masked_fraction=settings.masked_fraction,
        predicted_fraction=settings.predicted_fraction,
        copy_count=settings.copy_count,
        filter=LongestUnits() if collocations else None,
    )


def _units(settings: CorruptionSettings, vocabulary: CollocationVocabulary | None) -> Units:
    if settings.unit is CorruptionUnit.collocation:
        if vocabulary is None:
            raise ValueError("unit=collocation needs a vocabulary")
        return CollocationUnits(vocabulary)
    if settings.unit is CorruptionUnit.cooccurring:
        phrases = settings.sampler is CorruptionSampler.geometric
        return CooccurringUnits(max_span_tokens=settings.max_span_units if phrases else 1, word_boundaries=phrases)
    return WordUnits() if settings.unit is CorruptionUnit.word else TokenUnits()


def _sampler(settings: CorruptionSettings) -> Sampler:
    if settings.sampler is CorruptionSampler.partition:
        return PartitionSampler(mean_span_tokens=settings.mean_span_tokens)
    if settings.sampler is CorruptionSampler.suffix:
        return SuffixSampler(vary_length=False)
    if settings.sampler is CorruptionSampler.uniform:
        return UniformSampler(overflow=settings.overflow or Overflow.skip)
    if settings.unit is CorruptionUnit.word:
        return WordSpanSampler(
            success_probability=settings.span_success_probability,
            max_span_words=settings.max_span_units,
            overflow=settings.overflow or Overflow.truncate,
        )
    return GeometricSpanSampler(
        success_probability=settings.span_success_probability,
        max_span_tokens=settings.max_span_units,
        max_spans_per_sequence=sys.maxsize,  # masks in place lengthen nothing
        overflow=settings.overflow or Overflow.skip,
    )


def build_in_place_views(
    settings: CorruptionSettings,
    *,
    mask_id: int,
    pad_id: int,
    ordinary_ids: np.ndarray,
    prefix_ids: tuple[int, ...] = (),
    suffix_ids: tuple[int, ...] = (),
    vocabulary: CollocationVocabulary | None = None,
) -> InPlaceViews:
    """The views for masked language modelling that `settings` describe.

    `ordinary_ids` i64 [v] is the vocabulary without special tokens; `prefix_ids` and `suffix_ids` are the special
    tokens that the encoder wants around a sequence; `vocabulary` is needed with unit=collocation.
    """
    renderer = InPlaceRenderer(
        mask_id=mask_id,
        pad_id=pad_id,
        ordinary_ids=ordinary_ids,
        prefix_ids=prefix_ids,
        suffix_ids=suffix_ids,
        random_fraction=settings.random_fraction,
        unchanged_fraction=settings.unchanged_fraction,
        decide_per_unit=settings.decide_per_unit,
    )
    return InPlaceViews(build_selector(settings, vocabulary), renderer)
