"""Reading documents: every format, and every fault with its file and line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard

from npm.corpus.documents import (
    FIRST_SLOTS,
    CorpusSettings,
    DocumentSplit,
    SeenIdentifiers,
    read_corpus,
)
from npm.errors import CorpusError, SettingError
from npm.types import Document

RECORDS = [
    {"id": "a", "title": "One", "text": "Reykjavík is the capital.", "year": 1786},
    {"id": 7, "text": "  Spaces stay. e\u0301 and \u00e9 stay apart.\r\n"},
    {"title": "No id", "text": "x", "year": None},
]
DOCUMENTS = [
    Document("a", "One", "Reykjavík is the capital.", {"year": 1786}),
    Document("7", "", "  Spaces stay. e\u0301 and \u00e9 stay apart.\r\n"),
    Document("corpus.jsonl:3", "No id", "x", {"year": None}),
]


def json_lines(records: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def read(*files: Path | str, **options: object) -> list[Document]:
    return list(read_corpus(CorpusSettings(files=[str(file) for file in files], **options)))  # type: ignore[arg-type]


def test_json_lines_become_documents_with_their_text_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(json_lines(RECORDS))
    assert read(path, kept_fields=["year"]) == DOCUMENTS


def test_compressed_json_lines_equal_plain_ones_also_in_several_frames(tmp_path: Path) -> None:
    path = tmp_path / "corpus.v2.jsonl.zst"
    data = json_lines(RECORDS)
    path.write_bytes(b"".join(zstandard.compress(part) for part in (data[:40], b"", data[40:])))
    expected = [*DOCUMENTS[:2], Document("corpus.v2.jsonl.zst:3", "No id", "x", {"year": None})]
    assert read(path, kept_fields=["year"]) == expected


def test_byte_order_mark_windows_line_ends_and_empty_lines_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"text": "one"}\r\n\r\n  \n{"text": "two"}')
    assert [(document.id, document.text) for document in read(path)] == [
        ("corpus.jsonl:1", "one"),
        ("corpus.jsonl:4", "two"),
    ]


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        (DocumentSplit.file, [("notes.txt:1", "One\r\nstill one\r\n\n \nTwo\n")]),
        (DocumentSplit.paragraph, [("notes.txt:1", "One\r\nstill one"), ("notes.txt:2", "Two")]),
        (DocumentSplit.line, [("notes.txt:1", "One"), ("notes.txt:2", "still one"), ("notes.txt:5", "Two")]),
    ],
)
def test_a_text_file_is_split_as_asked(tmp_path: Path, split: DocumentSplit, expected: list[tuple[str, str]]) -> None:
    (tmp_path / "notes.txt").write_bytes(b"One\r\nstill one\r\n\n \nTwo\n")
    documents = read(tmp_path / "notes.txt", split=split)
    assert [(document.id, document.text) for document in documents] == expected
    assert {document.title for document in documents} == {"notes"}


def test_parquet_rows_become_documents(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = [{"id": f"{n}", "title": None, "text": f"text {n}", "unused": n} for n in range(1000)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet", row_group_size=100)
    documents = read(tmp_path / "rows.parquet")
    assert len(documents) == 1000
    assert documents[999] == Document("999", "", "text 999")


def test_a_data_set_is_read_through_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    folder = tmp_path / "dataset"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes(json_lines([{"id": "t", "text": "training"}]))
    (folder / "test.jsonl").write_bytes(json_lines([{"text": "testing"}]))
    assert read(f"hub:{folder}") == [Document("t", "", "training")]
    assert read(f"hub:{folder}@/test") == [Document(f"hub:{folder}@/test:1", "", "testing")]
    with pytest.raises(CorpusError, match="cannot be read as a data set"):
        read(f"hub:{folder}@/nowhere")


def test_a_glob_is_read_in_sorted_order_and_fields_can_be_named(tmp_path: Path) -> None:
    for name in ("b", "c", "a"):
        (tmp_path / f"{name}.jsonl").write_bytes(json_lines([{"key": name, "body": f"text {name}"}]))
    settings = CorpusSettings(files=[str(tmp_path / "*.jsonl")], id_field="key", text_field="body", max_documents=2)
    assert [document.id for document in read_corpus(settings)] == ["a", "b"]


def test_files_of_the_same_name_get_ids_with_the_folders_that_tell_them_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/notes.txt", "b/notes.txt", "b/other.txt", "notes.txt", "x/c/log.txt", "y/c/log.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"Text of {name}\n", encoding="utf-8")
    with_folders = ["a/notes.txt:1", "b/notes.txt:1"]
    assert [document.id for document in read(tmp_path / "*" / "notes.txt")] == with_folders
    monkeypatch.chdir(tmp_path)
    assert [document.id for document in read("*/notes.txt")] == with_folders
    assert [document.id for document in read("**/*.txt")] == [
        *with_folders,
        "other.txt:1",
        "notes.txt:1",
        "x/c/log.txt:1",
        "y/c/log.txt:1",
    ]
    assert [document.id for document in read("b/*.txt")] == ["notes.txt:1", "other.txt:1"]


def test_a_line_of_a_million_characters_reads_normally(tmp_path: Path) -> None:
    text = "word " * 200_000
    (tmp_path / "long.jsonl").write_bytes(json_lines([{"text": text}]))
    (tmp_path / "long.txt").write_text(text, encoding="utf-8")
    assert [document.text for document in read(tmp_path / "long.jsonl")] == [text]
    assert [document.text for document in read(tmp_path / "long.txt", split=DocumentSplit.line)] == [text]


def test_a_duplicate_id_is_refused_with_both_places(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines([{"id": "x", "text": "t"}, {"id": "y", "text": "t"}]))
    (tmp_path / "b.jsonl").write_bytes(json_lines([{"id": "z", "text": "t"}, {"id": "y", "text": "t"}]))
    with pytest.raises(CorpusError, match="'y' comes twice") as caught:
        read(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert "a.jsonl:2" in caught.value.got and "b.jsonl:2" in caught.value.got


@pytest.mark.parametrize(
    ("content", "problem", "line"),
    [
        (b'{"text": "a"}\nnot json\n', "not a JSON object", 2),
        (b'{"text": "a"}\n{"text": "b', "not a JSON object", 2),
        (b'["text"]\n', "not a JSON object", 1),
        (b'{"text": NaN}\n', "not a JSON object", 1),
        (b"[" * 100_000 + b"\n", "not a JSON object", 1),
        (b'{"title": "a"}\n', "lacks text", 1),
        (b'{"text": "a"}\n{"text": " \\n"}\n', "lacks text", 2),
        (b'{"text": 5}\n', "lacks text", 1),
        (b'{"text": "a", "title": 5}\n', "'title' cannot be used", 1),
        (b'{"text": "a", "id": 1.5}\n', "'id' cannot be used", 1),
        (b'{"text": "a", "id": true}\n', "'id' cannot be used", 1),
        (b'{"text": "a", "id": ""}\n', "'id' cannot be used", 1),
        (b'{"text": "a"}\n\n{"text": "\xff"}\n', "not UTF-8", 3),
        (b'{"text": "half \\ud800 pair"}\n', "not valid Unicode", 1),
    ],
)
def test_a_bad_line_is_refused_with_file_and_line(tmp_path: Path, content: bytes, problem: str, line: int) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=problem) as caught:
        read(path)
    assert caught.value.where == f"{path}:{line}"


def test_every_way_of_cutting_a_compressed_file_short_is_refused(tmp_path: Path) -> None:
    whole = zstandard.compress(json_lines(RECORDS))
    for length in (*range(1, len(whole)), len(whole)):
        (tmp_path / "corpus.jsonl.zst").write_bytes(whole[:length])
        if length == len(whole):
            assert len(read(tmp_path / "corpus.jsonl.zst")) == 3
        else:
            with pytest.raises(CorpusError, match="compressed data"):
                read(tmp_path / "corpus.jsonl.zst")


def test_compressed_data_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl.zst").write_bytes(json_lines(RECORDS))
    with pytest.raises(CorpusError, match="cannot be decompressed"):
        read(tmp_path / "corpus.jsonl.zst")


def broken_parquet(folder: Path) -> Path:
    (folder / "x.parquet").write_bytes(b"PAR1 but not really")
    return folder / "x.parquet"


def parquet_without_text(folder: Path) -> Path:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"body": ["a"]}), folder / "x.parquet")
    return folder / "x.parquet"


def unreadable_name(folder: Path) -> Path:
    (folder / "notes.docx").write_bytes(b"x")
    return folder / "notes.docx"


def empty_file(folder: Path) -> Path:
    (folder / "x.jsonl").write_bytes(b"")
    return folder / "x.jsonl"


def only_empty_lines(folder: Path) -> Path:
    (folder / "x.txt").write_bytes(b"\n \n\n")
    return folder / "x.txt"


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (broken_parquet, "cannot be read as Parquet"),
        (parquet_without_text, "lacks the column 'text'"),
        (unreadable_name, "unknown extension"),
        (empty_file, "is empty"),
        (only_empty_lines, "has no text"),
        (lambda folder: folder / "missing.jsonl", "does not exist"),
        (lambda folder: folder / "*.jsonl", "no file matches"),
        (lambda folder: folder, "is a folder"),
    ],
)
def test_a_file_that_is_no_corpus_is_refused(tmp_path: Path, make: Callable[[Path], Path], problem: str) -> None:
    with pytest.raises(CorpusError, match=problem):
        read(make(tmp_path))


def test_a_list_without_files_and_a_file_given_twice_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines(RECORDS))
    with pytest.raises(CorpusError, match="no corpus"):
        read()
    with pytest.raises(CorpusError, match="given twice"):
        read(path, tmp_path / "*.jsonl")


def test_all_files_are_checked_before_the_first_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines(RECORDS))
    with pytest.raises(CorpusError, match="does not exist"):
        read_corpus(CorpusSettings(files=[str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]))


def test_a_limit_of_no_documents_is_refused() -> None:
    with pytest.raises(SettingError, match="max_documents"):
        CorpusSettings(files=["x.jsonl"], max_documents=0)


def test_seen_identifiers_equal_a_dictionary() -> None:
    rng = np.random.default_rng(0)
    seen, plain = SeenIdentifiers(), dict[str, tuple[int, int]]()
    for record, number in enumerate(rng.integers(0, 4 * FIRST_SLOTS, size=6 * FIRST_SLOTS).tolist()):
        identifier = f"document {number}"
        assert seen.add(identifier, number % 3, record) == plain.get(identifier)
        plain.setdefault(identifier, (number % 3, record))
