"""Texts for an encoder-decoder: spans drawn by a mixture of denoisers, and sentinels in their place.

UL2 (Tay et al. 2022, arXiv 2205.05131, §3.1.2, Table 1) mixes regular span corruption (R), a suffix to be written from
its prefix (S), and extreme corruption with long spans or many of them (X). How often each is drawn follows public
re-implementations: S has 20 %, the others share the rest evenly.

    text      a b c d e f g          masked: b c and f
    inputs    [R] a <0> d e <1> g </s>
    targets   <0> b c <1> f </s>

(Raffel et al. 2020, arXiv 1910.10683, §3.1.4, without the sentinel at the end of the targets; mode tokens as in
Tay et al. 2022, arXiv 2205.05131, §3.1.3.)

Shapes: T tokens of all sequences in a row, S sequences, n spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeFloat

from npm.core.errors import EncoderError, SettingError
from npm.core.settings import INNER, Settings
from npm.core.types import Sequences, Spans
from npm.masking.batches import DenoisingBatch
from npm.masking.masker import masked_positions
from npm.masking.rendering import merge_groups, padded_rows
from npm.masking.samplers import PartitionSampler, Sampler, SuffixSampler, run_count
from npm.masking.units import TokenUnits

NO_TARGET = -100
"""Padding of targets, which the models of `transformers` and the loss ignore."""


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The special tokens that inputs and targets are made with; draws nothing at random."""

    sentinel_ids: tuple[int, ...]
    """One for each span of a sequence, in the order of the text."""
    end_id: int
    """Ends inputs and targets."""
    pad_id: int
    mode_ids: tuple[int, ...] = ()
    """First token of the inputs, by the index of their denoiser; empty: no input has such a token."""

    def render(self, sequences: Sequences, spans: Spans, denoisers: np.ndarray) -> DenoisingBatch:
        """The batch, on the CPU; `denoisers` i64 [S] says which denoiser drew the spans of each sequence.

        Raises EncoderError if a sequence has more spans than there are sentinels.
        """
        import torch

        # Empty sequences share their offset with the next one; side="right" skips them.
        owners = np.searchsorted(sequences.offsets, spans.starts, side="right") - 1  # i64 [n]
        span_counts = np.bincount(owners, minlength=len(sequences))  # i64 [S]
        check_sentinel_count(len(self.sentinel_ids), int(span_counts.max(initial=0)))
        first_spans = np.cumsum(span_counts) - span_counts  # i64 [S]
        within = np.arange(len(spans)) - first_spans[owners]  # i64 [n], number of a span in its sequence
        sentinels = np.array(self.sentinel_ids, dtype=np.int64)[within]  # i64 [n]
        positions = masked_positions(spans)  # i64 [masked tokens]

        kept = np.ones(len(sequences.token_ids), dtype=bool)  # bool [T]
        kept[positions] = False
        kept[spans.starts] = True
        replaced = sequences.token_ids.astype(np.int64)  # i64 [T]
        replaced[spans.starts] = sentinels
        offsets = np.append(0, np.cumsum(kept))[sequences.offsets]  # i64 [S + 1]
        sizes = np.diff(offsets) + 1  # i64 [S], with the end
        inputs = np.insert(replaced[kept], offsets[1:], self.end_id)  # i64 [tokens of the inputs]
        if self.mode_ids:
            inputs = np.insert(inputs, np.cumsum(sizes) - sizes, np.array(self.mode_ids, dtype=np.int64)[denoisers])
            sizes += 1
        input_ids, attention_mask = padded_rows(inputs, np.append(0, np.cumsum(sizes)), pad_id=self.pad_id)

        masked = sequences.token_ids[positions].astype(np.int64)  # i64 [masked tokens]
        targets = np.insert(masked, np.cumsum(spans.lengths) - spans.lengths, sentinels)  # i64 [masked tokens + n]
        sizes = np.bincount(owners, weights=spans.lengths + 1, minlength=len(sequences)).astype(np.int64)  # i64 [S]
        targets = np.insert(targets, np.cumsum(sizes), self.end_id)  # i64 [tokens of the targets]
        target_ids, _ = padded_rows(targets, np.append(0, np.cumsum(sizes + 1)), pad_id=NO_TARGET)
        return DenoisingBatch(
            input_ids=input_ids,
            attention_mask=attention_mask,
            target_ids=target_ids,
            denoisers=torch.from_numpy(np.asarray(denoisers, dtype=np.int64)),
            text_token_count=len(sequences.token_ids),
        )


def check_sentinel_count(available: int, needed: int) -> None:
    """Raise EncoderError if a sequence may have more spans than there are sentinels."""
    if needed > available:
        raise EncoderError(
            f"the tokenizer has too few sentinels: {available} of {needed}, one for each span; lower "
            "blocks.max_block_tokens, make spans longer or rates lower, or choose a tokenizer with more sentinels"
        )


class DenoiserFamily(Enum):
    """The three kinds of denoisers, by what their mode token announces."""

    R = "R"  # spans that a gap can be understood from, as T5 has them
    S = "S"  # one span at the end
    X = "X"  # long spans, or half of the text


class DenoiserSettings(Settings):
    """One way to corrupt a text."""

    family: DenoiserFamily = DenoiserFamily.R
    """`R` and `X` mask spans all over a block, `S` masks one at its end."""
    rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Tokens masked, as a fraction of those of a block (S: on average); above 0, below 1."""
    mean_span_tokens: Annotated[float, Field(ge=1)] = 3.0
    """Mean length of the spans of R and X, in tokens; at least 1."""
    weight: NonNegativeFloat = 1.0
    """Frequency of this denoiser relative to the others of the mixture; at least 0."""

    @property
    def mode(self) -> str:
        """The mode token, which inputs begin with."""
        return f"[{self.family.value}]"

    @property
    def name(self) -> str:
        """Family, mean span and rate; the name in tables of results.

        >>> DenoiserSettings(family=DenoiserFamily.X, mean_span_tokens=64, rate=0.5).name
        'X-64-0.5'
        """
        spans = [] if self.family is DenoiserFamily.S else [f"{self.mean_span_tokens:g}"]
        return "-".join([self.family.value, *spans, f"{self.rate:g}"])

    @property
    def sampler(self) -> Sampler:
        """Sampler of its spans."""
        if self.family is DenoiserFamily.S:
            return SuffixSampler()
        return PartitionSampler(mean_span_tokens=self.mean_span_tokens)

    def budget_tokens(self, text_tokens: int) -> int:
        """Masked tokens of a block: at least one, and not all; 0 if that cannot be."""
        return min(max(1, round(self.rate * text_tokens)), text_tokens - 1) if text_tokens else 0

    def most_spans(self, text_tokens: int) -> int:
        """Spans of a block of `text_tokens` tokens without special tokens at most."""
        budget = self.budget_tokens(text_tokens)
        if self.family is DenoiserFamily.S or not budget:
            return min(1, budget)
        runs = run_count(text_tokens, budget, self.mean_span_tokens)
        return runs + (budget > runs)  # the roll may cut one span of several tokens in two


def _denoisers(*rows: tuple[str, float, float, float]) -> tuple[DenoiserSettings, ...]:
    return tuple(
        DenoiserSettings(family=DenoiserFamily(family), mean_span_tokens=mean, rate=rate, weight=weight)
        for family, mean, rate, weight in rows
    )


EACH = 0.8 / 6
UL2 = _denoisers(
    ("R", 3, 0.15, EACH),
    ("R", 8, 0.15, EACH),
    ("X", 3, 0.5, EACH),
    ("X", 8, 0.5, EACH),
    ("X", 64, 0.15, EACH),
    ("X", 64, 0.5, EACH),
    ("S", 3, 0.25, 0.2),
)
"""Family, mean span, rate and weight of the seven denoisers: S with 20 % of the draws, the others share the rest."""
UL2R = _denoisers(("R", 3, 0.15, 0.25), ("X", 32, 0.15, 0.125), ("X", 3, 0.5, 0.125), ("S", 3, 0.25, 0.5))
"""The mixture by which UL2R continues a language model (Tay et al. 2022, arXiv 2210.11399): half of it S."""


class MixtureName(Enum):
    """Mixtures that need not be written out."""

    ul2 = "ul2"  # the seven denoisers of UL2
    ul2r = "ul2r"  # half S, a quarter each of R and X
    r = "r"  # of the seven those of one family
    s = "s"
    x = "x"


class DenoisingSettings(Settings):
    """Settings of corrupting texts for an encoder-decoder."""

    preset: Annotated[MixtureName, INNER] = MixtureName.ul2
    """The denoisers: `ul2` (seven, 20 % S), `ul2r` (half S), or only those of one family of UL2, `r`, `s` or `x`."""
    mixture: Annotated[list[DenoiserSettings], INNER] = field(default_factory=list)
    """Denoisers instead of the preset: [{family: R, rate: 0.15, mean_span_tokens: 3, weight: 1}, …]."""
    mode_tokens: Annotated[bool, INNER] = True
    """Begin each input with the mode token of its denoiser."""

    def check(self) -> None:
        """Raise SettingError if no denoiser has a weight."""
        if not sum(denoiser.weight for denoiser in self.denoisers()):
            raise SettingError("denoising.mixture must have a denoiser with a weight above 0")

    def denoisers(self) -> tuple[DenoiserSettings, ...]:
        """The denoisers by their numbers."""
        if self.mixture:
            return tuple(self.mixture)
        if self.preset in (MixtureName.ul2, MixtureName.ul2r):
            return UL2R if self.preset is MixtureName.ul2r else UL2
        return tuple(denoiser for denoiser in UL2 if denoiser.family.value.lower() == self.preset.value)

    def modes(self) -> tuple[str, ...]:
        """The mode token of each denoiser; empty where inputs have none."""
        return tuple(denoiser.mode for denoiser in self.denoisers()) if self.mode_tokens else ()

    def families(self) -> tuple[str, ...]:
        """The name of the family of each denoiser."""
        return tuple(denoiser.family.value for denoiser in self.denoisers())


@dataclass(frozen=True, slots=True)
class MixtureMasker:
    """Draws a denoiser for each sequence by weight, then its spans; special tokens are never masked."""

    denoisers: tuple[DenoiserSettings, ...]

    def select(self, sequences: Sequences, rng: np.random.Generator) -> tuple[Spans, np.ndarray]:
        """The masked spans, none of a sequence of fewer than two ordinary tokens, and each one's denoiser i64 [S]."""
        weights = np.array([denoiser.weight for denoiser in self.denoisers])  # f64 [denoisers]
        numbers = rng.choice(len(weights), size=len(sequences), p=weights / weights.sum())  # i64 [S]
        starts, lengths = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        edges = sequences.offsets.tolist()
        for begin, end, number in zip(edges[:-1], edges[1:], numbers.tolist(), strict=True):
            alone = Sequences(sequences.token_ids[begin:end], sequences.flags[begin:end], np.array([0, end - begin]))
            candidates = TokenUnits().candidates(alone)
            denoiser = self.denoisers[number]
            spans = denoiser.sampler.draw(candidates, alone, denoiser.budget_tokens(len(candidates)), rng)
            starts.append(spans.starts + begin)
            lengths.append(spans.lengths)
        return Spans(np.concatenate(starts), np.concatenate(lengths)), numbers


@dataclass(frozen=True, slots=True)
class DenoisingViews:
    """Inputs and targets of an encoder-decoder: the view `denoising` of a training batch."""

    masker: MixtureMasker
    sentinels: Sentinels

    def view(self, groups: Sequence[Sequences], rngs: Sequence[np.random.Generator]) -> DenoisingBatch:
        """The groups corrupted one by one and merged."""
        masks = [self.masker.select(group, rng) for group, rng in zip(groups, rngs, strict=True)]
        merged = merge_groups([(group, spans) for group, (spans, _) in zip(groups, masks, strict=True)])
        return self.sentinels.render(*merged, np.concatenate([denoisers for _, denoisers in masks]))


def build_denoising_views(settings: DenoisingSettings, sentinels: Sentinels, *, max_text_tokens: int) -> DenoisingViews:
    """The view maker that `settings` describe, for blocks of at most `max_text_tokens` tokens.

    Raises EncoderError if a block may have more spans than there are sentinels.
    """
    denoisers = settings.denoisers()
    needed = max(denoiser.most_spans(max_text_tokens) for denoiser in denoisers if denoiser.weight)
    check_sentinel_count(len(sentinels.sentinel_ids), needed)
    return DenoisingViews(MixtureMasker(denoisers), sentinels)
