"""Rows of data files: every form, what is refused, and where the targets of labeled ones stand among the tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from npm.core.errors import CorpusError, SettingError
from npm.corpus.labeled import LabeledSettings, LabelLevel, encode_labeled, read_labeled
from npm.corpus.readers import read_rows
from tests.helpers.command_line import zstd
from tests.helpers.labeled_texts import PAIRS, SENTENCES, WORDS, encoder_of_pairs, write_rows
from tests.helpers.tiny_models import FAMILIES, tiny_encoder

TAGS = ["O", "B-LOC", "I-LOC", "B-PER"]


def of_words(file: Path, **settings: Any) -> LabeledSettings:
    columns = {"text_column": "tokens", "label_column": "tags"}
    return LabeledSettings(files=[str(file)], level=LabelLevel.token, labels=TAGS, **{**columns, **settings})


def test_rows_of_every_form_are_the_same(tmp_path: Path) -> None:
    rows = [{"text": 'He said "no".', "label": "bad"}, {"text": "Fine", "label": "good"}]
    table = "text\tlabel\n" + "".join(f"{row['text']}\t{row['label']}\n" for row in rows)
    (tmp_path / "named.tsv").write_text(table, encoding="utf-8")
    (tmp_path / "plain.tsv").write_text(table.partition("\n")[2], encoding="utf-8")
    (tmp_path / "quoted.csv").write_text('text,label\n"He said ""no"".",bad\nFine,good\n', encoding="utf-8")
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    write_rows(tmp_path / "rows.jsonl", rows)
    write_rows(tmp_path / "numbers.jsonl", [{**row, "label": number} for number, row in enumerate(rows)])
    for name in ("named.tsv", "plain.tsv", "quoted.csv", "rows.parquet", "rows.jsonl", "numbers.jsonl"):
        plain = {"text_column": "1", "label_column": "2", "header": False} if name == "plain.tsv" else {}
        columns: dict[str, Any] = {"text_column": "text", **plain}
        settings = LabeledSettings(files=[str(tmp_path / name)], labels=["bad", "good"], **columns)
        read = [(row.texts, row.targets) for row in read_labeled(settings)]
        assert read == [(('He said "no".',), (0,)), (("Fine",), (1,))], name


def test_words_one_a_line_are_those_of_lists(tmp_path: Path) -> None:
    lines = ["-DOCSTART- -X- O", ""]
    for row in WORDS:
        lines += [f"{word} NN {tag}" for word, tag in zip(row["tokens"], row["tags"], strict=True)] + [""]
    (tmp_path / "words.txt").write_text("\n".join(lines), encoding="utf-8")
    lists = list(read_labeled(of_words(write_rows(tmp_path / "words.jsonl", WORDS))))
    by_line = list(read_labeled(of_words(tmp_path / "words.txt")))
    assert [(row.texts, row.targets) for row in by_line] == [(row.texts, row.targets) for row in lists]
    assert lists[1].targets == (3, 0, 0, 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_word_is_labeled_on_its_first_piece(tmp_path: Path, family: str) -> None:
    encoder = tiny_encoder(family)
    examples = encode_labeled(of_words(write_rows(tmp_path / "words.jsonl", WORDS)), encoder.tokenizer)
    for number, row in enumerate(WORDS):
        first, last = examples.target_offsets[number : number + 2]
        ids = examples.token_ids[examples.offsets[number] : examples.offsets[number + 1]]
        for word, slot in zip(row["tokens"], examples.slots[first:last].tolist(), strict=True):
            piece = encoder.tokenizer.decode(ids[slot : slot + 1]).strip()
            assert piece
            assert word.lower().startswith(piece.lower()), (word, piece)


def test_a_word_that_is_cut_off_has_no_place_and_a_pair_is_cut_at_its_longer_text(tmp_path: Path) -> None:
    encoder = encoder_of_pairs()
    words = of_words(write_rows(tmp_path / "words.jsonl", WORDS), max_tokens=8)
    examples = encode_labeled(words, encoder.tokenizer)
    assert examples.slots[0] == 1
    assert examples.slots[5] == -1
    assert examples.lengths[0] == 8
    row = {"sentence1": "Oslo", "sentence2": "Paris is the capital of France", "score": 1}
    file = write_rows(tmp_path / "pairs.jsonl", [row, {**row, "score": 2}])
    columns = {"text_column": "sentence1", "second_column": "sentence2", "label_column": "score"}
    pairs = encode_labeled(LabeledSettings(files=[str(file)], max_tokens=9, **columns), encoder.tokenizer)
    kept = len(encoder.tokenizer("Oslo")["input_ids"])
    assert pairs.type_ids[:9].tolist() == [0] * kept + [1] * (9 - kept)


def test_special_tokens_in_a_text_are_text(tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    file = write_rows(tmp_path / "rows.jsonl", [{"sentence": "[SEP] no", "label": 0}, {"sentence": "a", "label": 1}])
    examples = encode_labeled(LabeledSettings(files=[str(file)], labels=["0", "1"]), encoder.tokenizer)
    first = examples.token_ids[: examples.offsets[1]]
    assert np.flatnonzero(first == encoder.tokenizer.sep_token_id).tolist() == [len(first) - 1]


BAD = {
    "one label": ([{"sentence": "a", "label": 1}] * 3, {"labels": ["0", "1"]}, "one label"),
    "no rows": ([], {"labels": ["0", "1"]}, "is empty"),
    "outside of the labels": ([{"sentence": "a", "label": 2}], {"labels": ["0", "1"]}, "one of 0, 1"),
    "above the scores": ([{"sentence": "a", "label": 5.5}], {}, "a number from 0 to 5"),
    "no score": ([{"sentence": "a", "label": "nan"}], {}, "a number from 0 to 5"),
    "no such column": (SENTENCES, {"labels": ["0", "1"], "label_column": "gold"}, "gold"),
    "no text": ([{"sentence": " ", "label": 1}], {"labels": ["0", "1"]}, "a string with text"),
    "words and labels": ([{"tokens": ["a", "b"], "tags": ["O"]}], {"level": LabelLevel.token}, "as many labels"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_row_that_cannot_be_used_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    rows, settings, expected = BAD[name]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    chosen = (
        of_words(file) if "level" in settings else LabeledSettings(files=[str(file)], **settings)  # type: ignore[arg-type]
    )
    with pytest.raises(CorpusError, match=rf"rows\.jsonl.*{expected}"):
        encode_labeled(chosen, tiny_encoder("bert").tokenizer)


def test_settings_that_do_not_fit_are_refused() -> None:
    for wrong in ({"labels": ["a"]}, {"labels": ["a", "a"]}, {"least_score": 5.0}, {"files": ["f"], "level": "token"}):
        with pytest.raises(SettingError):
            LabeledSettings(**wrong)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="no labeled rows"):
        list(read_labeled(LabeledSettings()))


def test_short_rows_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.tsv"
    file.write_text("id\tsentence\tlabel\n1\tfine\t1\n2\tbroken\n3\tbad\t0\n", encoding="utf-8")
    with pytest.raises(CorpusError, match=r"rows\.tsv:3: has no label"):
        list(read_labeled(LabeledSettings(files=[str(file)], labels=["0", "1"])))


def test_one_text_of_a_pair_may_be_empty_but_not_both(tmp_path: Path) -> None:
    columns = {"text_column": "a", "second_column": "b"}
    settings = LabeledSettings(files=[str(tmp_path / "rows.jsonl")], labels=["0", "1"], **columns)  # type: ignore[arg-type]
    write_rows(tmp_path / "rows.jsonl", [{"a": "Who?", "b": "", "label": 1}])
    assert [row.texts for row in read_labeled(settings)] == [("Who?", "")]
    write_rows(tmp_path / "rows.jsonl", [{"a": " ", "b": "", "label": 1}])
    with pytest.raises(CorpusError, match="a string with text"):
        list(read_labeled(settings))


def test_pairs_with_scores_keep_their_numbers(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    columns = {"text_column": "sentence1", "second_column": "sentence2", "label_column": "score"}
    examples = encode_labeled(LabeledSettings(files=[str(file)], **columns), encoder_of_pairs().tokenizer)
    assert examples.targets.tolist() == [row["score"] for row in PAIRS]


ROWS = [{"text": 'a, "b"\nc', "label": "0"}, {"text": "é\td", "label": "1"}]


def written(folder: Path, name: str, content: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def test_the_same_rows_come_from_every_form(tmp_path: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    files = [
        written(tmp_path, "a.jsonl", lines),
        written(tmp_path, "a.jsonl.zst", zstd(lines.encode())),
        written(tmp_path, "a.json", json.dumps(ROWS, ensure_ascii=False, indent=1)),
        written(tmp_path, "b.json", lines),
        written(tmp_path, "a.csv", '\ufefftext,label\r\n"a, ""b""\nc",0\r\n\r\né\td,1\r\n'),
        written(tmp_path, "a.tsv", 'text\tlabel\n"a, ""b""\nc"\t0\n"é\td"\t1\n'),
    ]
    for file in files:
        assert [row for _, row in read_rows(file)] == ROWS, file.name


def test_rows_are_numbered_by_line_and_items_by_place(tmp_path: Path) -> None:
    lines = "\n".join(["", json.dumps(ROWS[0]), " ", json.dumps(ROWS[1])])
    assert [number for number, _ in read_rows(written(tmp_path, "a.jsonl", lines))] == [2, 4]
    assert [number for number, _ in read_rows(written(tmp_path, "a.json", json.dumps(ROWS)))] == [1, 2]
    assert [number for number, _ in read_rows(written(tmp_path, "a.csv", 'x\n"a\nb"\nc\n'))] == [3, 4]


@pytest.mark.parametrize(
    ("name", "content", "problem", "where"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": \n', "is not a JSON object", "a.jsonl:2"),
        ("a.jsonl", "[1]\n", "is not a JSON object", "a.jsonl:1"),
        ("a.json", '{"a":\n1}', "is not a JSON object", "a.json:1"),
        ("a.json", "[", "is not JSON", "a.json"),
        ("a.json", '[{"a": 1}, 2]', "is not a JSON object", "a.json: item 2"),
        ("a.csv", "text,label\na,0\nb\n", "1 cell", "a.csv:3"),
        ("a.csv", "text,label\na,0,x\n", "3 cells", "a.csv:2"),
        ("a.csv", "text,text\na,0\n", "name", "a.csv:1"),
        ("a.csv", 'text,label\n"a"b,0\n', "quote", "a.csv:2"),
        ("a.tsv", 'text\tlabel\n"a\t0\n', "quote", "a.tsv:2"),
        ("a.xlsx", "PK", "has an unknown extension", "a.xlsx"),
    ],
)
def test_a_file_that_is_not_in_its_form_is_refused_with_the_place(
    tmp_path: Path, name: str, content: str, problem: str, where: str
) -> None:
    with pytest.raises(CorpusError, match=f"{where}.*{problem}"):
        list(read_rows(written(tmp_path, name, content)))
