"""`npmlm fill table=` and `npmlm label`: rows or texts in, answers or labels beside them out."""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

import npm
from npm import PhraseFiller
from npm.cli.label import ADDED, label_cells
from npm.cli.rows import TableRow, answer_cells, cell_text, certainty
from npm.core.types import Answer, Occurrence, Phrase
from npm.evaluation.labeling import LabeledText, ScoredLabel
from npm.retrieval.queries import read_query
from tests.helpers.command_line import CommandLine

TEMPLATE = "template=The capital of {country} is <mask>."
ADDED_COLUMNS = [
    *("answer", "answer_share", "second_answer", "second_share", "answer_confidence"),
    *("answer_title", "answer_document", "answer_sentence", "answer_status", "answer_note"),
]
TABLE = "country\nIceland\n"
PLACE = Occurrence("d1", "Iceland", 10, 19, "It is run from Reykjavík.", -5, 20, 15, 24)


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
    shares: dict[str, Any] = {"answer": "Reykjavík", "answer_share": 0.8765, "answer_confidence": ""}
    both = answer_cells(Answer("", (first, second), notes=("few",)))
    assert both == shares | {"second_answer": "Oslo", "second_share": 0.1} | place | {"answer_note": ""}
    alone = answer_cells(Answer("", (first,), cut=True, notes=("cut", "few")))
    assert alone == shares | {"second_answer": "", "second_share": ""} | place | {"answer_note": "cut; few"}
    nothing = answer_cells(Answer("", (), notes=("none",)))
    assert list(nothing) == ADDED_COLUMNS
    assert {value for name, value in nothing.items() if name not in ("answer_status", "answer_note")} == {""}
    assert nothing["answer_note"] == "none"
    unclear = answer_cells(Answer("", (first, second), notes=("below",), status="low_evidence"))
    assert unclear == both | {"answer_status": "low_evidence", "answer_note": "below"}
    sure = answer_cells(Answer("", (first, second), notes=("few",), confidence=0.98765))
    assert sure == both | {"answer_confidence": 0.9877}


def test_rows_are_ordered_by_doubt() -> None:
    phrases = [(Phrase(name, share, 1, (PLACE,)),) for name, share in (("a", 0.9), ("b", 0.5))]
    known = [answer_cells(Answer("", own, confidence=value)) for own, value in zip(phrases, (0.3, 0.7), strict=True)]
    assert sorted([*known, answer_cells(Answer("", ()))], key=certainty)[0]["answer"] == ""
    assert [cells["answer"] for cells in sorted(known[::-1], key=certainty)] == ["a", "b"]
    shares = [answer_cells(Answer("", own)) for own in phrases]
    assert [cells["answer"] for cells in sorted(shares, key=certainty)] == ["b", "a"]


@pytest.mark.parametrize(("value", "text"), [("a\n b ", "a b"), (1963, "1963"), (0, "0"), (2.5, "2.5")])
def test_cells_of_texts_and_numbers_are_written_in_one_line(value: object, text: str) -> None:
    assert cell_text(TableRow("t:1", {"a": value}), "a") == text


def test_each_row_is_answered_as_its_text_is_alone(npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
    file = table(tmp_path, 'country,note\nIceland,"a, b"\nNorway,\n')
    outcome = npmlm("fill", f"index={built_index}", f"table={file}", TEMPLATE).done()
    rows = rows_of(outcome.out)
    assert [list(row) for row in rows] == [["country", "note", *ADDED_COLUMNS]] * 2
    assert [(row["country"], row["note"]) for row in rows] == [("Iceland", "a, b"), ("Norway", "")]
    answers = PhraseFiller.open(built_index).fill(
        ["The capital of Iceland is <mask>.", "The capital of Norway is <mask>."], 2, occurrences=1
    )
    for row, answer in zip(rows, answers, strict=True):
        assert row == {name: str(value) for name, value in (row | answer_cells(answer)).items()}
        assert row["answer"]


def test_values_of_parquet_are_written_as_json_has_them(npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    day = datetime.date(2024, 5, 1)
    row = {
        "country": "Iceland",
        "since": day,
        "share": math.nan,
        "days": [day],
        "raw": b"Oslo",
        "some": [1.5, math.nan],
    }
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "t.parquet")
    command = ("fill", f"index={built_index}", f"table={tmp_path / 't.parquet'}", TEMPLATE)
    (found,) = map(json.loads, npmlm(*command, "output=json").done().out.splitlines())
    assert (found["since"], found["share"], found["days"]) == ("2024-05-01", None, ["2024-05-01"])
    assert (found["raw"], found["some"]) == (None, [1.5, None])
    npmlm(*command[:3], "template={raw} is in <mask>.").refused("'raw'", "text")
    (as_csv,) = rows_of(npmlm(*command).done().out)
    assert (as_csv["since"], as_csv["share"], as_csv["days"]) == ("2024-05-01", "", '["2024-05-01"]')


def test_a_template_may_be_a_plain_question(npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
    command = ("fill", f"index={built_index}", f"table={table(tmp_path, TABLE)}")
    statement = read_query("What is the capital of Iceland?").replace("Iceland", "{country}")
    expected = npmlm(*command, f"template={statement}").done()
    assert npmlm(*command, "template=What is the capital of {country}?").out == expected.out


def test_values_restrict_answers(npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
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
    assert list(rows[0]) == ["country", "since", "more", *ADDED_COLUMNS]
    assert [(row["more"], row["answer"]) for row in rows] == [("", first["answer"]), ("[1]", second["answer"])]


@pytest.mark.parametrize(
    ("text", "settings", "parts"),
    [
        (TABLE, ["template=The capital is {city} <mask>."], (":2", "'city'", "country")),
        ("country,n\nIceland,1\n \t,2\n", [TEMPLATE], (":3", "'country'")),
        ("country\nthe <mask>\n", [TEMPLATE], (":2", "'country'", "<mask>")),
        (TABLE, ["template=It is <mask>."], ("template", "braces")),
        (TABLE, [], ("template", "required")),
        ("country,answer\nIceland,x\n", [TEMPLATE], ("'answer'", "rename")),
        ("country\n", [TEMPLATE], ("no rows",)),
        (TABLE, [TEMPLATE, "out=answers.xlsx"], ("out", ".csv")),
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


def test_rows_without_a_clear_answer_say_so(npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
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


LABELS = {"town": ["Paris", "Oslo"], "man": ["Miguel de Cervantes", "Amadeo Giannini"], "river": ["Seine"]}
GIVEN = f"labels={json.dumps(LABELS)}"
TEXTS = ["It lies on a fjord.", "He wrote a novel.", "It flows through Paris."]
OSLO = Occurrence("d1", "Norway", 10, 14, "It is Oslo.", 4, 15, 6, 10)


def test_a_table_joins_labels_and_shows_the_place_of_the_first() -> None:
    scored = {"t": 0.91234, "m": 0.8, "r": 0.1}
    town, man, river = (ScoredLabel(name, score, "Oslo", OSLO) for name, score in scored.items())
    place = {"label_title": "Norway", "label_document": "d1", "label_sentence": "It is «Oslo»."}
    found = LabeledText((town, man), (town, man, river), cut=False)
    cells = label_cells(found, True)
    assert set(cells) == set(ADDED)
    assert cells == {"label": "t | m", "label_score": "0.9123 | 0.8", "label_word": "Oslo", **place} | {
        "next_label": "r",
        "next_score": 0.1,
        "label_note": "",
    }
    nested = label_cells(found, False)
    assert nested["labels"][1] == {"label": "m", "label_score": 0.8, "label_word": "Oslo", **place}
    assert label_cells(LabeledText((town,), (town,), cut=True), True)["label_note"]
    nothing = label_cells(LabeledText((), (river,), cut=False), True)
    assert nothing == dict.fromkeys(ADDED, "") | {"next_label": "r", "next_score": 0.1}
    assert label_cells(LabeledText((), (river,), cut=False), False)["labels"] == []


@pytest.mark.parametrize("multi_label", ["true", "false"])
def test_labels_are_those_of_python(multi_label: str, npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
    lines, rows, out = tmp_path / "texts.txt", tmp_path / "texts.jsonl", tmp_path / "out.jsonl"
    lines.write_text("\n".join(TEXTS) + "\n\n", encoding="utf-8")
    rows.write_text("".join(json.dumps({"body": text, "n": 1}) + "\n" for text in TEXTS), encoding="utf-8")
    command = ("label", f"index={built_index}", GIVEN, "template={text} It is <mask>.", f"multi_label={multi_label}")
    outcome = npmlm(*command, f"texts={lines}", "min_score=0.4").done()
    options = {"template": "{text} It is <mask>.", "multi_label": multi_label == "true", "min_score": 0.4}
    expected = npm.label(TEXTS, LABELS, built_index, **options)  # type: ignore[arg-type]
    table = list(csv.DictReader(io.StringIO(outcome.out)))
    assert [list(row) for row in table] == [["text", *ADDED]] * len(TEXTS)
    for row, text, found in zip(table, TEXTS, expected, strict=True):
        assert row == {"text": text} | {name: str(value) for name, value in label_cells(found, True).items()}
    assert npmlm(*command, f"texts={rows}", "column=body", "min_score=0.4", f"out={out}").out == ""
    for line, text, found in zip(out.read_text(encoding="utf-8").splitlines(), TEXTS, expected, strict=True):
        assert json.loads(line) == {"body": text, "n": 1} | label_cells(found, False)


def test_what_cannot_be_labeled_is_one_sentence(npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
    file = tmp_path / "texts.csv"
    file.write_text("body,label\nOslo,1\n", encoding="utf-8")
    texts, index = f"texts={file}", f"index={built_index}"
    npmlm("label", index, texts).refused("labels", "required")
    npmlm("label", index, GIVEN).refused("texts", "required")
    npmlm("label", index, GIVEN, texts).refused("'label'", "rename")
    file.write_text("body\nOslo\n", encoding="utf-8")
    npmlm("label", index, GIVEN, texts).refused(f"{file}:2", "'text'", "body")
    npmlm("label", index, GIVEN, texts, "column=body", "min_score=2").refused("min_score")
    npmlm("label", index, GIVEN, texts, "column=body", "out=labels.txt").refused("out", ".jsonl")
    npmlm(
        "label", index, GIVEN, texts, "column=body", f"known={tmp_path / 'k.csv'}", f"out={tmp_path / 'k.csv'}"
    ).refused("k.csv", "another name")
    npmlm("label", index, "labels=[Paris, Atlantis]", texts, "column=body").refused("Atlantis")
    npmlm("label", index, GIVEN, texts, "column=body", "template={text} is").refused("template", "<mask>")
