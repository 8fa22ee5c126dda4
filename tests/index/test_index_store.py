"""Folders: whole or not at all, the same bytes for the same input, refused writes told in one message."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from index.files import CountingFile, npy_header, sha256_of_bytes, sha256_of_file
from index.locking import folder_lock
from index.manifest import read_manifest
from index.store import check_folder, open_array, verify_folder, write_folder, write_manifest
from npm.core.errors import ArtifactError, StorageError
from tests.helpers.sample_folders import MATRIX, write_sample


def test_a_written_folder_reads_back(tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "deep" / "folder")
    manifest = check_folder(folder, kind="sample")
    assert manifest.settings == {"seed": 7, "name": "Reykjavík"}
    assert sorted(manifest.files) == ["matrix.npy", "raw.bin", "stream.npy", "words.json"]
    np.testing.assert_array_equal(open_array(folder, "matrix"), MATRIX)
    np.testing.assert_array_equal(open_array(folder, "stream"), [[1, 2], [3, 4], [5, 6]])
    assert json.loads((folder / "words.json").read_text(encoding="utf-8")) == {"a": [1, 2], "b": "ö"}
    assert manifest.files["raw.bin"].sha256 == sha256_of_bytes(b"any bytes")
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]


def test_an_opened_array_is_memory_mapped_and_cannot_be_written(tmp_path: Path) -> None:
    array = open_array(write_sample(tmp_path / "folder"), "matrix")
    assert isinstance(array, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1


def test_recorded_hashes_are_those_of_the_files(tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "folder")
    for name, record in read_manifest(folder, kind="sample").files.items():
        assert record.sha256 == sha256_of_file(folder / name)
        assert record.bytes == (folder / name).stat().st_size


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = write_sample(tmp_path / "first"), write_sample(tmp_path / "elsewhere" / "second")
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_a_streamed_array_has_the_bytes_of_a_written_one(tmp_path: Path) -> None:
    with write_folder(tmp_path / "folder", kind="sample", settings={}) as writer:
        writer.write_array("written", MATRIX)
        unknown = writer.stream_array("unknown", np.float32, (3,))
        declared = writer.stream_array("declared", np.float32, (3,), row_count=4)
        for stream in (unknown, declared):
            stream.append(MATRIX[:1])
            stream.append(MATRIX[1:])
    files = check_folder(tmp_path / "folder", kind="sample").files
    assert files["unknown.npy"] == files["declared.npy"] == files["written.npy"]


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


def test_an_array_longer_than_a_chunk_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index.files.CHUNK_BYTES", 64)
    array = np.arange(1000, dtype=np.int32).reshape(250, 4)
    with write_folder(tmp_path / "folder", kind="sample", settings={}) as writer:
        writer.write_array("array", array)
    verify_folder(tmp_path / "folder", "sample")
    np.testing.assert_array_equal(open_array(tmp_path / "folder", "array"), array)


def test_headers_are_as_long_whatever_the_number_of_rows() -> None:
    assert len(npy_header(np.dtype("<f4"), (0, 256))) == len(npy_header(np.dtype("<f4"), (10**12, 256))) == 128


def test_misuse_of_a_writer_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(TypeError, match="object"),
        write_folder(tmp_path / "objects", kind="sample", settings={}) as writer,
    ):
        writer.write_array("objects", np.array([{}, None]))
    for name in ("../escape", "manifest.json", ".hidden", "twice.bin"):
        with (
            pytest.raises(ValueError, match="file name"),
            write_folder(tmp_path / "f", kind="k", settings={}) as writer,
        ):
            writer.open_binary("twice.bin")
            writer.open_binary(name)
    with (
        pytest.raises(ValueError, match="expected uint8"),
        write_folder(tmp_path / "f", kind="k", settings={}) as writer,
    ):
        writer.stream_array("bytes", np.uint8).append(np.array([300], dtype=np.int64))
    with (
        pytest.raises(ValueError, match="2 rows declared, 0 written"),
        write_folder(tmp_path / "f", kind="k", settings={}) as writer,
    ):
        writer.stream_array("bytes", np.uint8, row_count=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stop", [RuntimeError, KeyboardInterrupt])
def test_an_exception_in_the_middle_leaves_nothing(tmp_path: Path, stop: type[BaseException]) -> None:
    with pytest.raises(stop), write_folder(tmp_path / "new" / "folder", kind="sample", settings={}) as writer:
        writer.write_array("matrix", MATRIX)
        writer.stream_array("open", np.float32, (3,)).append(MATRIX)
        raise stop
    assert list(tmp_path.iterdir()) == []


def _die_while_writing(path: Path) -> None:
    with write_folder(path, kind="sample", settings={}) as writer:
        writer.write_array("left_over", MATRIX)
        os._exit(9)


def test_a_killed_write_is_not_visible_and_the_next_one_replaces_it(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_die_while_writing, args=(tmp_path / "folder",))
    process.start()
    process.join()
    assert process.exitcode == 9
    assert [path.name for path in tmp_path.iterdir()] == [".folder.tmp"]
    folder = write_sample(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert not (folder / "left_over.npy").exists()


def test_a_folder_reaches_the_disk_before_its_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert done == [".manifest.json.tmp", tmp_path.name]


@pytest.mark.parametrize(
    "content", ['{"manifest_version": 3, "name": "A browser extension"}', "[]", "{", '"format_version"', " " * 101]
)
def test_a_manifest_of_another_program_is_not_called_damaged_and_nothing_is_to_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr("index.manifest.MOST_MANIFEST_BYTES", 100)
    (tmp_path / "manifest.json").write_text(content, encoding="utf-8")
    with pytest.raises(ArtifactError, match="is not a folder of this program") as caught:
        read_manifest(tmp_path, kind="sample")
    assert "remove" not in str(caught.value) and "Error" not in str(caught.value)


@pytest.mark.parametrize("name", [".manifest.json.tmp", ".manifest.json.lock"])
def test_a_link_under_a_name_that_is_written_is_not_written_through(tmp_path: Path, name: str) -> None:
    folder, theirs = tmp_path / "folder", tmp_path / "theirs"
    folder.mkdir()
    theirs.write_text("precious")
    (folder / name).symlink_to(theirs)
    with suppress(ArtifactError):
        write_manifest(folder, kind="whole", settings={})
    assert theirs.read_text() == "precious"


def test_an_existing_folder_is_never_overwritten(tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "folder")
    before = (folder / "manifest.json").read_bytes()
    with pytest.raises(ArtifactError, match="exists already"):
        write_sample(folder)
    assert (folder / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.ENOTDIR])
@pytest.mark.parametrize("writes_before", [0, 1, 3, 8])
def test_a_refused_write_becomes_one_message_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, writes_before: int
) -> None:
    written: list[int] = []
    real_write = CountingFile.write

    def write(self: CountingFile, data: bytes) -> int:
        if len(written) == writes_before:
            raise OSError(number, os.strerror(number))
        written.append(len(data))
        return real_write(self, data)

    monkeypatch.setattr(CountingFile, "write", write)
    with pytest.raises(StorageError, match=f"folder.*: {os.strerror(number)}"):
        write_sample(tmp_path / "new" / "folder")
    assert list(tmp_path.iterdir()) == []


def test_a_really_full_disk_is_told_too(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    file = CountingFile(Path("/dev/full"))
    with pytest.raises(StorageError, match="No space left"):
        file.write(bytes(1 << 20))
        file.close()
    file.abandon()


def test_a_disk_too_full_for_the_lock_file_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("index.locking._sign", full)
    with pytest.raises(StorageError, match="No space left"):
        write_sample(tmp_path / "deep" / "folder")
    assert list(tmp_path.iterdir()) == []


def test_a_path_through_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "folder", tmp_path / "file" / "deep" / "folder"):
        with pytest.raises(StorageError, match="cannot write"):
            write_sample(path)
        with pytest.raises(StorageError, match="cannot write"), folder_lock(path):
            pass


def test_an_error_of_reading_elsewhere_is_not_taken_for_a_refused_write(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), write_folder(tmp_path / "folder", kind="sample", settings={}):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "corpus.jsonl"))


def test_a_manifest_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = write_manifest(tmp_path, kind="whole", settings={"n": 1})

    def full(self: CountingFile, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(CountingFile, "write", full)
    with pytest.raises(StorageError):
        write_manifest(tmp_path, kind="whole", settings={"n": 2})
    assert read_manifest(tmp_path, kind="whole") == old
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]
