"""Expressions that no phrase cuts, marked by hand; and that nothing is found in scripts without such words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npm.corpus.expressions import joined_characters, marker_characters


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("fined $15,000 or US$ 3.5 million", "fined $_5__00 or U______________"),
        ("300 percent, 20% and 50 °C", "300________, 20_ and 50___"),
        ("thirty (30) business days", "t________________________"),
        ("10 to 20 days; two-year plan", "10_____0_____; t_______ plan"),
        ("On January 2, 2031 or 3 May 1999", "On J______________ or 3_________"),
        ("in March 1999, not 1914–1918", "in M_________, not 1914–1918"),
        ("a life-threatening O'Brien's fall", "a life__hreatening O__rien's fall"),
        ("the U.S. Army, J. R. R. Tolkien", "the U___ Army, J_ R_ R_ Tolkien"),
        ("Dr. Low at 5 p.m., see No. 5", "D__ Low at 5_____, see N____"),
        ("one year, a hundred miles", "o_______, a______________"),
        ("rich in vitamin C. It is at -5 °C", "rich in vitamin C. It is at -____"),
        ("One of the provinces of May", "O__ of the provinces of May"),
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
