"""Coverage and places of words against a plain search; groups by answer length against the tokenizer."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npm.evaluation.data import answer_groups
from npm.evaluation.methods import occurrences
from npm.evaluation.methods.occurrences import WordOccurrences, find_occurrences, token_forms
from npm.evaluation.table import coverage_of, overlapping_examples
from npm.evaluation.tasks import Example
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from npm.retrieval.answers import SurfaceReader
from npm.retrieval.settings import FillSettings
from tests.evaluation.conftest import PASSAGES
from tests.evaluation.methods.word_indexes import index_of_texts, random_words, word_index
from tests.helpers.tiny_models import SENTENCES, tiny_encoder


@pytest.fixture(scope="module")
def index(index_folder: Path) -> PhraseIndex:
    return PhraseIndex.open(index_folder)


def asked(subject: str, *answers: str, group: str = "") -> Example:
    return Example("0", "It is <mask>.", answers=answers, subject=subject, group=group)


def plain(text: str) -> str:
    """As the uncased tokenizer of the tests reads it."""
    letters = unicodedata.normalize("NFD", text.lower())
    return "".join(letter for letter in letters if unicodedata.category(letter) != "Mn")


def stands_somewhere(name: str, documents: Sequence[str] | None = None) -> bool:
    pattern = re.compile(rf"(?<!\w){re.escape(plain(name))}(?!\w)")
    return any(pattern.search(plain(PASSAGES[each])) for each in documents or PASSAGES)


def test_an_example_is_covered_where_its_subject_stands_and_answerable_where_one_answer_stands(
    index: PhraseIndex, encoder: Encoder
) -> None:
    examples = [
        asked("Iceland", "Reykjavík"),
        asked("Iceland", "Kópavogur", "reykjavik"),  # an alias is enough, in any case and without the accent
        asked("France", "Lyon"),
        asked("Denmark", "Oslo"),
        asked("Quixote", "Cervant"),  # a part of a word is no name
        asked("Miguel de Cervantes", "The river Rhine"),
    ]
    coverage = coverage_of(examples, index, encoder, FillSettings())
    assert coverage["subject_named"].tolist() == [True, True, True, False, True, True]
    assert coverage["answer_held"].tolist() == [True, True, False, True, False, True]


@pytest.mark.parametrize("seed", range(3))
def test_coverage_equals_a_plain_search_for_random_names(index: PhraseIndex, encoder: Encoder, seed: int) -> None:
    rng = np.random.default_rng(seed)
    texts = list(PASSAGES.values())

    def name() -> str:
        words = re.findall(r"\w+", texts[rng.integers(len(texts))])
        first = int(rng.integers(len(words)))
        chosen = words[first : first + int(rng.integers(1, 4))]
        if rng.random() < 0.4:  # most of these stand nowhere
            chosen.reverse()
        return " ".join(chosen)

    examples = [asked(name(), *(name() for _ in range(rng.integers(1, 4)))) for _ in range(rng.integers(20, 60))]
    for documents in (None, [str(each) for each in rng.choice(list(PASSAGES), size=3, replace=False)]):
        coverage = coverage_of(examples, index, encoder, FillSettings(documents=documents))
        named = [stands_somewhere(example.subject, documents) for example in examples]
        held = [any(stands_somewhere(answer, documents) for answer in example.answers) for example in examples]
        assert (coverage["subject_named"].tolist(), coverage["answer_held"].tolist()) == (named, held)
        for found in (coverage["subject_named"], coverage["answer_held"]):
            assert 0 < found.mean() < 1


def test_what_has_eight_words_or_more_is_looked_for_in_the_corpus_by_its_letters(index: PhraseIndex) -> None:
    words = PASSAGES["rhine"].split()
    passages = [" ".join(words[:count]) for count in (7, 8)]
    passages += ["paris IS the capital, of france and the", "Oslo is the capital of France, and so on"]
    overlap = overlapping_examples([replace(asked(""), passage=passage) for passage in passages], index)
    assert overlap is not None and overlap.tolist() == [False, True, True, False]


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_answers_are_grouped_by_the_tokens_of_the_shortest_as_it_stands_in_a_sentence(family: str) -> None:
    encoder = tiny_encoder(family, sentences=tuple(PASSAGES.values()))
    names = ["Paris", "North Sea", "the North Sea", "Miguel de Cervantes", "Faxaflói", "Oslo", "in"]
    rng = np.random.default_rng(1)
    examples = [asked("", *rng.choice(names, size=rng.integers(1, 4))) for _ in range(40)]
    expected = []
    for example in examples:
        in_sentence = [
            encoder.tokenizer(f"x {answer}", add_special_tokens=False)["input_ids"] for answer in example.answers
        ]
        shortest = min(map(len, in_sentence)) - len(encoder.tokenizer("x", add_special_tokens=False)["input_ids"])
        expected.append(min(4, shortest))
    assert answer_groups(encoder, [each.answers for each in examples]).tolist() == expected
    assert len(set(expected)) >= 3


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
    texts = SurfaceReader(index.store).texts(found.starts, found.lengths)
    assert texts == ["Great", "great", "great", "great", "Truly great"]
    assert found.total_counts.tolist() == [4, 1]


def test_a_word_that_the_tokenizer_does_not_know_has_no_form() -> None:
    encoder = tiny_encoder("bert")
    known, unknown, nothing = token_forms(encoder, ["capital", "\N{SNOWMAN}", " "])
    assert len(known) == 1
    assert (unknown, nothing) == (set(), set())
