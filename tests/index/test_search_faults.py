"""Training and merging that were stopped, and every kind of folder that does not belong: each told in one message."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index import lists as lists_module
from index.arrays import ShardedArray
from index.lists import code_shard_settings, list_parts, write_code_shard, write_list_part
from index.quantiser import Quantiser, train_quantiser
from index.search import open_search
from index.settings import resolved_settings
from npm.core.errors import ArtifactError
from npm.core.files import NewFile, digest_of, sha256_of_file
from tests.helpers.locks import locked_elsewhere
from tests.helpers.sample_folders import flip_byte, rewrite_manifest
from tests.index.search_folders import (
    DIMENSIONS,
    ROWS,
    build_search,
    code_all,
    open_built,
    sample_vectors,
    settings_for,
)

FACTORY = "IVF8_HNSW8,RaBitQ"


class Stopped(Exception):
    """Stands for a kill."""


def hashes(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_of_file(path) for path in files}


def stop_after(calls: int) -> Any:
    def progress(done: int, of: int) -> None:
        nonlocal calls
        calls -= 1
        if calls < 0:
            raise Stopped

    return progress


def record(into: list[int]) -> Any:
    return lambda done, of: into.append(done)


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lists_module, "PART_BYTES", 4000)
    monkeypatch.setattr(lists_module, "BATCH_BYTES", 1000)
    build_search(tmp_path / "built", sample_vectors(), settings_for(FACTORY))
    return tmp_path / "built"


def test_a_training_stopped_after_any_round_goes_on_and_ends_in_the_same_bytes(tmp_path: Path) -> None:
    vectors = sample_vectors()
    resolved = resolved_settings(settings_for(FACTORY, train_iterations=4), ROWS, DIMENSIONS)
    whole = train_quantiser(tmp_path / "whole", vectors, None, resolved)
    for stop in range(4):
        folder = tmp_path / f"stopped{stop}" / "quantiser"
        with pytest.raises(Stopped):
            train_quantiser(folder, vectors, None, resolved, progress=stop_after(stop))
        assert [path.name for path in folder.parent.iterdir()] == [".quantiser.partial"]
        rounds: list[int] = []
        again = train_quantiser(folder, vectors, None, resolved, progress=record(rounds))
        assert again == whole
        assert rounds == list(range(stop + 2, 5))
        assert hashes(folder) == hashes(tmp_path / "whole")
        assert [path.name for path in folder.parent.iterdir()] == ["quantiser"]


def test_checkpoints_of_other_settings_are_not_used(tmp_path: Path) -> None:
    vectors = sample_vectors()
    for seed in (0, 1):
        resolved = resolved_settings(settings_for(FACTORY, seed=seed), ROWS, DIMENSIONS)
        with pytest.raises(Stopped):
            train_quantiser(tmp_path / "q", vectors, None, resolved, progress=stop_after(3))
    continued = train_quantiser(tmp_path / "q", vectors, None, resolved)
    assert continued == train_quantiser(tmp_path / "fresh", vectors, None, resolved)


def test_only_trainable_rows_are_trained_on(tmp_path: Path) -> None:
    vectors = sample_vectors()
    resolved = resolved_settings(settings_for("IVF4,Flat", train_rows=100), ROWS, DIMENSIONS)
    trainable = np.arange(0, ROWS, 3)
    spoiled = np.concatenate(vectors.arrays)
    spoiled[np.setdiff1d(np.arange(ROWS), trainable)] = 1000
    first = train_quantiser(tmp_path / "a", vectors, trainable, resolved)
    assert train_quantiser(tmp_path / "b", ShardedArray([spoiled]), trainable, resolved) == first
    assert train_quantiser(tmp_path / "c", vectors, trainable[1:], resolved) != first


def test_what_is_finished_is_kept_and_what_was_made_otherwise_is_refused(tmp_path: Path) -> None:
    vectors = sample_vectors()
    resolved = resolved_settings(settings_for("IVF4,SQ8"), ROWS, DIMENSIONS)
    manifest = train_quantiser(tmp_path / "q", vectors, None, resolved)
    (tmp_path / ".q.partial").mkdir()  # as a kill between the last two steps leaves it
    assert train_quantiser(tmp_path / "q", vectors, None, resolved, progress=stop_after(0)) == manifest
    assert [path.name for path in tmp_path.iterdir()] == ["q"]
    with pytest.raises(ArtifactError, match="expected seed=4, got seed=0;"):
        train_quantiser(tmp_path / "q", vectors, None, resolved | {"seed": 4})
    quantiser = Quantiser.open(tmp_path / "q")
    settings = code_shard_settings(quantiser, "v")
    shard = write_code_shard(tmp_path / "c", vectors, quantiser, settings=settings)
    unread = np.full((ROWS, DIMENSIONS), np.nan, dtype=np.float32)  # refused as soon as they are coded again
    assert write_code_shard(tmp_path / "c", unread, quantiser, settings=settings) == shard
    with pytest.raises(ArtifactError, match="expected vectors=w, got vectors=v;"):
        write_code_shard(tmp_path / "c", vectors, quantiser, settings=code_shard_settings(quantiser, "w"))


def test_one_process_at_a_time_trains_a_quantiser(tmp_path: Path) -> None:
    resolved = resolved_settings(settings_for("IVF4,SQ8"), ROWS, DIMENSIONS)

    def train_again(done: int, of: int) -> None:
        pytest.fail("trained by two processes")

    with locked_elsewhere(tmp_path / ".q.partial" / "q"), pytest.raises(ArtifactError, match="another process"):
        train_quantiser(tmp_path / "q", sample_vectors(), None, resolved, progress=train_again)
    assert [path.name for path in tmp_path.iterdir()] == ["q"]


def test_a_merge_stopped_between_parts_goes_on_and_ends_in_the_same_bytes(built: Path) -> None:
    expected = hashes(built)
    parts = sorted(path.name for path in (built / "search").iterdir() if path.is_dir())
    assert len(parts) > 2
    shutil.rmtree(built / "search")
    with pytest.raises(Stopped):
        build_search(built, sample_vectors(), settings_for(FACTORY), progress=stop_after(3))
    kept = hashes(built / "search")
    assert 0 < len(kept) < len({name for name in expected if name.startswith("search/")})
    build_search(built, sample_vectors(), settings_for(FACTORY))
    assert hashes(built) == expected


def test_parts_written_as_jobs_of_their_own_in_any_order_are_the_same_bytes(built: Path) -> None:
    expected = hashes(built)
    shutil.rmtree(built / "search")
    quantiser = Quantiser.open(built / "quantiser")
    folders, first_rows = code_all(built / "codes", sample_vectors(), quantiser)
    parts = list_parts(folders, quantiser)
    assert [first for first, _ in parts] == [0, *(stop for _, stop in parts[:-1])] and parts[-1][1] == 8
    for number, lists in reversed(list(enumerate(parts))):
        folder = built / "search" / f"{number:05d}"
        manifest = write_list_part(folder, folders, first_rows, quantiser, lists=lists)
        assert write_list_part(folder, folders, first_rows, quantiser, lists=lists) == manifest
    build_search(built, sample_vectors(), settings_for(FACTORY))
    assert hashes(built) == expected


def test_codes_do_not_depend_on_how_the_shard_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists_module, "ROWS_PER_CHUNK", 64)
    vectors = sample_vectors()
    train_quantiser(tmp_path / "q", vectors, None, resolved_settings(settings_for("IVF8,SQ8"), ROWS, DIMENSIONS))
    quantiser = Quantiser.open(tmp_path / "q")
    settings = code_shard_settings(quantiser, "v")
    first = write_code_shard(tmp_path / "a", vectors, quantiser, settings=settings)
    whole = np.concatenate(vectors.arrays)
    assert write_code_shard(tmp_path / "b", whole, quantiser, settings=settings) == first
    shard = lists_module.open_code_shard(tmp_path / "a", quantiser, hash_all=True)
    lists, rows, found = shard.read(0, 8)
    encoded_lists, encoded = (
        np.concatenate(arrays)
        for arrays in zip(*(quantiser.encode(whole[start : start + 64]) for start in range(0, ROWS, 64)), strict=True)
    )
    np.testing.assert_array_equal(rows, np.lexsort((np.arange(ROWS), encoded_lists)))
    np.testing.assert_array_equal(lists, encoded_lists[rows])
    np.testing.assert_array_equal(found, encoded[rows])


def test_an_empty_vector_shard_has_an_empty_code_shard(tmp_path: Path) -> None:
    vectors = sample_vectors()
    padded = ShardedArray([vectors.arrays[0], vectors.arrays[0][:0], *vectors.arrays[1:]])
    build_search(tmp_path, padded, settings_for(FACTORY))
    assert open_built(tmp_path, padded).row_count == ROWS


def test_a_quantiser_of_other_dimensions_is_refused(built: Path, tmp_path: Path) -> None:
    quantiser = Quantiser.open(built / "quantiser")
    other = sample_vectors(dimensions=8)
    with pytest.raises(ArtifactError, match="16 dimensions, got 8"):
        write_code_shard(tmp_path / "c", other, quantiser, settings=code_shard_settings(quantiser, "v"))
    with pytest.raises(ArtifactError, match="16 dimensions, got 8"):
        lists_module.write_search_folder(
            tmp_path / "s", resolved_settings(settings_for(FACTORY), ROWS, 8), other, quantiser=quantiser
        )
    assert not (tmp_path / "c").exists() and not (tmp_path / "s").exists()


def test_codes_and_lists_of_another_quantiser_are_refused(built: Path) -> None:
    other = built.parent / "other"
    build_search(other, sample_vectors(), settings_for(FACTORY, seed=1))
    quantiser = Quantiser.open(built / "quantiser")
    foreign = [built / "codes" / "00000", other / "codes" / "00001", built / "codes" / "00002"]
    for read in (
        lambda: list_parts(foreign, quantiser),
        lambda: write_list_part(built / "part", foreign, [0, 300, 301], quantiser, lists=(0, 8)),
    ):
        with pytest.raises(ArtifactError, match=f"{foreign[1]} come from another quantizer"):
            read()
    for given in (None, other / "quantiser"):
        with pytest.raises(ArtifactError, match="built with another quantizer"):
            open_search(built / "search", sample_vectors(), quantiser=given)
    part = next(path for path in sorted((built / "search").iterdir()) if path.is_dir())
    shutil.rmtree(part)
    shutil.copytree(other / "search" / part.name, part)
    with pytest.raises(ArtifactError, match=r"damaged.*another build"):
        open_built(built, sample_vectors())


def test_a_part_merged_from_other_codes_is_not_kept(built: Path) -> None:
    quantiser = Quantiser.open(built / "quantiser")
    folders, first_rows = code_all(built / "codes", sample_vectors(), quantiser)
    for wrong in (
        {"lists": (0, 1), "rows": first_rows, "folders": folders[::-1]},
        {"lists": (0, 1), "rows": [0, 300, 302], "folders": folders},
        {"lists": (0, 8), "rows": first_rows, "folders": folders},
    ):
        with pytest.raises(ArtifactError, match="made from something else"):
            write_list_part(
                built / "search" / "00000", wrong["folders"], wrong["rows"], quantiser, lists=wrong["lists"]
            )


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_code_shard_is_told(built: Path, missing: int) -> None:
    quantiser = Quantiser.open(built / "quantiser")
    folders, first_rows = code_all(built / "codes", sample_vectors(), quantiser)
    resolved = resolved_settings(settings_for(FACTORY), ROWS, DIMENSIONS)
    del folders[missing], first_rows[missing]
    with pytest.raises(ArtifactError, match=f"do not make up the {ROWS} rows"):
        lists_module.write_search_folder(
            built / "search2",
            resolved,
            sample_vectors(),
            quantiser=quantiser,
            code_folders=folders,
            first_rows=first_rows,
        )
    assert not (built / "search2").exists()


@pytest.mark.parametrize("harm", ["flip", "truncate", "remove"])
@pytest.mark.parametrize(
    "name",
    [
        "quantiser/trained.faiss",
        "quantiser/manifest.json",
        "search/manifest.json",
        "search/00001/lists.bin",
        "search/00001/list_sizes.npy",
        "search/00001/manifest.json",
    ],
)
def test_a_damaged_file_is_refused_when_the_search_is_opened(built: Path, name: str, harm: str) -> None:
    path = built / name
    if harm == "flip":
        flip_byte(path, path.stat().st_size // 2)
    elif harm == "truncate":
        os.truncate(path, path.stat().st_size - 9)
    else:
        path.unlink()
    with pytest.raises(ArtifactError) as caught:
        open_built(built, sample_vectors())
    assert path.name in str(caught.value)


@pytest.mark.parametrize("name", ["list_offsets.npy", "rows.npy", "codes.npy", "manifest.json"])
@pytest.mark.parametrize("harm", ["flip", "truncate"])
def test_a_damaged_code_shard_is_refused_when_it_is_merged(built: Path, name: str, harm: str) -> None:
    path = built / "codes" / "00002" / name
    shutil.rmtree(built / "search")
    flip_byte(path, -5) if harm == "flip" else os.truncate(path, path.stat().st_size - 9)
    with pytest.raises(ArtifactError, match=name.replace(".", r"\.")):
        build_search(built, sample_vectors(), settings_for(FACTORY))


def test_parts_that_do_not_make_up_all_lists_are_refused(built: Path) -> None:
    manifest = lists_module.read_manifest(built / "search", kind="search")
    parts = dict(manifest.parts)
    del parts[max(parts)]
    rewrite_manifest(built / "search", parts=parts)
    with pytest.raises(ArtifactError, match=f"do not belong.*8 lists with {ROWS} rows"):
        open_built(built, sample_vectors())


def test_other_vectors_are_refused(built: Path) -> None:
    with pytest.raises(ArtifactError, match="other vectors"):
        open_built(built, ShardedArray([np.ones((ROWS - 1, DIMENSIONS), dtype=np.float16)]))


@pytest.mark.parametrize("stage", ["quantise", "code", "merge"])
def test_a_full_disk_in_any_stage_is_told_and_the_build_goes_on_when_there_is_space(
    built: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    expected = hashes(built)
    spoiled = {"quantise": ["quantiser", "codes", "search"], "code": ["codes", "search"], "merge": ["search"]}[stage]
    for name in spoiled:
        shutil.rmtree(built / name)
    real_write = NewFile.write

    def write(self: NewFile, data: bytes) -> int:
        if self.tell() > 300:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(self, data)

    with monkeypatch.context() as full, pytest.raises(OSError, match="No space left"):
        full.setattr(NewFile, "write", write)
        build_search(built, sample_vectors(), settings_for(FACTORY))
    assert not [path for path in built.rglob("*.tmp")]
    build_search(built, sample_vectors(), settings_for(FACTORY))
    assert hashes(built) == expected


def test_settings_that_name_another_quantiser_are_a_mistake_of_ours(built: Path, tmp_path: Path) -> None:
    quantiser = Quantiser.open(built / "quantiser")
    with pytest.raises(ValueError, match="settings name quantiser"):
        write_code_shard(
            tmp_path / "c", sample_vectors(), quantiser, settings={"quantiser": digest_of(1), "vectors": "v"}
        )
