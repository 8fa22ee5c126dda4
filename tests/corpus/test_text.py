"""Sentence boundaries by hand."""

from __future__ import annotations

import unicodedata

import pytest

from npm.corpus.text import CODED, CONTEXT_CHARS, sentence_around, sentence_bounds


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentence_bounds(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("He met Dr. Low. She left.", ["He met Dr. Low.", "She left."]),
        ("J. R. Smith of the U.S. Army, p. 5.", ["J. R. Smith of the U.S. Army, p. 5."]),
        ("It cost 3.5 times as much. 40 came.", ["It cost 3.5 times as much.", "40 came."]),
        (
            "Symphony No. 5 is long. He said no. Then he left.",
            ["Symphony No. 5 is long.", "He said no.", "Then he left."],
        ),
        ("It ended, etc. and so on. “Yes.” She nodded.", ["It ended, etc. and so on.", "“Yes.”", "She nodded."]),
        ("A heading\nand a line\r\n\r\n  The rest ", ["A heading", "and a line", "The rest"]),
        ("東京は日本の首都です。「はい。」人口が多い。", ["東京は日本の首都です。", "「はい。」", "人口が多い。"]),
        ("Über uns. Ägypten liegt dort.", ["Über uns.", "Ägypten liegt dort."]),
        ("", []),
        (" \n \t ", []),
        ("\n\nonly", ["only"]),
        ("。", ["。"]),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@pytest.mark.parametrize("unit", [".", " ", "\n", "。", ". ", '."', "!\n", "A. "])
def test_a_million_characters_of_nothing_but_boundaries_are_read_in_one_pass(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    bounds = sentence_bounds(text)
    assert (bounds[:, 0] < bounds[:, 1]).all()
    assert (bounds[1:, 0] >= bounds[:-1, 1]).all()


def test_the_context_of_a_phrase_is_its_sentence() -> None:
    text = "First one. The capital is Reykjavík. Last one."
    start = text.index("Reykjavík")
    assert sentence_around(text, start, start + 9) == (11, 36)
    assert sentence_around(text, 0, 5) == (0, 10)
    assert sentence_around(text, len(text) - 4, len(text)) == (37, len(text))


def test_a_phrase_across_two_sentences_gets_both() -> None:
    text = "One here. Two there. Three."
    start, end = sentence_around(text, 4, 13)
    assert text[start:end] == "One here. Two there."


def test_a_sentence_as_long_as_a_file_is_cut_around_the_phrase_between_words() -> None:
    text = "word " * 100_000
    start, end = sentence_around(text, 250_000, 250_004)
    assert text[start:end].split() == ["word"] * len(text[start:end].split())
    assert 250_000 - CONTEXT_CHARS <= start <= 250_000 and 250_004 <= end <= 250_004 + CONTEXT_CHARS
    assert sentence_around("x" * 10_000, 5_000, 5_001) == (5_000 - CONTEXT_CHARS, 5_001 + CONTEXT_CHARS)


def test_beyond_the_coded_ranges_no_character_has_a_category_of_its_own() -> None:
    first, second = CODED
    beyond = (range(first.stop, second.start), range(second.stop, 0x110000))
    assert {unicodedata.category(chr(code)) for codes in beyond for code in codes} == {"Cn", "Co"}
