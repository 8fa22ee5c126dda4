"""What goes around the routes, with a small application inside and no network."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

import npm.serving
from npm.core.errors import ArtifactError, SettingError
from npm.core.settings import read_settings
from npm.core.types import Answer, JointAnswer, MaskPhrases, Occurrence, Phrase
from npm.retrieval.settings import FillSettings
from npm.serving.app import make_app
from npm.serving.batcher import Batcher
from npm.serving.metrics import ServerMetrics
from npm.serving.middleware import ClientKeys, RequestMiddleware
from npm.serving.replies import IndexState
from npm.serving.server import opened_log
from npm.serving.service import Service
from npm.serving.settings import ServeSettings


async def read_all(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that reads the body and answers with its length, or with the status of a refusal."""
    length, status = 0, 200
    try:
        while True:
            message = await receive()
            length += len(message.get("body", b""))
            if not message.get("more_body"):
                break
    except HTTPException as error:
        status = error.status_code
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": str(length).encode()})


def asked(
    frame: RequestMiddleware,
    pieces: list[bytes],
    *,
    ends: bool = True,
    method: str = "POST",
    path: str = "/v1/fill",
    **headers: str,
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to a request whose body comes in pieces, and perhaps never ends."""
    sent: list[Message] = []
    waiting = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    if ends:
        waiting.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> Message:
        if waiting:
            return waiting.pop(0)
        await asyncio.sleep(60)
        raise AssertionError("nobody waits so long")

    async def send(message: Message) -> None:
        sent.append(message)

    named = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
    raw = [(name.encode(), value.encode()) for name, value in named.items()]
    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": raw}
    asyncio.run(frame(scope, receive, send))
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, sent[1]["body"]


def test_a_server_that_is_stopping_is_not_ready_and_a_damaged_index_is_a_503_without_its_path() -> None:
    notes: list[str] = []
    damage = ArtifactError("/srv/secret/index/x.npy is damaged")

    class Damaged:
        folder, state = Path("/srv/secret/index"), IndexState(0, "digest")
        facts = SimpleNamespace(name="secret")

        def fill_settings(self, options: object) -> FillSettings:
            raise damage

    keeper: Any = SimpleNamespace(current=Damaged())
    settings, metrics = ServeSettings(), ServerMetrics()
    batcher = Batcher(most_waiting=1, batch_texts=1, metrics=metrics)
    service = Service(settings, keeper, metrics, batcher, notes.append, ready=False)
    frame = RequestMiddleware(make_app(service), settings, None, metrics, None, notes.append)
    status, headers, body = asked(frame, [], method="GET", path="/ready")
    assert (status, headers["retry-after"]) == (503, "5") and b"shutting down" in body
    status, headers, body = asked(frame, [b'{"text": "<mask>"}'], content_type="application/json")
    assert status == 503 and headers["retry-after"] == "60"
    assert "secret" in json.loads(body)["title"] and b"/srv" not in body and b"x.npy" not in body
    assert len(notes) == 1 and "x.npy" in notes[0]  # who runs the server is told


def test_the_library_of_the_docs_page_is_the_one_whose_version_is_named() -> None:
    vendor = Path(npm.serving.__file__).parent / "static" / "vendor"
    named = re.findall(r"^([0-9a-f]{64})  (\S+)$", (vendor / "VERSIONS.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for _, name in named] == ["swagger-ui-bundle.js", "swagger-ui.css"]
    for digest, name in named:
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest


def framed(
    settings: ServeSettings,
    log: BinaryIO | None = None,
    keys: ClientKeys | None = None,
    notice: Callable[[str], None] = print,
) -> RequestMiddleware:
    return RequestMiddleware(read_all, settings, keys, ServerMetrics(), log, notice)


def test_a_body_that_does_not_end_in_time_is_refused() -> None:
    frame = framed(ServeSettings(timeout_seconds=0.05))
    assert asked(frame, [b"abc"])[::2] == (200, b"3")
    assert asked(frame, [b"abc"], ends=False)[0] == 408


def test_a_body_is_refused_at_the_byte_too_many_whatever_its_length_says() -> None:
    frame = framed(ServeSettings(max_body_bytes=1000))
    assert asked(frame, [b"x" * 600, b"x" * 400])[::2] == (200, b"1000")
    assert asked(frame, [b"x" * 600, b"x" * 401])[0] == 413
    assert asked(frame, [b"x"], content_length="1001")[0] == 413
    assert asked(frame, [b"x"], content_length="1000")[0] == 200


def test_a_header_of_the_proxy_or_a_key_lets_a_request_in_and_only_on_this_machine(tmp_path: Path) -> None:
    behind = framed(ServeSettings(trusted_header="X-Remote-User"))
    assert asked(behind, [], x_remote_user="ada")[0] == 200
    for wrong in ({}, {"x_remote_user": " "}, {"remote_user": "ada"}, {"x_api_key": "a-key-of-a-program"}):
        status, _, body = asked(behind, [], **wrong)
        assert status == 401 and "X-Remote-User" in json.loads(body)["title"]
    assert asked(behind, [], path="/health")[0] == 200
    (tmp_path / "keys").write_text("a-key-of-a-program", encoding="utf-8")
    both = framed(ServeSettings(trusted_header="X-Remote-User"), keys=ClientKeys(str(tmp_path / "keys"), print))
    assert asked(both, [], x_remote_user="ada")[0] == asked(both, [], x_api_key="a-key-of-a-program")[0] == 200
    assert asked(both, [], x_api_key="another-key")[0] == asked(both, [])[0] == 401
    assert asked(framed(ServeSettings()), [], x_remote_user="ada")[0] == 200  # what nobody trusts changes nothing


@pytest.mark.parametrize(
    "given",
    [
        {"host": "0.0.0.0"},
        {"host": "192.0.2.7"},
        {"cors": ["*"]},
        {"trusted_header": "X Remote\nUser"},
        *({"trusted_header": name} for name in ("Host", "user-agent", "Accept-Language", "Authorization", "X-API-Key")),
    ],
)
def test_a_header_that_others_could_send_is_not_trusted(given: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        read_settings(ServeSettings, {"trusted_header": "X-Remote-User", **given})


def test_questions_without_a_sure_answer_are_listed_without_who_asked(tmp_path: Path) -> None:
    place = Occurrence("handbook", "Handbook", 0, 5, "March", 0, 5, 0, 5)
    march = (Phrase("March", 0.9, 1, (place,)),)
    sure, unsure = Answer("When? <mask>", march, confidence=0.5), Answer("Why? <mask>", march, confidence=0.49)
    withheld = Answer("Whom? <mask>", march, status="low_evidence")
    empty, unknown = Answer("Which? <mask>", ()), Answer("What? <mask>", march)
    several = JointAnswer("<mask> is <mask>", (), masks=(MaskPhrases(march),))
    notes: list[str] = []
    file = tmp_path / "unanswered.jsonl"
    with opened_log(str(file), "unanswered") as lines:
        service: Any = Service(ServeSettings(), Any, ServerMetrics(), Any, notes.append, lines)  # type: ignore[arg-type]
        for answer in (sure, unsure, withheld, empty, unknown, several, {"problem": {}}):
            service.record_unanswered(answer)
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [each["text"] for each in found] == ["Why? <mask>", "Whom? <mask>", "Which? <mask>"]
    assert found[0].keys() == {"time", "text", "confidence", "closest", "document"}
    assert [(each["closest"], each["document"]) for each in found] == [("March", "handbook")] * 2 + [(None, None)]


def test_loopback_names_are_answered_by_a_local_server_and_any_by_an_open_one() -> None:
    local, everywhere = framed(ServeSettings()), framed(ServeSettings(host="0.0.0.0"))
    for host in ("localhost", "LocalHost:80", "127.0.0.1:8080", "[::1]:8080", "[::1]"):
        assert asked(local, [], host=host)[0] == 200, host
    for host in ("example.org", "example.org:80", "[::2]:80", "", "127.0.0.1.example.org"):
        assert asked(local, [], host=host)[0] == 421, host
        assert asked(everywhere, [], host=host)[0] == 200, host


def test_a_log_that_takes_no_more_lines_ends_with_one_note_and_the_server_goes_on() -> None:
    notes: list[str] = []
    with opened_log("/dev/full") as log:
        frame = framed(ServeSettings(), log, notice=notes.append)
        assert [asked(frame, [])[0] for _ in range(3)] == [200] * 3
    assert len(notes) == 1 and "request log ends here" in notes[0]


def test_a_key_is_not_logged(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("first-key\nsecond-key\n")
    with opened_log(str(tmp_path / "log")) as log:
        frame = framed(ServeSettings(), log, keys=ClientKeys(str(tmp_path / "keys"), print))
        assert asked(frame, [], x_api_key="second-key")[0] == 200
        assert asked(frame, [], x_api_key="second")[0] == 401
    text = (tmp_path / "log").read_text()
    assert [json.loads(line)["status"] for line in text.splitlines()] == [200, 401]
    assert "-key" not in text and '"second"' not in text


def test_keys_are_those_of_the_file_as_it_is_now(tmp_path: Path) -> None:
    file, notes = tmp_path / "keys", list[str]()
    file.write_text("key-number-one\n")
    frame = framed(ServeSettings(), keys=ClientKeys(str(file), notes.append))

    def statuses() -> list[int]:
        return [asked(frame, [], x_api_key=f"key-number-{name}")[0] for name in ("one", "two")]

    assert statuses() == [200, 401]
    (tmp_path / "new").write_text("key-number-two\n")
    (tmp_path / "new").replace(file)
    assert statuses() == [401, 200] and len(notes) == 1
    file.unlink()
    assert statuses() == [401, 200] and len(notes) == 2  # such as between two steps of a deployment
    file.write_text("short\n")
    assert statuses() == [401, 401] and "at least 8" in notes[2] and "key-number" not in "".join(notes)
    file.write_text("key-number-one\n")
    assert statuses() == [200, 401]
