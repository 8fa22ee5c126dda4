"""Files that are asked without an index: by `fill`, and by a server that follows them. The shipped models answer."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from npm import PhraseFiller
from npm.models.names import SHIPPED_READER, WEIGHTS, shipped_folder
from tests.helpers.command_line import CommandLine
from tests.helpers.running_server import RunningServer, until

pytestmark = pytest.mark.skipif(
    not (shipped_folder(SHIPPED_READER) / WEIGHTS).is_file(), reason="the shipped reader is not here"
)
QUESTION = "Who manages the depot?"


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "depot.md").write_text("# Depot\n\nThe depot is in Porto. The manager of the depot is Ana Duarte.\n")
    (folder / "office.txt").write_text("The office in Graz opens at nine. Invoices are paid within a month.")
    return folder


def test_a_folder_answers_and_what_changes_is_read_again(docs: Path, npmlm: CommandLine) -> None:
    first = npmlm("fill", f"files={docs}", QUESTION, "output=json")
    assert first.answers()[0]["phrases"][0]["phrase"] == "Ana Duarte"
    (docs / "depot.md").write_text("# Depot\n\nThe manager of the depot is Mira Holt.\n")
    assert PhraseFiller.over_files(docs).fill(QUESTION).phrases[0].phrase == "Mira Holt"
    second = npmlm("fill", f"files={docs}", QUESTION, "output=json")
    assert second.answers()[0]["phrases"][0]["phrase"] == "Mira Holt"
    assert sorted(file.name for file in docs.iterdir()) == ["depot.md", "office.txt"]


def test_mistakes(docs: Path, npmlm: CommandLine, tmp_path: Path) -> None:
    npmlm("fill", f"files={docs}", f"index={tmp_path}", QUESTION).refused("files")
    npmlm("fill", f"files={tmp_path / 'none'}", QUESTION).refused("none", "does not exist")
    npmlm("fill", f"files={docs}", QUESTION, "retrieval=dense").refused("vectors=tokens")
    npmlm("serve", f"files={docs}", f"index={tmp_path}").refused("files")
    npmlm("serve").refused("index")


def test_a_port_in_use_is_refused_before_files_are_read(docs: Path, npmlm: CommandLine, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        npmlm("serve", f"files={docs}", f"port={taken.getsockname()[1]}").refused("port=0")
    assert not (tmp_path / "cache").exists()


def test_a_server_follows_its_files(docs: Path) -> None:
    with RunningServer(None, f"files={docs}", "reload_seconds=0.2") as server:
        assert server.fill(QUESTION).json["answers"][0]["phrases"][0]["phrase"] == "Ana Duarte"
        (docs / "depot.md").write_text("# Depot\n\nThe manager of the depot is Mira Holt.\n")
        until(lambda: "answers now" in server.errors)
        assert server.fill(QUESTION).json["answers"][0]["phrases"][0]["phrase"] == "Mira Holt"
        (docs / "office.txt").unlink()
        until(lambda: "Graz" not in json.dumps(server.fill("Where does the office open?").json))
