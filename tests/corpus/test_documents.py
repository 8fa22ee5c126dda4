"""Reading documents: every format, and every fault with its file and line."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from npm.core.errors import CorpusError, SettingError
from npm.core.types import Document
from npm.corpus.documents import SeenIds, SkippedRecords, read_corpus
from npm.corpus.markup import readable, visible
from npm.corpus.settings import CorpusSettings, DocumentSplit
from tests.helpers.command_line import zstd

RECORDS = [
    {"id": "a", "title": "One", "text": "Reykjavík is the capital.", "year": 1786},
    {"id": 7, "text": "  Spaces stay. e\u0301 and \u00e9 stay apart.\r\n"},
    {"title": "No id", "text": "x", "year": None},
]
DOCUMENTS = [
    Document("a", "One", "Reykjavík is the capital.", {"year": 1786}),
    Document("7", "", "  Spaces stay. e\u0301 and \u00e9 stay apart.\r\n"),
]


def json_lines(records: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def read(*files: Path | str, **options: object) -> list[Document]:
    return list(read_corpus(CorpusSettings(files=[str(file) for file in files], **options)))  # type: ignore[arg-type]


def test_json_lines_become_documents_with_their_text_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(json_lines(RECORDS))
    assert read(path, kept_fields=["year"]) == [*DOCUMENTS, Document(f"{path}:3", "No id", "x", {"year": None})]


@pytest.mark.parametrize(("suffix", "compress"), [("zst", zstd), ("gz", gzip.compress)])
def test_compressed_json_lines_equal_plain_ones_also_in_several_frames(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"corpus.v2.jsonl.{suffix}"
    data = json_lines(RECORDS)
    path.write_bytes(b"".join(compress(part) for part in (data[:40], b"", data[40:])))
    expected = [*DOCUMENTS, Document(f"{path}:3", "No id", "x", {"year": None})]
    assert read(path, kept_fields=["year"]) == expected


def test_compressed_tables_and_texts_are_read_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"id,text\n1,Emil left.\n"))
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(b"id\ttext\n2,\tOsk, stayed.\n"))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"Nobody came.\n"))
    documents = list(read_corpus(CorpusSettings(files=[str(tmp_path)])))
    assert [document.text.strip() for document in documents] == ["Emil left.", "Osk, stayed.", "Nobody came."]
    assert [document.id for document in documents[:2]] == ["1", "2,"]


@pytest.mark.parametrize(("name", "separator"), [("rates.csv", ","), ("rates.tsv", "\t"), ("rates.csv", ";")])
def test_a_table_without_texts_is_read_by_the_cells_of_its_rows(tmp_path: Path, name: str, separator: str) -> None:
    table = 'Depot,Rate,"Who\nmanages"\nPorto,737 EUR,Ana\nFaro,,"Uma\nNair"\n,,\n'
    (tmp_path / name).write_text(table.replace(",", separator), encoding="utf-8")
    with pytest.raises(CorpusError, match=f"{name}:6: has no text"):
        read(tmp_path / name)
    first, second = read(tmp_path / name, skip_bad=True, kept_fields=["Rate"])
    assert readable(first.text).text.splitlines()[1] == "Depot: Porto; Rate: 737 EUR; Who manages: Ana"
    assert readable(second.text).text.splitlines()[1] == "Depot: Faro; Who manages: Uma Nair"
    file = (tmp_path / name).as_posix()
    assert (first.id, first.title, first.fields) == (f"{file}:3", "rates", {"Rate": "737 EUR", "file": file})
    with pytest.raises(CorpusError, match=r"has no body(?s:.*)set corpus\.text_field"):
        read(tmp_path / name, text_field="body")


@pytest.mark.parametrize(("name", "separator"), [("rows.csv", ","), ("ROWS.TSV", "\t")])
def test_a_table_is_read_by_its_header(tmp_path: Path, name: str, separator: str) -> None:
    rows = [["year", "text", "id"], ["1990", f'"Paris{separator} France\nof old"', "a"], ["", "Oslo", ""]]
    content = "\ufeff" + "".join(separator.join(row) + "\r\n" for row in rows)
    (tmp_path / name).write_bytes(content.encode())
    file = (tmp_path / name).as_posix()
    assert read(tmp_path / name, kept_fields=["year"]) == [
        Document("a", "", f"Paris{separator} France\nof old", {"year": "1990", "file": file}),
        Document(f"{file}:4", "", "Oslo", {"file": file}),
    ]


def test_a_markdown_file_is_one_document_titled_by_its_first_heading(tmp_path: Path) -> None:
    text = "```\n# no title\n```\n\n## The capital ##\n\nOslo.\n"
    (tmp_path / "notes.MD").write_text(text, encoding="utf-8")
    (tmp_path / "bare.md").write_text("#hashtag\n", encoding="utf-8")
    [document] = read(tmp_path / "notes.MD", split=DocumentSplit.line)
    assert (document.id, document.title) == (f"{tmp_path}/notes.MD", "The capital")
    assert visible(document.text).split() == ["#", "no", "title", "The", "capital", "Oslo."]
    assert document.text.index("Oslo") == text.index("Oslo")
    assert read(tmp_path / "bare.md")[0].title == "bare"


def test_byte_order_mark_windows_line_ends_and_empty_lines_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"text": "one"}\r\n\r\n  \n{"text": "two"}')
    assert [(document.id, document.text) for document in read(path)] == [
        (f"{path}:1", "one"),
        (f"{path}:4", "two"),
    ]


@pytest.mark.parametrize("join_lines", [False, True])
@pytest.mark.parametrize(
    ("split", "expected", "joined"),
    [
        (DocumentSplit.file, [("notes.txt", "One\r\nstill one\r\n\n \nTwo\n")], "One still one\r\n\n \nTwo\n"),
        (DocumentSplit.paragraph, [("notes.txt:1", "One\r\nstill one"), ("notes.txt:2", "Two")], "One still one"),
        (DocumentSplit.line, [("notes.txt:1", "One"), ("notes.txt:2", "still one"), ("notes.txt:5", "Two")], "One"),
    ],
)
def test_a_text_file_is_split_as_asked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    split: DocumentSplit,
    expected: list[tuple[str, str]],
    joined: str,
    join_lines: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_bytes(b"One\r\nstill one\r\n\n \nTwo\n")
    documents = read("notes.txt", split=split, join_lines=join_lines)
    if join_lines:
        assert visible(documents[0].text) == joined
        assert [len(document.text) for document in documents] == [len(text) for _, text in expected]
    else:
        assert [document.text for document in documents] == [text for _, text in expected]
    assert [document.id for document in documents] == [identifier for identifier, _ in expected]
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
    with pytest.raises(CorpusError, match="nowhere"):
        read(f"hub:{folder}@/nowhere")


def test_a_glob_is_read_in_sorted_order_and_fields_can_be_named(tmp_path: Path) -> None:
    for name in ("b", "c", "a"):
        (tmp_path / f"{name}.jsonl").write_bytes(json_lines([{"key": name, "body": f"text {name}"}]))
    settings = CorpusSettings(files=[str(tmp_path / "*.jsonl")], id_field="key", text_field="body", max_documents=2)
    assert [document.id for document in read_corpus(settings)] == ["a", "b"]


def test_ids_have_the_path_of_the_file_as_given_whatever_other_files_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a/notes.txt", "b/notes.txt", "b/other.txt", "notes.txt", "x/c/log.txt", "y/c/log.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"Text of {name}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def ids(files: Path | str) -> list[str]:
        return [document.id for document in read(files, split=DocumentSplit.line)]

    assert ids("*/notes.txt") == ["a/notes.txt:1", "b/notes.txt:1"]
    assert ids(tmp_path / "*" / "notes.txt") == [f"{tmp_path}/{name}/notes.txt:1" for name in ("a", "b")]
    assert ids("**/*.txt") == [f"{name}:1" for name in names]
    assert ids("b/*.txt") == ["b/notes.txt:1", "b/other.txt:1"]


def test_a_duplicate_id_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines([{"id": "x", "text": "t"}, {"id": "y", "text": "t"}]))
    (tmp_path / "b.jsonl").write_bytes(json_lines([{"id": "z", "text": "t"}, {"id": "y", "text": "t"}]))
    with pytest.raises(CorpusError, match=r"b\.jsonl:2.*'y' comes twice"):
        read(tmp_path / "a.jsonl", tmp_path / "b.jsonl")


@pytest.mark.parametrize(
    ("content", "problem", "line"),
    [
        (b'{"text": "a"}\nnot json\n', "not a JSON object", 2),
        (b'{"text": "a"}\n{"text": "b', "not a JSON object", 2),
        (b'["text"]\n', "not a JSON object", 1),
        (b'{"text": NaN}\n', "text_field", 1),
        (b"[" * 100_000 + b"\n", "not a JSON object", 1),
        (b'{"title": "a"}\n', "text_field", 1),
        (b'{"text": "a"}\n{"text": " \\n"}\n', "text_field", 2),
        (b'{"text": 5}\n', "text_field", 1),
        (b'{"text": "a", "title": 5}\n', "invalid title", 1),
        (b'{"text": "a", "id": 1.5}\n', "invalid id", 1),
        (b'{"text": "a", "id": true}\n', "invalid id", 1),
        (b'{"text": "a", "id": ""}\n', "invalid id", 1),
        (b'{"text": "a"}\n\n{"text": "\xff"}\n', "not UTF-8", 3),
        (b'{"text": "half \\ud800 pair"}\n', "not valid Unicode", 1),
        (b'{"text": "a", "id": "a\\nb"}\n', "invalid id", 1),
    ],
)
def test_a_bad_line_is_refused_with_file_and_line(tmp_path: Path, content: bytes, problem: str, line: int) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=f"^{path}:{line}: .*{problem}"):
        read(path)


GOOD = [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}]
BAD_LINES = {
    2: (b'{"text": ""}', "has no text"),
    3: (b'{"text": "x", "title": 5}', "has an invalid title"),
    4: (b'{"title": "x"}', "has no text"),
    5: (b'{"text": "x", "id": "\\u0000"}', "has an invalid id"),
    6: (b'{"text": "\xff"}', "not UTF-8"),
    7: (b'{"text": "x', "is not a JSON object"),
    8: (b'["text"]', "is not a JSON object"),
    9: (b'{"id": "a", "text": "again"}', "has an id that came before"),
    10: (b'{"text": "' + b"long " * 1000 + b'"}', "too long"),
}


@pytest.fixture
def spoilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line of every fault between two good ones."""
    monkeypatch.setattr("npm.corpus.readers.MAX_LINE_BYTES", 2000)
    first, last = (json.dumps(record).encode() for record in GOOD)
    path = tmp_path / "spoilt.jsonl"
    path.write_bytes(b"\n".join([first, *(line for line, _ in BAD_LINES.values()), last]) + b"\n")
    return path


def test_bad_lines_are_skipped_where_asked_and_all_of_them_reported(tmp_path: Path, spoilt: Path) -> None:
    skipped = SkippedRecords.beside(tmp_path / "index")
    settings = CorpusSettings(files=[str(spoilt)], skip_bad=True)
    assert [document.text for document in read_corpus(settings, skipped=skipped)] == ["one", "two"]
    report = [json.loads(line) for line in (tmp_path / "index.skipped.jsonl").read_text("utf-8").splitlines()]
    assert [(line["where"], line["kind"]) for line in report] == [
        (f"{spoilt}:{number}", kind) for number, (_, kind) in BAD_LINES.items()
    ]
    assert "skipped 9 of the corpus: has no text (2), is not a JSON object (2)" in skipped.summary
    assert f"{spoilt}:2 (has no text)" in skipped.summary and "index.skipped.jsonl" in skipped.summary


def test_bad_rows_of_a_table_and_bad_pieces_of_a_text_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b'id,text\na,one\nb\nc,"x"y\n\xff,z\nd,two\n')
    (tmp_path / "t.txt").write_bytes(b"one\n\nbad \xff\nrest of bad\n\nU\0T\0F\n\ntwo\n")
    table = list(read_corpus(CorpusSettings(files=[str(tmp_path / "t.csv")], skip_bad=True)))
    assert [(document.id, document.text) for document in table] == [("a", "one"), ("d", "two")]
    pieces = read(tmp_path / "t.txt", split=DocumentSplit.paragraph, skip_bad=True)
    assert [document.text for document in pieces] == ["one", "two"]


@pytest.mark.parametrize("compress", [zstd, gzip.compress])
def test_a_line_that_decompresses_to_too_much_is_refused_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr("npm.corpus.readers.MAX_LINE_BYTES", 1 << 20)
    path = tmp_path / f"bomb.jsonl.{'gz' if compress is gzip.compress else 'zst'}"
    path.write_bytes(compress(b'{"text": "a"}\n' + b" " * (1 << 24)))
    with pytest.raises(CorpusError, match=f"{path}:2: too long"):
        read(path)


def test_every_way_of_cutting_a_compressed_file_short_is_refused(tmp_path: Path) -> None:
    whole = zstd(json_lines(RECORDS))
    for length in (*range(1, len(whole)), len(whole)):
        (tmp_path / "corpus.jsonl.zst").write_bytes(whole[:length])
        if length == len(whole):
            assert len(read(tmp_path / "corpus.jsonl.zst")) == 3
        else:
            with pytest.raises(CorpusError, match="cannot be decompressed: Truncated"):
                read(tmp_path / "corpus.jsonl.zst")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("x.parquet", b"PAR1 but not really", "cannot be read as Parquet"),
        ("notes.doc", b"x", "unknown extension"),
        ("x.jsonl", b"", "is empty"),
        ("x.txt", b"\n \n\n", "has no text"),
        ("x.txt", "one\ntwo".encode("utf-16-le"), r"x\.txt:1: is not text"),
        ("x.jsonl.zst", b"{}", "cannot be decompressed"),
        ("a\nb.txt", b"text", "control characters"),
        (os.fsdecode(b"\xff.txt"), b"Text.", "is not UTF-8"),
        ("missing.jsonl", None, "does not exist"),
        ("*.jsonl", None, "no file matches"),
        (".", None, "has no file of a known format"),
    ],
)
def test_a_file_that_is_no_corpus_is_refused_before_any_is_read(
    tmp_path: Path, name: str, content: bytes | None, problem: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises((CorpusError, SettingError), match=problem):
        read(tmp_path if name.startswith(os.fsdecode(b"\xff")) else tmp_path / name)


def test_a_list_without_files_and_a_file_given_twice_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines(RECORDS))
    with pytest.raises(CorpusError, match=r"corpus\.files"):
        read()
    with pytest.raises(CorpusError, match="given twice"):
        read(path, tmp_path / "*.jsonl")


def test_seen_ids_equal_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npm.corpus.documents.RECENT_IDS", 100)
    seen, plain = SeenIds(), set[str]()
    for number in np.random.default_rng(0).integers(0, 2000, size=3000).tolist():
        identifier = f"document {number}"
        assert seen.add(identifier) == (identifier in plain)
        plain.add(identifier)


def test_the_report_of_what_is_skipped_replaces_an_older_one_and_never_writes_through_a_link(tmp_path: Path) -> None:
    report, mine = tmp_path / "index.skipped.jsonl", tmp_path / "mine.txt"
    mine.write_text("mine")
    report.symlink_to(mine)
    for _ in range(2):
        skipped = SkippedRecords.beside(tmp_path / "index")
        for number in range(2):
            skipped.add(f"x:{number}", "broken", "bad")
        assert len(report.read_text().splitlines()) == 2
    assert mine.read_text() == "mine"
