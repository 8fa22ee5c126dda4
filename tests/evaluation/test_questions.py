"""What a file of questions must look like, and the message for each fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from npm.core.errors import CorpusError, QueryError, UserError
from npm.evaluation.demo import read_questions, shipped_questions_file
from npm.evaluation.tasks import Split

GOOD = {"id": "q1", "kind": "river", "text": "Vienna lies on <mask>.", "answers": ["Danube"], "split": "dev"}


def written(folder: Path, *questions: Any) -> Path:
    file = folder / "questions.json"
    file.write_text(json.dumps({"questions": questions}), encoding="utf-8")
    return file


def test_questions_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    questions = read_questions(written(tmp_path, GOOD, {**GOOD, "id": "q0", "split": "test"}))
    assert [question.id for question in questions] == ["q1", "q0"]
    assert questions[0].answers == ["Danube"]
    assert [question.split for question in questions] == [Split.dev, Split.test]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kind": None}, "kind"),
        ({"text": 3}, "text"),
        ({"id": ""}, "id"),
        ({"answers": []}, "answers"),
        ({"answers": "Danube"}, "answers"),
        ({"answers": ["Danube", "…"]}, "the answer '…'"),
        ({"split": "train"}, "split"),
        ({"answers": ["Danube", "\ud800"]}, ""),
        ({"kind": "river\udfff"}, ""),
    ],
)
def test_a_malformed_question_is_named_with_its_number(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    with pytest.raises(CorpusError, match=rf"questions\.json: question 2.*{named}"):
        read_questions(written(tmp_path, GOOD, {**GOOD, "id": "q2", **change}))


@pytest.mark.parametrize("text", ["Vienna lies on the Danube.", "<mask> lies on <mask>."])
def test_a_text_without_exactly_one_mask_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(QueryError, match="question 1"):
        read_questions(written(tmp_path, {**GOOD, "text": text}))


def test_a_repeated_id_and_what_is_no_object_are_refused(tmp_path: Path) -> None:
    for second in (GOOD, "Vienna lies on <mask>.", {name: GOOD[name] for name in GOOD if name != "kind"}):
        with pytest.raises(CorpusError, match="question 2"):
            read_questions(written(tmp_path, GOOD, second))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"questions": []}', b"{", b"\xff", b'{"questions": {}}'])
def test_what_is_no_file_of_questions_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "questions.json"
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"questions\.json"):
        read_questions(file)


def test_the_shipped_questions_can_be_read_and_have_both_halves() -> None:
    questions = read_questions(shipped_questions_file())
    assert len(questions) >= 120
    assert {question.split for question in questions} == set(Split)


def test_the_other_questions_repeat_none_and_are_never_chosen_by() -> None:
    file = shipped_questions_file()
    shipped, others = read_questions(file), read_questions(file.with_name("other-questions.json"))
    assert len({question.text for question in others} - {question.text for question in shipped}) == 60
    assert {question.split for question in others} == {Split.test}
    assert {question.kind for question in others} <= {question.kind for question in shipped}
