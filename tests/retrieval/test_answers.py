"""The order of phrases, and whether one says something that the question does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index.exact import ExactSearcher
from npm.corpus.text import words_of
from npm.retrieval.answers import PhraseGroups, says_nothing_new
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.settings import FillSettings, Retrieval
from npm.retrieval.spans import CandidateSpans
from tests.evaluation.zero_shot.word_indexes import index_of_texts
from tests.helpers.tiny_models import tiny_encoder


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_groups_of_equal_scores_come_in_the_order_of_the_corpus(count: int) -> None:
    starts = np.array([90, 10, 40, 60, 20])  # i64 [5]
    nothing = np.zeros(5, dtype=np.int64)
    candidates = CandidateSpans(starts, nothing + 1, nothing, nothing, nothing.astype(np.uint64))
    # groups of the candidates 0, then 3 and 4, then 2, then 1: they begin at 90, 20, 40 and 10
    groups = PhraseGroups(np.array([0, 3, 4, 2, 1]), np.array([0, 1, 3, 4, 5]), np.array([0.3, 0.3, 0.3, 0.1]))
    assert groups.best(count, candidates).tolist() == [1, 2, 0, 3][:count]


def test_occurrences_of_equal_weight_come_in_the_order_of_the_corpus(tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    index = index_of_texts(tmp_path / "index", ["Oslo is the capital of Norway."] * 40, encoder)
    alike = replace(index, searcher=ExactSearcher(np.zeros((len(index.rows), encoder.dimensions), dtype=np.float32)))
    settings = FillSettings(retrieval=Retrieval.dense, occurrences=40, candidates_per_side=10_000)
    answer = PhraseFiller(alike, encoder, settings).fill("It is <mask>.")
    assert answer.phrases
    for phrase in answer.phrases:
        assert [place.document for place in phrase.occurrences] == [f"d{number}" for number in range(40)]


@pytest.mark.parametrize(
    ("phrase", "question", "nothing_new"),
    [
        ("Bhutan", "The king of Bhutan reigns from <mask>", True),
        ("king of Bhutan", "The king of Bhutan reigns from <mask>", True),
        ("the Bhutan of a king", "The king of Bhutan reigns from <mask>", True),
        ("Thimphu", "The king of Bhutan reigns from <mask>", False),
        ("Thimphu, Bhutan", "The king of Bhutan reigns from <mask>", False),
        ("Bhutanese", "The king of Bhutan reigns from <mask>", False),
        ("Norway's king", "Who is the king of Norway? <mask>", True),
        ("the", "The answer is <mask>", True),
        ("of", "The answer is <mask>", False),
        ("1605", "It was 1606: <mask>", False),
        ("ŁÓDŹ", "łódź is in <mask>", True),
        ("—", "It is <mask>", True),
    ],
)
def test_a_phrase_is_left_out_only_if_all_its_content_words_are_in_the_question(
    phrase: str, question: str, nothing_new: bool
) -> None:
    assert says_nothing_new(phrase, frozenset(words_of(question))) == nothing_new
