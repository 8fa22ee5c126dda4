"""A disk that is full, in every stage: one clear message, nothing finished is lost, and the same call goes on."""

from __future__ import annotations

import errno
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from npm.core.errors import StorageError
from npm.core.files import KEPT_FREE_BYTES, check_room, stored_bytes
from npm.indexing.build import build_index
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from tests.helpers.command_line import all_bytes
from tests.helpers.kills import fail_writes
from tests.indexing.crashes import COMMANDS, NEW, prepared, write_inputs
from tests.indexing.small_builds import small_settings, write_corpus

PLACES = {
    "blocks": "/.00000.tmp/token_ids.npy",
    "vectors": "/.00001.tmp/vectors.npy",
    "lexicon": "/.00000.tmp/posting_blocks.npy",
    "quantizer": ".tmp/trained.faiss",
    "codes": "/.00001.tmp/codes.npy",
    "lists": "/lists.bin",
    "manifest": "/index/.manifest.json.tmp",
}
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.jsonl")


@pytest.fixture(scope="module")
def undisturbed(encoder: Encoder, corpus: Path) -> dict[str, bytes]:
    build_index(corpus.parent / "index", small_settings(corpus), encoder)
    return all_bytes(corpus.parent / "index")


def finished_files(folder: Path) -> dict[str, bytes]:
    """Everything in folders that have their manifest."""
    files = all_bytes(folder) if folder.is_dir() else {}
    done = {str(Path(name).parent) for name in files if Path(name).name == "manifest.json" and ".tmp" not in name}
    return {name: data for name, data in files.items() if str(Path(name).parent) in done}


@pytest.mark.parametrize("place", PLACES)
def test_a_full_disk_is_told_and_the_same_call_goes_on_when_there_is_space(
    place: str,
    encoder: Encoder,
    corpus: Path,
    undisturbed: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before: list[dict[str, bytes]] = []

    def is_full(_: int, file: Path) -> bool:
        if PLACES[place] not in str(file):
            return False
        before.append(finished_files(tmp_path / "index"))
        return True

    settings = small_settings(corpus)
    with monkeypatch.context() as patched:
        fail_writes(patched, is_full)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as caught:
            build_index(tmp_path / "index", settings, encoder)
    assert len(before) == 1, "the disk was full at another place"
    assert str(tmp_path / "index") in str(caught.value)
    assert finished_files(tmp_path / "index") == before[0]
    assert bool(before[0]) == (place != "blocks")
    assert (tmp_path / "index").exists() == (place != "blocks")
    build_index(tmp_path / "index", settings, encoder)
    assert all_bytes(tmp_path / "index") == undisturbed
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("changes")
    write_inputs(folder)
    prepared(folder)
    return folder / "base" / "index"


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in NEW])
def test_a_change_on_a_full_disk_leaves_the_index_as_it_was_and_the_same_command_finishes(
    command: str, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed, index = (shutil.copytree(base, base.parents[1] / f"{command}{n}" / "index") for n in (1, 2))
    COMMANDS[command](undisturbed)
    before, writes, is_done = (index / "manifest.json").read_bytes(), 0, False
    while not is_done:  # each run has a later end, since finished parts are kept
        with monkeypatch.context() as patched:
            fail_writes(patched, lambda number, _, most=writes: number > most)
            try:
                COMMANDS[command](index)
                is_done = True
            except OSError as error:
                assert error.errno == errno.ENOSPC and str(index) in str(error)
                assert (index / "manifest.json").read_bytes() == before
                PhraseIndex.open(index)
        writes += 2
    assert writes > 2
    assert all_bytes(index) == all_bytes(undisturbed)


def set_free(monkeypatch: pytest.MonkeyPatch, free_bytes: float) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 0, int(free_bytes)))


def test_what_does_not_fit_is_refused_with_what_is_needed_and_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_free(monkeypatch, KEPT_FREE_BYTES + 1000)
    check_room(tmp_path / "new" / "index", 1000, what="vectors")
    with pytest.raises(StorageError, match="no room for the vectors") as caught:
        check_room(tmp_path / "new" / "index", 1001, what="vectors")
    assert all(part in str(caught.value) for part in ("1001 B", "64.0 MiB", str(tmp_path / "new" / "index")))
    set_free(monkeypatch, 0)
    check_room(tmp_path, 0, what="nothing")


def test_vectors_that_will_not_fit_are_refused_before_the_first_is_encoded(
    encoder: Encoder, corpus: Path, undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small_settings(corpus)
    with monkeypatch.context() as patched:
        set_free(patched, KEPT_FREE_BYTES)
        with pytest.raises(StorageError, match="no room for the vectors"):
            build_index(tmp_path / "index", settings, encoder)
        assert not list((tmp_path / "index").glob("vectors-*/*"))
    build_index(tmp_path / "index", settings, encoder)
    assert all_bytes(tmp_path / "index") == undisturbed


def test_what_is_there_already_needs_no_room(
    encoder: Encoder, corpus: Path, undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = shutil.copytree(corpus.parent / "index", tmp_path / "index")
    assert stored_bytes(index) == sum(map(len, undisturbed.values()))
    (index / "manifest.json").unlink()
    set_free(monkeypatch, KEPT_FREE_BYTES)
    build_index(index, small_settings(corpus), encoder)
    assert all_bytes(index) == undisturbed
