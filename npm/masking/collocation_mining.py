"""Mining collocations: n-grams of words that occur together far more often than their parts would by chance.

    PMI_n(w) = min over the ways to cut w into two or more parts t of log( p(w) / ∏ p(t) )

(Levine et al. 2021, arXiv 2010.01825.) p is the number of occurrences over the number of positions of n-grams of that
many words. n-grams are ranked among those of as many words; half of the vocabulary are pairs, a quarter triples,
an eighth each of four and five words.

The text is read once for each n, piece by piece. An n-gram is counted only if both n-grams one word shorter in it are
frequent. n-grams are identified by 64-bit hashes: two of a hundred million different ones collide with a
probability of 1 in 3,700.

Shapes: T tokens of a piece of text, W words of it, w windows (positions where an n-gram starts), F frequent n-grams
of n words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from index.arrays import GOLDEN_GAMMA, mixed_bits
from npm.core.artifact import written_once
from npm.core.errors import CorpusError
from npm.core.files import FolderWriter
from npm.core.types import Sequences
from npm.corpus.blocks import concatenated_ranges
from npm.corpus.store import BlockStore
from npm.masking.collocations import ENTRY_ARRAYS, KIND, CollocationSettings, CollocationVocabulary, Entries
from npm.masking.units import word_beginnings, words_of, words_that_go_on

MERGED_AT_LEAST = 1 << 20
"""Counts of several pieces are merged at once, as soon as there are this many, or as many as were merged before."""


@dataclass(frozen=True, slots=True)
class FrequentNgrams:
    """The n-grams of n words that occur often enough, by their hashes."""

    keys: np.ndarray  # u64 [F], sorted
    counts: np.ndarray  # i64 [F]
    words: np.ndarray  # u64 [F, n], keys of their words
    window_count: int  # positions in the text where any n-gram of n words occurs

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The indices i64 [w] of `keys` u64 [w] among the frequent ones, and the mask bool [w] of those found."""
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
        """Starts i64 [w] in [0, W) of n-grams of `word_count` words, and their keys u64 [w]."""
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
    """Hashes u64 of sequences with the hashes `keys`, extended by one item."""
    return mixed_bits((keys - np.uint64(1)) * GOLDEN_GAMMA + following)  # mixed_bits adds it once more


def frequent_ngrams(
    pieces: Iterable[Sequences], word_count: int, shorter: FrequentNgrams | None, *, min_count: int
) -> FrequentNgrams:
    """The n-grams of `word_count` words that occur at least `min_count` times in a text.

    `shorter` are the frequent n-grams one word shorter; None for single words.
    """
    counts, window_count = _Counts(word_count), 0
    for sequences in pieces:
        words = PieceWords.of(sequences)
        places, keys = words.windows(word_count)
        window_count += len(places)
        if shorter is not None:
            inner_places, inner_keys = words.windows(word_count - 1)
            is_frequent = np.zeros(len(words) + 1, dtype=bool)  # bool [W + 1], a frequent shorter one starts here
            is_frequent[inner_places[shorter.find(inner_keys)[1]]] = True
            often = is_frequent[places] & is_frequent[places + 1]  # bool [w]
            places, keys = places[often], keys[often]
        counts.add(keys, words.keys[places[:, None] + np.arange(word_count)])
    keys, numbers, word_keys = counts.merged()
    kept = numbers >= min_count  # bool [n-grams counted]
    return FrequentNgrams(keys[kept], numbers[kept], word_keys[kept], window_count)


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


SHARES = {2: 0.5, 3: 0.25, 4: 0.125, 5: 0.125}
"""Of the vocabulary, by number of words."""
TOKENS_PER_PIECE = 1 << 20
MAX_MINED_TOKENS = 100_000_000
"""Longer texts are mined by every second, third, … block, so that about this many tokens are read."""


@dataclass(frozen=True, slots=True)
class BlockPieces:
    """The blocks of a store in order, in pieces of about `TOKENS_PER_PIECE` tokens; every `stride`-th block."""

    store: BlockStore
    stride: int = 1

    def __iter__(self) -> Iterator[Sequences]:
        blocks = np.arange(0, self.store.block_count, self.stride)  # i64 [blocks]
        size = max(1, TOKENS_PER_PIECE // max(1, self.store.max_block_tokens))
        for first in range(0, len(blocks), size):
            yield self.store.sequences(blocks[first : first + size])


def collocations_of(settings: CollocationSettings, store: BlockStore, folder: Path) -> CollocationVocabulary:
    """The vocabulary that `settings` name, or else the one mined from `store`, kept in `folder`.

    Raises ArtifactError for one of another tokenizer, or in `folder` one of other text or settings; CorpusError if
    the text holds no collocation.
    """
    fingerprint = store.tokenizer_fingerprint
    if settings.vocabulary:
        return CollocationVocabulary.open(Path(settings.vocabulary), tokenizer_fingerprint=fingerprint)

    def write(writer: FolderWriter) -> None:
        stride = max(1, -(-store.token_count // MAX_MINED_TOKENS))
        entries = mined_collocations(BlockPieces(store, stride), settings)
        for name in ENTRY_ARRAYS:
            writer.write_array(name, getattr(entries, name))

    mining = {name: value for name, value in asdict(settings).items() if name != "vocabulary"}
    made_from = {"tokenizer_fingerprint": fingerprint, "input": store.digest, "mining": mining}
    written_once(folder, kind=KIND, settings=made_from, write=write)
    return CollocationVocabulary.open(folder, tokenizer_fingerprint=fingerprint)


def mined_collocations(pieces: Iterable[Sequences], settings: CollocationSettings) -> Entries:
    """The collocations of a text that can be read several times.

    Raises CorpusError if no n-gram is frequent enough.
    """
    levels: list[FrequentNgrams] = []
    for word_count in (1, *SHARES):
        shorter = levels[-1] if levels else None
        levels.append(frequent_ngrams(pieces, word_count, shorter, min_count=settings.min_count))
    if not len(levels[1].keys):
        raise CorpusError(
            f"no collocation: no two of {levels[0].window_count} words occur together {settings.min_count} times; give "
            "more text, or lower corruption.collocations.min_count"
        )
    scores = mutual_information(levels)
    sizes = [
        sizes_at_entry(level, score, SHARES[n]) for n, level, score in zip(SHARES, levels[1:], scores, strict=True)
    ]
    survey = _Survey(levels[1:], sizes)
    for sequences in pieces:
        survey.read(sequences)
    return survey.entries(settings.coverage, scores)


def mutual_information(levels: Sequence[FrequentNgrams]) -> list[np.ndarray]:
    """PMI_n f64 [F] of the n-grams of each level but the first, which holds single words.

    Parts of an n-gram are themselves cut at their best, so it is enough to look at the cuts into two.
    """
    best: list[np.ndarray] = []  # f64 [F] of each level: the largest sum of log p over all ways to cut, or not to
    scores = []
    for words, level in enumerate(levels, start=1):
        log_p = np.log(level.counts / max(1, level.window_count))  # f64 [F]
        cut_best = np.full(len(log_p), -np.inf)  # f64 [F]
        for cut in range(1, words):
            left, right = ngram_keys(level.words[:, :cut]), ngram_keys(level.words[:, cut:])  # u64 [F] each
            parts = (
                best[cut - 1][levels[cut - 1].find(left)[0]]
                + best[words - cut - 1][levels[words - cut - 1].find(right)[0]]
            )
            cut_best = np.maximum(cut_best, parts)
        best.append(np.maximum(log_p, cut_best))
        if words > 1:
            scores.append(log_p - cut_best)
    return scores


def sizes_at_entry(level: FrequentNgrams, scores: np.ndarray, share: float) -> np.ndarray:
    """Size of the vocabulary when each n-gram joins, i64 [F]; `share` of it are n-grams of that many words.

    They come in by score f64 [F], equal ones by count.
    """
    order = np.lexsort((level.keys, -level.counts, -scores))  # i64 [F]
    sizes = np.empty(len(order), dtype=np.int64)  # i64 [F]
    sizes[order] = np.ceil(np.arange(1, len(order) + 1) / share)
    return sizes


class _Survey:
    """One more reading: the tokens that a vocabulary of each size would hold, and the token ids of the n-grams."""

    def __init__(self, levels: Sequence[FrequentNgrams], sizes: Sequence[np.ndarray]) -> None:
        self._levels, self._sizes = levels, sizes
        self._largest = max(int(own.max(initial=0)) for own in sizes)
        # tokens that are first held by a vocabulary of each size; the last ones by none
        self._tokens_by_size = np.zeros(self._largest + 2, dtype=np.int64)  # i64 [sizes + 2]
        self._was_seen = [np.zeros(len(own), dtype=bool) for own in sizes]  # bool [F] each
        # of each n-gram, by level: its number, tokens, and their ids and whether they begin words
        self._examples: list[list[tuple[np.ndarray, ...]]] = [[] for _ in sizes]

    def read(self, sequences: Sequences) -> None:
        """Count and collect the n-grams of one piece."""
        words = PieceWords.of(sequences)
        begins = word_beginnings(sequences)  # bool [T]
        held_from = np.full(len(words), self._largest + 1)  # i64 [W], the smallest size that holds each word
        for number, level in enumerate(self._levels):
            word_count = level.words.shape[1]
            places, keys = words.windows(word_count)
            ngrams, is_frequent = level.find(keys)
            places, ngrams = places[is_frequent], ngrams[is_frequent]  # i64 [w] each
            for inner in range(word_count):
                held_from[places + inner] = np.minimum(held_from[places + inner], self._sizes[number][ngrams])
            new = np.flatnonzero(~self._was_seen[number][ngrams])  # i64 [positions of n-grams not seen before]
            seen, first = np.unique(ngrams[new], return_index=True)  # i64 [n-grams not seen before] each
            self._was_seen[number][seen] = True
            starts, last = words.starts[places[new[first]]], places[new[first]] + word_count - 1
            stops = words.starts[last] + words.lengths[last]
            positions = concatenated_ranges(starts, stops)
            self._examples[number].append((seen, stops - starts, sequences.token_ids[positions], begins[positions]))
        np.add.at(self._tokens_by_size, held_from, words.lengths)

    def entries(self, coverage: float, scores: Sequence[np.ndarray]) -> Entries:
        """The smallest vocabulary that holds a fraction `coverage` of all tokens, or the largest there is.

        Each of its n-grams is in it by its first example.
        """
        held = np.cumsum(self._tokens_by_size[:-1])  # i64 [sizes + 1]
        size = min(int(np.searchsorted(held, coverage * self._tokens_by_size.sum())), self._largest)
        token_ids, starts_word, lengths, counts, kept_scores = [], [], [], [], []
        for number, level in enumerate(self._levels):
            numbers, sizes, ids, begins = (np.concatenate(parts) for parts in zip(*self._examples[number], strict=True))
            ranked = np.argsort(self._sizes[number])  # i64 [F]
            ranked = ranked[self._sizes[number][ranked] <= size]  # i64 [entries of that many words]
            rows = np.argsort(numbers)[ranked]  # i64 [entries], their examples: every frequent n-gram has one
            ends = np.cumsum(sizes)[rows]
            positions = concatenated_ranges(ends - sizes[rows], ends)
            token_ids.append(ids[positions])
            starts_word.append(begins[positions])
            lengths.append(sizes[rows])
            counts.append(level.counts[ranked])
            kept_scores.append(scores[number][ranked])
        return Entries(
            token_ids=np.concatenate(token_ids),  # i32 [X]
            starts_word=np.concatenate(starts_word),  # bool [X]
            offsets=np.append(0, np.cumsum(np.concatenate(lengths))),  # i64 [N + 1]
            counts=np.concatenate(counts),  # i64 [N]
            scores=np.concatenate(kept_scores),  # f64 [N]
        )
