"""Rows of data files in every form, and the message for each file that is not in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npm.core.errors import CorpusError
from npm.corpus.readers import read_rows
from tests.helpers.command_line import zstd

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
        ("a.csv", "text,label\na,0\nb\n", "1 cells", "a.csv:3"),
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
