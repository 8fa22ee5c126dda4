"""Tables as text: marks, widths, intervals."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType

from npm.core.types import Answer, Occurrence, Phrase
from npm.evaluation.demo import (
    DemoResult,
    HitRates,
    Prediction,
    Question,
    answer_table,
    hit_rows,
    marked_occurrence,
    spread_over_kinds,
)
from npm.evaluation.metrics import Interval
from npm.evaluation.report import markdown_table, terminal_table
from npm.evaluation.tasks import Split

SENTENCE = "Its largest city [bold] is Łódź, which lies :smile: in the middle of the country."
RATES = HitRates("encoder-mini, hybrid", 161, Interval(0.625, 0.5504, 0.6996), Interval(1.0, 1.0, 1.0))


def occurrence(phrase: str, *, context: str = SENTENCE, context_start_char: int = 100) -> Occurrence:
    start = context_start_char + context.index(phrase)
    return Occurrence("poland", "Poland", start, start + len(phrase), context, context_start_char)


def prediction(name: str = "q1", *, kind: str = "city", answer: str = "łódź", rank: int | None = 1) -> Prediction:
    text = "A city in Poland is <mask>."
    phrases = tuple(
        Phrase(found, score, 1, (occurrence(found),)) for found, score in (("Łódź", 0.5), ("country", 0.25))
    )
    return Prediction(
        Question(id=name, kind=kind, text=text, answers=[answer], split=Split.test), Answer(text, phrases), rank
    )


def printed(renderable: RenderableType, *, columns: int = 80, **console: Any) -> str:
    file = StringIO()
    Console(file=file, width=columns, **console).print(renderable)
    return file.getvalue()


def test_the_phrase_is_marked_where_it_stands_and_the_title_follows() -> None:
    assert marked_occurrence(occurrence("Łódź")).plain == SENTENCE.replace("Łódź", "«Łódź»") + " (Poland)"


def test_a_long_sentence_keeps_whole_words_around_the_phrase() -> None:
    found = marked_occurrence(occurrence("Łódź", context=f"{'before ' * 50}Łódź{' after' * 50}"), most_chars=44)
    assert found.plain == "… before before «Łódź» after after after … (Poland)"


def test_a_phrase_near_the_end_leaves_its_room_to_what_is_before() -> None:
    found = marked_occurrence(occurrence("Łódź", context=f"{'before ' * 50}Łódź."), most_chars=40)
    assert found.plain == "… before before before before «Łódź». (Poland)"


def test_a_title_is_replaced_by_the_document_where_there_is_none() -> None:
    nameless = Occurrence("file:3", "", 0, 4, "Łódź is\nbig.", 0)
    assert marked_occurrence(nameless).plain == "«Łódź» is big. (file:3)"


def test_answers_show_question_scores_and_sentences_with_brackets_and_colons_as_they_are() -> None:
    text = printed(answer_table([prediction()]), columns=100)
    assert "A city in Poland is <mask>." in text
    assert "✓  0.500  Łódź" in text
    assert "0.250  country" in text
    assert "[bold] is «Łódź»" in text and ":smile:" in text
    assert "(answer:" not in text


def test_a_question_without_a_right_phrase_says_what_would_be_right() -> None:
    missed = prediction(answer="Kraków", rank=None)
    assert "(answer: Kraków)" in printed(answer_table([missed]))
    assert "✓" not in printed(answer_table([missed]))
    assert "(answer: country)" in printed(answer_table([prediction(answer="country", rank=2)], phrases=1))


@pytest.mark.parametrize("columns", [80, 100])
def test_the_report_fits_the_terminal(columns: int) -> None:
    result = DemoResult((prediction(),), 5, RATES, (RATES,), RATES, (RATES,), {})
    file = StringIO()
    result.show(Console(file=file, width=columns))
    assert max(len(line) for line in file.getvalue().splitlines()) <= columns
    assert "\x1b" not in file.getvalue()  # no colours where there is no terminal
    assert file.getvalue().count("62.5 [55.0, 70.0]") == 4
    assert "questions shown" not in file.getvalue()


def test_a_terminal_gets_the_phrase_in_bold() -> None:
    assert "\x1b[1m«Łódź»\x1b[0m" in printed(
        answer_table([prediction()]), columns=100, force_terminal=True, color_system="standard"
    )


def test_a_question_without_any_phrase_is_shown_too() -> None:
    empty = Prediction(prediction().question, Answer("text", ()), None)
    assert "no phrase found" in printed(answer_table([empty]))


def test_each_kind_has_its_turn() -> None:
    kinds = [("a", "city"), ("b", "city"), ("c", "river"), ("d", "city"), ("e", "moon")]
    predictions = [prediction(name, kind=kind) for name, kind in kinds]
    assert [found.question.id for found in spread_over_kinds(predictions, 4)] == ["a", "c", "e", "b"]
    assert len(spread_over_kinds(predictions, 9)) == 5


def test_hit_rates_are_the_same_in_markdown_and_in_the_terminal() -> None:
    header, rows = hit_rows([RATES], k=5)
    assert markdown_table(header, rows).splitlines() == [
        "|  | questions | hit@1, % [95 %] | hit@5, % [95 %] |",
        "|---|---:|---:|---:|",
        "| encoder-mini, hybrid | 161 | 62.5 [55.0, 70.0] | 100.0 [100.0, 100.0] |",
    ]
    shown = printed(terminal_table(header, rows)).splitlines()
    assert any(line.split() == " ".join(rows[0]).split() for line in shown)


def test_the_names_of_rows_are_shown_beside_numbers_that_fill_the_terminal() -> None:
    console = Console(file=StringIO(), width=80)
    console.print(
        terminal_table(["how often the answer stands there", *"abcd"], [["5 to 19", *["8.3 [3.6, 18.1]"] * 4]])
    )
    assert isinstance(console.file, StringIO)
    assert "5 to 19 " in console.file.getvalue() and console.file.getvalue().count("8.3 [3.6, 18.1]") == 4
