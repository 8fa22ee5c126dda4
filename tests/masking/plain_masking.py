"""Masking in plain Python, token by token: what the vectorized masking is compared with, in tests and benchmarks."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from npm.core.types import Sequences, TokenFlag
from npm.masking.collocations import Entries

# Plain ints: `&` with an IntFlag builds an enum member each time, and the benchmark is to be fair.
WORD_START, WORD_END = int(TokenFlag.WORD_START), int(TokenFlag.WORD_END)
CLAUSE_PUNCTUATION, SPECIAL = int(TokenFlag.CLAUSE_PUNCTUATION), int(TokenFlag.SPECIAL)

Span = tuple[int, int]  # start in the flat tokens, length in tokens
Word = tuple[int, ...]  # token ids
Ngram = tuple[Word, ...]


def plain_phrase(sequences: Sequences, span: Span) -> tuple[int, ...]:
    """The token ids of a span."""
    start, length = span
    return tuple(sequences.token_ids[start : start + length].tolist())


def plain_candidates(sequences: Sequences, *, max_span_tokens: int = 10, word_boundaries: bool = True) -> set[Span]:
    """All spans whose n-gram stands in another sequence, by a dict from n-gram to the sequences it stands in."""
    ids, flags, offsets = sequences.token_ids.tolist(), sequences.flags.tolist(), sequences.offsets.tolist()
    sequences_of_ngram: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for sequence in range(len(sequences)):
        begin, end = offsets[sequence], offsets[sequence + 1]
        for start in range(begin, end):
            for stop in range(start + 1, min(start + max_span_tokens, end) + 1):
                if flags[stop - 1] & SPECIAL:
                    break
                sequences_of_ngram[tuple(ids[start:stop])].add(sequence)
    spans = set()
    for sequence in range(len(sequences)):
        begin, end = offsets[sequence], offsets[sequence + 1]
        for start in range(begin, end):
            if word_boundaries and not flags[start] & WORD_START:
                continue
            longest = 1 if flags[start] & CLAUSE_PUNCTUATION else max_span_tokens
            for stop in range(start + 1, min(start + longest, end) + 1):
                if flags[stop - 1] & SPECIAL or len(sequences_of_ngram[tuple(ids[start:stop])]) < 2:
                    break
                if not word_boundaries or flags[stop - 1] & WORD_END:
                    spans.add((start, stop - start))
    return spans


def plain_select(sequences: Sequences, rng: np.random.Generator) -> list[Span]:
    """One mask with the settings of the reference: 15 %, Geometric(0.5) up to 10, 64 a sequence, 10 a phrase."""
    spans_by_length: dict[int, list[Span]] = defaultdict(list)
    for start, length in sorted(plain_candidates(sequences)):
        is_clause = length == 1 and sequences.flags[start] & CLAUSE_PUNCTUATION
        if not (is_clause and rng.random() < 0.9):
            spans_by_length[length].append((start, length))
    for spans in spans_by_length.values():
        rng.shuffle(spans)
    sequence_of = [s for s in range(len(sequences)) for _ in range(sequences.offsets[s], sequences.offsets[s + 1])]
    masked = [False] * len(sequence_of)
    masked_tokens = 0
    spans_in_sequence: dict[int, int] = defaultdict(int)
    repeats: dict[tuple[int, ...], int] = defaultdict(int)
    chosen: list[Span] = []
    while masked_tokens < math.floor(0.15 * len(masked)) and any(spans_by_length.values()):
        drawn = int(rng.geometric(0.5))
        if drawn > 10:
            continue
        length = next(n for n in (*range(drawn, 0, -1), *range(drawn + 1, 11)) if spans_by_length[n])
        while spans_by_length[length]:
            start, _ = spans_by_length[length].pop()
            phrase, sequence = plain_phrase(sequences, (start, length)), sequence_of[start]
            if any(masked[start : start + length]) or spans_in_sequence[sequence] >= 64 or repeats[phrase] >= 10:
                continue
            masked[start : start + length] = [True] * length
            masked_tokens += length
            spans_in_sequence[sequence] += 1
            repeats[phrase] += 1
            chosen.append((start, length))
            break
    return sorted(chosen)


def plain_words(sequences: Sequences) -> list[Span]:
    """Every word, token by token: it ends behind a WORD_END, before a WORD_START, at special tokens and at the end."""
    flags, offsets = sequences.flags.tolist(), sequences.offsets.tolist()
    words: list[Span] = []
    for sequence in range(len(sequences)):
        open_word = False
        for position in range(offsets[sequence], offsets[sequence + 1]):
            if flags[position] & SPECIAL:
                open_word = False
                continue
            if open_word and not flags[position] & WORD_START:
                start, length = words.pop()
                words.append((start, length + 1))
            else:
                words.append((position, 1))
            open_word = not flags[position] & WORD_END
    return words


def plain_neighbors(sequences: Sequences) -> list[list[Span]]:
    """The words in runs: within a run each follows the one before it at once, in the same sequence."""
    runs: list[list[Span]] = []
    first_tokens = set(sequences.offsets.tolist())
    for start, length in plain_words(sequences):
        if runs and start not in first_tokens and sum(runs[-1][-1]) == start:
            runs[-1].append((start, length))
        else:
            runs.append([(start, length)])
    return runs


def plain_counts(pieces: Iterable[Sequences], longest: int = 5) -> list[Counter[Ngram]]:
    """How often each n-gram of words stands, for n from 1 to `longest`."""
    counts: list[Counter[Ngram]] = [Counter() for _ in range(longest)]
    for sequences in pieces:
        for run in plain_neighbors(sequences):
            words = [plain_phrase(sequences, word) for word in run]
            for size in range(1, longest + 1):
                counts[size - 1].update(tuple(words[i : i + size]) for i in range(len(words) - size + 1))
    return counts


def plain_mutual_information(ngram: Ngram, counts: list[Counter[Ngram]]) -> float:
    """The smallest value over all ways to cut `ngram` into two or more parts."""

    def log_p(part: Ngram) -> float:
        return math.log(counts[len(part) - 1][part] / counts[len(part) - 1].total())

    values = []
    for cut_count in range(1, len(ngram)):
        for cuts in itertools.combinations(range(1, len(ngram)), cut_count):
            edges = [0, *cuts, len(ngram)]
            parts = [ngram[a:b] for a, b in itertools.pairwise(edges)]
            values.append(log_p(ngram) - sum(log_p(part) for part in parts))
    return min(values)


def ngrams_of(entries: Entries) -> list[Ngram]:
    """The entries of a vocabulary as tuples of words."""
    ngrams = []
    for first, stop in itertools.pairwise(entries.offsets.tolist()):
        words: list[list[int]] = []
        for token, starts_word in zip(
            entries.token_ids[first:stop].tolist(), entries.starts_word[first:stop], strict=True
        ):
            if starts_word:
                words.append([])
            words[-1].append(token)
        ngrams.append(tuple(tuple(word) for word in words))
    return ngrams


def plain_places(sequences: Sequences, ngrams: set[Ngram]) -> set[Span]:
    """Every span that is one of `ngrams`, by comparing every run of words with them."""
    spans = set()
    for run in plain_neighbors(sequences):
        for first, stop in itertools.combinations(range(len(run) + 1), 2):
            if tuple(plain_phrase(sequences, word) for word in run[first:stop]) in ngrams:
                start = run[first][0]
                spans.add((start, sum(run[stop - 1]) - start))
    return spans
