"""Collocations: mined by hand and against plain Python, found in text, refused for another vocabulary."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm.core.errors import ArtifactError, CorpusError
from npm.core.types import Sequences, TokenFlag
from npm.corpus.store import BlockStore
from npm.masking import collocation_mining
from npm.masking.collocation_mining import BlockPieces, collocations_of, mined_collocations
from npm.masking.collocations import CollocationSettings, CollocationUnits, CollocationVocabulary, Entries, LongestUnits
from tests.helpers.groups import WORD, group, pairs, random_group
from tests.helpers.stores import spelled, stored
from tests.masking.plain_masking import (
    Ngram,
    ngrams_of,
    plain_counts,
    plain_mutual_information,
    plain_places,
    plain_words,
)

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


def settings(**fields: Any) -> CollocationSettings:
    return dataclasses.replace(CollocationSettings(min_count=2, coverage=1.0), **fields)


def mined(pieces: list[Sequences], **fields: Any) -> dict[Ngram, tuple[int, float]]:
    entries = mined_collocations(pieces, settings(**fields))
    values = zip(entries.counts.tolist(), entries.scores.tolist(), strict=True)
    return dict(zip(ngrams_of(entries), values, strict=True))


def test_mutual_information_by_hand() -> None:
    """12 words: 5 6 7 three times, 8 in between; 9 windows of two words, 6 of three (three sequences of 4 words)."""
    text = [group([5, 6, 7, 8], [5, 6, 7, 8], [8, 5, 6, 7])]
    found = mined(text, min_count=3)
    assert set(found) == {((5,), (6,)), ((6,), (7,)), ((5,), (6,), (7,))}
    count, score = found[((5,), (6,))]
    assert count == 3
    assert score == pytest.approx(math.log(3 / 9) - 2 * math.log(3 / 12))
    # of the cuts 5|6|7, 56|7 and 5|67 the last two are the likelier ones: log(1/3) + log(1/4)
    assert found[((5,), (6,), (7,))][1] == pytest.approx(math.log(3 / 6) - math.log(3 / 9) - math.log(3 / 12))


def test_counts_and_scores_are_those_of_plain_python() -> None:
    rng = np.random.default_rng(0)
    pieces = [random_group(rng, sequence_count=9, max_tokens=40, vocabulary=4) for _ in range(5)]
    counts = plain_counts(pieces)
    found = mined(pieces, min_count=3)
    frequent = {ngram: count for size in counts[1:] for ngram, count in size.items() if count >= 3}
    assert {ngram: count for ngram, (count, _) in found.items()} == frequent
    assert {len(ngram) for ngram in found} == {2, 3, 4, 5}
    for ngram, (_, score) in found.items():
        assert score == pytest.approx(plain_mutual_information(ngram, counts))


def plain_coverage(pieces: list[Sequences], ngrams: set[Ngram]) -> float:
    """The share of the tokens that are in words which stand in one of `ngrams`."""
    held = total = 0
    for sequences in pieces:
        held += len({p for start, n in plain_places(sequences, ngrams) for p in range(start, start + n)})
        total += int((sequences.token_ids != 1).sum())
    return held / total


def test_early_merges_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    pieces = [random_group(rng, sequence_count=9, max_tokens=40, vocabulary=5) for _ in range(6)]
    whole = mined(pieces, min_count=4)
    monkeypatch.setattr(collocation_mining, "MERGED_AT_LEAST", 7)
    assert mined(pieces, min_count=4) == whole


def test_half_of_the_vocabulary_are_pairs_and_the_best_of_each_length_come_first() -> None:
    rng = np.random.default_rng(2)
    pieces = [random_group(rng, sequence_count=20, max_tokens=60, vocabulary=4) for _ in range(4)]
    entries = mined_collocations(pieces, settings(coverage=0.8))
    ngrams, every = ngrams_of(entries), mined(pieces)
    sizes = [sum(len(ngram) == size for ngram in ngrams) for size in (2, 3, 4, 5)]
    assert sizes[0] > 20
    assert sizes[1:] == [sizes[0] // 2, sizes[0] // 4, sizes[0] // 4]
    for size in (2, 3, 4, 5):
        scores = [score for ngram, score in zip(ngrams, entries.scores.tolist(), strict=True) if len(ngram) == size]
        assert (
            scores
            == sorted((score for ngram, (_, score) in every.items() if len(ngram) == size), reverse=True)[: len(scores)]
        )


def test_the_vocabulary_is_as_large_as_the_coverage_asks_and_no_larger() -> None:
    rng = np.random.default_rng(3)
    pieces = [random_group(rng, sequence_count=20, max_tokens=60, vocabulary=5) for _ in range(3)]
    entries, fewer = (mined_collocations(pieces, settings(coverage=share)) for share in (0.4, 0.3))
    assert len(fewer) < len(entries)
    less, covered = (plain_coverage(pieces, set(ngrams_of(each))) for each in (fewer, entries))
    assert 0.3 <= less < 0.4 <= covered < 0.5
    entries = mined_collocations(pieces, settings(coverage=1.0, min_count=50))
    assert len(entries) == len(mined(pieces, min_count=50))


def test_a_text_without_collocations_is_refused() -> None:
    with pytest.raises(CorpusError, match=r"of 4 words.* 11 times"):
        mined_collocations([group([5, 6, 7, 8])], CollocationSettings())


def store_of(folder: Path, *, fingerprint: str = "f", seed: int = 0) -> BlockStore:
    rng = np.random.default_rng(seed)
    text = random_group(rng, sequence_count=60, min_tokens=5, max_tokens=30, vocabulary=6)
    bounds = zip(text.offsets[:-1].tolist(), text.offsets[1:].tolist(), strict=True)
    packed = [
        spelled(text.token_ids[a:b], np.full(b - a, WORD, dtype=np.uint8), list(map(str, text.token_ids[a:b])))
        for a, b in bounds
    ]
    return stored(folder, packed, tokenizer_fingerprint=fingerprint)


def test_a_run_mines_its_corpus_once_and_opens_the_same_vocabulary_again(tmp_path: Path) -> None:
    store = store_of(tmp_path / "corpus")
    first = collocations_of(settings(), store, tmp_path / "c")
    entries = mined_collocations(BlockPieces(store), settings())
    assert ngrams_of(first.entries) == ngrams_of(entries)
    before = {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
    assert collocations_of(settings(), store, tmp_path / "c").digest == first.digest
    collocations_of(settings(), store, tmp_path / "again")
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == before


def test_a_long_text_is_mined_by_every_so_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(tmp_path / "corpus")
    sample = [store.sequences(np.arange(0, store.block_count, 3))]
    monkeypatch.setattr(collocation_mining, "MAX_MINED_TOKENS", -(-store.token_count // 3))
    few = collocations_of(settings(), store, tmp_path / "c")
    assert ngrams_of(few.entries) == ngrams_of(mined_collocations(sample, settings()))


def test_collocations_of_other_text_or_settings_are_not_used_silently(tmp_path: Path) -> None:
    collocations_of(settings(), store_of(tmp_path / "corpus"), tmp_path / "c")
    for store, changed in (
        (store_of(tmp_path / "other", seed=1), settings()),
        (BlockStore.open(tmp_path / "corpus"), settings(min_count=3)),
    ):
        with pytest.raises(ArtifactError, match=r"input=|mining\.min_count=3"):
            collocations_of(changed, store, tmp_path / "c")


def test_a_named_vocabulary_is_opened_and_one_of_another_tokenizer_refused(tmp_path: Path) -> None:
    mined_here = collocations_of(settings(), store_of(tmp_path / "corpus"), tmp_path / "c")
    named = settings(vocabulary=str(tmp_path / "c"))
    opened = collocations_of(named, store_of(tmp_path / "other", seed=1), tmp_path / "not-made")
    assert isinstance(opened, CollocationVocabulary)
    assert opened.digest == mined_here.digest
    assert not (tmp_path / "not-made").exists()
    with pytest.raises(ArtifactError, match="another tokenizer"):
        collocations_of(named, store_of(tmp_path / "third", fingerprint="g"), tmp_path / "c")
