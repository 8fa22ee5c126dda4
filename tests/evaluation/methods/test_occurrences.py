from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npm.evaluation.methods import occurrences
from npm.evaluation.methods.occurrences import WordOccurrences, find_occurrences, token_forms
from npm.retrieval.answers import SurfaceReader
from tests.evaluation.methods.word_indexes import index_of_texts, random_words, word_index
from tests.helpers.tiny_models import SENTENCES, tiny_encoder


def places_of(found: WordOccurrences) -> list[tuple[int, int, int]]:
    words = np.repeat(np.arange(len(found.words)), found.counts)
    return list(zip(words.tolist(), found.starts.tolist(), found.lengths.tolist(), strict=True))


@pytest.mark.parametrize("tokens_per_chunk", [3, 17, 1 << 20])
def test_words_of_any_length_are_found_where_plain_loops_find_them(
    tokens_per_chunk: int, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(occurrences, "TOKENS_PER_CHUNK", tokens_per_chunk)
    for turn in range(4):
        here = word_index(tmp_path / str(turn), rng)
        words = random_words(rng, 12)
        found = find_occurrences(here.index, here.encoder, words)
        assert places_of(found) == here.plain_places(words)
        anywhere = here.plain_places(words, with_rows=False)
        assert found.total_counts.tolist() == [sum(place[0] == word for place in anywhere) for word in range(13)]
        assert len(found) > 20
        assert (found.lengths > 1).any()
        assert (found.counts < found.total_counts).any()


def test_a_word_that_is_asked_twice_is_found_twice(tmp_path: Path, rng: np.random.Generator) -> None:
    here = word_index(tmp_path, rng)
    found = find_occurrences(here.index, here.encoder, ["b", "a", "b"])
    first, stop = found.offsets[:-1], found.offsets[1:]
    assert found.counts[0] > 0
    assert found.starts[first[0] : stop[0]].tolist() == found.starts[first[2] : stop[2]].tolist()


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_word_is_found_with_a_capital_and_without_and_never_within_another_word(family: str, tmp_path: Path) -> None:
    encoder = tiny_encoder(family)
    text = "Great rivers are great. The greatest (great) is not ungreat, is it? Truly great"
    index = index_of_texts(tmp_path / "index", [text, SENTENCES[0]], encoder)
    found = find_occurrences(index, encoder, ["great", "truly great"])
    texts = SurfaceReader(index.store, encoder.tokenizer).texts(found.starts, found.lengths)
    assert texts == ["Great", "great", "great", "great", "Truly great"]
    assert found.total_counts.tolist() == [4, 1]


def test_a_word_that_the_tokenizer_does_not_know_has_no_form() -> None:
    encoder = tiny_encoder("bert")
    known, unknown, nothing = token_forms(encoder, ["capital", "\N{SNOWMAN}", " "])
    assert len(known) == 1
    assert (unknown, nothing) == (set(), set())
