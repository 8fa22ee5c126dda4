"""An index that follows its files: what is read again, what goes, and the same answers as a new build."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npm.core.errors import ArtifactError, CorpusError
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings, DocumentSplit
from npm.corpus.sources import Source
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import IndexBuildSettings, VectorSettings
from npm.indexing.sync import MOST_SEGMENTS, SyncResult, files_index, sync_index
from npm.models.encoder import Encoder


def settings_of(folder: Path, **corpus: object) -> IndexBuildSettings:
    return IndexBuildSettings(
        corpus=CorpusSettings(files=[str(folder)], **corpus),  # type: ignore[arg-type]
        blocks=BlockSettings(max_block_tokens=32),
        vectors=VectorSettings(tokens=False, blocks=False),
    )


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "more").mkdir(parents=True)
    (folder / "a.txt").write_text("The depot is in Porto.")
    (folder / "more/a.txt").write_text("The depot is in Graz.")
    (folder / "b.md").write_text("# Travel\n\nThe daily rate is 737 EUR.\n")
    (folder / "rows.csv").write_text("id,text\n1,The first row.\n2,The second row.\n3,The third row.\n")
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": f"Line {n} of the log."}) + "\n" for n in range(3)))
    return folder


def texts(index: Path) -> list[str]:
    """The texts of the live documents, sorted."""
    opened = PhraseIndex.open(index)
    live = opened.live_documents
    numbers = range(opened.store.document_count) if live is None else np.flatnonzero(live).tolist()
    return sorted(opened.store.document(number).text.strip() for number in numbers)


def synced(docs: Path, encoder: Encoder) -> SyncResult:
    """The result of a sync, after which the documents are those of a new build."""
    index = docs.parent / "index"
    result = sync_index(index, settings_of(docs), encoder)
    number = sum(1 for _ in docs.parent.glob("fresh-*"))
    fresh = docs.parent / f"fresh-{number}"
    sync_index(fresh, settings_of(docs), encoder)
    assert texts(index) == texts(fresh)
    return result


def test_the_first_builds_and_the_next_finds_nothing_to_do(docs: Path, encoder: Encoder) -> None:
    first, second = synced(docs, encoder), synced(docs, encoder)
    assert (first.was_current, first.files, first.added_documents) == (False, 5, 9)
    assert (second.was_current, second.files, second.manifest.generation) == (True, 0, 0)


def test_a_folder_that_cannot_be_listed_deletes_nothing(
    docs: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced(docs, encoder)
    before, listed = texts(docs.parent / "index"), os.scandir

    def refused(place: str) -> object:
        if Path(place).name == "more":
            raise PermissionError(13, "Permission denied", place)
        return listed(place)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(CorpusError, match="more cannot be read"):
        sync_index(docs.parent / "index", settings_of(docs), encoder)
    assert texts(docs.parent / "index") == before


def test_new_changed_and_removed_files(docs: Path, encoder: Encoder) -> None:
    synced(docs, encoder)
    (docs / "a.txt").write_text("The depot is in Lyon.")
    (docs / "c.txt").write_text("The head of sales is Mira Holt.")
    (docs / "b.md").unlink()
    result = synced(docs, encoder)
    assert (result.files, result.added_documents, result.deleted_documents) == (2, 2, 2)


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_row_that_was_removed_goes_wherever_it_was(docs: Path, encoder: Encoder, gone: int) -> None:
    synced(docs, encoder)
    for name, header in (("rows.csv", 1), ("rows.jsonl", 0)):
        lines = (docs / name).read_text().splitlines(keepends=True)
        (docs / name).write_text("".join(lines[: header + gone] + lines[header + gone + 1 :]))
    assert synced(docs, encoder).files == 2


def test_a_table_that_was_removed_goes_with_its_rows(docs: Path, encoder: Encoder) -> None:
    synced(docs, encoder)
    (docs / "rows.csv").unlink()
    assert synced(docs, encoder).deleted_documents == 3


@pytest.mark.parametrize("spoiled", ["rows.csv", "rows.jsonl"])
def test_rows_stay_while_their_file_cannot_be_read(docs: Path, encoder: Encoder, spoiled: str) -> None:
    index, settings = docs.parent / "index", settings_of(docs, skip_bad=True)
    with (docs / "rows.jsonl").open("a") as file:
        file.write('{"id": "https://x.org/a.html", "text": "A row with the address of a page."}\n')
    sync_index(index, settings, encoder)
    before = texts(index)
    (docs / spoiled).write_bytes(b"\xff\xfe\x00")
    (docs / "a.txt").unlink()
    for _ in range(2):
        sync_index(index, settings, encoder)
        assert texts(index) == [text for text in before if text != "The depot is in Porto."]
    (docs / spoiled).unlink()  # now it is gone, with its rows
    sync_index(index, settings, encoder)
    assert len(texts(index)) == len(before) - 1 - (3 if spoiled == "rows.csv" else 4)


def test_lines_that_are_documents_are_rows_too(docs: Path, encoder: Encoder) -> None:
    index, settings = docs.parent / "index", settings_of(docs / "a.txt", split=DocumentSplit.line)
    (docs / "a.txt").write_text("One line.\nAnother line.\nA third line.\n")
    sync_index(index, settings, encoder)
    (docs / "a.txt").write_text("One line.\nA third line.\n")
    sync_index(index, settings, encoder)
    assert texts(index) == ["A third line.", "One line."]


def test_many_changes_leave_few_segments_and_deleted_documents(docs: Path, encoder: Encoder) -> None:
    index = docs.parent / "index"
    for number in range(MOST_SEGMENTS + 4):
        (docs / "a.txt").write_text(f"The depot has {number} rooms.")
        manifest = sync_index(index, settings_of(docs), encoder).manifest
        assert len(manifest.segments) <= MOST_SEGMENTS + 1
        assert manifest.deleted_documents < 0.25 * manifest.counts.documents + 1
    assert synced(docs, encoder).was_current


def test_other_settings_and_an_empty_folder_change_nothing(docs: Path, encoder: Encoder) -> None:
    index = docs.parent / "index"
    sync_index(index, settings_of(docs), encoder)
    before = texts(index)
    with pytest.raises(ArtifactError, match=r"join_lines"):
        sync_index(index, settings_of(docs, join_lines=False), encoder)
    for file in [*docs.rglob("*.*")]:
        file.unlink()
    with pytest.raises(CorpusError):
        sync_index(index, settings_of(docs), encoder)
    assert texts(index) == before


def test_files_have_an_index_in_the_cache_and_nothing_beside_them(
    docs: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(docs.parent / "cache"))
    before = {file: file.read_bytes() for file in sorted(docs.rglob("*")) if file.is_file()}
    folder, first = files_index([str(docs)], encoder)
    assert folder.is_relative_to(docs.parent / "cache") and first.added_documents == 9
    monkeypatch.chdir(docs.parent)
    (docs / "b.md").write_bytes(b"# Travel\n\nThe daily rate is 740 EUR.\n")
    again, second = files_index(["docs"], encoder)  # the same folder by another name
    assert again == folder and (second.files, second.added_documents) == (1, 1)
    assert files_index([str(docs / "a.txt")], encoder)[0] != folder
    (docs / "b.md").write_bytes(before[docs / "b.md"])
    assert before == {file: file.read_bytes() for file in sorted(docs.rglob("*")) if file.is_file()}


def test_a_file_that_cannot_be_read_is_named_and_the_others_are(
    docs: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(docs.parent / "cache"))
    (docs / "bad.txt").write_bytes(b"\xff\xfe\x00")
    notes: list[str] = []
    folder, _ = files_index([str(docs)], encoder, notice=notes.append)
    assert len(texts(folder)) == 9 and any("skipped" in note for note in notes)


def test_a_file_that_has_moved_is_found_under_its_new_path_alone(docs: Path, encoder: Encoder) -> None:
    synced(docs, encoder)
    (docs / "b.md").rename(docs / "more/b.md")
    assert (synced(docs, encoder).files, synced(docs, encoder).was_current) == (1, True)
    opened = PhraseIndex.open(docs.parent / "index")
    assert opened.document(str(docs / "more/b.md")) is not None and opened.document(str(docs / "b.md")) is None


def ids(index: Path) -> list[str]:
    """The ids of the live documents, sorted."""
    opened = PhraseIndex.open(index)
    live = opened.live_documents
    numbers = range(opened.store.document_count) if live is None else np.flatnonzero(live).tolist()
    return sorted(opened.store.document_ids(numbers))


def test_ids_of_rows_stay_where_other_folders_have_files_of_the_same_name(docs: Path, encoder: Encoder) -> None:
    index, other = docs.parent / "index", docs.parent / "other"
    sync_index(index, settings_of(docs), encoder)
    before = ids(index)
    assert f"{docs}/rows.jsonl:1" in before
    other.mkdir()
    (other / "rows.jsonl").write_text(json.dumps({"text": "A line of another log."}))
    for files in ([str(docs), str(other)], [str(other), str(docs)], [str(docs), str(other)]):
        settings = settings_of(docs)
        sync_index(index, replace(settings, corpus=replace(settings.corpus, files=files)), encoder)
        assert ids(index) == sorted([*before, f"{other}/rows.jsonl:1"])
    assert sync_index(index, settings_of(docs), encoder).deleted_documents == 1
    assert ids(index) == before


def test_rows_with_ids_of_an_earlier_release_get_those_of_this_one(
    docs: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (docs / "rows.csv").write_text("text\nThe first row.\nThe second row.\n")
    with monkeypatch.context() as earlier:
        identifier = Source.identifier
        by_name = property(lambda each: each.name if each.format in ("jsonl", "table") else identifier.fget(each))
        earlier.setattr(Source, "identifier", by_name)
        sync_index(docs.parent / "index", settings_of(docs), encoder)
    assert "rows.csv:2" in ids(docs.parent / "index")
    assert synced(docs, encoder).files == 2
    assert f"{docs}/rows.csv:2" in ids(docs.parent / "index") and "rows.csv:2" not in ids(docs.parent / "index")
    assert synced(docs, encoder).was_current


@pytest.mark.parametrize("name", ["b.md", "rows.csv", "rows.jsonl"])
def test_the_only_file_may_move(docs: Path, encoder: Encoder, name: str) -> None:
    index, before = docs.parent / "index", docs / name
    if name == "rows.csv":
        before.write_text("text\nThe first row.\n")
    sync_index(index, settings_of(before), encoder)
    after = before.rename(docs / "more" / name)
    sync_index(index, settings_of(after), encoder)
    assert all(identifier.startswith(str(after)) for identifier in ids(index))
    assert sync_index(index, settings_of(after), encoder).was_current


def test_a_file_that_cannot_be_read_any_more_keeps_its_text(
    docs: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(docs.parent / "cache"))
    folder, _ = files_index([str(docs)], encoder)
    before, notes = texts(folder), list[str]()
    index = docs.parent / "index"
    sync_index(index, settings_of(docs), encoder)
    (docs / "b.md").write_bytes(b"\xff\xfe\x00")
    assert files_index([str(docs)], encoder, notice=notes.append)[1].was_current
    assert texts(folder) == before and any("b.md" in note for note in notes)
    with pytest.raises(CorpusError):  # without corpus.skip_bad
        sync_index(index, settings_of(docs), encoder)
