"""Facts of subjects that a corpus names, worked by hand: halves, passages, whole words."""

import json
from pathlib import Path

import pytest

from scripts import make_named_facts


def rows_of(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def write_rows(file: Path, rows: list[dict[str, object]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    subjects = ["Ada Lovelace", "Kurt Gödel", "Emmy", "Ada Lovelace", "Alan Turing", "Max"]
    facts = [
        {"relation": "P101", "template": "[X] works in [Y] .", "subject": subject, "answers": [f"field {number}"]}
        for number, subject in enumerate(subjects)
    ]
    documents: list[dict[str, object]] = [
        {"id": "a", "title": "Alan Turing", "text": "A mathematician."},
        {
            "id": "b",
            "title": "Logic",
            "text": f"{'x' * 400} Alan Turing met Kurt Gödel, not Emmylou or Maxwell; Ada Lovelace.",
        },
    ]
    wiki = write_rows(tmp_path / "wiki.jsonl", documents)
    make_named_facts.main(write_rows(tmp_path / "facts.jsonl", facts), str(tmp_path / "out"), [wiki])
    return tmp_path / "out"


def test_the_first_half_is_learned_the_second_asked_and_no_question_occurs_twice(folder: Path) -> None:
    learned, asked = rows_of(folder / "learned.jsonl"), rows_of(folder / "asked.jsonl")
    assert {row["subject"] for row in learned} == {"Ada Lovelace", "Kurt Gödel"}  # Emmy is no whole word of the corpus
    assert asked == [
        {
            "question": "Alan Turing works in <mask>.",
            "answers": ["field 4"],
            "relation": "P101",
            "subject": "Alan Turing",
        }
    ]


def test_a_passage_is_the_own_article_or_surrounds_the_first_mention(folder: Path) -> None:
    passages = {(row["title"], row["text"]) for row in rows_of(folder / "corpus.jsonl")}
    assert ("Alan Turing", "A mathematician.") in passages
    assert len(passages) == 3
    assert all("Ada Lovelace" in text and text.startswith("xxx") for title, text in passages if title == "Logic")
