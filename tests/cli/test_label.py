"""`npmlm label` as a user meets it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

import npm
from npm.cli.label import ADDED, label_cells
from npm.core.types import Occurrence
from npm.evaluation.labeling import LabeledText, ScoredLabel
from tests.helpers.command_line import CommandLine

LABELS = {"town": ["Paris", "Oslo"], "man": ["Miguel de Cervantes", "Amadeo Giannini"], "river": ["Seine"]}
GIVEN = f"labels={json.dumps(LABELS)}"
TEXTS = ["It lies on a fjord.", "He wrote a novel.", "It flows through Paris."]
PLACE = Occurrence("d1", "Norway", 10, 14, "It is Oslo.", 4)


def test_a_table_joins_labels_and_shows_the_place_of_the_first() -> None:
    scored = {"t": 0.91234, "m": 0.8, "r": 0.1}
    town, man, river = (ScoredLabel(name, score, "Oslo", PLACE) for name, score in scored.items())
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
def test_each_text_has_the_labels_that_python_gives_it(
    multi_label: str, npmlm: CommandLine, built_index: Path, tmp_path: Path
) -> None:
    lines, rows, out = tmp_path / "texts.txt", tmp_path / "texts.jsonl", tmp_path / "out.jsonl"
    lines.write_text("\n".join(TEXTS) + "\n\n", encoding="utf-8")
    rows.write_text("".join(json.dumps({"body": text, "n": 1}) + "\n" for text in TEXTS), encoding="utf-8")
    command = ("label", f"index={built_index}", GIVEN, "template={text} It is <mask>.", f"multi_label={multi_label}")
    outcome = npmlm(*command, f"texts={lines}", "min_score=0.4")
    assert outcome.status == 0, outcome.err
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
    npmlm("label", index, "labels=[Paris, Atlantis]", texts, "column=body").refused("Atlantis")
    npmlm("label", index, GIVEN, texts, "column=body", "template={text} is").refused("template", "<mask>")
