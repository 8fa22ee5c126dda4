"""Folders: whole or not at all, the same bytes for the same input, and damage told in one message."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from index import store
from index.files import npy_header
from index.store import (
    CountingFile,
    check_folder,
    digest_of,
    folder_lock,
    open_array,
    read_manifest,
    sha256_of_bytes,
    sha256_of_file,
    verify_folder,
    write_folder,
    write_manifest,
)
from index.types import ArtefactError, StorageError

MATRIX = np.arange(12, dtype=np.float32).reshape(4, 3)


def write_sample(path: Path) -> Path:
    with write_folder(path, kind="sample", settings={"seed": 7, "name": "Reykjavík"}) as writer:
        writer.write_array("matrix", MATRIX)
        writer.write_json("words", {"b": "ö", "a": [1, 2]})
        stream = writer.stream_array("stream", np.uint16, (2,))
        stream.append(np.array([[1, 2], [3, 4]], dtype=np.uint16))
        stream.append(np.array([[5, 6]], dtype=np.uint16))
        stream.close()
        writer.open_binary("raw.bin").write(b"any bytes")
    return path


def flip_byte(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


def rewrite_manifest(folder: Path, **changes: object) -> None:
    """Change the manifest and give it a digest that fits."""
    content = json.loads((folder / "manifest.json").read_bytes()) | changes
    del content["digest"]
    (folder / "manifest.json").write_text(json.dumps(content | {"digest": digest_of(content)}))


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


def test_an_existing_folder_is_never_overwritten(tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "folder")
    before = (folder / "manifest.json").read_bytes()
    with pytest.raises(ArtefactError, match="exists already"):
        write_sample(folder)
    assert (folder / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("number", "meaning"),
    [
        (errno.ENOSPC, "disk is full"),
        (errno.EACCES, "no permission"),
        (errno.EROFS, "read-only"),
        (errno.ENOTDIR, "a file, not a folder"),
    ],
)
@pytest.mark.parametrize("writes_before", [0, 1, 3, 8])
def test_a_refused_write_becomes_one_message_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, meaning: str, writes_before: int
) -> None:
    written: list[int] = []
    real_write = CountingFile.write

    def write(self: CountingFile, data: bytes) -> int:
        if len(written) == writes_before:
            raise OSError(number, os.strerror(number))
        written.append(len(data))
        return real_write(self, data)

    monkeypatch.setattr(CountingFile, "write", write)
    with pytest.raises(StorageError) as caught:
        write_sample(tmp_path / "new" / "folder")
    assert meaning in caught.value.problem
    assert errno.errorcode[number] in caught.value.got
    assert "folder" in caught.value.where
    assert caught.value.fix
    assert list(tmp_path.iterdir()) == []


def test_a_really_full_disk_is_told_too(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    file = CountingFile(Path("/dev/full"))
    with pytest.raises(StorageError, match="disk is full"):
        file.write(bytes(1 << 20))
        file.close()
    file.abandon()


def test_a_path_through_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "folder", tmp_path / "file" / "deep" / "folder"):
        with pytest.raises(StorageError, match="a file, not a folder"):
            write_sample(path)
        with pytest.raises(StorageError, match="a file, not a folder"), folder_lock(path):
            pass


def test_an_error_of_reading_elsewhere_is_not_taken_for_a_refused_write(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), write_folder(tmp_path / "folder", kind="sample", settings={}):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "corpus.jsonl"))


@pytest.mark.parametrize("name", ["matrix.npy", "raw.bin", "stream.npy", "words.json"])
@pytest.mark.parametrize("check", ["open", "verify"])
def test_a_flipped_byte_is_refused_with_both_hashes(tmp_path: Path, name: str, check: str) -> None:
    folder = write_sample(tmp_path / "folder")
    recorded = read_manifest(folder, kind="sample").files[name].sha256
    flip_byte(folder / name, -1)
    with pytest.raises(ArtefactError) as caught:
        check_folder(folder, kind="sample") if check == "open" else verify_folder(folder, "sample")
    assert name in caught.value.problem
    assert recorded in caught.value.expected
    assert sha256_of_file(folder / name) in caught.value.got


def test_every_flipped_byte_of_a_manifest_is_refused(tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "folder")
    good = (folder / "manifest.json").read_bytes()
    for position in range(len(good)):
        if good[position : position + 1].isspace():
            continue  # between values, another space means the same
        flip_byte(folder / "manifest.json", position)
        with pytest.raises(ArtefactError):
            read_manifest(folder, kind="sample")
        (folder / "manifest.json").write_bytes(good)


def test_a_truncated_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "folder")
    os.truncate(folder / "matrix.npy", 150)
    with pytest.raises(ArtefactError, match=r"matrix\.npy is damaged") as caught:
        check_folder(folder, kind="sample")
    assert (caught.value.expected, caught.value.got) == ("176 bytes", "150 bytes")
    (folder / "matrix.npy").unlink()
    with pytest.raises(ArtefactError, match=r"matrix\.npy is missing"):
        check_folder(folder, kind="sample")


def test_large_files_are_hashed_only_by_verify_but_their_headers_at_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "HASHED_AT_OPENING_BYTES", 100)
    folder = write_sample(tmp_path / "folder")
    flip_byte(folder / "matrix.npy", -1)
    check_folder(folder, kind="sample")
    with pytest.raises(ArtefactError, match="damaged"):
        verify_folder(folder, "sample")
    data = (folder / "matrix.npy").read_bytes()
    (folder / "matrix.npy").write_bytes(data.replace(b"(4, 3)", b"(3, 3)"))
    with pytest.raises(ArtefactError, match="damaged"):
        check_folder(folder, kind="sample")
    (folder / "matrix.npy").write_bytes(b"\x00" + data[1:])
    with pytest.raises(ArtefactError, match="damaged"):
        check_folder(folder, kind="sample")


def test_missing_unfinished_foreign_and_newer_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="no folder"):
        read_manifest(tmp_path / "nowhere", kind="sample")
    (tmp_path / "unfinished").mkdir()
    with pytest.raises(ArtefactError, match="no manifest") as unfinished:
        read_manifest(tmp_path / "unfinished", kind="sample")
    assert "run the same build command again" in unfinished.value.fix
    folder = write_sample(tmp_path / "folder")
    with pytest.raises(ArtefactError, match="something else") as other:
        read_manifest(folder, kind="search")
    assert ("search" in other.value.expected, "sample" in other.value.got) == (True, True)
    rewrite_manifest(folder, format_version=99)
    with pytest.raises(ArtefactError, match="newer version"):
        read_manifest(folder, kind="sample")
    for text in (b"[1]", b"{", b"\xff", b"{}"):
        (folder / "manifest.json").write_bytes(text)
        with pytest.raises(ArtefactError, match="damaged"):
            read_manifest(folder, kind="sample")


def test_a_folder_of_parts_is_checked_through(tmp_path: Path) -> None:
    parts = {name: read_manifest(write_sample(tmp_path / "whole" / name), kind="sample").digest for name in ("a", "b")}
    manifest = write_manifest(tmp_path / "whole", kind="whole", settings={"n": 2}, parts=parts)
    assert manifest == check_folder(tmp_path / "whole", kind="whole")
    read: dict[str, int] = {}
    verify_folder(tmp_path / "whole", "whole", lambda name, count: read.update({name: read.get(name, 0) + count}))
    assert read == {"matrix.npy": 2 * 176, "raw.bin": 2 * 9, "stream.npy": 2 * 140, "words.json": 2 * 36}

    flip_byte(tmp_path / "whole" / "b" / "raw.bin", 0)
    with pytest.raises(ArtefactError, match=r"raw\.bin is damaged"):
        verify_folder(tmp_path / "whole", "whole")
    rewrite_manifest(tmp_path / "whole" / "b", settings={"seed": 8})
    with pytest.raises(ArtefactError, match="damaged") as caught:
        check_folder(tmp_path / "whole", kind="whole")
    assert "another build" in caught.value.got
    shutil.rmtree(tmp_path / "whole" / "a")
    with pytest.raises(ArtefactError, match="no folder"):
        check_folder(tmp_path / "whole", kind="whole")


def test_a_manifest_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = write_manifest(tmp_path, kind="whole", settings={"n": 1})

    def full(self: CountingFile, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(CountingFile, "write", full)
    with pytest.raises(StorageError):
        write_manifest(tmp_path, kind="whole", settings={"n": 2})
    assert read_manifest(tmp_path, kind="whole") == old
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]
