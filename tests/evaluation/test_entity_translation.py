"""The builder of the entity translation set: what counts as a name, what cannot be written, and the task that asks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import scripts.entity_translation
from npm.core.errors import CorpusError
from npm.core.types import Document
from npm.evaluation.tasks import load_task
from scripts.entity_translation import (
    build_entity_translation,
    main,
    write_name_passages,
)
from tests.evaluation.task_samples import SHIPPED, read_examples, written
from tests.helpers.tiny_models import tiny_encoder

DOCUMENTS = [
    ("beijing", "Beijing", "Beijing (Chinese: 北京; pinyin: Běijīng; Russian: Пекин) is a city. Thai: ปักกิ่ง"),
    ("athens", "Athens", "Athens, in Greek:  Αθήνα, is a city.\nIt is old."),
    ("lodz", "Łódź", "A city (Polish: Łódź, Polish: Lodz)."),
    ("plain", "Plain", "The Chinese language: nothing. Chinese : no. xChinese: no."),
    ("untitled", " ", "It (Greek: Αθήνα)."),
]


def documents() -> list[Document]:
    return [Document(*each) for each in DOCUMENTS]


def test_names_are_found_with_their_places_in_the_text() -> None:
    built = build_entity_translation(documents(), tiny_encoder("roberta"))  # bytes write everything
    found = [(row["document"], row["language"], row["answers"][0]) for row in built.rows]
    assert found == [
        ("beijing", "Chinese", "北京"),
        ("beijing", "Russian", "Пекин"),
        ("beijing", "Thai", "ปักกิ่ง"),
        ("athens", "Greek", "Αθήνα"),
        ("lodz", "Polish", "Łódź"),
    ]
    texts = {each.id: each.text for each in documents()}
    for row in built.rows:
        assert texts[row["document"]][row["start_char"] : row["end_char"]] == row["answers"][0]
    assert not built.left_out and built.found.total() == 5 and built.rows[0]["tokens"] >= 2


def test_the_file_is_what_the_shipped_task_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts.entity_translation.Encoder, "load", lambda *_, **__: tiny_encoder("roberta"))
    rows = [{"id": each.id, "title": each.title, "text": each.text} for each in documents()]
    corpus = written(tmp_path, rows, "corpus.jsonl")
    main(str(corpus), str(tmp_path / "open" / "entity-translation.jsonl"))
    task = load_task("entity_translation", folder=SHIPPED)
    assert task.fill == {"max_phrase_tokens": 20}
    found = read_examples(task, tmp_path)
    assert [(each.text, each.answers, each.group) for each in found][:2] == [
        ("The Chinese translation of Beijing is: <mask>.", ("北京",), "Chinese"),
        ("The Russian translation of Beijing is: <mask>.", ("Пекин",), "Russian"),
    ]


def test_passages_of_a_list_of_names_are_apart_and_give_questions(tmp_path: Path) -> None:
    rows = [f"N{number},{language},Имя{number}" for number in range(40) for language in ("Russian", "Hebrew")]
    (tmp_path / "names.csv").write_text("\n".join(["name,language,translation", *rows]), encoding="utf-8")
    sizes = write_name_passages(tmp_path / "names.csv", tmp_path / "made")
    parts = [
        [json.loads(line) for line in (tmp_path / f"made-{part}.jsonl").read_text("utf-8").splitlines()]
        for part in ("train", "test")
    ]
    assert sizes == (len(parts[0]), len(parts[1])) and sum(sizes) == 80 and min(sizes) > 20
    assert not {row["title"] for row in parts[0]} & {row["title"] for row in parts[1]}
    built = build_entity_translation(
        [Document(row["id"], row["title"], row["text"]) for row in parts[1]], tiny_encoder("roberta")
    )
    assert len(built.rows) == sizes[1]
    (tmp_path / "names.csv").write_text("name,language,translation\nAnn,Elvish,x\n", encoding="utf-8")
    with pytest.raises(CorpusError, match=r"names.csv:2: .*Elvish"):
        write_name_passages(tmp_path / "names.csv", tmp_path / "made")
