"""Removal takes what this program wrote, and nothing of anybody else's, wherever a link leads."""

from __future__ import annotations

from pathlib import Path

import pytest

from index.locking import OWNER_FILE, folder_lock
from index.manifest import read_manifest
from index.removal import foreign_files, remove_own_files, remove_written
from index.store import write_folder, write_manifest
from npm.core.errors import ArtifactError
from tests.helpers.sample_folders import rewrite_manifest, write_sample


def write_nested(folder: Path) -> Path:
    """A folder of parts, one of them a folder of parts itself."""
    write_sample(folder / "segments" / "00000" / "corpus" / "00000")
    inner = folder / "segments" / "00000" / "corpus"
    write_manifest(
        inner, kind="store", settings={}, parts={"00000": read_manifest(inner / "00000", kind="sample").digest}
    )
    parts = {"segments/00000/corpus": read_manifest(inner, kind="store").digest}
    write_manifest(folder, kind="whole", settings={}, parts=parts)
    return folder


def test_a_folder_goes_with_its_parts_locks_and_temporary_files(tmp_path: Path) -> None:
    folder = write_nested(tmp_path / "index")
    (folder / ".manifest.json.lock").write_text("")
    (folder / ".manifest.json.tmp").write_text("")
    (folder / "segments" / "00000" / ".corpus.lock").write_text("")
    (folder / "segments" / "00000" / "corpus" / "00000" / ".raw.bin.tmp").write_text("")
    assert foreign_files(folder) == []
    remove_written(folder)
    assert list(tmp_path.iterdir()) == []
    remove_written(folder)


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        ".precious.lock",
        "segments/mine/a",
        "segments/00000/notes.txt",
        "segments/00000/corpus/00001/x",
        "d/e",
    ],
)
def test_a_folder_with_other_files_stays_as_it_is_and_they_are_named(tmp_path: Path, name: str) -> None:
    folder = write_nested(tmp_path / "index")
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("mine")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ArtifactError, match=rf"did not write: {name.partition('/')[0]}"):
        remove_written(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    remove_own_files(folder)
    assert [path for path in folder.rglob("*") if path.is_file()] == [folder / name]


def test_a_link_is_removed_itself_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    theirs = write_sample(tmp_path / "theirs")
    (tmp_path / "link").symlink_to(theirs)
    remove_written(tmp_path / "link")
    assert not (tmp_path / "link").is_symlink()
    folder = write_nested(tmp_path / "index")
    (folder / "segments" / "00001").symlink_to(theirs)
    assert foreign_files(folder) == ["segments/00001"]
    part = folder / "segments" / "00000" / "corpus" / "00000"
    part.rename(tmp_path / "moved")
    part.symlink_to(tmp_path / "moved")
    (folder / "segments" / "00001").unlink()
    remove_written(folder)
    assert sorted(path.name for path in (tmp_path / "moved").iterdir()) == sorted(
        path.name for path in theirs.iterdir()
    )


def test_names_that_lead_out_of_the_folder_reach_nothing(tmp_path: Path) -> None:
    theirs, folder = write_sample(tmp_path / "theirs"), write_sample(tmp_path / "folder")
    record = {"bytes": 9, "sha256": "0" * 64}
    rewrite_manifest(folder, files={"../theirs/raw.bin": record, str(theirs / "words.json"): record})
    rewrite_manifest(folder, parts={"../theirs": "0" * 64, ".": "0" * 64, "a/../../theirs": "0" * 64})
    remove_own_files(folder)
    assert len(list(theirs.iterdir())) == 5


def test_of_an_unfinished_folder_the_finished_shards_go_and_what_a_killed_build_left(tmp_path: Path) -> None:
    write_sample(tmp_path / "corpus" / "00000")
    killed = tmp_path / "corpus" / ".00001.tmp"
    killed.mkdir()
    (killed / OWNER_FILE).write_text("")
    (killed / "half.npy").write_bytes(b"half")
    (tmp_path / "corpus" / ".00001.lock").write_text("")
    write_sample(tmp_path / "corpus" / "copy-of-00000")
    assert foreign_files(tmp_path / "corpus") == ["copy-of-00000"]
    remove_written(tmp_path / "corpus", also=["copy-of-00000"])
    assert list(tmp_path.iterdir()) == []


def test_names_given_are_taken_for_ours_without_a_manifest(tmp_path: Path) -> None:
    for name in ("model.safetensors", "README.md"):
        (tmp_path / "encoder").mkdir(exist_ok=True)
        (tmp_path / "encoder" / name).write_text("x")
    assert foreign_files(tmp_path / "encoder", also=["model.safetensors"]) == ["README.md"]
    (tmp_path / "encoder" / "README.md").unlink()
    remove_written(tmp_path / "encoder", also=["model.safetensors"])
    assert not (tmp_path / "encoder").exists()


@pytest.mark.parametrize("content", ["notes.txt", "manifest.json", ".lock/inner", "folder/notes.txt"])
def test_a_temporary_name_that_somebody_else_uses_is_refused(tmp_path: Path, content: str) -> None:
    taken = tmp_path / ".folder.tmp" / content
    taken.parent.mkdir(parents=True)
    taken.write_text("{}")
    with pytest.raises(ArtifactError, match="in the way"):
        write_sample(tmp_path / "folder")
    assert taken.read_text() == "{}"


def test_a_link_under_a_temporary_name_is_not_followed(tmp_path: Path) -> None:
    theirs = write_sample(tmp_path / "theirs")
    (theirs / OWNER_FILE).write_text("")
    (tmp_path / ".folder.tmp").symlink_to(theirs)
    with pytest.raises(ArtifactError, match="in the way"):
        write_sample(tmp_path / "folder")
    assert len(list(theirs.iterdir())) == 6


def test_what_was_killed_between_its_last_file_and_its_rename_is_written_anew(tmp_path: Path) -> None:
    write_sample(tmp_path / "folder").rename(tmp_path / ".folder.tmp")
    with folder_lock(tmp_path / "folder"):
        write_sample(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_an_exception_leaves_what_the_caller_put_beside_the_files_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), write_folder(tmp_path / "folder", kind="sample", settings={}) as writer:
        (writer.folder / "theirs").mkdir()
        raise RuntimeError
    assert (tmp_path / ".folder.tmp" / "theirs").is_dir()
