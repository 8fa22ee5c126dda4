"""Sentence boundaries and expressions that no phrase cuts, by hand."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npm.corpus.expressions import joined_characters, marker_characters
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


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("fined $15,000 or US$ 3.5 million", "fined $______ or U______________"),
        ("300 percent, 20% and 50 °C", "3__________, 2__ and 5____"),
        ("thirty (30) business days", "t________________________"),
        ("10 to 20 days; two-year plan", "1____________; t_______ plan"),
        ("On January 2, 2031 or 3 May 1999", "On J______________ or 3_________"),
        ("in March 1999, not 1914–1918", "in M_________, not 1________"),
        ("a life-threatening O'Brien's fall", "a life__hreatening O__rien's fall"),
        ("the U.S. Army, J. R. R. Tolkien", "the U___ Army, J_ R_ R_ Tolkien"),
        ("Dr. Low at 5 p.m., see No. 5", "D__ Low at 5_____, see N____"),
        ("one year, a hundred miles", "o_______, a______________"),
        ("rich in vitamin C. It is at -5 °C", "rich in vitamin C. It is at -____"),
        ("One of the provinces of May", "O__ of the provinces of May"),
        ("7800 – 6400 BP, 10 × 20 cm", "7_____________, 1_________"),
        (
            "King (14 April 1578 – 31 March 1621), Li (701–762), W (1941-2018), 3–5 May",
            "King (1____________ – 3____________), Li (7__–7__), W (1___-2___), 3______",
        ),
        ("1 234 567 km in 2019 500 people", "1___________ in 2___ 5__ people"),
        ("1.234,56 € or 12'345.60 Fr. each", "1_________ or 1____________ each"),
        ("twenty-five to thirty, one and a half hours", "t____________________, o___________________"),
        ("6 ft 3 in, 2½ %, 890 N/mm², 10⁻²⁷ kg", "6________, 2___, 8________, 1_______"),
        ("2024-05-01T12:00:00Z, 5:30 p.m. EST", "2___________________, 5____________"),
        ("+1 (555) 010-4477, § 12(3)(b)", "+________________, §_________"),
        ("50.466° N, 4.718° W; vitamin A.", "5__________________; vitamin _."),
        ("at /etc/npmlm/keys.txt.", "at /__________________."),
        ("MAX_RETRY_COUNT --max-depth -z/--zip", "M______________ -__________ -_______"),
        ("ana@example.org, https://a.org/b?x=1.", "a______________, h__________________."),
        ("C++17, C#, .NET 8, AT&T and/or R&D", "C____, C_, ._____, AT__ and/or R__"),
    ],
)
def test_expressions_are_joined(text: str, marked: str) -> None:
    joined = joined_characters(text)
    assert "".join("_" if own else char for char, own in zip(text, joined, strict=True)) == marked


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("(b) Note (iv) that", "___ Note ____ that"),
        ("Text\n12. First\n- second", "Text\n___ First\n_ second"),
        ("J. Smith (1) wrote (NASA)", "J. Smith (1) wrote (NASA)"),
    ],
)
def test_list_markers_are_found_at_the_start_of_lines_or_in_parentheses(text: str, marked: str) -> None:
    found = marker_characters(text)
    assert "".join("_" if own else char for char, own in zip(text, found, strict=True)) == marked


@given(st.text(alphabet=st.characters(categories=["Lo", "Zs", "Mn"]), max_size=60))
def test_scripts_without_case_have_no_expressions(text: str) -> None:
    assert not joined_characters(text).any()


@given(st.text(max_size=60))
def test_no_expression_reaches_over_a_line_break(text: str) -> None:
    both = joined_characters(f"{text}\n{text}")
    assert both[: len(text)].tolist() == joined_characters(text).tolist()
    assert not both[len(text)]
