"""Units, sampler and rate together: the masks of a group as a pure function of seed, epoch and group.

At retrieval a question is read together with a passage. In training the question is a masked copy, or one sentence of
it, and the passage another sequence of the group that holds the masked span (the recurring spans of Ram et al. 2021,
arXiv 2101.00438, across sequences).

Shapes: T tokens of all sequences in a row, S sequences, n spans, u different tokens of the group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveInt

from npm.core.errors import SettingError
from npm.core.settings import INNER, Fraction, Settings
from npm.core.types import Sequences, Spans, TokenFlag
from npm.corpus.blocks import concatenated_ranges
from npm.corpus.text import is_title
from npm.masking.samplers import (
    CLAUSE_SKIP_PROBABILITY,
    CandidateThinning,
    GeometricSpanSampler,
    Sampler,
    UniformSampler,
)
from npm.masking.units import CooccurringUnits, CooccurringWordUnits, Units

NO_CONTEXT = -1
_NOT_CONTENT = np.uint8(TokenFlag.STOPWORD | TokenFlag.PUNCTUATION | TokenFlag.SPECIAL)


class QuestionForm(Enum):
    """Part of its own sequence that a masked copy keeps when it reads another."""

    whole = "whole"
    sentence = "sentence"
    mixed = "mixed"  # either, at random


@dataclass(frozen=True, slots=True)
class Contexts:
    """Part of its sequence that each masked copy keeps, and the sequence it reads; all arrays [S]."""

    numbers: np.ndarray  # i64, number of the sequence that is read; -1 for none
    starts: np.ndarray  # i64, position in [0, T) of the first token kept
    stops: np.ndarray  # i64, position after the last token kept


def no_contexts(sequences: Sequences) -> Contexts:
    """Contexts in which every copy is its full sequence and reads nothing."""
    return Contexts(np.full(len(sequences), NO_CONTEXT), sequences.offsets[:-1].copy(), sequences.offsets[1:].copy())


def draw_contexts(
    sequences: Sequences, spans: Spans, *, context_fraction: float, question: QuestionForm, rng: np.random.Generator
) -> Contexts:
    """Make each sequence a question with probability `context_fraction`.

    Its copy keeps all of it but the title, or one sentence drawn from those with a masked content token (no stop-word,
    no punctuation), and reads the sequence that shares most with the masked content tokens kept: each different one
    counts one over the number of sequences it is in. A sequence without any, or whose masked content tokens occur
    nowhere else, stays complete and reads nothing.
    """
    chosen = no_contexts(sequences)
    is_question = rng.random(len(sequences)) < context_fraction  # bool [S]
    if not is_question.any() or not len(spans):
        return chosen
    count, total = len(sequences), len(sequences.token_ids)
    owners = np.repeat(np.arange(count), np.diff(sequences.offsets))  # i64 [T], sequence of each token
    _, tokens = np.unique(sequences.token_ids, return_inverse=True)  # i64 [T], in [0, u)
    present = np.zeros((count, int(tokens.max()) + 1), dtype=np.float32)  # f32 [S, u]
    of_text = (sequences.flags & np.uint8(TokenFlag.SPECIAL)) == 0  # bool [T], without titles
    present[owners[of_text], tokens[of_text]] = 1.0
    weights = present / np.maximum(present.sum(0), 1.0)  # f32 [S, u]
    begins = (sequences.flags & np.uint8(TokenFlag.SENTENCE_START)) != 0  # bool [T]
    begins[sequences.offsets[:-1][np.diff(sequences.offsets) > 0]] = True
    sentence_starts = np.append(np.flatnonzero(begins), total)  # i64 [sentences + 1]
    positions = masked_positions(spans)  # i64 [masked tokens]
    content = positions[(sequences.flags[positions] & _NOT_CONTENT) == 0]  # i64 [content tokens]
    sentences = np.searchsorted(sentence_starts, content, side="right") - 1  # i64 [content tokens]
    for number in np.flatnonzero(is_question).tolist():
        kept = np.flatnonzero(owners[content] == number)  # i64 [content tokens of the copy]
        if not len(kept):
            continue
        first, stop = sequences.offsets[number], sequences.offsets[number + 1]
        # a user's question has no title
        first += int(is_title(sequences.flags[first:stop]).sum())
        of_sentence = question is QuestionForm.sentence
        if question is QuestionForm.mixed:
            of_sentence = bool(rng.integers(2))
        if of_sentence:
            sentence = int(rng.choice(np.unique(sentences[kept])))
            first, stop = max(first, sentence_starts[sentence]), sentence_starts[sentence + 1]
            kept = kept[sentences[kept] == sentence]
        shared = weights[:, np.unique(tokens[content[kept]])].sum(1)  # f32 [S]
        shared[number] = 0.0
        if shared.max() > 0:
            chosen.numbers[number] = int(shared.argmax())
            chosen.starts[number], chosen.stops[number] = first, stop
    return chosen


def merge_contexts(groups: Iterable[tuple[Sequences, Contexts]]) -> Contexts:
    """The contexts of several groups, at least one, that are merged into one; the order is kept."""
    numbers, starts, stops = [], [], []
    sequence_count = token_count = 0
    for sequences, contexts in groups:
        numbers.append(np.where(contexts.numbers < 0, NO_CONTEXT, contexts.numbers + sequence_count))  # i64 [S]
        starts.append(contexts.starts + token_count)  # i64 [S]
        stops.append(contexts.stops + token_count)  # i64 [S]
        sequence_count += len(sequences)
        token_count += len(sequences.token_ids)
    return Contexts(np.concatenate(numbers), np.concatenate(starts), np.concatenate(stops))


def masked_positions(spans: Spans) -> np.ndarray:
    """The positions of all tokens in spans, i64 [masked tokens]."""
    return concatenated_ranges(spans.starts, spans.starts + spans.lengths)


def spans_kept(spans: Spans, sequences: Sequences, contexts: Contexts) -> Spans:
    """The spans that are entirely in the kept part of their masked copies."""
    owners = np.searchsorted(sequences.offsets, spans.starts, side="right") - 1  # i64 [n]
    inside = (spans.starts >= contexts.starts[owners]) & (spans.starts + spans.lengths <= contexts.stops[owners])
    return Spans(spans.starts[inside], spans.lengths[inside])


def mask_rng(seed: int, epoch: int, group_index: int, view_number: int = 0) -> np.random.Generator:
    """The generator of one group's masks in one view: they depend on these numbers and on nothing that ran before."""
    key = (epoch, group_index, view_number) if view_number else (epoch, group_index)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))


@dataclass(frozen=True, slots=True)
class Masker:
    """Selects the spans of one group; a renderer makes the encoder's input of them."""

    units: Units
    sampler: Sampler
    masked_fraction: float = 0.15
    """Tokens to mask, as a fraction of all tokens of the group (not of each sequence)."""
    min_masked_fraction: float = 0.05
    """A group of whose tokens less than this fraction could be masked is dropped."""
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
    """Units of the phrase loss."""

    phrase = "phrase"  # spans at word boundaries, lengths geometric in tokens
    span = "span"  # the same, wherever they occur; those that occur nowhere else are omitted from the loss
    phrase_words = "phrase_words"  # the same with lengths in words, and with only full words as other occurrences
    token = "token"  # single tokens that occur in another sequence too, uniform (the token variant, NPM-single)

    @property
    def has_pairs(self) -> bool:
        """Return True if a unit is replaced by a mask pair, not by one mask."""
        return self is not MaskingUnit.token


class MaskingSettings(Settings):
    """Settings of masking for the phrase loss. With single tokens, the settings of spans have no effect."""

    unit: MaskingUnit = MaskingUnit.phrase
    """`phrase`, whose lengths are in tokens; `phrase_words`, in words, for tokenizers of bytes; or single tokens
    (`token`). A masked unit occurs in another sequence of the group too. `span` masks phrases wherever they occur, and
    the loss omits those without a second occurrence (an ablation)."""
    masked_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Tokens to mask, as a fraction of all tokens of a group; above 0, below 1."""
    min_masked_fraction: NonNegativeFloat = 0.05
    """A group of whose tokens less than this fraction could be masked is dropped; from 0 to masked_fraction."""
    max_span_tokens: Annotated[PositiveInt, INNER] = 10
    """Longest span, in tokens; at least 1."""
    max_span_words: PositiveInt = 10
    """Longest span of `phrase_words`, in words; at least 1."""
    span_success_probability: Annotated[float, Field(gt=0, le=1)] = 0.5
    """p of the geometric distribution of span lengths (mean about 1/p tokens or words); above 0, at most 1."""
    max_spans_per_sequence: PositiveInt = 64
    """Spans masked in one sequence at most; each may lengthen it by one token; at least 1."""
    stopword_span_skip_probability: Fraction = 0.0
    """Probability of skipping a span of stop-words and punctuation only (both units); from 0 to 1."""
    context_fraction: Fraction = 0.0
    """Fraction of the masked copies that are questions: they are followed by the sequence of their group with most
    of the masked tokens; from 0 to 1. Trains queries for retrieval that reads (`fill`)."""
    question: QuestionForm = QuestionForm.whole
    """Part of its own sequence that a question keeps: `whole`, one `sentence`, or either of them (`mixed`)."""

    def check(self) -> None:
        """Raise SettingError if a group's minimum fraction of masked tokens is above the fraction to mask."""
        if self.min_masked_fraction > self.masked_fraction:
            raise SettingError(
                f"masking.min_masked_fraction must be at most masking.masked_fraction={self.masked_fraction}, "
                f"got {self.min_masked_fraction}"
            )


def build_masker(settings: MaskingSettings) -> Masker:
    """The masker that `settings` describe."""
    units: Units
    sampler: Sampler
    if settings.unit.has_pairs:
        words = settings.unit is MaskingUnit.phrase_words
        longest = settings.max_span_words if words else settings.max_span_tokens
        is_span = settings.unit is MaskingUnit.span
        units = CooccurringWordUnits(longest) if words else CooccurringUnits(longest, anywhere=is_span)
        sampler = GeometricSpanSampler(
            success_probability=settings.span_success_probability,
            max_span_tokens=longest,
            max_spans_per_sequence=settings.max_spans_per_sequence,
        )
    else:
        units = CooccurringUnits(max_span_tokens=1, word_boundaries=False)
        sampler = UniformSampler()
    return Masker(
        units=units,
        sampler=sampler,
        masked_fraction=settings.masked_fraction,
        min_masked_fraction=settings.min_masked_fraction,
        thinning=CandidateThinning(
            clause_punctuation_skip_probability=CLAUSE_SKIP_PROBABILITY if settings.unit.has_pairs else 0.0,
            stopword_span_skip_probability=settings.stopword_span_skip_probability,
        ),
    )
