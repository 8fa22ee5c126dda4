"""Collocations in plain Python: n-grams in dictionaries, every way to cut them written out."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable

from npm.core.types import Sequences
from npm.masking.collocations import Entries
from tests.masking.plain_masking import Span, plain_neighbors, plain_phrase

Word = tuple[int, ...]  # token ids
Ngram = tuple[Word, ...]


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
