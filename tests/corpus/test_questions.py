"""Rows of questions: their form, what of them is kept, and which are refused or skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm.core.errors import CorpusError, SettingError
from npm.corpus.questions import SupervisionSettings, occurrences, question_table, read_questions
from tests.helpers.labeled_texts import write_rows
from tests.helpers.tiny_models import byte_bpe_tokenizer, wordpiece_tokenizer

ROW: dict[str, Any] = {
    "question": "The capital of Iceland is <mask>.",
    "answers": ["Reykjavík", "the capital"],
    "title": "Iceland",
    "context": "Reykjavík is the capital of Iceland. It lies on the coast of Faxaflói.",
    "negatives": ["Paris is the capital of France.", "Oslo lies at the end of the Oslofjord."],
    "rivals": ["Faxaflói", "Oslo"],
    "wrong_title": "Norway",
    "wrong_context": "Oslo lies at the end of the Oslofjord.",
    "kind": "name",
}


def written(folder: Path, *rows: dict[str, Any], name: str = "questions.jsonl") -> str:
    """A file of rows."""
    return str(write_rows(folder / name, rows))


@pytest.mark.parametrize("tokenizer", [wordpiece_tokenizer(), byte_bpe_tokenizer()], ids=["wordpiece", "byte-level"])
def test_a_row_is_kept_as_the_tokens_of_its_texts(tmp_path: Path, tokenizer: Any) -> None:
    # the answer is not the first word: byte-level tokens differ there
    row = ROW | {"context": f"We saw {ROW['context']}"}
    table = question_table([written(tmp_path, row)], tokenizer, SupervisionSettings(), title_tokens=16)
    found = table[0]

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    strips = tokenizer.backend_tokenizer.get_added_tokens_decoder()[tokenizer.mask_token_id].lstrip
    assert found.before.tolist() == ids("The capital of Iceland is" + " " * (not strips))
    assert found.after.tolist() == ids(".")
    assert found.title.tolist() == ids("Iceland") + ids(".")
    assert found.block.tolist() == ids(row["context"])
    assert ids(" Reykjavík") in [answer.tolist() for answer in found.answers]
    assert [each.tolist() for each in found.negatives] == [ids(ROW["negatives"][1])]  # the other has an answer in it
    assert ids(" Faxaflói") in [rival.tolist() for rival in found.rivals]
    assert not any(np.array_equal(rival, ids(" Oslo")) for rival in found.rivals)  # which the block has not
    assert [each.tolist() for each in found.wrong] == [ids("Norway") + ids("."), ids(ROW["wrong_context"])]
    assert table.token_ids.dtype == np.uint16


def test_of_long_texts_what_is_near_the_answer_and_the_mask_is_kept(tmp_path: Path) -> None:
    far = "Paris " * 30
    row = ROW | {
        "question": f"{far}capital <mask> coast {far}",
        "context": f"{far}Reykjavík {far}",
        "title": "Iceland " * 9,
    }
    settings = SupervisionSettings(max_block_tokens=10, max_question_tokens=8)
    tokenizer = wordpiece_tokenizer()
    found = question_table([written(tmp_path, row)], tokenizer, settings, title_tokens=2)[0]
    (reykjavik,) = [answer for answer in found.answers if len(answer) == len(found.answers[0])]
    assert len(found.block) == 10
    assert set(reykjavik.tolist()) <= set(found.block.tolist())
    (paris, capital, coast) = (
        tokenizer(word, add_special_tokens=False)["input_ids"] for word in ("Paris", "capital", "coast")
    )
    assert found.before.tolist() == (paris * 9 + capital)[-4:]
    assert found.after.tolist() == (coast + paris * 9)[:4]
    assert len(found.title) == 3


@pytest.mark.parametrize(("before", "after"), [(60, 60), (2, 60), (60, 2), (60, 0)])
def test_any_part_of_a_long_text_has_the_whole_answer_and_is_full(before: int, after: int, tmp_path: Path) -> None:
    row = ROW | {"answers": ["the capital of France"], "negatives": [], "rivals": []}
    row["context"] = f"{'Paris ' * before}the capital of France{' Oslo' * after}"
    settings = SupervisionSettings(max_block_tokens=8)
    table = question_table([written(tmp_path, *[row] * 40)], wordpiece_tokenizer(), settings, title_tokens=0)
    found = [table[number] for number in range(len(table))]
    assert len(found) == 40 and all(len(each.block) == 8 and each.answers for each in found)
    starts = {next(occurrences(each.answers[0], each.block)) for each in found}
    assert len(starts) > 1 or after == 0  # drawn at random


def test_a_row_whose_answer_is_no_tokens_of_its_block_is_skipped_and_counted(tmp_path: Path) -> None:
    inside = ROW | {"answers": ["eykjaví"]}  # a part of a word
    table = question_table(
        [written(tmp_path, inside, ROW)], byte_bpe_tokenizer(), SupervisionSettings(), title_tokens=0
    )
    assert (len(table), sum(table.skipped.values())) == (1, 1)
    with pytest.raises(CorpusError, match="no question"):
        question_table([written(tmp_path, inside)], byte_bpe_tokenizer(), SupervisionSettings(), title_tokens=0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"question": " "},
        {"question": "<mask> and <mask>"},
        {"answers": [3]},
        {"answers": "Reykjavík"},
        {"context": 3},
        {"title": 3},
        {"negatives": [""]},
        {"rivals": "Oslo"},
        {"wrong_context": ["Oslo"]},
    ],
)
def test_a_row_in_another_form_is_refused_with_its_file_and_line(tmp_path: Path, wrong: dict[str, Any]) -> None:
    file = written(tmp_path, ROW, ROW | wrong)
    with pytest.raises(CorpusError, match=f"{file}:2: "):
        question_table([file], wordpiece_tokenizer(), SupervisionSettings(), title_tokens=0)


def test_files_are_drawn_from_by_their_weights_and_rows_of_a_file_alike(tmp_path: Path) -> None:
    files = [written(tmp_path, ROW, name="one.jsonl"), written(tmp_path, ROW, ROW, ROW, name="three.jsonl")]
    settings = SupervisionSettings(file_weights=[1.0, 3.0])
    table = question_table(files, wordpiece_tokenizer(), settings, title_tokens=0)
    assert table.probabilities is not None
    np.testing.assert_allclose(table.probabilities, [0.25, 0.25, 0.25, 0.25])
    with pytest.raises(SettingError):
        question_table(files, wordpiece_tokenizer(), SupervisionSettings(file_weights=[1.0]), title_tokens=0)


def test_rows_that_cannot_be_used_are_counted_by_reason(tmp_path: Path) -> None:
    unusable = [
        {"context": None},
        {"answers": ["Oslo"]},
        {"answers": []},
        {"answers": [ROW["context"]]},  # eleven words, where ten are kept
    ]
    file = written(tmp_path, ROW, *(ROW | each for each in unusable))
    settings = SupervisionSettings(max_answer_words=10)
    table = question_table([file], wordpiece_tokenizer(), settings, title_tokens=0)
    assert len(table) == 1
    assert table.skipped == {
        "without a context": 1,
        "whose context has no answer": 1,
        "without a short answer": 2,
    }


def test_a_plain_question_has_its_mask_behind_it(tmp_path: Path) -> None:
    tokenizer = wordpiece_tokenizer()
    row = ROW | {"question": "What is the capital of Iceland?"}
    found = question_table([written(tmp_path, row)], tokenizer, SupervisionSettings(), title_tokens=0)[0]
    ids = tokenizer([row["question"], "."], add_special_tokens=False)["input_ids"]
    assert [found.before.tolist(), found.after.tolist()] == ids


@pytest.mark.parametrize("version_first", [False, True])
def test_squad_is_read_as_it_is_published(version_first: bool, tmp_path: Path) -> None:
    answers = [{"text": "Reykjavík", "answer_start": 0}]
    asked = [{"question": "Which city?", "id": "1", "answers": answers}, {"question": "Which sea?", "answers": []}]
    data = [{"title": "Iceland", "paragraphs": [{"context": ROW["context"], "qas": asked}] * 2}]
    parts = {"version": "1.1", "data": data} if version_first else {"data": data, "version": "1.1"}
    file = tmp_path / "train.json"
    file.write_text(json.dumps(parts), encoding="utf-8")
    rows = [row for _, row in read_questions([str(file)])]
    assert [(row["title"], row["question"], row["answers"]) for row in rows[:2]] == [
        ("Iceland", "Which city?", ["Reykjavík"]),
        ("Iceland", "Which sea?", []),
    ]
    assert len(rows) == 4


@pytest.mark.parametrize("name", ["data", "paragraphs", "qas"])
@pytest.mark.parametrize("value", ["train split", ["a", "b"], 3, {"x": 1}])
def test_other_fields_may_have_the_names_of_squads_lists(tmp_path: Path, name: str, value: object) -> None:
    (found,) = (row for _, row in read_questions([written(tmp_path, ROW | {name: value})]))
    assert found["question"] == ROW["question"]


def test_answers_of_published_rows_may_be_columns(tmp_path: Path) -> None:
    row = ROW | {"answers": {"text": ["Reykjavík"], "answer_start": [0]}}
    (found,) = (row for _, row in read_questions([written(tmp_path, row)]))
    assert found["answers"] == ["Reykjavík"]


def test_no_more_questions_of_a_context_are_taken_than_allowed(tmp_path: Path) -> None:
    other = ROW | {"context": f"{ROW['context']} It is cold."}
    file = written(tmp_path, ROW, ROW, other, ROW)
    settings = SupervisionSettings(max_questions_per_context=2)
    table = question_table([file], wordpiece_tokenizer(), settings, title_tokens=0)
    assert (len(table), sum(table.skipped.values())) == (3, 1)
    again = written(tmp_path, ROW, name="again.jsonl")  # of another file, the same passage counts anew
    assert len(question_table([file, again], wordpiece_tokenizer(), settings, title_tokens=0)) == 4
