"""Which masked copies are questions: followed by another sequence of their group that they may read.

At retrieval a question is read together with a passage. In training the question is a masked copy, or one sentence of
it, and the passage another sequence of the group that holds what was masked (the recurring spans of Ram et al. 2021,
arXiv 2101.00438, across sequences).

Shapes: T tokens of all sequences in a row, S sequences, n spans, u different tokens of the group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np

from npm.corpus.blocks import concatenated_ranges
from npm.types import Sequences, Spans, TokenFlag

NO_CONTEXT = -1
_UNTELLING = np.uint8(TokenFlag.STOPWORD | TokenFlag.PUNCTUATION | TokenFlag.SPECIAL)


class Question(Enum):
    """What a masked copy keeps of its own sequence when it reads another."""

    whole = "whole"
    sentence = "sentence"


@dataclass(frozen=True, slots=True)
class Contexts:
    """What each masked copy keeps of its own sequence, and what it reads; all arrays [S]."""

    numbers: np.ndarray  # i64, number of the sequence that is read; -1 for none
    starts: np.ndarray  # i64, position in [0, T) of the first token kept
    stops: np.ndarray  # i64, position behind the last token kept


def no_contexts(sequences: Sequences) -> Contexts:
    """Every copy is its whole sequence and reads nothing."""
    return Contexts(np.full(len(sequences), NO_CONTEXT), sequences.offsets[:-1].copy(), sequences.offsets[1:].copy())


def draw_contexts(
    sequences: Sequences, spans: Spans, *, context_fraction: float, question: Question, rng: np.random.Generator
) -> Contexts:
    """Make each sequence a question with probability `context_fraction`.

    Its copy keeps all of it, or one sentence drawn from those with a telling masked token (no stop-word, no
    punctuation), and reads the sequence that shares most with the telling masked tokens kept: each different one
    counts one over the number of sequences it is in. A sequence without any, or whose telling masked tokens stand
    nowhere else, stays whole and reads nothing.
    """
    chosen = no_contexts(sequences)
    is_question = rng.random(len(sequences)) < context_fraction  # bool [S]
    if not is_question.any() or not len(spans):
        return chosen
    count, total = len(sequences), len(sequences.token_ids)
    owners = np.repeat(np.arange(count), np.diff(sequences.offsets))  # i64 [T], sequence of each token
    _, tokens = np.unique(sequences.token_ids, return_inverse=True)  # i64 [T], in [0, u)
    present = np.zeros((count, int(tokens.max()) + 1), dtype=np.float32)  # f32 [S, u]
    present[owners, tokens] = 1.0
    weights = present / present.sum(0)  # f32 [S, u]
    begins = (sequences.flags & np.uint8(TokenFlag.SENTENCE_START)) != 0  # bool [T]
    begins[sequences.offsets[:-1][np.diff(sequences.offsets) > 0]] = True
    sentence_starts = np.append(np.flatnonzero(begins), total)  # i64 [sentences + 1]
    positions = masked_positions(spans)  # i64 [masked tokens]
    telling = positions[(sequences.flags[positions] & _UNTELLING) == 0]  # i64 [telling tokens]
    sentences = np.searchsorted(sentence_starts, telling, side="right") - 1  # i64 [telling tokens]
    for number in np.flatnonzero(is_question).tolist():
        kept = np.flatnonzero(owners[telling] == number)  # i64 [telling tokens of the copy]
        if not len(kept):
            continue
        first, stop = sequences.offsets[number], sequences.offsets[number + 1]
        if question is Question.sentence:
            sentence = int(rng.choice(np.unique(sentences[kept])))
            first, stop = sentence_starts[sentence], sentence_starts[sentence + 1]
            kept = kept[sentences[kept] == sentence]
        shared = weights[:, np.unique(tokens[telling[kept]])].sum(1)  # f32 [S]
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
    """The spans that lie wholly in what their masked copies keep."""
    owners = np.searchsorted(sequences.offsets, spans.starts, side="right") - 1  # i64 [n]
    inside = (spans.starts >= contexts.starts[owners]) & (spans.starts + spans.lengths <= contexts.stops[owners])
    return Spans(spans.starts[inside], spans.lengths[inside])
