"""`PhraseFiller.connect`: the answers and the errors of a filler on this machine, from behind a server."""

from __future__ import annotations

import json
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

import npm
from npm import QueryError, ServerError, SettingError
from npm.core.types import Answer, Filling, JointAnswer, MaskPhrases, Occurrence, Phrase
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.remote import RemoteFiller
from tests.helpers.command_line import QUESTION
from tests.helpers.running_server import RunningServer

TEXTS = [QUESTION, "Łódź 😀 is in <mask>", "Don Quixote was written by <mask>."]
FACTS = {
    "documents": 6,
    "tokens": 123,
    "generation": 0,
    "encoder": {"name": "tiny"},
    "limits": {"texts": 2},
}
Reply = tuple[int, dict[str, str], bytes]


def problem(status: int, title: str, code: str = "a_code", **headers: str) -> Reply:
    record = {"code": code, "title": title, "status": status, "field": None, "request_id": "r7"}
    return status, headers, json.dumps(record).encode()


class Scripted(ThreadingHTTPServer):
    """A server that answers requests one after the other as told; when nothing is left, by `answer`."""

    daemon_threads = True

    def __init__(self, answer: Callable[[dict[str, Any]], object]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.facts: object = FACTS
        self.replies: list[Reply] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._reply(lambda server: server.facts)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        cast(Scripted, self.server).requests.append(body)
        self._reply(lambda server: server.answer(body))

    def _reply(self, usual: Callable[[Scripted], object]) -> None:
        server = cast(Scripted, self.server)
        server.keys.append(self.headers["Authorization"])
        if server.replies:
            status, headers, content = server.replies.pop(0)
        else:
            status, headers, content = 200, {}, json.dumps(usual(server)).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def local(built_index: Path) -> Iterator[PhraseFiller]:
    with PhraseFiller.open(built_index) as opened:
        yield opened


@pytest.fixture
def server(local: PhraseFiller) -> Iterator[Scripted]:
    """Answers as the routes of `npmlm serve` do, with a filler of this process."""

    def answer(body: dict[str, Any]) -> object:
        texts = [body["text"]] if isinstance(body["text"], str) else body["text"]
        options = {name: value for name, value in body.items() if name not in ("text", "timeout_ms")}
        return {"answers": [asdict(each) for each in local.fill(texts, **options)], "index": {}, "more": 1}

    with Scripted(answer) as scripted:
        threading.Thread(target=scripted.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield scripted
        scripted.shutdown()


@pytest.fixture
def filler(server: Scripted) -> RemoteFiller:
    return PhraseFiller.connect(server.url, timeout_seconds=20)


def test_answers_are_those_of_a_filler_on_this_machine(filler: RemoteFiller, local: PhraseFiller) -> None:
    assert filler.fill(QUESTION) == local.fill(QUESTION)
    options: dict[str, Any] = {"occurrences": 1, "retrieval": "dense", "documents": ["poland", "norway"]}
    # the server gets fewer texts at once, and the last bits of scores depend on the size of a batch
    got, expected = (json.dumps(each.fill(TEXTS, 2, **options), default=asdict) for each in (filler, local))
    assert json.loads(got) == json.loads(expected, parse_float=lambda score: pytest.approx(float(score), rel=1e-5))
    answer = filler.fill(QUESTION, k=1)
    assert type(answer.phrases) is tuple and type(answer.phrases[0].occurrences) is tuple
    assert hash(answer) == hash(local.fill(QUESTION, k=1))
    assert filler.fill([]) == []
    assert filler.fill(QUESTION, documents=[]).phrases == ()


def test_what_is_sent_are_the_options_given_and_lists_within_the_limits(filler: RemoteFiller, server: Scripted) -> None:
    filler.fill(QUESTION)
    filler.fill(TEXTS, k=1)
    assert server.requests[0] == {"text": [QUESTION], "timeout_ms": 20_000}
    assert [request["text"] for request in server.requests[1:]] == [TEXTS[:2], TEXTS[2:]]
    assert {request["k"] for request in server.requests[1:]} == {1}


def test_an_answer_to_several_masks_is_decoded_too(server: Scripted, filler: RemoteFiller) -> None:
    place = Occurrence("d", "t", 0, 1, "ab", 0, 2, 0, 1)
    masks = (MaskPhrases((Phrase("a", 0.5, 1, (place,)),)), MaskPhrases(()))
    joint = JointAnswer(QUESTION, (), True, ("a note",), masks=masks, fillings=(Filling(("a", "b"), 0.25),))
    server.answer = lambda body: {"answers": [asdict(joint)]}
    assert filler.fill(QUESTION) == joint and type(filler.fill(QUESTION)) is JointAnswer


@pytest.mark.parametrize(
    ("texts", "options", "kind", "part"),
    [
        (["<mask>", " "], {}, QueryError, "text 2 of 2"),
        (QUESTION, {"k": 0}, SettingError, "k"),
        (QUESTION, {"documents": "bank"}, SettingError, "documents"),
    ],
)
def test_mistakes_that_are_plain_are_told_as_on_this_machine_and_nothing_is_sent(
    texts: Any, options: dict[str, Any], kind: type, part: str, filler: RemoteFiller, server: Scripted
) -> None:
    with pytest.raises(kind, match=part):
        filler.fill(texts, **options)
    assert server.requests == []


@pytest.mark.parametrize(
    ("reply", "kind", "parts"),
    [
        (problem(422, "text.1: too long", "too_long"), QueryError, ["text 2 of 2: too long"]),
        (problem(422, "k must be at most 100", "out_of_range"), SettingError, ["k must be at most 100"]),
        (
            (200, {}, b'{"answers": [{"problem": {"code": "too_long", "title": "text.1: too long"}}]}'),
            QueryError,
            ["text 2 of 2: too long"],
        ),
        (problem(401, "wrong key"), SettingError, ['key="']),
        (problem(422, "\x1b[31mred\x07" + "x" * 9999), SettingError, ["[31mred"]),
        (problem(504, "the answer took too long"), ServerError, ["the answer took too long", "request r7"]),
        (problem(500, "internal error"), ServerError, ["status 500 to request r7"]),
        ((500, {}, b"<h1>oops"), ServerError, ["status 500, <h1>oops"]),
        ((307, {"Location": "http://elsewhere.example/"}, b""), ServerError, ["307", "http://elsewhere.example/"]),
        ((200, {}, b"{"), ServerError, ["does not answer as npmlm serve"]),
        ((200, {}, b"[" * 100_000), ServerError, ["does not answer as npmlm serve"]),
        ((200, {}, b'{"answers": []}'), ServerError, ["other answers"]),
        ((200, {}, b'{"answers": [1, 2]}'), ServerError, ["does not answer as npmlm serve"]),
        ((200, {"Content_Length": "9999"}, b'{"answers": '), ServerError, ["cannot reach"]),
    ],
)
def test_every_refusal_is_one_message(
    reply: Reply, kind: type, parts: list[str], filler: RemoteFiller, server: Scripted
) -> None:
    server.replies = [reply]
    with pytest.raises(kind) as caught:
        filler.fill(TEXTS[:2])
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    assert len(str(caught.value)) < 2000 and "\x1b" not in str(caught.value)
    assert len(server.requests) == 1 and not server.replies


def test_a_busy_server_is_asked_again_as_it_says_within_the_timeout(filler: RemoteFiller, server: Scripted) -> None:
    busy = problem(429, "the queue is full", Retry_After="0")
    server.replies = [busy, problem(503, "not ready"), busy]
    assert filler.fill(QUESTION).phrases
    assert len(server.requests) == 4
    server.replies = [busy] * 9
    with pytest.raises(ServerError, match="the queue is full") as caught:
        filler.fill(QUESTION)
    assert "status 429 to request r7" in str(caught.value) and len(server.replies) == 4  # five tries
    server.replies = [problem(503, "the index cannot be read", Retry_After="3600")]
    with pytest.raises(ServerError, match="the index cannot be read"):
        filler.fill(QUESTION)
    assert not server.replies


def test_the_key_goes_along_and_is_never_shown(server: Scripted) -> None:
    filler = PhraseFiller.connect(server.url, key="s3cret-key")
    filler.fill(QUESTION)
    assert server.keys == ["Bearer s3cret-key"] * 2
    assert "s3cret" not in repr(filler)
    server.replies = [problem(401, "the key is wrong")]
    with pytest.raises(SettingError, match="requires another key") as caught:
        PhraseFiller.connect(server.url, key="s3cret-other")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        *(
            ("url", url)
            for url in ("127.0.0.1:8080", "ftp://host", "http://h/?q=1", "http://me:word@h", "http://[", None)
        ),
        *(("key", key) for key in ("", "a\r\nX: y", 3)),
        *(("timeout_seconds", seconds) for seconds in (0, "long")),
    ],
)
def test_arguments_of_another_kind_are_refused(where: str, value: Any) -> None:
    with pytest.raises(SettingError, match=where):
        PhraseFiller.connect(**{"url": "http://127.0.0.1:9", where: value})


@pytest.mark.parametrize("facts", ["hello", {}, {**FACTS, "limits": {}}, {**FACTS, "encoder": 1}])
def test_a_server_that_is_none_of_ours_is_refused_at_once(facts: object, server: Scripted) -> None:
    server.facts = facts
    with pytest.raises(ServerError, match="does not answer as npmlm serve does"):
        PhraseFiller.connect(server.url)


@contextmanager
def raw_server(reply: bytes) -> Iterator[str]:
    """Sends the same bytes to whoever connects, and then leaves the connection open."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ended = threading.Event()

        def serve() -> None:
            with listening.accept()[0] as connection:
                connection.sendall(reply)
                ended.wait(20)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        ended.set()
        thread.join()


def test_what_does_not_answer_or_speaks_something_else_is_one_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ServerError, match=f":{port}: .*Connection refused"):
        PhraseFiller.connect(f"http://127.0.0.1:{port}")
    for begun in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"):
        with raw_server(begun) as url, pytest.raises(ServerError, match=r"within 0\.3 seconds"):
            PhraseFiller.connect(url, timeout_seconds=0.3)
    with raw_server(b"SSH-2.0-OpenSSH\r\n\r\n") as url, pytest.raises(ServerError, match="SSH-2"):
        PhraseFiller.connect(url, timeout_seconds=5)


def test_a_remote_filler_is_shown_closed_and_copied(server: Scripted, filler: RemoteFiller) -> None:
    assert repr(filler) == f"RemoteFiller('{server.url}', 6 documents, 123 tokens, tiny)"
    assert filler.index["limits"]["texts"] == 2
    assert pickle.loads(pickle.dumps(filler)).fill(QUESTION, k=1) == filler.fill(QUESTION, k=1)
    with PhraseFiller.connect(f"{server.url}/") as other:
        assert isinstance(other.fill(QUESTION), Answer)
    assert repr(other) == "RemoteFiller(closed)"
    for ask in (lambda: other.fill(QUESTION), lambda: other.index):
        with pytest.raises(SettingError, match="closed"):
            ask()


def without_scores(answer: Answer) -> Answer:
    """The last digits of scores depend on what is encoded together."""
    return replace(answer, phrases=tuple(replace(phrase, score=0.0) for phrase in answer.phrases))


def test_a_real_server_answers_as_the_library_and_tells_its_limits(
    built_index: Path, local: PhraseFiller, tmp_path: Path
) -> None:
    pytest.importorskip("fastapi")
    (tmp_path / "keys").write_text("a-key-of-tests\n")
    with RunningServer(built_index, f"key_file={tmp_path / 'keys'}") as running:
        with pytest.raises(SettingError, match="key"):
            PhraseFiller.connect(running.url)
        with PhraseFiller.connect(running.url, key="a-key-of-tests", timeout_seconds=60) as filler:
            assert filler.index["documents"] == 6
            ours, theirs = local.fill(TEXTS * 7), filler.fill(TEXTS * 7)
            assert list(map(without_scores, theirs)) == list(map(without_scores, ours))
            scores = ([each.score for answer in one for each in answer.phrases] for one in (ours, theirs))
            assert next(scores) == pytest.approx(next(scores), abs=1e-6)
            found = npm.find("capital of", filler, show=1, documents=["iceland"])
            assert found == npm.find("capital of", built_index, show=1, documents=["iceland"]) and found.count == 1
            text = "Reykjavík is the capital of Norway. It has 15 rivers."
            traced, expected = (npm.trace(text, each, kinds=["name", "number"]) for each in (filler, built_index))
            assert [(span.text, span.verdict, span.place) for span in traced.spans] == [
                (span.text, span.verdict, span.place) for span in expected.spans
            ]
            with pytest.raises(QueryError, match="function words"):
                npm.find("of the", filler)
            with pytest.raises(SettingError, match="kept field"):
                filler.fill(QUESTION, where="lang=en")
            with pytest.raises(QueryError, match="text 18 of 18"):
                filler.fill([QUESTION] * 17 + ["x" * 20_000 + QUESTION])
    with pytest.raises(ServerError, match="cannot reach"):
        PhraseFiller.connect(running.url)
