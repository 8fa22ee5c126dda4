"""Locks of folders: one writer at a time, also after a kill."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest

from npm.core.artifact import clear_locks, folder_lock, read_manifest, write_folder, write_manifest
from npm.core.errors import ArtifactError
from tests.helpers.sample_folders import write_sample

FORK = multiprocessing.get_context("fork")


def in_process(hold: Callable[[Path, Connection], None], path: Path) -> tuple[BaseProcess, Connection]:
    """Run `hold` in another process; returns when it says that it holds what it is to hold."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=hold, args=(path, theirs))
    process.start()
    assert ours.recv() == "held"
    return process, ours


def hold_alone(folder: Path, pipe: Connection) -> None:
    with folder_lock(folder):
        pipe.send("held")
        pipe.recv()


def hold_half_written(folder: Path, pipe: Connection) -> None:
    with write_folder(folder, kind="sample", settings={}) as writer:
        writer.write_array("half", np.arange(3))
        pipe.send("held")
        pipe.recv()


def test_a_lock_is_held_by_one_process_which_may_take_it_again_and_leaves_no_file(tmp_path: Path) -> None:
    with folder_lock(tmp_path / "index"), folder_lock(tmp_path / "index"):
        write_sample(tmp_path / "index")
        assert (tmp_path / ".index.lock").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    process, pipe = in_process(hold_alone, tmp_path / "index")
    with pytest.raises(ArtifactError, match=f"another process is writing {tmp_path}"), folder_lock(tmp_path / "index"):
        pass
    pipe.send("go")
    process.join()
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_the_lock_of_a_killed_owner_is_taken_over(tmp_path: Path) -> None:
    process, _ = in_process(hold_alone, tmp_path / "index")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert (tmp_path / ".index.lock").exists()
    with folder_lock(tmp_path / "index"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_who_waits_is_told_once_and_gets_the_lock_when_it_is_free(tmp_path: Path) -> None:
    process, pipe = in_process(hold_alone, tmp_path / "index")
    told: list[str] = []

    def on_wait() -> None:
        told.append("waits")
        pipe.send("go")

    with folder_lock(tmp_path / "index", wait=True, on_wait=on_wait):
        process.join()
    assert told == ["waits"]


def test_a_folder_that_another_process_is_writing_is_refused_and_left_alone(tmp_path: Path) -> None:
    process, pipe = in_process(hold_half_written, tmp_path / "folder")
    with pytest.raises(ArtifactError, match="another process"):
        write_sample(tmp_path / "folder")
    pipe.send("go")
    process.join()
    assert list(read_manifest(tmp_path / "folder", kind="sample").files) == ["half.npy"]
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["half.npy", "manifest.json"]


def test_what_a_killed_process_was_writing_is_not_visible_and_written_again(tmp_path: Path) -> None:
    process, _ = in_process(hold_half_written, tmp_path / "folder")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".folder.lock", ".folder.tmp"]
    assert not (write_sample(tmp_path / "folder") / "half.npy").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def _write_many(folder: Path, number: int) -> None:
    for turn in range(20):
        write_manifest(folder, kind="whole", settings={"writer": number, "turn": turn})


def test_jobs_that_write_one_manifest_at_once_leave_one_whole_manifest(tmp_path: Path) -> None:
    processes = [FORK.Process(target=_write_many, args=(tmp_path, number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert read_manifest(tmp_path, kind="whole").settings["turn"] == 19
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_dead_lock_is_cleared_a_held_one_stays_and_so_does_what_is_no_lock(tmp_path: Path) -> None:
    process, pipe = in_process(hold_alone, tmp_path / "index" / "held")
    (tmp_path / "index" / "deep").mkdir()
    dead = [tmp_path / ".index.lock", tmp_path / "index" / "deep" / ".dead.lock"]
    for path in dead:
        path.touch()
    kept = [tmp_path / "index" / ".held.lock", tmp_path / "index" / ".yarn.lock", tmp_path / "index" / ".link.lock"]
    kept[1].write_text("precious\n", encoding="utf-8")
    kept[2].symlink_to(tmp_path / "target")
    clear_locks(tmp_path / "index")
    assert not any(path.exists() for path in dead)
    assert all(os.path.lexists(path) for path in kept)
    pipe.send("go")
    process.join()
