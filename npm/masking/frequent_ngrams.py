"""Counting n-grams of words: those that stand in a text often enough, in memory that only these take.

The text is read twice for each n, piece by piece. An n-gram is counted only if both n-grams one word shorter in it are
frequent, and if it fell, in the first reading, into a bucket that holds enough of them. n-grams are told apart by
64-bit hashes: two of a hundred million different ones are taken for one with a probability of 1 in 3,700.

Shapes: T tokens of a piece of text, W words of it, w windows (places where an n-gram starts), F frequent n-grams.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from npm.masking.units import words_of, words_that_go_on
from npm.types import Sequences

BUCKET_BITS = 24
MERGED_AT_LEAST = 1 << 20
"""Counts of several pieces are merged at once, as soon as there are so many, or as many as were merged before."""


@dataclass(frozen=True, slots=True)
class FrequentNgrams:
    """The n-grams of n words that stand often enough, by their hashes."""

    keys: np.ndarray  # u64 [F], sorted
    counts: np.ndarray  # i64 [F]
    words: np.ndarray  # u64 [F, n], keys of their words
    window_count: int  # places in the text where any n-gram of n words stands

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The places i64 [w] of `keys` u64 [w] among the frequent ones, and bool [w] whether they are."""
        if not len(self.keys):
            return np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys), dtype=bool)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)  # i64 [w]
        return places, self.keys[places] == keys


@dataclass(frozen=True, slots=True)
class PieceWords:
    """The words of a piece of text, by keys that are equal if their tokens are."""

    starts: np.ndarray  # i64 [W], positions in [0, T)
    lengths: np.ndarray  # i64 [W], tokens
    keys: np.ndarray  # u64 [W]
    goes_on: np.ndarray  # bool [W], the next word follows at once, in the same sequence

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def of(cls, sequences: Sequences) -> PieceWords:
        """The words of `sequences`."""
        words = words_of(sequences)
        keys = np.zeros(len(words), dtype=np.uint64)  # u64 [W]
        token_ids = sequences.token_ids.astype(np.uint64) + np.uint64(1)  # u64 [T]
        for place in range(int(words.lengths.max(initial=0))):
            longer = np.flatnonzero(words.lengths > place)
            keys[longer] = _chained(keys[longer], token_ids[words.starts[longer] + place])
        return cls(words.starts, words.lengths, keys, words_that_go_on(sequences, words))

    def windows(self, word_count: int) -> tuple[np.ndarray, np.ndarray]:
        """Where n-grams of `word_count` words start, i64 [w] in [0, W), and their keys u64 [w]."""
        places = np.arange(max(0, len(self) - word_count + 1))  # i64 [w]
        for inner in range(word_count - 1):
            places = places[self.goes_on[places + inner]]
        return places, ngram_keys(self.keys[places[:, None] + np.arange(word_count)])


def ngram_keys(words: np.ndarray) -> np.ndarray:
    """The keys u64 [w] of n-grams whose words have the keys u64 [w, n]."""
    keys = words[:, 0]
    for place in range(1, words.shape[1]):
        keys = _chained(keys, words[:, place])
    return keys


def _chained(keys: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Hashes u64 of what has the hash `keys`, followed by something; mixed as in splitmix64 (Steele et al. 2014)."""
    keys = keys * np.uint64(0x9E3779B97F4A7C15) + following
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


def frequent_ngrams(
    pieces: Iterable[Sequences], word_count: int, shorter: FrequentNgrams | None, *, min_count: int
) -> FrequentNgrams:
    """The n-grams of `word_count` words that stand at least `min_count` times in a text that can be read twice.

    `shorter` are the frequent n-grams one word shorter; None for single words.
    """
    buckets = np.zeros(1 << BUCKET_BITS, dtype=np.uint32)  # u32 [buckets]
    shift = np.uint64(64 - BUCKET_BITS)
    window_count = 0
    for sequences in pieces:
        windows = _CandidateWindows.of(sequences, word_count, shorter)
        window_count += windows.window_count
        np.add.at(buckets, windows.keys >> shift, np.uint32(1))
    counts = _Counts(word_count)
    for sequences in pieces:
        windows = _CandidateWindows.of(sequences, word_count, shorter)
        often = buckets[windows.keys >> shift] >= min_count  # bool [w]
        counts.add(windows.keys[often], windows.words[often])
    keys, numbers, words = counts.merged()
    kept = numbers >= min_count  # bool [n-grams counted]
    return FrequentNgrams(keys[kept], numbers[kept], words[kept], window_count)


@dataclass(frozen=True, slots=True)
class _CandidateWindows:
    """The windows of a piece of text whose n-gram may be frequent."""

    keys: np.ndarray  # u64 [w]
    words: np.ndarray  # u64 [w, n]
    window_count: int  # windows of any n-gram

    @classmethod
    def of(cls, sequences: Sequences, word_count: int, shorter: FrequentNgrams | None) -> _CandidateWindows:
        words = PieceWords.of(sequences)
        places, keys = words.windows(word_count)
        window_count = len(places)
        if shorter is not None:
            inner_places, inner_keys = words.windows(word_count - 1)
            is_frequent = np.zeros(len(words) + 1, dtype=bool)  # bool [W + 1], a frequent shorter one starts here
            is_frequent[inner_places[shorter.find(inner_keys)[1]]] = True
            often = is_frequent[places] & is_frequent[places + 1]  # bool [w]
            places, keys = places[often], keys[often]
        return cls(keys, words.keys[places[:, None] + np.arange(word_count)], window_count)


class _Counts:
    """Running counts by key."""

    def __init__(self, word_count: int) -> None:
        self._parts = [(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros((0, word_count), np.uint64))]
        self._waiting = 0

    def add(self, keys: np.ndarray, words: np.ndarray) -> None:
        """Count `keys` u64 [w] of n-grams with the words u64 [w, n]."""
        found, first, counts = np.unique(keys, return_index=True, return_counts=True)
        self._parts.append((found, counts, words[first]))
        self._waiting += len(found)
        if self._waiting > max(MERGED_AT_LEAST, len(self._parts[0][0])):
            self.merged()

    def merged(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Keys u64 [n-grams], sorted, their counts i64 [n-grams] and their words u64 [n-grams, n]."""
        keys = np.concatenate([keys for keys, _, _ in self._parts])
        found, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
        counts = np.zeros(len(found), dtype=np.int64)  # i64 [n-grams]
        np.add.at(counts, numbers, np.concatenate([counts for _, counts, _ in self._parts]))
        words = np.concatenate([words for _, _, words in self._parts])[first]
        self._parts, self._waiting = [(found, counts, words)], 0
        return self._parts[0]
