"""Whether a phrase says something that the question does not."""

from __future__ import annotations

import pytest

from npm.corpus.text import words_of
from npm.retrieval.answers import says_nothing_new


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
