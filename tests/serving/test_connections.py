"""Connections that send no request: closed in time, and never in the way of others."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from npm.serving import server
from npm.serving.server import Connection

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
