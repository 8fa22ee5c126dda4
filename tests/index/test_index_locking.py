"""One build of a folder at a time, jobs that share it, and no lock that outlives its owner."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest

from index import locking
from index.locking import folder_lock, lock_path, remove_dead_lock
from index.manifest import read_manifest
from index.store import write_folder, write_manifest
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


def hold_shared(folder: Path, pipe: Connection) -> None:
    with folder_lock(folder, shared=True):
        pipe.send("held")
        pipe.recv()


def hold_half_written(folder: Path, pipe: Connection) -> None:
    with write_folder(folder, kind="sample", settings={}) as writer:
        writer.write_array("half", np.arange(3))
        pipe.send("held")
        pipe.recv()


def test_a_lock_is_held_by_one_and_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "index"
    with folder_lock(folder):
        for shared in (False, True):
            with pytest.raises(ArtifactError, match="another process") as caught, folder_lock(folder, shared=shared):
                pass
            assert f"process {os.getpid()} on {socket.gethostname()}, since" in str(caught.value)
    assert list(folder.parent.iterdir()) == []
    with folder_lock(folder):
        pass


def test_sharers_hold_it_together_and_are_all_named_and_the_last_one_removes_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    first, pipe = in_process(hold_shared, folder)
    with folder_lock(folder, shared=True):
        with pytest.raises(ArtifactError, match="another process") as caught, folder_lock(folder):
            pass
        assert f"process {first.pid} on" in str(caught.value)
        assert f"process {os.getpid()} on" in str(caught.value)
        pipe.send("go")
        first.join()
        with pytest.raises(ArtifactError) as caught, folder_lock(folder):
            pass
        assert f"process {first.pid} on" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    with folder_lock(folder):
        pass


@pytest.mark.parametrize("host", ["node-17.cluster.example", ""])
def test_many_jobs_may_share_a_lock_one_after_the_other_while_one_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr(locking, "GRACE_SECONDS", 0)
    folder = tmp_path / "index"
    with folder_lock(folder, shared=True):
        for number in range(215):
            monkeypatch.setattr(os, "getpid", lambda number=number: 10**9 + number)
            with folder_lock(folder, shared=True):
                pass
        monkeypatch.undo()
        assert lock_path(folder).stat().st_size > 4096
        with pytest.raises(ArtifactError, match="another process") as caught, folder_lock(folder):
            pass
        assert "208 others" in str(caught.value) or not host
        assert len(str(caught.value)) < 1200
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_held_is_never_called_in_the_way(tmp_path: Path) -> None:
    with folder_lock(tmp_path / "index"):
        lock_path(tmp_path / "index").write_text("what a network file system made of it\n", encoding="utf-8")
        with pytest.raises(ArtifactError, match="another process"), folder_lock(tmp_path / "index"):
            pass


@pytest.mark.parametrize("hold", [hold_alone, hold_shared])
def test_the_lock_of_a_killed_owner_is_taken_over(tmp_path: Path, hold: Callable[[Path, Connection], None]) -> None:
    process, _ = in_process(hold, tmp_path / "index")
    with pytest.raises(ArtifactError), folder_lock(tmp_path / "index"):
        pass
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert (tmp_path / ".index.lock").exists()
    with folder_lock(tmp_path / "index"), pytest.raises(ArtifactError) as caught, folder_lock(tmp_path / "index"):
        pass
    assert f"process {process.pid} on" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_who_waits_is_told_the_owner_once_and_gets_the_lock_when_it_is_free(tmp_path: Path) -> None:
    process, pipe = in_process(hold_alone, tmp_path / "index")
    told: list[str] = []

    def on_wait(holders: str) -> None:
        told.append(holders)
        pipe.send("go")

    with folder_lock(tmp_path / "index", wait=True, on_wait=on_wait):
        process.join()
    assert len(told) == 1
    assert f"process {process.pid} on {socket.gethostname()}" in told[0]


def test_a_folder_that_another_process_is_writing_is_refused_and_left_alone(tmp_path: Path) -> None:
    process, pipe = in_process(hold_half_written, tmp_path / "folder")
    with pytest.raises(ArtifactError, match=f"another process.*: process {process.pid} on"):
        write_sample(tmp_path / "folder")
    pipe.send("go")
    process.join()
    assert list(read_manifest(tmp_path / "folder", kind="sample").files) == ["half.npy"]
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["half.npy", "manifest.json"]


def test_what_a_killed_process_was_writing_is_written_anew(tmp_path: Path) -> None:
    process, _ = in_process(hold_half_written, tmp_path / "folder")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert (tmp_path / ".folder.tmp").exists()
    write_sample(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def _write_many(folder: Path, number: int) -> None:
    for turn in range(20):
        write_manifest(folder, kind="whole", settings={"writer": number, "turn": turn})


def test_jobs_that_write_one_manifest_at_once_leave_one_whole_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locking, "POLL_SECONDS", 0.001)
    processes = [FORK.Process(target=_write_many, args=(tmp_path, number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert read_manifest(tmp_path, kind="whole").settings["turn"] == 19
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_dead_lock_goes_a_held_one_stays_and_so_does_what_is_no_lock(tmp_path: Path) -> None:
    dead, held = lock_path(tmp_path / "dead"), lock_path(tmp_path / "held")
    dead.write_text("4194304 elsewhere 1790000000\n", encoding="utf-8")
    precious = [lock_path(tmp_path / "yarn"), lock_path(tmp_path / "link")]
    precious[0].write_text("precious\n", encoding="utf-8")
    (tmp_path / "target").touch()
    precious[1].symlink_to(tmp_path / "target")
    with folder_lock(tmp_path / "held"):
        for path in (dead, held, *precious, tmp_path / ".absent.lock"):
            remove_dead_lock(path)
        assert held.exists()
    assert not dead.exists()
    for path in precious:  # nor are they taken for locks that a dead process left, and written over
        with pytest.raises(ArtifactError, match="in the way"), folder_lock(tmp_path / path.name[1:-5]):
            pass
    assert precious[0].read_text(encoding="utf-8") == "precious\n"
    assert (tmp_path / "target").read_bytes() == b""


def test_a_lock_on_a_file_that_its_last_owner_removed_meanwhile_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening the file and locking it, its owner may leave: then another process makes a new one."""
    flock = fcntl.flock
    others: list[int] = []

    def late(descriptor: int, operation: int) -> None:
        if not others:
            lock_path(tmp_path / "index").unlink()
            others.append(os.open(lock_path(tmp_path / "index"), os.O_RDWR | os.O_CREAT))
            flock(others[0], fcntl.LOCK_EX)
        flock(descriptor, operation)

    monkeypatch.setattr(locking, "GRACE_SECONDS", 0)
    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(ArtifactError, match="another process"), folder_lock(tmp_path / "index"):
        pass
    os.close(others[0])
    with folder_lock(tmp_path / "index"):
        pass
