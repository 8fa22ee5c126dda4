"""Corpora read from addresses: the documents, sizes and hashes that the same files have on a disk."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from npm.cli.settings import compose_settings
from npm.core.errors import CorpusError, StorageError
from npm.core.types import Document
from npm.corpus.documents import read_corpus
from npm.corpus.settings import CorpusSettings, DocumentSplit
from npm.corpus.sources import find_sources, input_record
from npm.indexing.estimate import sample_corpus
from tests.helpers.command_line import CommandLine, all_bytes, write_corpus, zstd

PLACE = "memory:///bucket/texts"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Files of every format, also in the memory store under the same names."""
    import pyarrow
    from pyarrow import parquet

    folder = tmp_path / "texts"
    folder.mkdir()
    lines = write_corpus(folder / "a.jsonl").read_bytes()

    def renamed(name: str) -> bytes:
        return lines.replace(b'"id": "', f'"id": "{name} '.encode())

    (folder / "b.jsonl.zst").write_bytes(zstd(renamed("b")))
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(renamed("c")))
    (folder / "d.txt").write_text("one line\nanother line\n", encoding="utf-8")
    (folder / "e.csv").write_text("id,text\ne1,a cell\n", encoding="utf-8")
    (folder / "f.md").write_text("# Heading\ntext\n", encoding="utf-8")
    parquet.write_table(pyarrow.Table.from_pylist([{"id": "g1", "text": "of a column"}]), folder / "g.parquet")
    for path in folder.iterdir():
        MemoryFileSystem().pipe_file(f"/bucket/texts/{path.name}", path.read_bytes())
    yield folder
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def settings(*files: object) -> CorpusSettings:
    return CorpusSettings(files=[str(file) for file in files], split=DocumentSplit.line)


def without_place(document: Document) -> Document:
    """Of a file that is one document the id is its path or address; rows without a text have it as a field."""
    fields = {name: value.rpartition("/")[2] if name == "file" else value for name, value in document.fields.items()}
    return replace(document, id=document.id.rpartition("/")[2], fields=fields)


def test_files_at_addresses_hold_the_documents_of_the_same_files_on_a_disk(folder: Path) -> None:
    expected = list(map(without_place, read_corpus(settings(folder / "*"))))
    assert len(expected) == 3 * 6 + 2 + 1 + 1 + 1
    of_paths = sample_corpus(settings(folder / "*"), documents=7)
    for files in (
        ["memory://bucket/texts/*"],
        [f"file://{folder}/*"],
        [f"{PLACE}/{path.name}" for path in sorted(folder.iterdir())],
    ):
        assert list(map(without_place, read_corpus(settings(*files)))) == expected
        at_addresses, on_disk = (find_sources(each.files) for each in (settings(*files), settings(folder / "*")))
        assert input_record(at_addresses) == input_record(on_disk)
        sampled = sample_corpus(settings(*files), documents=7)
        assert list(map(without_place, sampled.documents)) == list(map(without_place, of_paths.documents))
        assert sampled.weights.tolist() == of_paths.weights.tolist()
    assert [source.name for source in find_sources(["memory://bucket/texts/*.jsonl*"])] == [
        "a.jsonl",
        "b.jsonl.zst",
        "c.jsonl.gz",
    ]


def test_an_index_built_from_addresses_has_the_same_bytes(
    folder: Path, tmp_path: Path, tiny_encoder_folder: Path, npmlm: CommandLine
) -> None:
    given = [f"encoder={tiny_encoder_folder}", "blocks.max_block_tokens=64"]
    assert npmlm("build", f"corpus.files=[{folder}/[ab].jsonl*]", f"index={tmp_path / 'one'}", *given).status == 0
    address = f"corpus.files=[{PLACE}/a.jsonl, memory://bucket/texts/b.*.zst]"
    outcome = npmlm("build", address, f"index={tmp_path / 'two'}", *given)
    assert outcome.status == 0, outcome.err
    assert all_bytes(tmp_path / "one") == all_bytes(tmp_path / "two")


def test_config_takes_addresses_as_they_are_written() -> None:
    files = ["s3://bucket/x-*.jsonl.zst", "file:///a b/c.txt", "memory://x/[ab]=1.jsonl"]
    assert compose_settings("build", ["index=i", f"corpus.files=[{','.join(files)}]"]).corpus.files == files
    for file in files:
        assert compose_settings("build", ["index=i", f"corpus.files={file}"]).corpus.files == [file]


def test_faults_of_files_at_addresses_are_those_of_files_on_a_disk(folder: Path) -> None:
    MemoryFileSystem().pipe_file("/bucket/texts/empty.txt", b"")
    MemoryFileSystem().pipe_file("/bucket/texts/cut.jsonl.zst", (folder / "b.jsonl.zst").read_bytes()[:-9])
    MemoryFileSystem().pipe_file("/bucket/texts/bad.jsonl", b'{"text": "x"}\nno JSON\n')
    MemoryFileSystem().pipe_file("/bucket/texts/bad.parquet", b"PAR1 and no more")
    faults = {
        "none.txt": "does not exist",
        "none-*.txt": "no file matches",
        "x.doc": "does not exist",
        "empty.txt": "is empty",
        "cut.jsonl.zst": "cannot be decompressed",
        "bad.jsonl": ":2: ",
        "bad.parquet": "cannot be read as Parquet",
    }
    for name, problem in faults.items():
        with pytest.raises(CorpusError, match=problem) as caught:
            list(read_corpus(settings(f"{PLACE}/{name}")))
        assert f"{PLACE}/{name}" in str(caught.value)
    with pytest.raises(CorpusError, match="is a folder"):
        find_sources(["memory://bucket/texts"])
    with pytest.raises(CorpusError, match="given twice"):
        find_sources(["memory://bucket/texts/a.jsonl", "memory:///bucket/texts/*.jsonl"])
    with pytest.raises(StorageError, match="pip install s3fs"):
        find_sources(["s3://bucket/x-*.jsonl.zst"])
