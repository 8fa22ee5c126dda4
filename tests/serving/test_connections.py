"""Connections that send no request, and the health check of the container image, against real servers."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from npm.serving import server
from npm.serving.server import Connection
from tests.helpers.command_line import run_subprocess
from tests.helpers.container_files import dockerfile_stages, health_command
from tests.helpers.running_server import RunningServer

LIMIT = 8


@pytest.fixture
def port() -> Iterator[int]:
    """Port of a small server in this process."""
    config = uvicorn.Config(PlainTextResponse("yes"), http=Connection, limit_concurrency=LIMIT, log_config=None)
    small = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=small.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()[1]
        small.should_exit = True
        thread.join()


def opened(port: int, data: bytes = b"") -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), timeout=120)
    found.sendall(data)
    return found


def status(port: int) -> int:
    connection: Any = HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", "/")
    found = connection.getresponse().status
    connection.close()
    return int(found)


def test_silent_connections_yield_to_new_ones(port: int) -> None:
    silent = [opened(port) for _ in range(3 * LIMIT)]
    assert status(port) == 200
    assert silent[0].recv(1) == b""  # closed
    silent[-1].sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert silent[-1].recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    for each in silent:
        each.close()


def test_unfinished_headers_are_closed_in_time(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.2)
    for data in (b"", b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: "):
        with opened(port, data) as slow:
            assert slow.recv(1) == b""


def checked(target: str, port: int | None) -> int:
    """Exit status of the health command, asked at another port than the container's."""
    python, *words = health_command(dockerfile_stages()[target])
    assert python == "python" and "127.0.0.1:8080" in words[-1]
    words[-1] = words[-1].replace(":8080", f":{port}")
    return run_subprocess(sys.executable, *words).status


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_it_succeeds_where_a_server_answers(server: RunningServer, target: str) -> None:
    assert checked(target, urlsplit(server.url).port) == 0


def test_it_fails_where_none_listens() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, and nobody listens
        assert checked("cpu", closed.getsockname()[1]) != 0
