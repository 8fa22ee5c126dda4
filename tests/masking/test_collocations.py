"""A vocabulary of collocations: where its entries stand, which of them win, and what is refused when it is opened."""

from __future__ import annotations

from collections import Counter

import numpy as np

from npm.core.types import Sequences, TokenFlag
from npm.masking.collocations import (
    CollocationUnits,
    CollocationVocabulary,
    Entries,
    LongestUnits,
)
from tests.helpers.groups import group, pairs, random_group
from tests.masking.plain_collocations import Ngram, ngrams_of, plain_counts, plain_places
from tests.masking.plain_masking import plain_words

START, END = int(TokenFlag.WORD_START), int(TokenFlag.WORD_END)


def vocabulary_of(*ngrams: Ngram) -> CollocationVocabulary:
    words = [word for ngram in ngrams for word in ngram]
    token_ids = [token for word in words for token in word]
    return CollocationVocabulary(
        Entries(
            token_ids=np.array(token_ids, dtype=np.int32),
            starts_word=np.array([place == 0 for word in words for place in range(len(word))], dtype=bool),
            offsets=np.cumsum([0, *(sum(map(len, ngram)) for ngram in ngrams)]),
            counts=np.ones(len(ngrams), dtype=np.int64),
            scores=np.zeros(len(ngrams)),
        )
    )


def units_of(vocabulary: CollocationVocabulary, sequences: Sequences, seed: int = 0) -> list[tuple[int, int]]:
    candidates = CollocationUnits(vocabulary).candidates(sequences)
    kept = LongestUnits().keep(candidates, sequences, np.random.default_rng(seed))
    return list(zip(kept.starts.tolist(), kept.lengths.tolist(), strict=True))


def test_an_entry_is_found_where_its_words_stand_whole() -> None:
    vocabulary = vocabulary_of(((5,), (6, 7)))
    flags = [[START | END, START, END], [START | END, START, 0], [START, END, END], [0, START, END]]
    sequences = group([5, 6, 7], [5, 6, 7], [5, 6, 7], [5, 6, 7], flags=flags)
    # at the end of a sequence a word is whole; in the third one 5 6 is one word; a sequence may begin within a word
    assert sorted(pairs(vocabulary.find(sequences))) == [(0, 3), (3, 3), (9, 3)]
    goes_on = group([5, 6, 7, 8], flags=[[START | END, START, 0, END]])
    assert pairs(vocabulary.find(goes_on)) == []


def test_entries_are_found_where_plain_python_finds_them() -> None:
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(40):
        sequences = random_group(rng, sequence_count=5, max_tokens=40, vocabulary=4)
        counts = plain_counts([sequences])
        frequent = [ngram for size in counts[1:] for ngram, count in size.items() if count > 1]
        chosen = [frequent[i] for i in rng.permutation(len(frequent))[:15]]
        vocabulary = vocabulary_of(*chosen)
        places = pairs(vocabulary.find(sequences))
        assert len(places) == len(set(places))
        assert set(places) == plain_places(sequences, set(chosen))
        assert ngrams_of(vocabulary.entries) == chosen
        found += len(places)
    assert found > 500


def test_an_empty_vocabulary_leaves_the_words() -> None:
    sequences = random_group(np.random.default_rng(0), sequence_count=4, max_tokens=20, vocabulary=5)
    assert units_of(vocabulary_of(), sequences) == plain_words(sequences)


def test_the_longest_entry_wins_over_those_inside_it() -> None:
    vocabulary = vocabulary_of(((5,), (6,)), ((6,), (7,)), ((5,), (6,), (7,)))
    for seed in range(10):
        assert units_of(vocabulary, group([5, 6, 7, 5, 6]), seed) == [(0, 3), (3, 2)]


def test_chance_decides_between_partial_overlaps_and_the_rest_is_words() -> None:
    vocabulary = vocabulary_of(((5,), (6,)), ((6,), (7,)))
    drawn = Counter(str(units_of(vocabulary, group([5, 6, 7, 8]), seed)) for seed in range(400))
    assert set(drawn) == {"[(0, 2), (2, 1), (3, 1)]", "[(0, 1), (1, 2), (3, 1)]"}
    assert all(abs(count - 200) < 4 * np.sqrt(400 / 4) for count in drawn.values())


def test_shorter_entries_inside_one_that_was_left_out_do_not_come_back() -> None:
    vocabulary = vocabulary_of(((5,), (6,), (7,)), ((5,), (6,)), ((7,), (8,)))
    drawn = {str(units_of(vocabulary, group([5, 6, 7, 8]), seed)) for seed in range(40)}
    assert drawn == {"[(0, 3), (3, 1)]", "[(0, 1), (1, 1), (2, 2)]"}


def test_units_are_disjoint_hold_every_word_and_none_that_overlaps_nothing_is_left_out() -> None:
    rng = np.random.default_rng(1)
    for seed in range(60):
        sequences = random_group(rng, sequence_count=5, max_tokens=40, vocabulary=3)
        counts = plain_counts([sequences])
        vocabulary = vocabulary_of(*(ngram for size in counts[1:] for ngram, count in size.items() if count > 2))
        units = units_of(vocabulary, sequences, seed)
        words = plain_words(sequences)
        assert [p for start, n in units for p in range(start, start + n)] == [
            p for start, n in words for p in range(start, start + n)
        ]
        places = plain_places(sequences, set(ngrams_of(vocabulary.entries)))
        longest = {span for span in places if not any(span != other and inside(span, other) for other in places)}
        assert set(units) <= longest | set(words)
        chosen = longest & set(units)
        for span in longest - chosen:
            assert any(overlap(span, other) for other in chosen), "room for a unit was left to words"


def inside(span: tuple[int, int], other: tuple[int, int]) -> bool:
    return other[0] <= span[0] and sum(span) <= sum(other)


def overlap(span: tuple[int, int], other: tuple[int, int]) -> bool:
    return span[0] < sum(other) and other[0] < sum(span)
