"""A file that was cut into several documents is deleted and comes back as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings, DocumentSplit
from npm.indexing.build import build_index
from npm.indexing.changes import ChangeResult, add_documents, delete_documents
from npm.indexing.settings import AddSettings, DeleteSettings, IndexBuildSettings
from npm.models.encoder import Encoder

INDEX = Path("index")
PAGE = "# Rooms\n## First\nThe reading room is called {0}.\n## Second\nThe long table of {0} is old.\n"


def corpus_of(*files: str) -> CorpusSettings:
    return CorpusSettings(files=list(files), split=DocumentSplit.heading)


@pytest.fixture(autouse=True)
def index(encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index over two files of two parts each, in the working directory."""
    monkeypatch.chdir(tmp_path)
    for file, name in (("rooms.md", "Linden"), ("halls.md", "Maple")):
        Path(file).write_text(PAGE.format(name), encoding="utf-8")
    settings = IndexBuildSettings(corpus=corpus_of("rooms.md", "halls.md"), blocks=BlockSettings(max_block_tokens=32))
    build_index(INDEX, settings, encoder)


def deleted(*ids: str) -> ChangeResult:
    return delete_documents(INDEX, DeleteSettings(ids=list(ids)))


def test_a_file_that_is_deleted_already_is_not_deleted_again() -> None:
    first, again = deleted("rooms.md"), deleted("rooms.md")
    assert (first.was_finished, first.deleted_documents) == (False, 2)
    assert (again.was_finished, again.deleted_documents) == (True, 0)
    assert again.manifest.generation == first.manifest.generation == 1


def test_a_file_of_which_a_part_was_deleted_is_deleted_for_the_rest() -> None:
    deleted("rooms.md, section 1")
    assert deleted("rooms.md").deleted_documents == 1


def test_a_deleted_file_is_new_when_it_is_added_again(encoder: Encoder) -> None:
    deleted("rooms.md")
    change = add_documents(INDEX, AddSettings(corpus=corpus_of("rooms.md")), encoder)
    assert (change.was_finished, change.added_documents, change.deleted_documents) == (False, 2, 0)
    assert change.manifest.counts.documents - change.manifest.deleted_documents == 4


@pytest.mark.parametrize("header", ["id,text", "Depot,Rate"])
def test_a_table_is_deleted_by_its_path_whatever_ids_its_rows_have(encoder: Encoder, header: str) -> None:
    for name in ("rates", "more"):
        Path(f"{name}.csv").write_text(f"{header}\n{name} one,The rate is 5.\n{name} two,The rate is 6.\n")
    add_documents(INDEX, AddSettings(corpus=corpus_of("rates.csv", "more.csv")), encoder)
    assert deleted("rates.csv").deleted_documents == 2
    assert deleted("more.csv", "rooms.md").deleted_documents == 4


@pytest.mark.parametrize("header", ["id,text", "Depot,Rate", "file,Rate"])
def test_a_table_that_is_replaced_loses_the_rows_that_it_lost(encoder: Encoder, header: str) -> None:
    Path("other.csv").write_text(f"{header}\nother one,The rate is 4.\n")
    rows = [header, "rates one,The rate is 5.", "rates two,The rate is 6."]
    for kept, deleted_rows in ((3, 0), (2, 2), (3, 1)):
        Path("rates.csv").write_text("\n".join(rows[:kept]) + "\n")
        files = ("rates.csv", "other.csv") if kept == 3 and not deleted_rows else ("rates.csv",)
        change = add_documents(INDEX, AddSettings(corpus=corpus_of(*files), replace=True), encoder)
        assert change.deleted_documents == deleted_rows
    assert deleted("other.csv").deleted_documents == 1  # not touched by the others
