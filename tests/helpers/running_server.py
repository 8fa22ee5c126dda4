"""A real `npmlm serve` on a free port of this machine, and requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from npm.serving.problems import REFUSALS
from tests.helpers.command_line import QUIET, REPOSITORY

ADDRESS = re.compile(r"serving on (http://\S+)")
LONGEST_START_SECONDS, LONGEST_ANSWER_SECONDS = 480, 120


def until(holds: Callable[[], bool], seconds: float = 240.0) -> None:
    """Wait until something holds; fail where it never does."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.02)


def replica_processes(owner: int) -> list[int]:
    """The processes of partitions on a Ray cluster that the process `owner` has started on this machine."""
    parents, names = dict[int, int](), dict[int, bytes]()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, ProcessLookupError):
            if entry.name.isdigit():
                process = int(entry.name)
                parents[process] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                names[process] = (entry / "cmdline").read_bytes()

    def belongs(process: int) -> bool:
        return process == owner or (process in parents and belongs(parents[process]))

    return sorted(process for process, name in names.items() if b"ray::Partition" in name and belongs(process))


@dataclass(frozen=True, slots=True)
class Reply:
    """A response."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


MEMBERS = {"type", "code", "title", "status", "field", "request_id"}
"""Of a problem."""


def assert_problem(reply: Reply, status: int, *parts: str) -> dict[str, Any]:
    """A refusal with this status and these parts, without a path; returns it."""
    assert reply.status == status, reply.body
    assert reply.headers["content-type"].startswith("application/problem+json")
    problem: dict[str, Any] = reply.json
    assert problem.keys() == MEMBERS and problem["status"] == status
    assert REFUSALS[problem["code"]].status == status and problem["type"] == f"/docs#{problem['code']}"
    assert problem["request_id"] == reply.headers["x-request-id"]
    assert "Traceback" not in reply.body.decode() and "/tmp" not in reply.body.decode()
    for part in parts:
        assert part in json.dumps(problem), problem
    return problem


class RunningServer:
    """The process, told to stop at the end of a `with` block."""

    def __init__(self, index: Path | None, *settings: str) -> None:
        """`index` None: the settings name files."""
        source = [] if index is None else [f"index={index}"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "npm", "serve", *source, "port=0", *settings],
            cwd=REPOSITORY,
            env={**os.environ, **QUIET},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._address: str | None = None
        self._begun = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := ADDRESS.search(line):
                self._address = found.group(1)
                self._begun.set()
        self._begun.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    @property
    def errors(self) -> str:
        """All of standard error so far."""
        return "".join(self.lines)

    @property
    def url(self) -> str:
        """Where it answers; waits until it does."""
        assert self._begun.wait(LONGEST_START_SECONDS), self.errors
        assert self._address is not None, self.errors
        return self._address

    def connection(self) -> http.client.HTTPConnection:
        place = urlsplit(self.url)
        return http.client.HTTPConnection(str(place.hostname), place.port, timeout=LONGEST_ANSWER_SECONDS)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """One request on a connection of its own; `body` is sent as JSON, `raw` as it is."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        kind = {} if data is None else {"Content-Type": "application/json"}
        connection = self.connection()
        try:
            connection.request(method, path, data, {**kind, **(headers or {})})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())
        finally:
            connection.close()

    def fill(self, text: str | Sequence[str], **options: Any) -> Reply:
        return self.ask("POST", "/v1/fill", {"text": text, **options})

    def metric(self, name: str) -> float:
        """The value of a metric by its name and labels, 0 where it was never counted."""
        for line in self.ask("GET", "/metrics").body.decode().splitlines():
            if line.rpartition(" ")[0] == name:
                return float(line.rpartition(" ")[2])
        return 0.0

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(LONGEST_ANSWER_SECONDS)
        self._reader.join()
        return status
