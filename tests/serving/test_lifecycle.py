"""What a real server does while things change: new generations, damage, many clients, and the order to stop."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from npm import PhraseFiller, add
from npm.core.errors import UserError
from npm.core.types import Document
from npm.retrieval.settings import FillSettings
from npm.serving.opened import OpenedIndex
from npm.serving.requests import Options
from npm.serving.settings import ServeSettings
from tests.helpers.command_line import QUESTION
from tests.helpers.running_server import Reply, RunningServer, until
from tests.serving.conftest import KEY

LONG = "a <mask> b " + "word " * 1800
"""A text that takes its time to tokenize and to encode."""


@pytest.fixture(scope="module")
def guarded(index_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that asks for a key; it is not waited for here, so that it starts beside others."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"another-key\n{KEY}\n")
    settings = (f"key_file={keys}", "host=0.0.0.0", "cors=[https://example.org]", "reload_seconds=0.1")
    with RunningServer(index_copy, *settings) as running:
        yield running


def test_many_at_once_are_answered_or_refused_and_none_is_lost(server: RunningServer) -> None:
    before = server.metric('npmlm_rejected_total{reason="queue_full"}')
    blocker = threading.Thread(target=server.fill, args=([LONG] * 8,))
    blocker.start()
    with ThreadPoolExecutor(64) as pool:
        replies = list(pool.map(lambda _: server.fill(QUESTION), range(64)))
    blocker.join()
    statuses = [reply.status for reply in replies]
    assert set(statuses) <= {200, 429} and statuses.count(429) > 0
    answered = [reply.json["answers"] for reply in replies if reply.status == 200]
    assert all(each == answered[0] for each in answered)
    refused = [reply for reply in replies if reply.status == 429]
    assert all(reply.headers["retry-after"] == "1" for reply in refused)
    assert server.metric('npmlm_rejected_total{reason="queue_full"}') - before >= len(refused)
    assert server.fill(QUESTION).status == 200
    assert server.metric("npmlm_queue_texts") == 0


def test_what_a_client_that_left_had_asked_is_not_computed(server: RunningServer) -> None:
    before = server.metric('npmlm_rejected_total{reason="abandoned"}')
    batches = server.metric("npmlm_batch_texts_count")
    slow = {"passages": [f"{number} " + "word " * 1800 for number in range(20)], "text": QUESTION}
    blocker = threading.Thread(target=server.ask, args=("POST", "/v1/over", slow))
    blocker.start()
    until(lambda: server.metric("npmlm_batch_texts_count") > batches)  # it is being computed
    connection = server.connection()
    body = json.dumps({"text": [LONG, LONG]}).encode()
    connection.request("POST", "/v1/fill", body, {"Content-Type": "application/json"})
    until(lambda: server.metric("npmlm_queue_texts") >= 2)
    connection.close()
    blocker.join()
    until(lambda: server.metric('npmlm_rejected_total{reason="abandoned"}') == before + 2)


def test_a_client_that_sends_slowly_keeps_nobody_else_waiting(server: RunningServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(
            b"POST /v1/fill HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
        )
        for _ in range(3):
            assert server.fill(QUESTION).status == 200
        slow.sendall(b'"text": "<mask>"')
        assert server.ask("GET", "/health").status == 200


def test_a_body_that_comes_byte_by_byte_is_refused_in_time(built_index: Path) -> None:
    with RunningServer(built_index, "timeout_seconds=1") as hasty:
        host, port = hasty.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as slow:
            slow.sendall(
                b"POST /v1/fill HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 999\r\n\r\n"
            )
            slow.settimeout(0.3)
            answer = b""
            for _ in range(100):  # each byte comes in time, all of them do not
                try:
                    slow.sendall(b" ")
                    answer = slow.recv(1 << 16)
                    break
                except TimeoutError:
                    continue
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_key_is_asked_for_under_v1_only(guarded: RunningServer) -> None:
    for path in ("/health", "/ready", "/metrics", "/", "/openapi.json", "/docs"):
        assert guarded.ask("GET", path).status == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-API-Key": ""}, {"Authorization": f"Basic {KEY}"}):
        refused = guarded.ask("GET", "/v1/index", headers=headers)
        assert refused.status == 401 and refused.headers["www-authenticate"] == "Bearer"
    for headers in ({"Authorization": f"Bearer {KEY}"}, {"X-API-Key": KEY}, {"authorization": f"bearer {KEY}"}):
        assert guarded.ask("GET", "/v1/index", headers=headers).status == 200
    assert "warning" not in guarded.errors  # there are keys


def test_only_named_origins_may_ask_from_their_pages(guarded: RunningServer) -> None:
    wish = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    allowed = guarded.ask("OPTIONS", "/v1/fill", headers={"Origin": "https://example.org", **wish})
    assert allowed.headers["access-control-allow-origin"] == "https://example.org"
    other = guarded.ask("OPTIONS", "/v1/fill", headers={"Origin": "https://example.com", **wish})
    assert "access-control-allow-origin" not in other.headers
    refused = guarded.ask("GET", "/v1/index", headers={"Origin": "https://example.org"})
    assert refused.status == 401 and refused.headers["access-control-allow-origin"] == "https://example.org"


def test_a_new_generation_is_taken_up_under_load_and_no_answer_mixes_two(
    guarded: RunningServer, index_copy: Path
) -> None:
    key = {"X-API-Key": KEY}
    replies: list[Reply] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            body = {"text": [QUESTION] * 4, "k": 100, "occurrences": 50}
            replies.append(guarded.ask("POST", "/v1/fill", body, headers=key))

    clients = [threading.Thread(target=ask) for _ in range(3)]
    for client in clients:
        client.start()
    try:
        until(lambda: len(replies) > 3)
        add(Document("iceland-2", "Iceland", "Akureyri is the capital of the north of Iceland."), index_copy)
        until(lambda: guarded.metric("npmlm_index_generation") == 1)
        until(lambda: replies[-1].json["index"]["generation"] == 1)
    finally:
        ended.set()
        for client in clients:
            client.join()
    assert [reply.status for reply in replies] == [200] * len(replies)
    by_generation: dict[int, list[object]] = {0: [], 1: []}
    for reply in replies:
        by_generation[reply.json["index"]["generation"]] += reply.json["answers"]
    for generation, answers in by_generation.items():
        assert answers and all(each == answers[0] for each in answers)
        assert ("iceland-2" in json.dumps(answers[0])) == (generation == 1)
    assert guarded.metric('npmlm_reloads_total{result="taken"}') == 1


def test_an_index_that_breaks_or_goes_leaves_the_generation_that_is_open(
    guarded: RunningServer, index_copy: Path
) -> None:
    key = {"X-API-Key": KEY}
    before = guarded.ask("POST", "/v1/fill", {"text": QUESTION}, headers=key)
    manifest = index_copy / "manifest.json"
    kept = manifest.read_bytes()
    manifest.write_bytes(kept.replace(b"generation", b"generatiom", 1))
    until(lambda: guarded.metric('npmlm_reloads_total{result="failed"}') > 0)
    after = guarded.ask("POST", "/v1/fill", {"text": QUESTION}, headers=key)
    assert after.json["answers"] == before.json["answers"] and after.json["index"] == before.json["index"]
    assert guarded.errors.count("generation 1 stays open") == 1  # noted once, however often it is tried
    shutil.rmtree(index_copy)
    failed = guarded.metric('npmlm_reloads_total{result="failed"}')
    until(lambda: guarded.metric('npmlm_reloads_total{result="failed"}') > failed)
    gone = guarded.ask("POST", "/v1/fill", {"text": QUESTION}, headers=key)
    assert gone.json["answers"] == before.json["answers"]
    assert guarded.ask("GET", "/ready").status == 200


def test_two_servers_answer_from_one_index_and_stop_without_losing_what_they_accepted(
    server: RunningServer, built_index: Path, guarded: RunningServer
) -> None:
    with RunningServer(built_index, "queue_texts=64", "host=0.0.0.0") as second:
        assert second.fill(QUESTION).json["answers"] == server.fill(QUESTION).json["answers"]
        assert "warning: whoever reaches 0.0.0.0 may read the corpus" in second.errors
        replies: list[Reply | OSError] = []

        def ask() -> None:
            try:
                replies.append(second.fill([LONG] * 4))
            except OSError as error:
                replies.append(error)

        clients = [threading.Thread(target=ask) for _ in range(8)]
        for client in clients:
            client.start()
        until(lambda: second.metric("npmlm_queue_texts") >= 8)
        assert second.stop() == 0
        for client in clients:
            client.join()
        # refused connections are those of clients that came too late; what was accepted is answered
        answered = [reply for reply in replies if isinstance(reply, Reply)]
        assert len(answered) >= 3
        assert [(reply.status, len(reply.json["answers"])) for reply in answered] == [(200, 4)] * len(answered)
        assert not any(isinstance(reply, ConnectionResetError) for reply in replies)
        assert "Traceback" not in second.errors
    assert guarded.stop() == 0
    with pytest.raises(OSError):  # refused, in whatever way the system says so
        guarded.ask("GET", "/health")


def test_no_grace_ends_at_once_what_is_not_finished(built_index: Path) -> None:
    with RunningServer(built_index, "grace_seconds=0", "timeout_seconds=3000") as hasty:
        host, port = hasty.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(
                b"POST /v1/fill HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
            )
            assert hasty.ask("GET", "/health").status == 200
            assert hasty.stop() == 0
            assert slow.recv(1 << 16).startswith(b"HTTP/1.1 503 ")
        assert "Traceback" not in hasty.errors


def test_facts_of_an_opened_index_are_known_after_it_is_gone(built_index: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(built_index, tmp_path / "index"))
    filler = PhraseFiller.open(folder)
    opened = OpenedIndex.open(folder, filler.encoder, ServeSettings())
    shutil.rmtree(folder)
    assert opened.facts.documents == filler.index.manifest.counts.documents


def test_a_request_that_leaves_its_documents_out_is_answered_from_those_of_the_server(built_index: Path) -> None:
    settings = ServeSettings(fill=FillSettings(documents=["norway"]))
    opened = OpenedIndex.open(built_index, PhraseFiller.open(built_index).encoder, settings)
    given: list[dict[str, list[str]]] = [{}, {"documents": ["iceland"]}, {"documents": []}]
    found = [opened.fill_settings(Options(**each)).documents for each in given]
    assert found == [["norway"], ["iceland"], []]


def test_a_special_file_of_examples_is_refused(built_index: Path) -> None:
    encoder = PhraseFiller.open(built_index).encoder
    with pytest.raises(UserError):
        OpenedIndex.open(built_index, encoder, ServeSettings(examples="/dev/null"))
