"""What takes long to make and is only read: made once for all workers and all sessions on the same sources.

It is kept in .cache/tests of this checkout, or where NPMLM_TEST_CACHE says, for the latest few states of the sources.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import torch
import transformers
from filelock import FileLock

from tests.helpers import precision
from tests.helpers.command_line import REPOSITORY

CACHE = Path(os.environ.get("NPMLM_TEST_CACHE") or REPOSITORY / ".cache" / "tests")
RANKS = ("two_ranks", "sharded_ranks", "question_ranks", "sentence_ranks", "two_processes")
SOURCES = (
    *("npm", "index", "configs", "tests/conftest.py", "tests/helpers"),
    *(f"tests/training/{name}.py" for name in RANKS),
)
KEPT_STATES = 3


@cache
def sources_digest() -> str:
    """Of all files that what is made here depends on, and of what numbers depend on besides."""
    machine = (platform.python_version(), torch.__version__, transformers.__version__)
    numbers = (torch.backends.cpu.get_cpu_capability(), torch.get_num_threads(), precision.is_float32())
    digest = hashlib.sha256(repr((machine, numbers)).encode())
    for path in sorted(source_files()):
        digest.update(f"\n{path.relative_to(REPOSITORY)} {path.stat().st_size} ".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def source_files() -> Iterator[Path]:
    for name in SOURCES:
        place = REPOSITORY / name
        found = [place] if place.is_file() else place.rglob("*")
        yield from (path for path in found if path.is_file() and "__pycache__" not in path.parts)


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """The folder `name`, which `make` fills where there is none yet. Not to be changed: copy it first.

    Its files are no hard links to be given to tests, since tests that spoil files write into them.
    """
    folder = CACHE / sources_digest() / name
    done = folder.with_name(f"{name}.done")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{name}.lock")):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a killed session
            folder.mkdir()
            make(folder)
            done.touch()
            remove_old_states()
    return folder


def remove_old_states() -> None:
    """Keep those that were made last: a session on an older state may still run."""
    states = sorted((path for path in CACHE.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for state in states[:-KEPT_STATES]:
        shutil.rmtree(state, ignore_errors=True)
