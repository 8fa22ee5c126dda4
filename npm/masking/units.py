"""Spans that may be masked: those whose tokens occur in another sequence of the group too, tokens, or words.

Shapes: T tokens of all sequences in a row, S sequences, m candidates, w windows (positions where an n-gram starts).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from npm.core.types import Sequences, Spans, TokenFlag

MAX_GROUP_TOKENS = 2**20
"""A window's n-gram number, its next token and its position are sorted as one int64; 20 bits each fit in 63."""


@dataclass(frozen=True, slots=True)
class MaskableSpans:
    """Spans that may be masked; they may overlap."""

    starts: np.ndarray  # i64 [m], positions in [0, T)
    lengths: np.ndarray  # i64 [m], tokens
    phrase_ids: np.ndarray | None = None
    """i64 [m], in [0, phrases of the group), equal if and only if tokens are; None where repeats do not count."""
    word_counts: np.ndarray | None = None  # i64 [m], where lengths are drawn in words; None: in tokens

    def __len__(self) -> int:
        return len(self.starts)

    def where(self, chosen: np.ndarray) -> MaskableSpans:
        """The candidates at `chosen`, a bool [m] or an i64 [k] of candidate numbers."""
        optional = (each if each is None else each[chosen] for each in (self.phrase_ids, self.word_counts))
        return MaskableSpans(self.starts[chosen], self.lengths[chosen], *optional)


class Units(Protocol):
    """Finds the spans of a group that may be masked; draws nothing at random and sets no budget."""

    def candidates(self, sequences: Sequences) -> MaskableSpans:
        """All spans of `sequences` that may be masked."""


def has_flag(flags: np.ndarray, wanted: TokenFlag) -> np.ndarray:
    """Mask bool [T] of tokens with any of the `wanted` flags."""
    # An IntFlag next to a u8 array would make it i64.
    return (flags & np.uint8(wanted)) != 0  # bool [T]


def sequence_numbers(sequences: Sequences) -> np.ndarray:
    """The sequence that each token is in, i64 [T]."""
    return np.repeat(np.arange(len(sequences)), np.diff(sequences.offsets))  # i64 [T]


@dataclass(frozen=True, slots=True)
class CooccurringUnits:
    """Spans whose token n-gram occurs in at least one other sequence of the group (arXiv 2212.01349, section 3.2).

    A span lies within one sequence and holds no SPECIAL token. With `word_boundaries` it starts at a WORD_START
    token and ends at a WORD_END token; the other occurrence need not. A span that starts with a CLAUSE_PUNCTUATION
    token is that token alone (such tokens may be inside or at the end of a span), as in the masks recorded from
    the reference implementation. With `max_span_tokens=1, word_boundaries=False` these are the single tokens of
    the token variant: every token that is not special and whose id occurs in another sequence.
    """

    max_span_tokens: int = 10
    word_boundaries: bool = True
    anywhere: bool = False
    """Spans that occur in no other sequence are candidates too."""

    def candidates(self, sequences: Sequences) -> MaskableSpans:
        """All such spans, shortest first, equal phrases together.

        n-grams are numbered step by step: an n-gram is the number of its first n-1 tokens and its last token, so one
        sort per length finds the equal ones. Windows whose n-gram has no other sequence are dropped at once, for no
        longer span that starts there can have one.
        """
        token_count = len(sequences.token_ids)
        if token_count > MAX_GROUP_TOKENS:
            raise ValueError(f"a group of {token_count} tokens; at most {MAX_GROUP_TOKENS} can be searched at once")
        in_sequence = sequence_numbers(sequences)  # i64 [T]
        room = tokens_until_break(sequences)  # i64 [T]
        may_start = may_end = np.ones(token_count, dtype=bool)  # bool [T]
        if self.word_boundaries:
            may_start = has_flag(sequences.flags, TokenFlag.WORD_START)  # bool [T]
            may_end = has_flag(sequences.flags, TokenFlag.WORD_END)  # bool [T]
        starts_alone = has_flag(sequences.flags, TokenFlag.CLAUSE_PUNCTUATION)  # bool [T]
        windows = np.flatnonzero(room)  # i64 [w]
        token_numbers = np.zeros(token_count, dtype=np.int64)  # i64 [T], numbers tokens within the group
        _, token_numbers[windows] = np.unique(sequences.token_ids[windows], return_inverse=True)
        numbers = token_numbers, token_numbers
        edges = may_start & ~starts_alone, may_start, may_end
        return _cooccurring_runs(
            numbers, room, in_sequence, edges, longest=self.max_span_tokens, anywhere=self.anywhere
        )


@dataclass(frozen=True, slots=True)
class CooccurringWordUnits:
    """Runs of full words, with the text between them, that occur as full words in another sequence of the group.

    As `CooccurringUnits` with `word_boundaries`, except for lengths, which are in words for any tokenizer, and for the
    other occurrence, which must begin and end with a word too: where tokens are bytes, `a` occurs in every word.
    """

    max_span_words: int = 10

    def candidates(self, sequences: Sequences) -> MaskableSpans:
        """All such runs, fewest words first, equal phrases together."""
        if len(sequences.token_ids) > MAX_GROUP_TOKENS:
            raise ValueError(f"a group of {len(sequences.token_ids)} tokens; at most {MAX_GROUP_TOKENS} are searched")
        words = whole_words(sequences)
        stops = words.starts + words.lengths  # i64 [words]
        in_sequence = sequence_numbers(sequences)[words.starts]  # i64 [words]
        # numbered by its tokens, and after another word by those between the two as well
        alone = phrase_numbers(sequences.token_ids, words.starts, words.lengths)  # i64 [words]
        goes_on = np.append(False, in_sequence[1:] == in_sequence[:-1])[: len(words)]  # bool [words]
        specials = np.append(0, np.cumsum(has_flag(sequences.flags, TokenFlag.SPECIAL)))  # i64 [T + 1]
        goes_on[1:] &= specials[words.starts[1:]] == specials[stops[:-1]]
        joined_starts = np.where(goes_on, np.append(0, stops)[: len(words)], words.starts)  # i64 [words]
        joined = phrase_numbers(sequences.token_ids, joined_starts, stops - joined_starts)  # i64 [words]
        places = np.arange(len(words))
        breaks = np.append(np.flatnonzero(~goes_on), len(words))  # i64 [runs + 1]
        room = breaks[np.searchsorted(breaks, places, side="right")] - places  # i64 [words]
        starts_alone = has_flag(sequences.flags[words.starts], TokenFlag.CLAUSE_PUNCTUATION)  # bool [words]
        any_word = np.ones(len(words), dtype=bool)
        edges = (~starts_alone, any_word, any_word)
        runs = _cooccurring_runs((alone, joined), room, in_sequence, edges, longest=self.max_span_words)
        starts = words.starts[runs.starts]  # i64 [m]
        lengths = stops[runs.starts + runs.lengths - 1] - starts  # i64 [m]
        return MaskableSpans(starts, lengths, runs.phrase_ids, word_counts=runs.lengths)


def whole_words(sequences: Sequences) -> Spans:
    """The words that are in one sequence from their first token to their last, without a special one or a space."""
    starts = np.flatnonzero(has_flag(sequences.flags, TokenFlag.WORD_START))  # i64 [starts]
    ends = np.append(np.flatnonzero(has_flag(sequences.flags, TokenFlag.WORD_END)), len(sequences.token_ids))
    last = ends[np.searchsorted(ends, starts)]  # i64 [starts]
    following = np.append(starts[1:], len(sequences.token_ids))[: len(starts)]  # i64 [starts]
    owners = np.searchsorted(sequences.offsets, starts, side="right")  # i64 [starts]
    whole = (last < following) & (last < sequences.offsets[np.minimum(owners, len(sequences))])  # bool [starts]
    specials = np.append(0, np.cumsum(has_flag(sequences.flags, TokenFlag.SPECIAL)))  # i64 [T + 1]
    whole &= specials[np.minimum(last + 1, len(sequences.token_ids))] == specials[starts]
    return Spans(starts[whole], last[whole] + 1 - starts[whole])


def _cooccurring_runs(
    numbers: tuple[np.ndarray, np.ndarray],
    room: np.ndarray,
    in_sequence: np.ndarray,
    edges: tuple[np.ndarray, np.ndarray, np.ndarray],
    *,
    longest: int,
    anywhere: bool = False,
) -> MaskableSpans:
    """Runs of pieces, tokens or words, that occur in two sequences, or `anywhere`; lengths and starts in pieces.

    `numbers` i64 [pieces] are the ids of the pieces, as the first of a run and as a later one; `room` how many may
    follow, itself included; `edges` bool [pieces] which may start a run of several, start one alone, and end one.
    """
    first_numbers, later_numbers = numbers
    starts_several, starts_one, may_end = edges
    windows = np.flatnonzero(room)  # i64 [w]
    ngrams = np.zeros(len(windows), dtype=np.int64)  # i64 [w], the number of the n-gram at each window
    none = np.zeros(0, dtype=np.int64)
    found = [(none, none, none)]
    phrase_count = 0
    for length in range(1, longest + 1):
        fits = room[windows] >= length  # bool [w]
        windows, ngrams = windows[fits], ngrams[fits]
        last = (later_numbers if length > 1 else first_numbers)[windows + length - 1]  # i64 [w]
        windows, ngrams = _cooccurring(windows, ngrams, last, in_sequence, anywhere=anywhere)
        if not len(windows):
            break
        allowed = (starts_several if length > 1 else starts_one)[windows] & may_end[windows + length - 1]  # bool [w]
        starts = windows[allowed]
        found.append((starts, np.full(len(starts), length), ngrams[allowed] + phrase_count))
        phrase_count += int(ngrams[-1]) + 1
    return MaskableSpans(*(np.concatenate(parts) for parts in zip(*found, strict=True)))  # i64 [m] each


def tokens_until_break(sequences: Sequences) -> np.ndarray:
    """Tokens from each position to the next break, itself included, i64 [T]; 0 at special tokens.

    A break is a special token or the end of the sequence.
    """
    token_count = len(sequences.token_ids)
    is_special = has_flag(sequences.flags, TokenFlag.SPECIAL)  # bool [T]
    breaks = np.where(is_special, np.arange(token_count), token_count)  # i64 [T]
    next_special = np.minimum.accumulate(breaks[::-1])[::-1]  # i64 [T]
    sequence_ends = np.repeat(sequences.offsets[1:], np.diff(sequences.offsets))  # i64 [T]
    return np.minimum(next_special, sequence_ends) - np.arange(token_count)


def _cooccurring(
    windows: np.ndarray, prefixes: np.ndarray, last_tokens: np.ndarray, in_sequence: np.ndarray, *, anywhere: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The windows whose n-gram occurs in two sequences, and dense numbers of these n-grams; i64 [w'] each, sorted.

    With `anywhere` all windows are.
    `windows` i64 [w] are positions; `prefixes` i64 [w] and `last_tokens` i64 [w] together say which n-gram each is.
    """
    if not len(windows):
        return windows, prefixes
    bits = MAX_GROUP_TOKENS.bit_length() - 1
    # A plain sort of keys that carry their position is several times faster than an argsort of keys.
    packed = np.sort((prefixes << 2 * bits) | (last_tokens << bits) | windows)  # i64 [w]
    keys, windows = packed >> bits, packed & (MAX_GROUP_TOKENS - 1)  # i64 [w] each
    is_first = np.empty(len(keys), dtype=bool)  # bool [w]
    is_first[0] = True
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    firsts = np.flatnonzero(is_first)  # i64 [n-grams]
    sizes = np.diff(firsts, append=len(keys))  # i64 [n-grams]
    # Equal n-grams are sorted by position, so the first and the last one show whether there are two sequences.
    cooccurs = in_sequence[windows[firsts]] != in_sequence[windows[firsts + sizes - 1]]  # bool [n-grams]
    cooccurs |= anywhere
    numbers = np.cumsum(cooccurs) - 1  # i64 [n-grams], dense over those that co-occur
    kept = np.repeat(cooccurs, sizes)  # bool [w]
    return windows[kept], np.repeat(numbers[cooccurs], sizes[cooccurs])


@dataclass(frozen=True, slots=True)
class TokenUnits:
    """Every token that is not special, wherever it occurs: the unit of plain masked language modeling."""

    def candidates(self, sequences: Sequences) -> MaskableSpans:
        """All such tokens in the order of the text."""
        starts = np.flatnonzero(~has_flag(sequences.flags, TokenFlag.SPECIAL))  # i64 [m]
        return MaskableSpans(starts, np.ones_like(starts))


@dataclass(frozen=True, slots=True)
class WordUnits:
    """Every entire word; tokens that belong to no word, such as those of only space, count as words too.

    A word is cut where a sequence ends and at SPECIAL tokens, which are in no word. So the units are disjoint and hold
    every token that is not special.
    """

    def candidates(self, sequences: Sequences) -> MaskableSpans:
        """All words in the order of the text."""
        words = words_of(sequences)
        return MaskableSpans(words.starts, words.lengths)


def words_of(sequences: Sequences) -> Spans:
    """The units of `WordUnits`."""
    starts = np.flatnonzero(word_beginnings(sequences))  # i64 [m]
    breaks = np.append(has_flag(sequences.flags, TokenFlag.SPECIAL), True)  # bool [T + 1]
    breaks[starts] = True
    breaks[sequences.offsets] = True
    places = np.flatnonzero(breaks)  # i64 [breaks]
    return Spans(starts, places[np.cumsum(breaks)[starts]] - starts)


def words_that_go_on(sequences: Sequences, words: Spans) -> np.ndarray:
    """Mask bool [m] of the words, in order, that the next one directly follows in the same sequence."""
    starts_sequence = np.zeros(len(sequences.token_ids) + 1, dtype=bool)  # bool [T + 1]
    starts_sequence[sequences.offsets] = True
    stops = words.starts + words.lengths  # i64 [m]
    return np.append(stops[:-1] == words.starts[1:], False)[: len(words)] & ~starts_sequence[stops]


def word_beginnings(sequences: Sequences) -> np.ndarray:
    """Mask bool [T] of tokens that begin a unit of `WordUnits`."""
    is_special = has_flag(sequences.flags, TokenFlag.SPECIAL)  # bool [T]
    begins = has_flag(sequences.flags, TokenFlag.WORD_START)  # bool [T]
    begins[1:] |= has_flag(sequences.flags[:-1], TokenFlag.WORD_END) | is_special[:-1]
    begins[sequences.offsets[:-1][np.diff(sequences.offsets) > 0]] = True
    return begins & ~is_special


def phrase_numbers(token_ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Numbers i64 [m] of spans of `token_ids` [T]: two are equal if and only if the tokens of their spans are."""
    _, numbers = np.unique(token_ids[starts], return_inverse=True)  # i64 [m]
    for length in range(2, int(lengths.max(initial=1)) + 1):
        longer = np.flatnonzero(lengths >= length)  # i64 [spans of that length or more]
        packed = (numbers[longer] << 32) | token_ids[starts[longer] + length - 1].astype(np.int64)
        # above all numbers given so far, so that no longer span gets the number of a shorter one
        above = int(numbers.max()) + 1
        numbers[longer] = above + np.unique(packed, return_inverse=True)[1]
    return np.unique(numbers, return_inverse=True)[1]
