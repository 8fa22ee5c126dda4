"""Indexes and corpora at addresses: published and fetched whole, in part, damaged, killed, refused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from npm.core.errors import ArtifactError, CorpusError, SettingError, StorageError
from npm.corpus.addresses import Address
from npm.indexing.changes import delete_documents
from npm.indexing.compact import compact_index
from npm.indexing.settings import CompactSettings, DeleteSettings, TransferSettings
from npm.indexing.transfer import DIGEST_NAME, fetch, publish
from npm.indexing.verify import verify_index
from tests.helpers.command_line import CommandLine, all_bytes, write_corpus
from tests.helpers.live_indexes import part_of

PLACE = "memory://bucket/index"
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def empty_memory() -> Iterator[None]:
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def at(address: str = PLACE, parallel: int = 3) -> TransferSettings:
    return TransferSettings(address=address, parallel=parallel)


def files_of(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in all_bytes(folder).items() if not name.endswith("/")}


def objects(address: str = PLACE) -> dict[str, bytes]:
    """Everything at an address, by the rest of its path."""
    place = Address(address)
    return {name: place.fs.cat_file(str(place / name)) for name in place.sizes()}


@pytest.mark.parametrize("place", [PLACE, "file://{folder}/bucket/index"])
def test_an_index_that_is_published_and_fetched_has_the_same_bytes(
    place: str, built_index: Path, tmp_path: Path
) -> None:
    address = place.format(folder=tmp_path)
    shown: list[tuple[str, float, float | None]] = []
    files, total = publish(str(built_index), [], at(address), lambda *shares: shown.append(shares))
    assert files == len(files_of(built_index))
    assert {name for name in objects(address) if name != DIGEST_NAME} == files_of(built_index).keys()
    root_bytes = (built_index / "manifest.json").stat().st_size
    assert total == sum(map(len, files_of(built_index).values()))
    assert shown[-1] == ("publish", total - root_bytes, total - root_bytes)
    shown.clear()
    assert fetch(str(tmp_path / "copy"), "", at(address), lambda *shares: shown.append(shares)) == (files, total)
    assert shown[-1] == ("fetch", total - root_bytes, total - root_bytes)
    assert all_bytes(tmp_path / "copy") == all_bytes(built_index)
    verify_index(tmp_path / "copy")
    assert publish(str(built_index), [], at(address)) == (0, 0)
    (part_of(tmp_path / "copy", "vectors") / "00000" / "vectors.npy").unlink()
    assert fetch(str(tmp_path / "copy"), "", at(address)) == (files, total)  # what is there is read, the rest copied
    assert all_bytes(tmp_path / "copy") == all_bytes(built_index)


def test_only_what_the_present_generation_names_is_published(built_index: Path, tmp_path: Path) -> None:
    index = shutil.copytree(built_index, tmp_path / "index")
    (index / "search-0123456789abcdef").mkdir()
    (index / "search-0123456789abcdef" / "lists.bin").write_bytes(b"of an earlier generation")
    (index / "notes.txt").write_text("mine")
    publish(str(index), [], at())
    assert {name for name in objects() if name != DIGEST_NAME} == files_of(built_index).keys()


def test_files_come_first_and_a_publish_killed_in_any_of_them_goes_on(
    built_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write, upload = Address.write, Address.upload
    monkeypatch.setattr(Address, "write", lambda self, data: (written.append(str(self)), write(self, data)))
    monkeypatch.setattr(Address, "upload", lambda self, path: (written.append(str(self)), upload(self, path)))
    publish(str(built_index), [], at(parallel=1))
    names = [name.removeprefix(f"{Address(PLACE)}/") for name in written]
    assert (names[0], names[-1]) == (DIGEST_NAME, "manifest.json")
    is_manifest = [name.endswith("manifest.json") for name in names[1:]]
    assert is_manifest == sorted(is_manifest)
    whole = objects()
    for count, name in enumerate(names):  # killed while it writes this file
        MemoryFileSystem.store.clear()
        for each in names[:count]:
            write(Address(PLACE) / each, whole[each])
        write(Address(PLACE) / name, whole[name][:-1])
        publish(str(built_index), [], at())
        assert objects() == whole


def test_an_address_holds_one_index_whole_or_begun(built_index: Path, tmp_path: Path, npmlm: CommandLine) -> None:
    other = shutil.copytree(built_index, tmp_path / "other")
    assert npmlm("delete", f"index={other}", "ids=[bank]").status == 0
    publish(str(built_index), [], at())
    before = objects()
    with pytest.raises(ArtifactError, match="something else"):
        publish(str(other), [], at())
    Address(PLACE).fs.rm(f"{PLACE}/manifest.json")
    with pytest.raises(ArtifactError, match="something else"):  # begun by another one
        publish(str(other), [], at())
    assert publish(str(built_index), [], at())[0] == 1
    assert objects() == before
    Address("memory://bucket/texts/a.txt").write(b"text")
    with pytest.raises(ArtifactError, match=r"a\.txt"):
        publish(str(built_index), [], at("memory://bucket/texts"))


def test_what_was_lost_or_cut_at_the_address_is_copied_again(built_index: Path, tmp_path: Path) -> None:
    publish(str(built_index), [], at())
    before, place = objects(), Address(PLACE)
    lost, cut = sorted(name for name, data in before.items() if name.endswith(".npy") and len(data) > 200)[:2]
    place.fs.rm(str(place / lost))
    (place / cut).write(before[cut][:-1])
    assert publish(str(built_index), [], at()) == (2, len(before[lost]) + len(before[cut]))
    assert objects() == before


def test_a_half_published_index_is_not_fetched(built_index: Path, tmp_path: Path) -> None:
    publish(str(built_index), [], at())
    Address(PLACE).fs.rm(f"{PLACE}/manifest.json")
    with pytest.raises(ArtifactError, match="publish again"):
        fetch(str(tmp_path / "copy"), "", at())
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("what", "how"),
    [
        *(("vectors.npy", how) for how in ("changed", "longer", "cut")),
        *(("vectors-????????????????/manifest.json", how) for how in ("changed", "cut")),
        *(("/manifest.json", how) for how in ("changed", "cut")),
    ],
)
def test_a_damaged_file_at_the_address_is_refused_on_arrival(
    what: str, how: str, built_index: Path, tmp_path: Path
) -> None:
    publish(str(built_index), [], at())
    name = next(name for name in objects() if fnmatch(f"/{name}", f"*{what}"))
    data = objects()[name]
    damaged = {"changed": data[:-9] + b"?" + data[-8:], "longer": data + b" ", "cut": data[:-7]}[how]
    (Address(PLACE) / name).write(damaged)
    with pytest.raises(ArtifactError) as caught:
        fetch(str(tmp_path / "copy"), "", at())
    assert str(Address(PLACE) / name) in str(caught.value)
    assert not (tmp_path / "copy" / name).exists()
    assert not (tmp_path / "copy" / "manifest.json").exists()
    (Address(PLACE) / name).write(data)
    fetch(str(tmp_path / "copy"), "", at())
    assert all_bytes(tmp_path / "copy") == all_bytes(built_index)


@pytest.mark.parametrize("how", ["changed", "missing"])
def test_a_damaged_index_is_not_published_and_what_is_there_of_it_is_not_taken_for_whole(
    how: str, built_index: Path, tmp_path: Path
) -> None:
    index = shutil.copytree(built_index, tmp_path / "index")
    file = next(index.rglob("vectors.npy"))
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1])) if how == "changed" else file.unlink()
    with pytest.raises(ArtifactError, match="damaged") as caught:
        publish(str(index), [], at())
    assert str(file) in str(caught.value)
    assert "manifest.json" not in objects()
    assert objects().get(file.relative_to(index).as_posix(), b"") != file.read_bytes() if how == "changed" else True
    publish(str(built_index), [], at())
    assert {name: each for name, each in objects().items() if name != DIGEST_NAME} == files_of(built_index)


def test_an_index_that_is_changed_while_it_is_published_is_not_called_damaged(
    built_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, upload = shutil.copytree(built_index, tmp_path / "index"), Address.upload

    def changed(self: Address, file: Path) -> None:
        upload(self, file)
        if "corpus" in str(file):
            delete_documents(index, DeleteSettings(ids=["bank"]))
            compact_index(index, CompactSettings())
            monkeypatch.undo()

    monkeypatch.setattr(Address, "upload", changed)
    with pytest.raises(ArtifactError, match="was changed while it was published"):
        publish(str(index), [], TransferSettings(address=f"file://{tmp_path / 'there'}", parallel=1))


def test_a_folder_that_holds_something_else_is_not_written_to(
    built_index: Path, tmp_path: Path, npmlm: CommandLine
) -> None:
    publish(str(built_index), [], at())
    other = shutil.copytree(built_index, tmp_path / "other")
    assert npmlm("delete", f"index={other}", "ids=[bank]").status == 0
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "todo.txt").write_text("mine")
    unfinished = tmp_path / "unfinished"
    corpus = part_of(built_index, "corpus")
    shutil.copytree(corpus, unfinished / corpus.name)
    (unfinished / corpus.name / "manifest.json").write_text("{}")
    for folder in (other, notes, unfinished):
        before = all_bytes(folder)
        with pytest.raises(ArtifactError):
            fetch(str(folder), "", at())
        assert before.items() <= all_bytes(folder).items()
        assert folder is unfinished or before == all_bytes(folder)


def test_a_fetch_without_enough_room_on_the_disk_copies_nothing(
    built_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(str(built_index), [], at())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, 1000))
    with pytest.raises(StorageError, match="no room for the files to be fetched"):
        fetch(str(tmp_path / "copy"), "", at())
    assert not (tmp_path / "copy").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from npm.corpus.addresses import Address
from npm.indexing import transfer
from npm.indexing.settings import CompactSettings, DeleteSettings, TransferSettings
verb, index, address, files = sys.argv[1:]
name, left = "upload" if verb == "publish" else "download", int(files)
copy = getattr(Address, name)
def deadly(self, path):
    global left
    if left == 0:
        half = path.read_bytes() if verb == "publish" else self.read(1 << 30)
        half = half[: len(half) // 2]
        self.write(half) if verb == "publish" else path.write_bytes(half)
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    copy(self, path)
setattr(Address, name, deadly)
settings = TransferSettings(address=address, parallel=1)
transfer.publish(index, [], settings) if verb == "publish" else transfer.fetch(index, "", settings)
"""


def killed(verb: str, index: Path, address: str, files: int) -> None:
    command = [sys.executable, "-c", KILLED, verb, str(index), address, str(files)]
    done = subprocess.run(command, env=os.environ, capture_output=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def test_corpus_files_are_published_with_their_hashes_and_fetched(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        write_corpus(tmp_path / name)
    (tmp_path / "c.txt").write_text("text of a file")
    files = [f"{tmp_path}/*.jsonl", f"file://{tmp_path}/c.txt"]
    assert publish("", files, at())[0] == 4
    fetch("", str(tmp_path / "copy"), at())
    copied = files_of(tmp_path / "copy")
    assert copied.keys() == {"a.jsonl", "b.jsonl", "c.txt", "manifest.json"}
    assert all(copied[name] == (tmp_path / name).read_bytes() for name in ("a.jsonl", "b.jsonl", "c.txt"))
    with pytest.raises(CorpusError, match="of this machine"):
        publish("", ["memory://bucket/index/*.jsonl"], at("memory://bucket/again"))
    with pytest.raises(ArtifactError, match="corpus=DIR"):
        fetch(str(tmp_path / "index"), "", at())
    (tmp_path / "x").mkdir()
    write_corpus(tmp_path / "x" / "a.jsonl")
    with pytest.raises(CorpusError, match=r"corpus\.files"):
        publish("", [str(tmp_path / "a.jsonl"), str(tmp_path / "x" / "a.jsonl")], at("memory://other"))


class Refusing(MemoryFileSystem):
    """A store that answers as one does where a bucket is missing, or may not be used."""

    protocol = "s3"

    def info(self, path: str, **given: Any) -> Any:
        raise PermissionError("Access Denied") if "secret" in path else FileNotFoundError("The bucket does not exist")

    find = glob = _open = info


def test_a_store_that_refuses_and_a_driver_that_is_missing_are_one_message_each(
    built_index: Path, tmp_path: Path, npmlm: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = f"index={built_index}"
    assert "s3fs" not in sys.modules
    npmlm("publish", index, "address=gs://bucket/x").refused("pip install gcsfs")
    npmlm("fetch", f"index={tmp_path / 'i'}", "address=memory://bucket/none").refused("no manifest.json")
    npmlm("publish", index, "address=bucket/x").refused("'bucket/x'", "s3://")
    npmlm("publish", index, "address=http://host/x").refused("'http://host/x'", "s3://")
    npmlm("publish", index, "address=s3://").refused("'s3://'")
    npmlm("publish", index).refused("address", "s3://")
    npmlm("publish", "address=file:///x").refused("index=DIR", "neither")
    npmlm("fetch", index, f"corpus={tmp_path}", "address=memory://x").refused("index=DIR", "both")
    npmlm("publish", index, "address=memory://x").refused("address=memory://x", "s3://")
    npmlm("publish", index, "address=file:///x", "parallel=0").refused("parallel", "at least 1")
    npmlm("publish", f"index={tmp_path / 'none'}", f"address=file://{tmp_path}/x").refused("no folder")
    monkeypatch.setitem(_registry, "s3", Refusing)
    npmlm("publish", index, "address=s3://secret/x").refused("s3://secret/x")
    npmlm("publish", index, "address=s3://none/x").refused("s3://none/x")
    npmlm("fetch", f"index={tmp_path / 'i'}", "address=s3://secret/x").refused("s3://secret/x")
    assert not (tmp_path / "i").exists()


def test_the_command_line_publishes_and_fetches(built_index: Path, tmp_path: Path, npmlm: CommandLine) -> None:
    done = npmlm("publish", f"index={built_index}", f"address=file://{tmp_path}/a, b*/it's")
    assert (done.status, done.out) == (0, "")
    assert f"{len(files_of(built_index))} files copied" in done.err
    assert npmlm("fetch", f"index={tmp_path / 'copy'}", f"address=file://{tmp_path}/a, b*/it's").status == 0
    assert all_bytes(tmp_path / "copy") == all_bytes(built_index)


def test_an_address_without_anything_is_refused_before_a_store_is_asked() -> None:
    for text in ("s3", "", "://x", "ftp://x/y"):
        with pytest.raises(SettingError, match="address"):
            Address(text)


@pytest.mark.parametrize("given", ["s3://bucket/index", "a file"])
def test_a_folder_that_cannot_be_one_is_refused(
    given: str, built_index: Path, tmp_path: Path, npmlm: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a file").write_text("mine", encoding="utf-8")
    address = f"file://{tmp_path}/bucket/index"
    publish(str(built_index), [], at(address))
    for folder in ("index", "corpus"):
        npmlm("fetch", f"{folder}={given}", f"address={address}").refused("must be a folder")
    texts = write_corpus(tmp_path / "texts.jsonl")
    npmlm("build", f"corpus.files={texts}", f"index={given}").refused("must be a folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a file", "bucket", "texts.jsonl"]
