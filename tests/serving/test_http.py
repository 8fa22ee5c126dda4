"""Refusals of a real server, and what HTTP adds to its answers: headers, caching, compression, limits, the log."""

from __future__ import annotations

import gzip
import json
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import npm
from npm.core.errors import SettingError, UserError
from npm.indexing.phrase_index import NoDocumentError
from npm.serving.problems import REFUSALS
from npm.serving.server import bound_socket, listen
from npm.serving.settings import ServeSettings
from tests.helpers.command_line import QUESTION, CommandLine
from tests.helpers.running_server import RunningServer, assert_problem, until

LABELS = {"a": ["Paris"], "b": ["Oslo"]}


def files_of(page: bytes) -> list[str]:
    """The addresses of the files that a page names."""
    return [f"/{path}" for path in re.findall(r'(?:src|href)="/?(static/[^"]+)"', page.decode())]


def test_states_and_descriptions_need_nothing_from_elsewhere(server: RunningServer) -> None:
    assert server.ask("GET", "/health").json["status"] == "ok"
    assert server.ask("GET", "/ready").json == {"status": "ready", "generation": 0}
    page = server.ask("GET", "/")
    assert page.headers["content-security-policy"] == "default-src 'self'; base-uri 'none'; frame-ancestors 'none'"
    for path in ("/", "/docs", *files_of(page.body), *files_of(server.ask("GET", "/docs").body)):
        reply = server.ask("GET", path)
        assert reply.status == 200 and reply.headers["x-content-type-options"] == "nosniff"
        assert b'src="http' not in reply.body and b'href="http' not in reply.body
    assert server.metric("npmlm_index_documents") == 6


FAR = f"<mask> {'word ' * 600}<mask>"
REFUSED: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("fill", {"text": " "}, "empty", "text", "text "),
    ("fill", {"text": "<mask>" * 9}, "too_many_masks", "text", "one to 8"),
    ("fill", {"text": FAR}, "masks_too_far_apart", "text", "text "),
    ("fill", {"text": "x" * 10_001}, "too_long", "text", "text "),
    ("fill", {"text": [QUESTION] * 9}, "too_many", "text", "text"),
    ("fill", {"text": []}, "too_few", "text", "got 0"),
    ("fill", {"text": "\ud800 <mask>"}, "invalid_unicode", "text", "text "),
    ("fill", {"text": 3}, "wrong_type", "text", "text"),
    ("fill", {}, "missing_field", "text", "text"),
    ("fill", {"text": QUESTION, "kk": 3}, "unknown_field", "kk", "kk"),
    *(  # names like those of types
        ("fill", {"text": QUESTION, name: 3}, "unknown_field", name, f"{name}: extra")
        for name in ("strength", "str", "list[", "constrained")
    ),
    ("fill", {"text": QUESTION, "k": 101}, "out_of_range", "k", "got 101"),
    ("fill", {"text": QUESTION, "retrieval": "best"}, "unknown_value", "retrieval", "retrieval"),
    ("fill", {"text": QUESTION, "retrieval": "blocks"}, "retrieval_unavailable", "retrieval", "retrieval"),
    ("fill", {"text": QUESTION, "documents": ["nowhere"]}, "no_such_document", "documents", "nowhere"),
    ("fill", {"text": QUESTION, "where": ["lang=en"]}, "no_such_field", "where", "where"),
    ("fill", {"text": QUESTION, "where": ["?"]}, "invalid_condition", "where", "where"),
    ("find", {"phrase": " "}, "empty", "phrase", "phrase"),
    ("find", {"phrase": "of the"}, "no_content_word", "phrase", "phrase"),
    ("labels", {"text": "<mask> and <mask>", "labels": LABELS}, "too_many_masks", "text", "exactly one"),
    ("labels", {"text": QUESTION, "labels": {"a": ["Oslo"]}}, "too_few", "labels", "labels"),
    ("labels", {"text": QUESTION, "labels": {"a": ["Oslo"], "b": ["nowhere"]}}, "label_unknown", "labels", "labels"),
    ("labels", {"text": QUESTION, "labels": {"a": ["Oslo"], "b": ["Rome", ""]}}, "empty", "labels", "labels"),
    ("labels", {"text": QUESTION, "labels": {"strong": [3], "b": ["a"]}}, "wrong_type", "labels", "labels.strong.0"),
    ("trace", {"text": " "}, "empty", "text", "text"),
    ("trace", {"text": "Paris is here. " * 9}, "too_long", "text", "text"),
    ("trace", {"text": "Paris", "kinds": ["names"]}, "unknown_value", "kinds", "kinds"),
    ("over", {"text": QUESTION, "passages": ["Oslo"], "words": ["Oslo", " "]}, "empty", "words", "words.1 is empty"),
    ("over", {"text": QUESTION, "passages": ["a", {"text": "b", "c": 1}]}, "unknown_field", "passages", "passages.1.c"),
]
"""Route, body, and the code, field and a part of the title of its refusal."""


def test_a_refusal_has_a_code_its_field_and_a_short_title(server: RunningServer) -> None:
    for route, body, code, field, part in REFUSED:
        problem = assert_problem(server.ask("POST", f"/v1/{route}", body), 422, part)
        assert (problem["code"], problem["field"]) == (code, field), (body, problem)
    assert len(server.fill(QUESTION, **{"k" * 100_000: 1}).body) < 2_000
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        headers = {"Content-Type": kind}
        assert_problem(server.ask("POST", "/v1/fill", {"text": QUESTION}, headers=headers), 415, "application/json")
    assert assert_problem(server.ask("GET", "/v1/fill?text=%20"), 422)["title"].startswith("text ")
    assert_problem(server.ask("GET", "/v1/fill?text=%3Cmask%3E&j=3"), 422, "j")
    assert_problem(server.ask("GET", "/v1/fill?text=%3Cmask%3E&where=a%3D1&where=b%3D2"), 422, "where")
    assert_problem(server.ask("GET", "/v1/documents/iceland?around=-1"), 422, "around")
    assert_problem(server.fill(["a <mask> b " + "word " * 900] * 8, timeout_ms=1), 504, "timeout_ms")


NOT_JSON = [b"{", b"\xff\xfe", b'{"text": }', b"[" * 5000]
OTHER_JSON = [b"", b"[]", b"null", b"3", b'"text"', b'{"text": NaN}']
MALFORMED: list[dict[str, Any]] = [
    *({"text": text} for text in (None, {}, True, [None], [[QUESTION]], ["", " "], ["", "\ud800 <mask>"])),
    *(
        {"text": QUESTION, **wrong}
        for wrong in (
            {"k": 0}, {"k": "5"}, {"k": True}, {"occurrences": 51}, {"documents": ["x"] * 1001},
            {"documents": "iceland"}, {"documents": ["\ud800"]}, {"where": ["a=b"] * 17}, {"blocks": [0]},
        )
    ),
]  # fmt: skip


def test_a_malformed_body_is_one_problem(server: RunningServer) -> None:
    for raw in NOT_JSON:
        assert_problem(server.ask("POST", "/v1/fill", raw=raw), 400)
    for raw in (*OTHER_JSON, *(json.dumps(body).encode() for body in MALFORMED)):
        assert assert_problem(server.ask("POST", "/v1/fill", raw=raw), 422)["title"], raw[:100]
    assert server.fill(QUESTION).status == 200


def test_what_is_no_route_and_other_methods_are_problems(server: RunningServer) -> None:
    assert_problem(server.ask("GET", "/v2/fill"), 404)
    assert_problem(server.ask("GET", "/static/../../settings.py"), 404)
    assert_problem(server.ask("GET", "/v1/documents"), 404)
    for method, path, allowed in (
        ("DELETE", "/v1/fill", "GET, HEAD, POST"),
        ("GET", "/v1/over", "POST"),
        ("HEAD", "/v1/over", "POST"),
        ("POST", "/health", "GET, HEAD"),
        ("POST", "/v1/documents/iceland", "GET, HEAD"),
        ("POST", files_of(server.ask("GET", "/").body)[0], "GET, HEAD"),
    ):
        assert server.ask(method, path).headers["allow"] == allowed, path
    assert_problem(server.ask("DELETE", "/v1/fill"), 405)
    assert server.metric('npmlm_requests_total{route="other",status="404"}') >= 1


def test_head_is_answered_with_the_headers_of_get(server: RunningServer) -> None:
    link = f"/v1/fill?{urlencode({'text': QUESTION})}"
    routes = ("", "docs", "health", "ready", "metrics", "openapi.json", "v1/index", "v1/documents/norway")
    for path in (*(f"/{route}" for route in routes), link):
        reply, full = server.ask("HEAD", path), server.ask("GET", path)
        assert (reply.status, reply.body) == (200, b"") and full.body, path
        for name in ("date", "x-request-id", "content-length"):  # of times, too, which are some digits long
            assert full.headers.pop(name) and reply.headers.pop(name)
        assert reply.headers == full.headers, path


def test_every_code_of_an_error_is_described() -> None:
    sources = [path.read_text(encoding="utf-8") for path in Path(npm.__file__).parent.rglob("*.py")]
    named = {code for source in sources for code in re.findall(r'\bcode="([a-z_]+)"', source)}
    assert len(named) > 8 and named | {UserError.code, NoDocumentError.code} <= REFUSALS.keys()


def test_a_link_is_not_computed_again_for_who_has_its_answer(server: RunningServer) -> None:
    link = f"/v1/fill?{urlencode({'text': QUESTION, 'k': 2})}"
    first = server.ask("GET", link)
    assert first.headers["cache-control"] == "private, no-cache" and first.headers["vary"].split(", ")[0] == "Accept"
    tag = first.headers["etag"]
    again = server.ask("GET", link, headers={"If-None-Match": f'"other", {tag}'})
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    for known in ("*", tag.removeprefix("W/"), f'{tag},W/"other"'):
        assert server.ask("GET", link, headers={"If-None-Match": known}).status == 304
    for other_tag in ("", '"*"', tag.replace('"', ""), f'"a{tag}'):
        assert server.ask("GET", link, headers={"If-None-Match": other_tag}).status == 200
    other = server.ask("GET", link.replace("k=2", "k=3"), headers={"If-None-Match": tag})
    assert other.status == 200 and other.headers["etag"] != tag


def test_files_of_a_page_are_kept_under_the_name_of_their_content(server: RunningServer) -> None:
    page = server.ask("GET", "/")
    assert page.headers["cache-control"] == "no-cache"
    files = files_of(page.body)
    assert len(files) >= 3
    for path in files:
        reply = server.ask("GET", path)
        assert (reply.status, reply.headers["cache-control"]) == (200, "public, max-age=31536000, immutable"), path
        again = server.ask("GET", path, headers={"If-None-Match": reply.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        assert_problem(server.ask("GET", path.replace("static/", "static/0")), 404)
        assert "immutable" not in server.ask("GET", f"{path}x").headers["cache-control"]


def test_long_answers_are_compressed_for_who_accepts_it(server: RunningServer) -> None:
    script = next(path for path in files_of(server.ask("GET", "/").body) if path.endswith(".js"))
    for path in ("/", script, "/openapi.json"):
        plain, packed = (server.ask("GET", path, headers={"Accept-Encoding": kind}) for kind in ("identity", "gzip"))
        assert "content-encoding" not in plain.headers and packed.headers["content-encoding"] == "gzip", path
        assert "Accept-Encoding" in packed.headers["vary"] and len(packed.body) < len(plain.body) / 1.5
        assert gzip.decompress(packed.body) == plain.body
    body = {"text": [QUESTION] * 8, "k": 20}
    headers = {"Accept-Encoding": "gzip", "Accept": "application/x-ndjson"}
    lines = gzip.decompress(server.ask("POST", "/v1/fill", body, headers=headers).body).splitlines()
    assert json.loads(lines[0])["answer"] == server.fill(QUESTION, k=20).json["answers"][0]


def test_bodies_over_the_limit_are_refused_with_and_without_a_length(server: RunningServer) -> None:
    long = json.dumps({"text": "x" * 200_000}).encode()
    assert_problem(server.ask("POST", "/v1/fill", raw=long), 413, "limits")
    connection = server.connection()
    pieces = (long[start : start + 50_000] for start in range(0, len(long), 50_000))
    connection.request("POST", "/v1/fill", pieces, {"Content-Type": "application/json"}, encode_chunked=True)
    response = connection.getresponse()
    assert response.status == 413 and json.loads(response.read())["title"]
    connection.close()


def test_a_request_id_is_kept_or_made(server: RunningServer) -> None:
    assert server.ask("GET", "/health", headers={"X-Request-ID": "mine-1"}).headers["x-request-id"] == "mine-1"
    made = [
        server.ask("GET", "/health", headers={"X-Request-ID": given}).headers["x-request-id"] for given in ("", "a b")
    ]
    assert all(len(each) == 32 for each in made) and made[0] != made[1]


def test_a_local_server_is_reached_by_its_own_name_only(server: RunningServer) -> None:
    assert_problem(server.ask("GET", "/v1/index", headers={"Host": "example.org"}), 421, "example.org")
    assert server.ask("GET", "/v1/index", headers={"Host": "localhost:80"}).status == 200


def test_the_log_has_a_line_a_request_and_no_text(server: RunningServer, log: Path) -> None:
    server.ask("POST", "/v1/fill", {"text": "Sesame <mask> opens"}, headers={"X-Request-ID": "logged-1"})
    until(lambda: '"logged-1"' in log.read_text(encoding="utf-8"))  # written when the answer has been sent
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    line = next(each for each in lines if each["request_id"] == "logged-1")
    assert (line["method"], line["route"], line["status"], line["texts"]) == ("POST", "/v1/fill", 200, 1)
    assert line["took_ms"]["total"] > 0
    assert "Sesame" not in log.read_text(encoding="utf-8")


def test_of_two_servers_that_start_at_once_the_second_is_refused() -> None:
    with bound_socket(ServeSettings(port=0)) as first:
        settings = ServeSettings(port=first.getsockname()[1])
        with bound_socket(settings) as second:  # neither listens yet
            listen(first, settings)
            with pytest.raises(SettingError, match="port=0"):
                listen(second, settings)


def test_a_port_in_use_keys_that_are_none_and_no_index_are_one_message(
    npmlm: CommandLine, built_index: Path, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        npmlm("serve", f"index={built_index}", f"port={port}").refused(f"port={port}", "port=0")
    for host in ("999.1.1.1", "a..b", ".example"):
        npmlm("serve", f"index={built_index}", f"host={host}").refused(host)
    npmlm("serve", f"index={built_index}", f"key_file={tmp_path / 'none'}").refused("key_file")
    (tmp_path / "keys").write_text("short\n")
    npmlm("serve", f"index={built_index}", f"key_file={tmp_path / 'keys'}").refused("key_file", "at least 8")
    npmlm("serve", f"index={tmp_path / 'none'}", "port=0").refused(str(tmp_path / "none"))
    npmlm("serve", f"index={built_index}", "port=0", "fill.retrieval=blocks").refused("block vectors")
    npmlm("serve", f"index={built_index}", "port=0", f"examples={tmp_path / 'none'}").refused("examples")
    npmlm("serve", f"index={built_index}", "port=0", f"log={tmp_path}").refused("log")
    npmlm("serve", f"index={built_index}", "port=0", "queue_texts=3").refused("queue_texts", "got 3")
    npmlm("serve", f"index={built_index}", "port=65536").refused("port")
