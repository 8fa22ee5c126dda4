"""Who may write where: a folder is built by one process alone, or by several jobs that know of each other.

A lock is `flock` on a small file that names its holders. The operating system drops it when its holder ends in
whatever way, so there is no stale lock to remove: a file left by a dead owner is taken over.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from index.files import made_parents, storage_errors
from npm.core.errors import ArtifactError

OWNER_FILE = ".lock"
POLL_SECONDS = 0.05
GRACE_SECONDS = 0.2
"""A holder that is leaving holds the lock alone for a moment; so long it is not yet refused."""
FIRST_LINE_BYTES, HOLDER_BYTES = 4096, 1 << 20
MOST_NAMED_HOLDERS = 8
"""Each job that shares a lock adds its line, and the lines stay until the last of them leaves."""
FIRST_LINE = re.compile(rb"\d+ \S* \d+\n")


@contextmanager
def folder_lock(
    folder: Path, *, shared: bool = False, wait: bool = False, on_wait: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold the lock file `.<name>.lock` beside `folder`, alone or, if `shared`, together with others who share it.

    With `wait` the call waits until the lock is free, and `on_wait(who holds it)` is called once before; otherwise
    it raises ArtifactError with process id, host and age of those who hold it.
    """
    folder, path = folder.resolve(), lock_path(folder)
    with made_parents(path):
        with storage_errors(path):
            descriptor = _lock(path, folder, shared=shared, wait=wait, on_wait=on_wait)
        try:
            with storage_errors(path):
                _sign(descriptor, shared=shared)
            yield
        finally:
            _remove_if_free(descriptor, path)


def lock_path(folder: Path) -> Path:
    """The lock file of `folder`: the same one by whatever path the folder is named."""
    folder = folder.resolve()
    return folder.parent / f".{folder.name}.lock"


@contextmanager
def owned_folder(temporary: Path, target: Path) -> Iterator[None]:
    """Make the folder `temporary` and be the one that writes it; one that a dead process left there is removed.

    Raises ArtifactError if a living process is writing it. Its lock file is removed by `release` before the folder
    gets its final name.
    """
    if os.path.lexists(temporary):
        if is_own_temporary(temporary):
            _refuse_owned(temporary, target)
        remove_temporary(temporary)
    temporary.mkdir()
    with ExitStack() as stack:
        with ExitStack() as undo:  # a disk too full for the lock file leaves no folder
            undo.callback(temporary.rmdir)
            undo.callback((temporary / OWNER_FILE).unlink, missing_ok=True)
            descriptor = os.open(temporary / OWNER_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _sign(descriptor, shared=False)
            undo.pop_all()
        yield


def release(temporary: Path) -> None:
    """Remove the lock file from a folder that is finished."""
    (temporary / OWNER_FILE).unlink()


def is_own_temporary(path: Path) -> bool:
    """Whether `path` is a folder that `owned_folder` made: of plain files, with our lock file or a whole folder's."""
    if path.is_symlink() or not path.is_dir():
        return False
    files = list(path.iterdir())
    if any(file.is_symlink() or file.is_dir() for file in files):
        return False
    names = {file.name for file in files}
    if OWNER_FILE in names or not names:
        return True
    try:  # released, and killed before it got its final name
        return names <= {"manifest.json", *json.loads((path / "manifest.json").read_bytes())["files"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def remove_temporary(path: Path) -> None:
    """Remove a folder that `owned_folder` made, its lock file last; raises ArtifactError for anything else."""
    if not is_own_temporary(path):
        raise in_the_way(path)
    for file in sorted(path.iterdir(), key=lambda file: file.name == OWNER_FILE):
        file.unlink()
    path.rmdir()


def in_the_way(path: Path) -> ArtifactError:
    """Error for a file or folder under a name that npmlm writes, which npmlm did not make."""
    return ArtifactError(
        f"{path} is in the way: npmlm did not make it; move it elsewhere and run the same command again"
    )


def _refuse_owned(temporary: Path, target: Path) -> None:
    try:
        descriptor = os.open(temporary / OWNER_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _refusal(target, _holders(descriptor)) from None
    finally:
        os.close(descriptor)


_LOCK_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
"""Appending, so that sharers that sign at once do not write over each other's lines."""


def _lock(path: Path, folder: Path, *, shared: bool, wait: bool, on_wait: Callable[[str], None] | None) -> int:
    """Open and lock `path`; returns the descriptor."""
    refused_at = time.monotonic() + GRACE_SECONDS
    has_waited = False
    while True:
        if path.is_symlink():  # which would be written through
            raise in_the_way(path)
        descriptor = os.open(path, _LOCK_FLAGS | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            if not _is_lock(descriptor):
                raise in_the_way(path)
            if _is_same_file(descriptor, path):
                return descriptor
        except BlockingIOError:
            holders = _holders(descriptor)
            if time.monotonic() >= refused_at:
                if not wait:
                    os.close(descriptor)
                    raise _refusal(folder, holders) from None
                if on_wait is not None and not has_waited:
                    on_wait(holders)
                    has_waited = True
            time.sleep(POLL_SECONDS)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _sign(descriptor: int, *, shared: bool) -> None:
    """Write this process into the lock file, beside others who share it."""
    if not shared:
        os.truncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()} {_host()} {int(time.time())}\n".encode())


def _host() -> str:
    return socket.gethostname() or "?"


def _holders(descriptor: int) -> str:
    """Process id, host and age of those named in a lock file; the dead of this host are left out."""
    found = {}
    for line in os.pread(descriptor, HOLDER_BYTES, 0).decode(errors="replace").splitlines():
        fields = line.split()
        if len(fields) != 3 or not (fields[0].isdigit() and fields[2].isdigit()):
            continue
        if fields[1] == _host() and not _is_alive(int(fields[0])):
            continue
        age_seconds = max(0, int(time.time()) - int(fields[2]))
        found[f"process {fields[0]} on {fields[1]}"] = f"since {age_seconds} s"
    named = [f"{holder}, {age}" for holder, age in found.items()]
    if len(named) > MOST_NAMED_HOLDERS:
        named = [f"{len(named) - MOST_NAMED_HOLDERS} others", *named[-MOST_NAMED_HOLDERS:]]
    return "; ".join(named) or "a process that has not yet written its number"


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _refusal(folder: Path, holders: str) -> ArtifactError:
    return ArtifactError(f"another process is building {folder}: {holders}; wait until it ends, or stop it")


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def remove_dead_lock(path: Path) -> None:
    """Remove the lock file `path` if it is one and no process holds it: a process that was killed left it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    if _is_lock(descriptor):
        _remove_if_free(descriptor, path)
    else:
        os.close(descriptor)


def _is_lock(descriptor: int) -> bool:
    """Whether a file is empty or begins with a line of lock files: process id, host, time."""
    beginning = os.pread(descriptor, FIRST_LINE_BYTES, 0)
    return not beginning or FIRST_LINE.match(beginning) is not None


def _remove_if_free(descriptor: int, path: Path) -> None:
    """Remove the lock file `path`, opened as `descriptor`, unless another process holds it; closes the descriptor."""
    try:
        # The last of several sharers removes the file; while others hold it, this raises.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Unlinked while still held: a process that opened it meanwhile sees that it is gone and starts afresh.
        if _is_same_file(descriptor, path):
            path.unlink(missing_ok=True)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)
