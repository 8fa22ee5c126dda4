"""Damage, folders of another kind or version, and what they do not record: each told in one message."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import sys
import threading
from pathlib import Path

import pytest

from index import store
from index.files import sha256_of_file
from index.manifest import read_manifest
from index.store import check_folder, open_array, verify_folder, write_manifest
from npm.core.errors import ArtifactError
from tests.helpers.sample_folders import flip_byte, rewrite_manifest, write_sample


@pytest.mark.parametrize("name", ["matrix.npy", "raw.bin", "stream.npy", "words.json"])
@pytest.mark.parametrize("check", ["open", "verify"])
def test_a_flipped_byte_is_refused_with_both_hashes(tmp_path: Path, name: str, check: str) -> None:
    folder = write_sample(tmp_path / "folder")
    recorded = read_manifest(folder, kind="sample").files[name].sha256
    flip_byte(folder / name, -1)
    with pytest.raises(ArtifactError, match=f"{name}.*{recorded}.*{sha256_of_file(folder / name)}"):
        check_folder(folder, kind="sample") if check == "open" else verify_folder(folder, "sample")


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


def test_a_truncated_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "folder")
    os.truncate(folder / "matrix.npy", 150)
    with pytest.raises(ArtifactError, match=r"matrix\.npy is damaged: expected 176 bytes, got 150"):
        check_folder(folder, kind="sample")
    (folder / "matrix.npy").unlink()
    with pytest.raises(ArtifactError, match=r"matrix\.npy is missing"):
        check_folder(folder, kind="sample")


def test_large_files_are_hashed_by_verify_and_where_they_are_read_whole_but_their_headers_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "HASHED_AT_OPENING_BYTES", 100)
    folder = write_sample(tmp_path / "folder")
    flip_byte(folder / "matrix.npy", -1)
    check_folder(folder, kind="sample")
    with pytest.raises(ArtifactError, match="damaged"):
        check_folder(folder, kind="sample", hash_all=True)
    with pytest.raises(ArtifactError, match="damaged"):
        verify_folder(folder, "sample")
    data = (folder / "matrix.npy").read_bytes()
    (folder / "matrix.npy").write_bytes(data.replace(b"(4, 3)", b"(3, 3)"))
    with pytest.raises(ArtifactError, match="damaged"):
        check_folder(folder, kind="sample")
    (folder / "matrix.npy").write_bytes(b"\x00" + data[1:])
    with pytest.raises(ArtifactError, match="damaged"):
        check_folder(folder, kind="sample")


def test_missing_unfinished_foreign_newer_and_older_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no folder"):
        read_manifest(tmp_path / "nowhere", kind="sample")
    (tmp_path / "unfinished").mkdir()
    with pytest.raises(ArtifactError, match="no manifest"):
        read_manifest(tmp_path / "unfinished", kind="sample")
    folder = write_sample(tmp_path / "folder")
    with pytest.raises(ArtifactError, match="'search', got 'sample'"):
        read_manifest(folder, kind="search")
    rewrite_manifest(folder, format_version=99)
    with pytest.raises(ArtifactError, match="newer version"):
        read_manifest(folder, kind="sample")
    rewrite_manifest(folder, format_version=1)
    with pytest.raises(ArtifactError, match=r"older version.*build it again"):
        read_manifest(folder, kind="sample")
    rewrite_manifest(folder, format_version="2")
    with pytest.raises(ArtifactError, match="newer version"):
        read_manifest(folder, kind="sample")
    for text in (b"[1]", b"{", b"\xff", b"{}"):
        for keys, problem in ((b"", "not a folder of this program"), (b'{"kind": "format_version"', "damaged")):
            (folder / "manifest.json").write_bytes(keys + text)
            with pytest.raises(ArtifactError, match=problem):
                read_manifest(folder, kind="sample")


def test_a_folder_of_parts_is_checked_through(tmp_path: Path) -> None:
    parts = {name: read_manifest(write_sample(tmp_path / "whole" / name), kind="sample").digest for name in ("a", "b")}
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


def test_what_to_build_again_is_the_outermost_folder_that_names_the_damaged_one(tmp_path: Path) -> None:
    digest = read_manifest(write_sample(tmp_path / "results" / "whole" / "a" / "b"), kind="sample").digest
    whole = tmp_path / "results" / "whole"
    write_manifest(tmp_path / "results", kind="evaluation", settings={}, parts={})
    write_manifest(whole, kind="whole", settings={}, parts={"a/b": digest})
    write_sample(whole / "unfinished")
    for folder, again in ((whole / "a" / "b", whole), (whole / "unfinished", whole / "unfinished")):
        flip_byte(folder / "raw.bin", 0)
        with pytest.raises(ArtifactError, match=f"is damaged.*remove all of {again} and run"):
            check_folder(folder, kind="sample")
    shutil.rmtree(whole / "a" / "b")
    with pytest.raises(ArtifactError, match=f"no folder.*remove all of {whole} and run"):
        verify_folder(whole, "whole", hash_all=False)


def test_a_setting_that_a_manifest_does_not_record_is_told_by_its_whole_name(tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "folder")
    rewrite_manifest(folder, settings={"seed": 7, "search": {"tier": "exact", "lists": {}}})
    settings = read_manifest(folder, kind="sample").settings
    assert settings == {"seed": 7, "search": {"tier": "exact", "lists": {}}}
    assert settings.get("name") is None and "name" not in settings
    for asked, name in (
        (lambda: settings["name"], "name"),
        (lambda: settings["search"]["factory"], "search.factory"),
        (lambda: settings["search"]["lists"]["count"], "search.lists.count"),
    ):
        with pytest.raises(ArtifactError, match=f"another version of this program, without {name};"):
            asked()


def test_a_folder_that_the_system_does_not_let_us_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_sample(tmp_path / "folder")
    with pytest.raises(ArtifactError, match="too long"):
        read_manifest(tmp_path / ("x" * 300), kind="sample")

    def refused(_: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(ArtifactError, match="Permission denied"):
        read_manifest(folder, kind="sample")


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
