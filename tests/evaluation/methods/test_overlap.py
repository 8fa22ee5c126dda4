"""Coverage: against a plain search in the passages; groups by answer length against the tokenizer."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from npm.evaluation.coverage import coverage_of
from npm.evaluation.data import answer_groups
from npm.evaluation.tasks import Example
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from npm.retrieval.settings import FillSettings
from tests.evaluation.conftest import PASSAGES
from tests.helpers.tiny_models import tiny_encoder


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
