"""What tests of the command line share: running a command, comparing folders, and a corpus of six documents."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from npm.cli.main import main

REPOSITORY = Path(__file__).parents[2]


def zstd(data: bytes) -> bytes:
    """Compress as a `.zst` file is."""
    return bytes(pyarrow.compress(data, "zstd", asbytes=True))


QUESTION = "The capital of Iceland is <mask>."
DOCUMENTS: list[dict[str, Any]] = [
    {"id": "iceland", "title": "Iceland", "text": "🜨 Reykjavík is the capital of Iceland. It lies on Faxaflói."},
    {"id": "france", "title": "France", "text": "Paris is the capital of France, and the Seine flows through Paris."},
    {"id": "bank", "title": "Bank", "text": "The Bank of America was founded in San Francisco by Amadeo Giannini."},
    {"id": "poland", "title": "Poland", "text": "Łódź and Kraków are cities in Poland. São Paulo is in Brazil."},
    {"id": "norway", "title": "Norway", "text": "Norway's capital, Oslo, lies at the end of the Oslofjord."},
    {"id": "book", "title": "Don Quixote", "text": "Don Quixote was written by Miguel de Cervantes in Madrid."},
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left: its status and what it wrote."""

    status: int
    out: str
    err: str

    def answers(self) -> list[dict[str, Any]]:
        """The JSON objects on stdout, a line each."""
        return [json.loads(line) for line in self.out.splitlines()]

    def done(self) -> Outcome:
        """Assert that the command did what it was to do; returns itself."""
        assert self.status == 0, self.err
        return self

    def refused(self, *parts: str) -> str:
        """Assert that this is one message for a user's mistake, which holds `parts`; returns it."""
        assert self.status == 2, self.err
        assert self.out == ""
        assert "Traceback" not in self.err
        assert self.err.count("npmlm: error: ") == 1, self.err
        for part in parts:
            assert part in self.err, f"{part!r} is not in {self.err}"
        return self.err


class CommandLine:
    """Runs `npmlm` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str | Path, stdin: bytes | None = None) -> Outcome:
        """Run one command; `stdin` is what is piped in."""
        self._capsys.readouterr()
        if stdin is not None:
            self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        status = main([str(argument) for argument in arguments])
        captured = self._capsys.readouterr()
        return Outcome(status, captured.out, captured.err)


QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def run_subprocess(*command: str | Path, cwd: Path | None = None, **variables: str) -> Outcome:
    """Run a command as a process of its own, with one thread and no network."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd or REPOSITORY,
        env={**os.environ, **QUIET, **variables},
        capture_output=True,
        timeout=480,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


def run_together(commands: list[list[str]], folder: Path, *, patience_seconds: float = 480) -> list[Outcome]:
    """Run commands that wait for one another, at one time; `folder` takes what they write.

    When one fails, or they hang, all are ended, and their Python processes write where they stood.
    """
    folder.mkdir()
    started: list[subprocess.Popen[bytes]] = []
    for number, command in enumerate(commands):
        with (folder / f"{number}.out").open("wb") as out, (folder / f"{number}.err").open("wb") as err:
            variables = {**os.environ, **QUIET, "PYTHONFAULTHANDLER": "1"}
            started.append(
                subprocess.Popen(  # a session of its own, so that its children end with it
                    command,
                    cwd=REPOSITORY,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
            )
    deadline = time.monotonic() + patience_seconds
    while any(each.poll() is None for each in started) and not any(each.poll() for each in started):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for each in started:
        for number in (signal.SIGABRT, signal.SIGKILL):  # the first one prints the stacks
            if each.poll() is None:
                os.killpg(each.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    each.wait(10)
    written = [
        [(folder / f"{number}.{kind}").read_text() for kind in ("out", "err")] for number in range(len(commands))
    ]
    return [Outcome(each.wait(), out, err) for each, (out, err) in zip(started, written, strict=True)]


def write_corpus(path: Path, documents: list[dict[str, Any]] = DOCUMENTS) -> Path:
    """A .jsonl file of `documents`."""
    lines = (json.dumps(document, ensure_ascii=False) + "\n" for document in documents)
    path.write_text("".join(lines), encoding="utf-8")
    return path


def all_bytes(folder: Path) -> dict[str, bytes]:
    """Every file under `folder` with its content; folders as names that end in a slash."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        found |= {name: path.read_bytes()} if path.is_file() else {f"{name}/": b""}
    return found
