"""`npmlm fill table=`: rows of a table in, the same rows with answers out."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from npm import PhraseFiller, SettingError
from npm.cli.fill_table import answer_cells
from npm.cli.rows import TableRow, cell_text
from npm.core.types import Answer, Occurrence, Phrase
from npm.retrieval.queries import read_query
from npm.retrieval.settings import FillSettings
from tests.helpers.command_line import CommandLine

TEMPLATE = "template=The capital of {country} is <mask>."
ADDED = [
    *("answer", "answer_share", "second_answer", "second_share"),
    *("answer_title", "answer_document", "answer_sentence", "answer_status", "answer_note"),
]
TABLE = "country\nIceland\n"
PLACE = Occurrence("d1", "Iceland", 10, 19, "It is run from Reykjavík.", -5)


def table(folder: Path, text: str, name: str = "countries.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_cells_of_an_answer_are_its_first_two_phrases_and_the_place_of_the_first() -> None:
    first, second = Phrase("Reykjavík", 0.87654, 3, (PLACE,)), Phrase("Oslo", 0.1, 1, (PLACE,))
    place = {"answer_title": "Iceland", "answer_document": "d1", "answer_sentence": "It is run from «Reykjavík»."}
    place["answer_status"] = "ok"
    shares: dict[str, Any] = {"answer": "Reykjavík", "answer_share": 0.8765}
    both = answer_cells(Answer("", (first, second), notes=("few",)))
    assert both == shares | {"second_answer": "Oslo", "second_share": 0.1} | place | {"answer_note": ""}
    alone = answer_cells(Answer("", (first,), cut=True, notes=("cut", "few")))
    assert alone == shares | {"second_answer": "", "second_share": ""} | place | {"answer_note": "cut; few"}
    nothing = answer_cells(Answer("", (), notes=("none",)))
    assert list(nothing) == ADDED
    assert {value for name, value in nothing.items() if name not in ("answer_status", "answer_note")} == {""}
    assert nothing["answer_note"] == "none"
    unclear = answer_cells(Answer("", (first, second), notes=("below",), status="low_evidence"))
    assert unclear == both | {"answer_status": "low_evidence", "answer_note": "below"}


@pytest.mark.parametrize(("value", "text"), [("a\n b ", "a b"), (1963, "1963"), (0, "0"), (2.5, "2.5")])
def test_cells_of_texts_and_numbers_are_written_in_one_line(value: object, text: str) -> None:
    assert cell_text(TableRow("t:1", {"a": value}), "a") == text


def test_each_row_is_answered_as_its_text_is_alone(npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
    file = table(tmp_path, 'country,note\nIceland,"a, b"\nNorway,\n')
    outcome = npmlm("fill", f"index={built_index}", f"table={file}", TEMPLATE)
    assert outcome.status == 0, outcome.err
    rows = rows_of(outcome.out)
    assert [list(row) for row in rows] == [["country", "note", *ADDED]] * 2
    assert [(row["country"], row["note"]) for row in rows] == [("Iceland", "a, b"), ("Norway", "")]
    answers = PhraseFiller.open(built_index).fill(
        ["The capital of Iceland is <mask>.", "The capital of Norway is <mask>."], 2, occurrences=1
    )
    for row, answer in zip(rows, answers, strict=True):
        assert row == {name: str(value) for name, value in (row | answer_cells(answer)).items()}
        assert row["answer"]


def test_a_template_may_be_a_plain_question(npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
    command = ("fill", f"index={built_index}", f"table={table(tmp_path, TABLE)}")
    statement = read_query("What is the capital of Iceland?").replace("Iceland", "{country}")
    expected = npmlm(*command, f"template={statement}")
    assert expected.status == 0, expected.err
    assert npmlm(*command, "template=What is the capital of {country}?").out == expected.out


def test_values_restrict_answers_and_rows_of_json_keep_their_types(
    npmlm: CommandLine, built_index: Path, tmp_path: Path
) -> None:
    file = table(tmp_path, '{"country": "Iceland", "since": 1944}\n{"country": "Norway", "more": [1]}\n', "c.jsonl")
    out = tmp_path / "new" / "answers.jsonl"
    values = "values=[oslo, PARIS, Atlantis]"
    command = ("fill", f"index={built_index}", f"table={file}", TEMPLATE, values, f"out={out}", "bm25_blocks=10")
    outcome = npmlm(*command)
    assert (outcome.status, outcome.out) == (0, "")
    first, second = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    assert (first["since"], second["more"]) == (1944, [1])
    assert {row["answer"] for row in (first, second)} <= {"Oslo", "Paris"}
    assert "Oslo" in {second["answer"], second["second_answer"]}
    written = out.read_bytes()
    assert npmlm(*command).status == 0
    assert out.read_bytes() == written
    csv_out = tmp_path / "answers.csv"
    assert npmlm(*command[:-2], f"out={csv_out}", "bm25_blocks=10").status == 0
    rows = rows_of(csv_out.read_text(encoding="utf-8"))
    assert list(rows[0]) == ["country", "since", "more", *ADDED]
    assert [(row["more"], row["answer"]) for row in rows] == [("", first["answer"]), ("[1]", second["answer"])]


@pytest.mark.parametrize(
    ("text", "settings", "parts"),
    [
        (TABLE, ["template=The capital is {city} <mask>."], (":2", "'city'", "country")),
        ("country,n\nIceland,1\n \t,2\n", [TEMPLATE], (":3", "'country'")),
        ("country\nthe <mask>\n", [TEMPLATE], (":2", "'country'", "<mask>")),
        (TABLE, ["template=The capital of {country}."], ("template", "<mask>")),
        (TABLE, ["template=It is <mask>."], ("template", "braces")),
        (TABLE, [], ("template", "required")),
        ("country,answer\nIceland,x\n", [TEMPLATE], ("'answer'", "rename")),
        ("country\n", [TEMPLATE], ("no rows",)),
        (TABLE, [TEMPLATE, "out=answers.xlsx"], ("out", ".csv")),
        (TABLE, [TEMPLATE, "output=sentences"], ("output",)),
        (TABLE, [TEMPLATE, "values=['']"], ("values",)),
        (TABLE, [TEMPLATE, "values=[]"], ("values",)),
        (TABLE, [TEMPLATE, "It is <mask>."], ("table", "exclude")),
    ],
)
def test_a_table_that_cannot_be_filled_is_one_sentence_before_anything_is_opened(
    text: str, settings: list[str], parts: tuple[str, ...], npmlm: CommandLine, tmp_path: Path
) -> None:
    file = table(tmp_path, text)
    npmlm("fill", "index=absent", f"table={file}", *settings).refused(*parts)
    npmlm("fill", "index=absent", TEMPLATE).refused("table")
    npmlm("fill", "index=absent", f"out={tmp_path / 'a.csv'}", "It is <mask>.").refused("table")
    (tmp_path / "link.csv").symlink_to(file)
    for out in (file, tmp_path / "link.csv", tmp_path / "absent" / ".." / file.name):
        npmlm("fill", "index=absent", f"table={file}", TEMPLATE, f"out={out}").refused("out=")
    assert file.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("values", [["a", " "], []])
def test_values_have_words(values: list[str]) -> None:
    with pytest.raises(SettingError, match="values"):
        FillSettings(values=values)


def test_an_answer_below_min_share_and_one_without_values_say_so(
    npmlm: CommandLine, built_index: Path, tmp_path: Path
) -> None:
    command = ("fill", f"index={built_index}", f"table={table(tmp_path, TABLE)}", TEMPLATE)
    (plain,) = rows_of(npmlm(*command).out)
    (unclear,) = rows_of(npmlm(*command, "min_share=1").out)
    assert (plain["answer_status"], unclear["answer_status"]) == ("ok", "low_evidence")
    assert "min_share=1" in unclear["answer_note"]
    assert {**unclear, "answer_status": "ok", "answer_note": ""} == plain
    (absent,) = rows_of(npmlm(*command, "values=[zebra]").out)
    assert absent["answer"] == "" and "values" in absent["answer_note"]
    (absent,) = rows_of(npmlm(*command, "values=[zebra]", "retrieval=dense").out)
    assert absent["answer"] == "" and "values" in absent["answer_note"]


def test_sentences_have_no_shares_to_compare(npmlm: CommandLine, built_index: Path) -> None:
    command = ("fill", f"index={built_index}", "output=sentences", "The capital of Iceland is <mask>.")
    npmlm(*command, "min_share=0.9").refused("min_share", "output=sentences")
    assert npmlm(*command, "min_share=0").status == 0
