"""Tables as text: marks, widths, intervals."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType

from npm.core.display import report_text
from npm.core.types import Occurrence, Table
from npm.evaluation.report import Sample, markdown_table, sample_card

SENTENCE = "Its largest city [bold] is Łódź, which lies :smile: in the middle of the country."
PLACE = Occurrence("poland", "Poland", 127, 131, SENTENCE, 100)
SAMPLE = Sample("A city in Poland is <mask>.", "Łódź", [(True, 0.5, "Łódź", PLACE), (False, 0.25, "country", None)])


def printed(renderable: RenderableType, *, columns: int = 80, **console: Any) -> str:
    file = StringIO()
    Console(file=file, width=columns, **console).print(renderable)
    return file.getvalue()


@pytest.mark.parametrize("columns", [80, 100])
def test_a_sample_shows_text_scores_and_sentences_with_brackets_and_colons_as_they_are(columns: int) -> None:
    text = printed(sample_card(SAMPLE), columns=columns)
    assert "A city in Poland is <mask>." in text
    assert "✓  0.500  Łódź" in text
    assert "0.250  country" in text
    assert "[bold] is «Łódź»" in text and ":smile:" in text and "(Poland)" in text
    assert "(answer:" not in text and "\x1b" not in text  # no colors where there is no terminal
    assert max(len(line) for line in text.splitlines()) <= columns


def test_a_sample_without_a_right_phrase_says_what_would_be_right() -> None:
    text = printed(sample_card(Sample("text", "Kraków", SAMPLE.rows[1:])))
    assert "(answer: Kraków)" in text and "✓" not in text
    assert "no phrase found" in printed(sample_card(Sample("text", "Kraków", [])))


def test_a_terminal_gets_the_phrase_in_bold() -> None:
    shown = printed(sample_card(SAMPLE), columns=100, force_terminal=True, color_system="standard")
    assert "\x1b[1m«Łódź»\x1b[0m" in shown


def test_numbers_are_the_same_in_markdown_and_in_the_terminal() -> None:
    header, rows = ["", "n", "hit@1, % [95 %]"], [["encoder-mini, hybrid", "161", "62.5 [55.0, 70.0]"]]
    assert markdown_table(header, rows).splitlines() == [
        "|  | n | hit@1, % [95 %] |",
        "|---|---:|---:|",
        "| encoder-mini, hybrid | 161 | 62.5 [55.0, 70.0] |",
    ]
    shown = report_text([Table("", header, rows)]).splitlines()
    assert any(line.split() == " ".join(rows[0]).split() for line in shown)
