"""The health check of the container image, run against a real server."""

from __future__ import annotations

import socket
import sys
from urllib.parse import urlsplit

import pytest

from tests.helpers.command_line import run_subprocess
from tests.helpers.container_files import dockerfile_stages, health_command
from tests.helpers.running_server import RunningServer


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
