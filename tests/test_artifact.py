"""Artifacts: written completely or not at all, the same bytes for the same input, damage told."""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm.core import artifact
from npm.core.artifact import (
    FolderWriter,
    check_folder,
    finished_folder,
    open_array,
    read_manifest,
    verify_folder,
    write_folder,
    write_manifest,
    written_once,
)
from npm.core.errors import ArtifactError
from npm.core.files import sha256_of_bytes, sha256_of_file
from tests.helpers.kills import fail_writes
from tests.helpers.sample_folders import MATRIX, flip_byte, rewrite_manifest, write_sample


def test_a_written_folder_reads_back_and_is_never_overwritten(tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "deep" / "folder")
    manifest = check_folder(folder, kind="sample")
    assert manifest.settings == {"seed": 7, "name": "Reykjavík"}
    assert sorted(manifest.files) == ["matrix.npy", "raw.bin", "stream.npy", "words.json"]
    matrix = open_array(folder, "matrix")
    np.testing.assert_array_equal(matrix, MATRIX)
    assert isinstance(matrix, np.memmap) and not matrix.flags.writeable
    np.testing.assert_array_equal(open_array(folder, "stream"), [[1, 2], [3, 4], [5, 6]])
    assert json.loads((folder / "words.json").read_text(encoding="utf-8")) == {"a": [1, 2], "b": "ö"}
    assert manifest.files["raw.bin"].sha256 == sha256_of_bytes(b"any bytes")
    for name, record in manifest.files.items():
        assert (record.sha256, record.bytes) == (sha256_of_file(folder / name), (folder / name).stat().st_size)
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]
    with pytest.raises(ArtifactError, match="exists already"):
        write_sample(folder)
    assert check_folder(folder, kind="sample") == manifest


def test_a_streamed_array_has_the_bytes_of_a_written_one(tmp_path: Path) -> None:
    with write_folder(tmp_path / "folder", kind="sample", settings={}) as writer:
        writer.write_array("written", MATRIX)
        stream = writer.stream_array("streamed", np.float32, (3,))
        stream.append(MATRIX[:1])
        stream.append(MATRIX[1:])
    files = check_folder(tmp_path / "folder", kind="sample").files
    assert files["streamed.npy"] == files["written.npy"]


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 5), dtype=np.float16),
        np.int64(3) * np.ones((), dtype=np.int64),
        np.array([True, False]),
        MATRIX.T,
        MATRIX.astype(">f4"),
        MATRIX[::2, ::-1],
    ],
    ids=["empty", "scalar", "bool", "transposed", "big-endian", "strided"],
)
def test_arrays_of_any_layout_keep_shape_and_values(tmp_path: Path, array: np.ndarray) -> None:
    with write_folder(tmp_path / "folder", kind="sample", settings={}) as writer:
        writer.write_array("array", array)
    check_folder(tmp_path / "folder", kind="sample")
    stored = open_array(tmp_path / "folder", "array")
    assert stored.dtype == array.dtype.newbyteorder("<")
    assert stored.shape == array.shape
    np.testing.assert_array_equal(stored, array)


@pytest.mark.parametrize("stop", [RuntimeError, KeyboardInterrupt])
def test_an_exception_in_the_middle_leaves_nothing(tmp_path: Path, stop: type[BaseException]) -> None:
    with pytest.raises(stop), write_folder(tmp_path / "folder", kind="sample", settings={}) as writer:
        writer.write_array("matrix", MATRIX)
        writer.stream_array("open", np.float32, (3,)).append(MATRIX)
        raise stop
    with pytest.raises(TypeError, match="object"), write_folder(tmp_path / "f", kind="k", settings={}) as writer:
        writer.write_array("objects", np.array([{}, None]))
    with pytest.raises(ValueError, match="expected uint8"), write_folder(tmp_path / "f", kind="k", settings={}) as w:
        w.stream_array("bytes", np.uint8).append(np.array([300], dtype=np.int64))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_reaches_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power cut may leave the name of a folder that lacks files, or a build that says done and is gone."""
    done: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def synced(descriptor: int) -> None:
        done.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def renamed(self: Path, target: Path) -> Path:
        done.append(f"{self.name} -> {target.name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    folder = write_sample(tmp_path / "folder")
    *files, manifest, before, name, after = done
    assert sorted(files) == sorted(path.name for path in folder.iterdir() if path.name != "manifest.json")
    assert (manifest, before) == (".manifest.json.tmp", ".folder.tmp")
    assert (name, after) == (".folder.tmp -> folder", tmp_path.name)
    done.clear()
    write_manifest(tmp_path, kind="whole", settings={})
    assert done == [tmp_path.name, ".manifest.json.tmp", tmp_path.name, tmp_path.parent.name]


@pytest.mark.parametrize("name", [".manifest.json.tmp", ".manifest.json.lock"])
def test_a_link_under_a_name_that_is_written_is_not_written_through(tmp_path: Path, name: str) -> None:
    theirs, folder = tmp_path / "theirs", tmp_path / "folder"
    folder.mkdir()
    theirs.write_text("precious")
    (folder / name).symlink_to(theirs)
    with suppress(OSError):
        write_manifest(folder, kind="whole", settings={})
    assert theirs.read_text() == "precious"


@pytest.mark.parametrize("writes_before", [0, 1, 3])
def test_a_refused_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes_before: int) -> None:
    old = write_manifest(tmp_path / "whole", kind="whole", settings={"n": 1})
    with monkeypatch.context() as patched:
        fail_writes(patched, lambda number, _: number > writes_before)
        with pytest.raises(OSError, match="No space left") as caught:
            write_sample(tmp_path / "folder")
        assert caught.value.filename.startswith(str(tmp_path))
        with pytest.raises(OSError, match="No space left"):
            write_manifest(tmp_path / "whole", kind="whole", settings={"n": 2})
    assert read_manifest(tmp_path / "whole", kind="whole") == old
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["manifest.json", "whole"]


# Damage


@pytest.mark.parametrize("name", ["matrix.npy", "raw.bin", "stream.npy", "words.json"])
def test_a_flipped_byte_a_truncated_and_a_missing_file_are_refused(tmp_path: Path, name: str) -> None:
    folder = write_sample(tmp_path / "folder")
    file, recorded = folder / name, read_manifest(folder).files[name]
    flip_byte(file, -1)
    for check in (lambda: check_folder(folder, kind="sample"), lambda: verify_folder(folder, "sample")):
        with pytest.raises(ArtifactError, match=f"{name}.*{sha256_of_file(file)} instead of {recorded.sha256}"):
            check()
    os.truncate(file, 7)
    with pytest.raises(ArtifactError, match=f"{name} is damaged: 7 bytes instead of {recorded.bytes}"):
        check_folder(folder, kind="sample")
    file.unlink()
    with pytest.raises(ArtifactError, match=f"{name} is damaged: it is missing"):
        check_folder(folder, kind="sample")


def test_every_flipped_byte_of_a_manifest_is_refused(tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "folder")
    good = (folder / "manifest.json").read_bytes()
    for position in range(len(good)):
        if good[position : position + 1].isspace():
            continue  # between values, another space means the same
        flip_byte(folder / "manifest.json", position)
        with pytest.raises(ArtifactError):
            read_manifest(folder, kind="sample")
        (folder / "manifest.json").write_bytes(good)


def test_large_files_are_hashed_by_verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "HASHED_AT_OPENING_BYTES", 100)
    folder = write_sample(tmp_path / "folder")
    flip_byte(folder / "matrix.npy", -1)
    check_folder(folder, kind="sample")
    with pytest.raises(ArtifactError, match="damaged"):
        check_folder(folder, kind="sample", hash_all=True)
    with pytest.raises(ArtifactError, match="damaged"):
        verify_folder(folder, "sample")
    data = (folder / "matrix.npy").read_bytes()
    for header in (data.replace(b"(4, 3)", b"(3, 3)"), b"\x00" + data[1:]):
        (folder / "matrix.npy").write_bytes(header)
        with pytest.raises(ArtifactError, match="damaged"):
            check_folder(folder, kind="sample")


def test_missing_unfinished_foreign_and_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no folder"):
        read_manifest(tmp_path / "nowhere")
    (tmp_path / "unfinished").mkdir()
    with pytest.raises(ArtifactError, match=r"no manifest\.json: .*did not finish"):
        read_manifest(tmp_path / "unfinished")
    folder = write_sample(tmp_path / "folder")
    with pytest.raises(ArtifactError, match="'search', got 'sample'"):
        read_manifest(folder, kind="search")
    for version in (99, 1, "2"):
        rewrite_manifest(folder, format_version=version)
        with pytest.raises(ArtifactError, match=f"another version.*got {version}"):
            read_manifest(folder)
    for text in ("[1]", "{", "\udcff", "{}", '{"manifest_version": 3, "name": "A browser extension"}', "[" * 10**5):
        (folder / "manifest.json").write_text(text, errors="surrogateescape")
        with pytest.raises(ArtifactError, match="not a manifest of this program"):
            read_manifest(folder)


@pytest.mark.parametrize("name", ["../theirs/raw.bin", "/etc/passwd", ".hidden", "a/b", "a\\b", "", "x\0"])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    for change in ({"files": {name: {"bytes": 9, "sha256": "0" * 64}}}, {"parts": {f"a/../{name}": "0" * 64}}):
        folder = write_sample(tmp_path / "folder")
        rewrite_manifest(folder, **change)
        with pytest.raises(ArtifactError, match="damaged"):
            read_manifest(folder)
        shutil.rmtree(folder)


def test_a_link_inside_a_folder_is_refused(tmp_path: Path) -> None:
    theirs, folder = write_sample(tmp_path / "theirs"), write_sample(tmp_path / "whole" / "a" / "b")
    write_manifest(tmp_path / "whole", kind="whole", settings={}, parts={"a/b": read_manifest(folder).digest})
    (folder / "raw.bin").unlink()
    (folder / "raw.bin").symlink_to(theirs / "raw.bin")
    with pytest.raises(ArtifactError, match=r"raw\.bin is a link to"):
        verify_folder(tmp_path / "whole", "whole")
    shutil.rmtree(tmp_path / "whole" / "a")
    (tmp_path / "b").symlink_to(theirs)
    (tmp_path / "whole" / "a").symlink_to(tmp_path)
    with pytest.raises(ArtifactError, match="a is a link to"):
        check_folder(tmp_path / "whole", kind="whole")


def test_a_folder_of_parts_is_checked_through(tmp_path: Path) -> None:
    parts = {name: read_manifest(write_sample(tmp_path / "whole" / name)).digest for name in ("a", "b")}
    manifest = write_manifest(tmp_path / "whole", kind="whole", settings={"n": 2}, parts=parts)
    assert manifest == check_folder(tmp_path / "whole", kind="whole")
    read: dict[str, int] = {}
    verify_folder(tmp_path / "whole", "whole", lambda name, count: read.update({name: read.get(name, 0) + count}))
    assert read == {"matrix.npy": 2 * 176, "raw.bin": 2 * 9, "stream.npy": 2 * 140, "words.json": 2 * 36}

    flip_byte(tmp_path / "whole" / "b" / "raw.bin", 0)
    with pytest.raises(ArtifactError, match=r"raw\.bin is damaged"):
        verify_folder(tmp_path / "whole", "whole")
    rewrite_manifest(tmp_path / "whole" / "b", settings={"seed": 8})
    with pytest.raises(ArtifactError, match=r"damaged.*another build"):
        check_folder(tmp_path / "whole", kind="whole")
    shutil.rmtree(tmp_path / "whole" / "a")
    with pytest.raises(ArtifactError, match="no folder"):
        check_folder(tmp_path / "whole", kind="whole")


def test_settings_are_read_by_type_and_named_in_full(tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "folder")
    rewrite_manifest(folder, settings={"seed": 7, "search": {"tier": "exact", "lists": {}, "share": 1}})
    settings = read_manifest(folder).settings
    assert settings.typed("search.tier", str | None) == "exact" and settings.typed("search.share", float) == 1.0
    assert settings.get("name") is None and "name" not in settings
    for asked in (lambda: settings["search"]["lists"]["count"], lambda: settings.typed("search.lists.count", int)):
        with pytest.raises(ArtifactError, match=r"another version of this program, without search\.lists\.count;"):
            asked()
    for name, hint in (("search.tier", int), ("seed", str), ("search.lists", list[int]), ("search.share", bool)):
        with pytest.raises(ArtifactError, match=rf"damaged: {name}: Input should be .*, got"):
            settings.typed(name, hint)


def test_a_folder_made_with_other_settings_is_refused_by_what_differs(tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "folder")
    assert finished_folder(tmp_path / "other", kind="sample", settings={}) is None
    assert finished_folder(folder, kind="sample", settings={"seed": 7, "name": "Reykjavík"}) is not None
    with pytest.raises(ArtifactError, match=r"folder was made from something else.*: expected seed=8, got seed=7;"):
        finished_folder(folder, kind="sample", settings={"seed": 8, "name": "Reykjavík"})


class Garbage:
    """In a cycle, with a finaliser of Python: it runs wherever the collector finds it."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        """Give other threads their turn."""
        for _ in range(50):
            pass


def test_threads_open_arrays_at_the_same_time(tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "folder")
    errors: list[BaseException] = []

    def opens(depth: int) -> None:
        if depth:
            opens(depth - 1)
            return
        for _ in range(1500):
            Garbage()
            try:
                open_array(folder, "matrix")
            except BaseException as error:
                errors.append(error)

    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    try:
        sys.setswitchinterval(1e-6)
        gc.set_threshold(15)
        threads = [threading.Thread(target=opens, args=(5 * number,)) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
    assert errors == []


def write_one(writer: FolderWriter) -> None:
    writer.write_array("one", np.ones(3))


def test_a_finished_folder_is_kept_only_while_every_byte_of_it_is_right(tmp_path: Path) -> None:
    given = {"kind": "sample", "settings": {"seed": 7}, "write": write_one}
    first = written_once(tmp_path / "folder", **given)
    assert written_once(tmp_path / "folder", **given) == first
    flip_byte(tmp_path / "folder" / "one.npy", -1)
    with pytest.raises(ArtifactError, match="damaged"):
        written_once(tmp_path / "folder", **given)


def test_nobody_writes_between_look_and_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, given = tmp_path / "folder", {"kind": "sample", "settings": {}, "write": write_one}
    looked: list[None] = []
    refused: list[ArtifactError] = []

    def another() -> None:
        try:
            written_once(folder, **given)
        except ArtifactError as error:
            refused.append(error)

    def look(folder: Path, **settings: Any) -> None:
        if not looked:
            looked.append(None)
            thread = threading.Thread(target=another)
            thread.start()
            thread.join()
        return finished_folder(folder, **settings) if refused else None

    monkeypatch.setattr(artifact, "finished_folder", look)
    assert written_once(folder, **given) == check_folder(folder, kind="sample")
    assert len(refused) == 1 and "another process" in str(refused[0])
