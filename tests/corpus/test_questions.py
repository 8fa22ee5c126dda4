"""Rows of questions: their form, what of them is kept, and which are refused or skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm.core.errors import CorpusError, SettingError
from npm.corpus.questions import SupervisionSettings, question_table
from tests.helpers.labeled_texts import write_rows
from tests.helpers.tiny_models import byte_bpe_tokenizer, wordpiece_tokenizer

ROW: dict[str, Any] = {
    "question": "The capital of Iceland is <mask>.",
    "answers": ["Reykjavík", "the capital"],
    "title": "Iceland",
    "block": "Reykjavík is the capital of Iceland. It lies on the coast of Faxaflói.",
    "negatives": ["Paris is the capital of France.", "Oslo lies at the end of the Oslofjord."],
    "rivals": ["Faxaflói", "Oslo"],
    "wrong_title": "Norway",
    "wrong_block": "Oslo lies at the end of the Oslofjord.",
    "kind": "name",
}


def written(folder: Path, *rows: dict[str, Any], name: str = "questions.jsonl") -> str:
    """A file of rows."""
    return str(write_rows(folder / name, rows))


@pytest.mark.parametrize("tokenizer", [wordpiece_tokenizer(), byte_bpe_tokenizer()], ids=["wordpiece", "byte-level"])
def test_a_row_is_kept_as_the_tokens_of_its_texts(tmp_path: Path, tokenizer: Any) -> None:
    row = ROW | {"block": f"We saw {ROW['block']}"}  # the answer is not the first word: byte-level tokens differ there
    table = question_table([written(tmp_path, row)], tokenizer, SupervisionSettings(), title_tokens=16)
    found = table[0]

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    strips = tokenizer.backend_tokenizer.get_added_tokens_decoder()[tokenizer.mask_token_id].lstrip
    assert found.before.tolist() == ids("The capital of Iceland is" + " " * (not strips))
    assert found.after.tolist() == ids(".")
    assert found.title.tolist() == ids("Iceland") + ids(".")
    assert found.block.tolist() == ids(row["block"])
    assert ids(" Reykjavík") in [answer.tolist() for answer in found.answers]
    assert [each.tolist() for each in found.negatives] == [ids(ROW["negatives"][1])]  # the other has an answer in it
    assert ids(" Faxaflói") in [rival.tolist() for rival in found.rivals]
    assert not any(np.array_equal(rival, ids(" Oslo")) for rival in found.rivals)  # which the block has not
    assert [each.tolist() for each in found.wrong] == [ids("Norway") + ids("."), ids(ROW["wrong_block"])]
    assert table.token_ids.dtype == np.uint16


def test_of_long_texts_what_is_near_the_answer_and_the_mask_is_kept(tmp_path: Path) -> None:
    far = "Paris " * 30
    row = ROW | {
        "question": f"{far}capital <mask> coast {far}",
        "block": f"{far}Reykjavík {far}",
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


def test_a_row_whose_answer_is_no_tokens_of_its_block_is_skipped_and_counted(tmp_path: Path) -> None:
    inside = ROW | {"answers": ["eykjaví"]}  # a part of a word
    table = question_table(
        [written(tmp_path, inside, ROW)], byte_bpe_tokenizer(), SupervisionSettings(), title_tokens=0
    )
    assert (len(table), table.skipped) == (1, 1)
    with pytest.raises(CorpusError, match="no question"):
        question_table([written(tmp_path, inside)], byte_bpe_tokenizer(), SupervisionSettings(), title_tokens=0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"question": "no mask"},
        {"question": "<mask> and <mask>"},
        {"answers": []},
        {"answers": ["Oslo"]},
        {"answers": "Reykjavík"},
        {"block": ""},
        {"title": 3},
        {"negatives": [""]},
        {"rivals": "Oslo"},
        {"wrong_block": ["Oslo"]},
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
