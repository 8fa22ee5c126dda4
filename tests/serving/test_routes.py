"""Every route of a real server, every status, and that answers are the library's."""

from __future__ import annotations

import gzip
import json
import os
import re
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import npm
from npm.core.errors import UserError
from npm.indexing.phrase_index import NoDocumentError
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.passages import PassageFiller
from npm.retrieval.remote import QUERY_CODES
from npm.retrieval.settings import FillSettings, Retrieval
from npm.serving.problems import REFUSALS
from tests.helpers.command_line import QUESTION, REPOSITORY, CommandLine
from tests.helpers.running_server import Reply, RunningServer, until

TEXTS = [QUESTION, "<mask> and Kraków are cities in Poland.", "Don Quixote was written by <mask> in Madrid."]
MEMBERS = {"type", "code", "title", "status", "field", "request_id"}


@pytest.fixture(scope="module")
def filler(built_index: Path) -> PhraseFiller:
    return PhraseFiller.open(built_index)


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(asdict(value)))


def assert_close(ours: Any, theirs: Any) -> None:
    """Equal, but for scores, which may differ by 1e-6."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            assert_close(value, theirs[key])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one, other)
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, abs=1e-6)
    else:
        assert ours == theirs


def files_of(page: bytes) -> list[str]:
    """The addresses of the files that a page names."""
    return [f"/{path}" for path in re.findall(r'(?:src|href)="/?(static/[^"]+)"', page.decode())]


def assert_problem(reply: Reply, status: int, *parts: str) -> dict[str, Any]:
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


@pytest.mark.parametrize("retrieval", ["hybrid", "bm25", "dense"])
def test_answers_are_those_of_the_library_alone_and_among_others(
    server: RunningServer, filler: PhraseFiller, retrieval: str
) -> None:
    alone = [server.fill(text, retrieval=retrieval, k=7).json["answers"][0] for text in TEXTS]
    together = server.fill(TEXTS, retrieval=retrieval, k=7).json["answers"]
    for text, one, other in zip(TEXTS, alone, together, strict=True):
        expected = as_json(filler.fill(text, 7, retrieval=retrieval))
        assert expected["phrases"]
        assert_close(one, expected)
        assert_close(other, expected)


def test_what_a_request_says_stands_in_for_the_servers_settings(server: RunningServer, filler: PhraseFiller) -> None:
    reply = server.fill(QUESTION, k=2, occurrences=0, documents=["france", "iceland"]).json
    assert_close(reply["answers"][0], as_json(filler.fill(QUESTION, 2, occurrences=0, documents=["france", "iceland"])))
    assert reply["settings"] == {
        "k": 2,
        "occurrences": 0,
        "retrieval": "hybrid",
        "documents": ["france", "iceland"],
        "where": [],
        "min_share": 0.0,
        "scoring": "default",
    }
    assert reply["index"] == {"generation": 0, "digest": filler.index.manifest.digest}
    assert reply["took_ms"].keys() == {"queue", "encode", "search", "total"}
    assert reply["partitions"] == {"asked": 1, "answered": 1, "missing_rows_share": 0.0}
    server_choice = {"k": None, "occurrences": None, "retrieval": None, "documents": None, "where": None}
    assert server.fill(QUESTION, **server_choice).json["answers"] == server.fill(QUESTION).json["answers"]
    nothing = server.fill(QUESTION, documents=[]).json["answers"][0]
    assert nothing["phrases"] == [] and "empty" in nothing["notes"][0]


def test_a_plain_question_is_shown_as_filled_and_a_small_share_has_its_status(
    server: RunningServer, filler: PhraseFiller
) -> None:
    clear, unclear = (
        server.fill("What is the capital of Iceland?", retrieval="dense", min_share=share).json["answers"][0]
        for share in (0.0, 1.0)
    )
    assert_close(clear, as_json(filler.fill("The capital of Iceland is <mask>.", retrieval="dense")))
    assert (clear["status"], unclear["status"]) == ("ok", "low_evidence")
    assert_close(unclear["phrases"], clear["phrases"])
    assert_problem(server.fill("Why is Iceland an island?"), 422, "cannot be turned into a statement")


def test_reference_scoring_is_that_of_the_library(server: RunningServer, built_index: Path) -> None:
    reference = PhraseFiller.open(built_index, settings=FillSettings.reference())
    reply = server.fill(QUESTION, scoring="reference").json
    assert_close(reply["answers"][0], as_json(reference.fill(QUESTION)))
    assert reply["settings"]["scoring"] == "reference" and reply["settings"]["retrieval"] == "bm25"


def test_texts_with_several_masks_are_filled_jointly(server: RunningServer, filler: PhraseFiller) -> None:
    text = "<mask> is the capital of <mask>."
    answers = server.fill([QUESTION, text]).json["answers"]
    assert_close(answers, [as_json(filler.fill(QUESTION)), as_json(filler.fill(text))])
    assert len(answers[1]["masks"]) == 2 and len(answers[1]["fillings"]) > 1 and answers[1]["phrases"] == []
    assert_problem(server.fill(" ".join(["<mask>"] * 9)), 422, "9", "one to 8", "text")
    labels = {"a": ["Paris"], "b": ["Oslo"]}
    assert_problem(server.ask("POST", "/v1/labels", {"text": text, "labels": labels}), 422, "exactly one", "text")


def test_lines_of_json_come_one_for_each_text(server: RunningServer) -> None:
    body = {"text": TEXTS}
    reply = server.ask("POST", "/v1/fill", body, headers={"Accept": "application/x-ndjson"})
    assert reply.headers["content-type"].startswith("application/x-ndjson")
    *lines, last = map(json.loads, reply.body.splitlines())
    expected = server.fill(TEXTS).json
    assert lines == [{"index": number, "answer": answer} for number, answer in enumerate(expected.pop("answers"))]
    assert last == {"summary": {**expected, "took_ms": last["summary"]["took_ms"]}}


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"documents": ["nowhere"]}, "no_such_document"),
        ({"where": ["lang=en"]}, "no_such_field"),
        ({"text": ["no gap", f"<mask> {'word ' * 600}<mask>"]}, "no_mask"),
        ({"text": f"<mask> {'word ' * 600}<mask>"}, "masks_too_far_apart"),
        ({"text": ["a <mask> b " + "word " * 900] * 8, "timeout_ms": 1}, "timeout"),
    ],
)
def test_lines_do_not_begin_before_a_text_can_be_answered(
    server: RunningServer, wrong: dict[str, Any], code: str
) -> None:
    body, headers = {"text": TEXTS, **wrong}, {"Accept": "application/x-ndjson"}
    problem = assert_problem(server.ask("POST", "/v1/fill", body, headers=headers), REFUSALS[code].status)
    assert problem["code"] == code
    text = ["no gap", QUESTION]
    *lines, last = map(json.loads, server.ask("POST", "/v1/fill", {"text": text}, headers=headers).body.splitlines())
    assert [sorted(line) for line in lines] == [["index", "problem"], ["answer", "index"]]
    assert (last["summary"]["answered"], last["summary"]["failed"]) == (1, 1)


def test_a_text_that_cannot_be_answered_has_its_problem_in_its_place(server: RunningServer) -> None:
    bad = {
        "no gap": "no_mask",
        "": "empty",
        "x" * 10_001: "too_long",
        f"<mask> {'word ' * 600}<mask>": "masks_too_far_apart",
    }
    texts = [QUESTION, *bad, QUESTION]
    reply = server.fill(texts)
    assert (reply.status, reply.json["answered"], reply.json["failed"]) == (200, 2, 4)
    first, *failed, last = reply.json["answers"]
    assert first == last == server.fill(QUESTION).json["answers"][0]
    for number, (text, code) in enumerate(bad.items(), start=1):
        problem = failed[number - 1]["problem"]
        assert problem.keys() == MEMBERS and (problem["code"], problem["status"], problem["field"]) == (
            code,
            422,
            "text",
        )
        assert problem["title"].startswith(f"text.{number}")
        alone = assert_problem(server.fill([text]), 422)
        assert (alone["code"], alone["title"]) == (code, problem["title"].replace(f"text.{number}", "text.0"))
    assert_problem(server.fill(list(bad)), 422, "no_mask", "text.0")
    lines = server.ask(
        "POST", "/v1/fill", {"text": texts}, headers={"Accept": "application/x-ndjson"}
    ).body.splitlines()
    *found, last = map(json.loads, lines)
    assert [each["problem"]["code"] if "problem" in each else each["answer"] for each in found] == [
        first,
        *bad.values(),
        first,
    ]
    assert (last["summary"]["answered"], last["summary"]["failed"]) == (2, 4)


def test_a_link_answers_as_a_body_does(server: RunningServer) -> None:
    link = "/v1/fill?text=The%20capital%20of%20Iceland%20is%20%3Cmask%3E.&k=3&documents=iceland&documents=france"
    expected = server.fill(QUESTION, k=3, documents=["iceland", "france"]).json["answers"]
    assert server.ask("GET", link).json["answers"] == expected


def test_passages_that_come_along_are_answered_from(server: RunningServer, filler: PhraseFiller) -> None:
    passages = ["Our cat is called Felix.", "Rex is the dog of the neighbors, 😀 and old."]
    text = "The dog is called <mask>."
    own = PassageFiller(passages, filler.encoder, FillSettings(retrieval=Retrieval.dense, k=4))
    reply = server.ask("POST", "/v1/over", {"passages": passages, "text": text, "k": 4}).json
    assert_close(reply["answers"], [as_json(own.fill(text))])
    titled = [{"text": passages[0], "id": "cat", "title": "Felix"}, passages[1]]
    words = ["Rex", "Felix", "no"]
    scored = server.ask("POST", "/v1/over", {"passages": titled, "text": text, "words": words}).json
    raw = own.score(text, words)
    assert scored["answers"] is None and sum(scored["scores"]) == pytest.approx(1)
    assert scored["scores"] == pytest.approx([score / sum(raw) for score in raw], abs=1e-6) and raw[2] == 0
    assert scored["evidence"] == pytest.approx(sum(raw), abs=1e-6)
    none = server.ask("POST", "/v1/over", {"passages": titled, "text": text, "words": ["no", "such"]}).json
    assert (none["scores"], none["evidence"]) == ([0, 0], 0)
    texts = [text, "no gap", "The cat is called <mask>."]
    several = server.ask("POST", "/v1/over", {"passages": passages, "text": texts, "k": 4}).json["answers"]
    assert_close([several[0], several[2]], [as_json(own.fill(texts[0])), as_json(own.fill(texts[2]))])
    assert several[1]["problem"]["code"] == "no_mask"
    body = {"passages": titled, "text": texts, "words": words}
    several = server.ask("POST", "/v1/over", body).json
    assert several["scores"][0] == pytest.approx(scored["scores"], abs=1e-6)
    assert several["scores"][1]["problem"]["code"] == "no_mask" and several["evidence"][1] is None
    assert several["evidence"][0] == pytest.approx(scored["evidence"], abs=1e-6)


def test_labels_have_shares_words_and_places(server: RunningServer) -> None:
    labels = {"town": ["Paris", "Oslo", "nowhere"], "man": ["Miguel de Cervantes", "Amadeo Giannini"]}
    texts = ["It is <mask>.", "He is <mask>."]
    reply = server.ask("POST", "/v1/labels", {"text": texts, "labels": labels}).json
    first, second = reply["answers"]
    assert [first["text"], second["text"]] == texts
    for text, own in zip(texts, reply["answers"], strict=True):
        alone = server.ask("POST", "/v1/labels", {"text": text, "labels": labels}).json["answers"]
        assert_close(alone, [own])
    assert [each["label"] for each in first["labels"]] == ["town", "man"]
    assert sum(each["share"] for each in first["labels"]) == pytest.approx(1)
    for each in first["labels"] + second["labels"]:
        assert each["word"] in labels[each["label"]]
        place = each["occurrence"]
        first = place["start_char"] - place["context_start_char"]
        assert place["context"][first : first + len(each["word"])].casefold() == each["word"].casefold()
    assert any("nowhere" in note for note in reply["notes"])
    mixed = server.ask("POST", "/v1/labels", {"text": ["x", *texts], "labels": labels}).json["answers"]
    assert mixed[0]["problem"]["code"] == "no_mask"
    assert_close(mixed[1:], reply["answers"])
    long = "It is <mask>. " + "word " * 900
    answers = server.ask("POST", "/v1/labels", {"text": [texts[0], long], "labels": labels}).json["answers"]
    assert [each["cut"] for each in answers] == [False, True]
    body = {"text": "It is <mask>.", "labels": {"a": ["Paris"], "b": ["nowhere"]}}
    assert_problem(server.ask("POST", "/v1/labels", body), 422, "labels")


def test_phrases_are_looked_up_and_texts_traced_as_the_library_does(server: RunningServer, built_index: Path) -> None:
    reply = server.ask("POST", "/v1/find", {"phrase": "capital of", "show": 1}).json
    assert reply["found"] == as_json(npm.find("capital of", built_index, show=1)) and reply["found"]["count"] == 2
    assert reply["took_ms"].keys() == {"queue", "encode", "search", "total"}
    text = "Paris is the capital of Norway. It has 15 rivers.\nDon Quixote was written by Amadeo Giannini."
    body = {"text": text, "kinds": ["name", "number"]}
    expected = as_json(npm.trace(text, built_index, kinds=["name", "number"]))["spans"]
    assert [span["text"] for span in expected] == ["Paris", "Norway", "15", "Don Quixote", "Amadeo Giannini"]
    assert_close(server.ask("POST", "/v1/trace", body).json["spans"], expected)
    assert server.ask("POST", "/v1/trace", {"text": "nothing"}).json["spans"] == []
    for path, wrong in (
        ("/v1/find", {"phrase": "of the"}),
        ("/v1/find", {"phrase": "Paris", "documents": ["nowhere"]}),
        ("/v1/trace", {"text": " "}),
        ("/v1/trace", {"text": text, "kinds": ["names"]}),
        ("/v1/trace", {"text": "Paris is here. " * 9}),
    ):
        assert_problem(server.ask("POST", path, wrong), 422)


def test_facts_of_the_index_hold_no_path(server: RunningServer, filler: PhraseFiller, built_index: Path) -> None:
    facts = server.ask("GET", "/v1/index").json
    assert (facts["documents"], facts["tier"], facts["rotation"], facts["fields"]) == (6, "exact", "none", [])
    assert facts["encoder"]["fingerprint"] == filler.encoder.fingerprint
    assert facts["limits"]["texts"] == 8 and facts["limits"]["body_bytes"] == 200_000
    assert facts["defaults"] == {"k": 5, "occurrences": 3, "retrieval": "hybrid", "min_share": 0.0}
    assert str(built_index.parent) not in json.dumps(facts)


def test_a_part_of_a_document_is_counted_in_code_points(server: RunningServer) -> None:
    text = "🜨 Reykjavík is the capital of Iceland. It lies on Faxaflói."
    window = server.ask("GET", "/v1/documents/iceland?start_char=2&end_char=11&around=1").json
    assert window["text"] == text[1:12] and text[window["start_char"] : window["end_char"]] == "Reykjavík"
    assert (window["window_start_char"], window["window_end_char"], window["total_chars"]) == (1, 12, len(text))
    whole = server.ask("GET", "/v1/documents/iceland?start_char=999").json
    assert whole["text"] == text and whole["start_char"] == len(text)
    assert_problem(server.ask("GET", "/v1/documents/no%2Fwhere%1B"), 404, r"no/where\\x1b")


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


def test_the_description_of_the_routes_is_the_committed_one(server: RunningServer) -> None:
    committed = Path(__file__).parents[2] / "docs" / "openapi.json"
    ours = server.ask("GET", "/openapi.json").json
    if os.environ.get("NPMLM_WRITE_OPENAPI"):
        committed.write_text(json.dumps(ours, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert json.loads(committed.read_text(encoding="utf-8")) == ours, (
        "the routes have changed: write the new description with make openapi"
    )


MALFORMED: list[Any] = [
    b"", b"{", b"[]", b"null", b"3", b'"text"', b"\xff\xfe", b"{}", b'{"text": }', b"[" * 5000, b'{"text": NaN}',
    *(
        {"text": text}
        for text in (None, 3, {}, True, [], [None], [3], [[QUESTION]], "", "  ", "no mask", "x" * 10_001, ["no mask"],
                     ["", "no mask"], [QUESTION] * 9, "\ud800 <mask>", ["no mask", "\ud800 <mask>"])
    ),
    *(
        {"text": QUESTION, **wrong}
        for wrong in (
            {"k": 0}, {"k": 101}, {"k": "5"}, {"k": 1.5}, {"k": True}, {"k": [1]}, {"occurrences": -1},
            {"occurrences": 51}, {"retrieval": "best"}, {"retrieval": 3}, {"retrieval": "blocks"},
            {"documents": "iceland"}, {"documents": [3]}, {"documents": ["nowhere"]}, {"documents": ["x"] * 1001},
            {"documents": ["\ud800"]}, {"where": "lang=en"}, {"where": ["lang=en"]}, {"where": ["?"]},
            {"where": ["a=b"] * 17}, {"scoring": "none"}, {"timeout_ms": 0}, {"kk": 3}, {"K": 3}, {"blocks": [0]},
            {"text ": QUESTION},
        )
    ),
]  # fmt: skip


def test_fifty_malformed_bodies_are_each_one_problem(server: RunningServer) -> None:
    assert len(MALFORMED) >= 50
    for body in MALFORMED:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = server.ask("POST", "/v1/fill", raw=raw)
        is_json = isinstance(body, dict) or raw in (b"", b"[]", b"null", b"3", b'"text"', b"{}", b'{"text": NaN}')
        assert assert_problem(reply, 422 if is_json else 400)["title"], raw[:100]
    assert server.fill(QUESTION).status == 200


def test_a_field_of_the_wrong_name_or_kind_is_named(server: RunningServer) -> None:
    assert_problem(server.fill(QUESTION, kk=3), 422, "kk")
    assert_problem(server.fill(QUESTION, k=101), 422, "k: ", "101")
    assert_problem(server.fill(["x"]), 422, "text.0")
    for name in ("strength", "str", "list[", "constrained"):  # like the names of types
        assert f"{name}: extra" in server.fill(QUESTION, **{name: 1}).json["title"]
    over = {"passages": ["Oslo", {"text": "Rome", "strange": 1}], "text": QUESTION}
    assert "passages.1.strange" in server.ask("POST", "/v1/over", over).json["title"]
    labels = {"text": ["x"], "labels": {"a": ["Oslo"], "b": ["Rome"]}}
    assert_problem(server.ask("POST", "/v1/labels", labels), 422, "text.0", "got 0")
    assert_problem(server.ask("POST", "/v1/labels", {**labels, "text": []}), 422, "got 0")
    labels = {"text": QUESTION, "labels": {"strong": ["Oslo", 3], "weak": ["Rome"]}}
    assert "labels.strong.1" in server.ask("POST", "/v1/labels", labels).json["title"]
    assert len(server.fill(QUESTION, **{"k" * 100_000: 1}).body) < 2_000
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        headers = {"Content-Type": kind}
        assert_problem(server.ask("POST", "/v1/fill", {"text": QUESTION}, headers=headers), 415, "application/json")
    assert_problem(server.fill(QUESTION, where=["lang=en"]), 422, "where")
    for one in (server.ask("GET", "/v1/fill?text=x"), server.fill("x"), server.fill("\ud800 <mask>")):
        assert assert_problem(one, 422)["title"].startswith("text ")
    over = {"passages": ["Oslo"], "text": QUESTION, "words": ["Oslo", ""]}
    assert assert_problem(server.ask("POST", "/v1/over", over), 422)["title"] == "words.1 is empty"
    assert_problem(server.ask("GET", "/v1/fill?text=%3Cmask%3E&j=3"), 422, "j")
    assert_problem(server.ask("GET", "/v1/fill?text=%3Cmask%3E&where=a%3D1&where=b%3D2"), 422, "where")
    assert_problem(server.ask("GET", "/v1/documents/iceland?around=-1"), 422, "around")
    too_much = {"passages": ["word " * 2000] * 21, "text": "It is <mask>."}
    assert_problem(server.ask("POST", "/v1/over", too_much), 413 if len(json.dumps(too_much)) > 200_000 else 422)


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
    for path in (
        "/",
        "/docs",
        "/health",
        "/ready",
        "/metrics",
        "/openapi.json",
        "/v1/index",
        "/v1/documents/norway",
        link,
    ):
        reply, full = server.ask("HEAD", path), server.ask("GET", path)
        assert (reply.status, reply.body) == (200, b"") and full.body, path
        for name in ("date", "x-request-id", "content-length"):  # of times, too, which are some digits long
            assert full.headers.pop(name) and reply.headers.pop(name)
        assert reply.headers == full.headers, path


@pytest.mark.parametrize(
    ("path", "body", "code", "field"),
    [
        ("fill", {"text": " "}, "empty", "text"),
        ("fill", {"text": "Oslo"}, "no_mask", "text"),
        ("fill", {"text": "<mask>" * 9}, "too_many_masks", "text"),
        ("fill", {"text": "Why is Iceland an island?"}, "not_a_statement", "text"),
        ("fill", {"text": f"<mask> {'word ' * 600}<mask>"}, "masks_too_far_apart", "text"),
        ("fill", {"text": "x" * 10_001}, "too_long", "text"),
        ("fill", {"text": [QUESTION] * 9}, "too_many", "text"),
        ("fill", {"text": []}, "too_few", "text"),
        ("fill", {"text": "\ud800 <mask>"}, "invalid_unicode", "text"),
        ("fill", {"text": 3}, "wrong_type", "text"),
        ("fill", {}, "missing_field", "text"),
        ("fill", {"text": QUESTION, "kk": 3}, "unknown_field", "kk"),
        ("fill", {"text": QUESTION, "k": 101}, "out_of_range", "k"),
        ("fill", {"text": QUESTION, "retrieval": "best"}, "unknown_value", "retrieval"),
        ("fill", {"text": QUESTION, "retrieval": "blocks"}, "retrieval_unavailable", "retrieval"),
        ("fill", {"text": QUESTION, "documents": ["nowhere"]}, "no_such_document", "documents"),
        ("fill", {"text": QUESTION, "where": ["lang=en"]}, "no_such_field", "where"),
        ("find", {"phrase": " "}, "empty", "phrase"),
        ("fill", {"text": QUESTION, "where": ["?"]}, "invalid_condition", "where"),
        ("find", {"phrase": "of the"}, "no_content_word", "phrase"),
        ("labels", {"text": QUESTION, "labels": {"a": ["Oslo"]}}, "too_few", "labels"),
        ("labels", {"text": QUESTION, "labels": {"a": ["Oslo"], "b": ["nowhere"]}}, "label_unknown", "labels"),
        ("labels", {"text": QUESTION, "labels": {"a": ["Oslo"], " ": ["Rome"]}}, "empty", "labels"),
        ("labels", {"text": QUESTION, "labels": {"a": ["Oslo"], "b": ["Rome", ""]}}, "empty", "labels"),
        ("trace", {"text": "Paris is here. " * 9}, "too_long", "text"),
        ("over", {"text": QUESTION, "passages": ["Oslo"], "words": ["Oslo", " "]}, "empty", "words"),
    ],
)
def test_a_refusal_has_a_code_and_its_field(
    server: RunningServer, path: str, body: dict[str, Any], code: str, field: str
) -> None:
    problem = assert_problem(server.ask("POST", f"/v1/{path}", body), 422)
    assert (problem["code"], problem["field"]) == (code, field)


def test_every_code_of_an_error_is_described() -> None:
    sources = [path.read_text(encoding="utf-8") for path in Path(npm.__file__).parent.rglob("*.py")]
    named = {code for source in sources for code in re.findall(r'\bcode="([a-z_]+)"', source)}
    page = (REPOSITORY / "docs" / "http-api.md").read_text(encoding="utf-8")
    described = {code: int(status) for code, status in re.findall(r"^\| `(\w+)` \| (\d+) \|", page, re.MULTILINE)}
    assert described == {code: kind.status for code, kind in REFUSALS.items()}
    assert len(named) > 8 and named | {UserError.code, NoDocumentError.code} | QUERY_CODES <= REFUSALS.keys()


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


def test_time_that_is_over_is_a_504(server: RunningServer) -> None:
    assert_problem(server.fill(["a <mask> b " + "word " * 900] * 8, timeout_ms=1), 504, "timeout_ms")


def test_a_port_in_use_keys_that_are_none_and_no_index_are_one_message(
    npmlm: CommandLine, built_index: Path, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        npmlm("serve", f"index={built_index}", f"port={port}").refused(f"port={port}", "port=0")
    npmlm("serve", f"index={built_index}", "host=999.1.1.1").refused("999.1.1.1")
    npmlm("serve", f"index={built_index}", f"key_file={tmp_path / 'none'}").refused("key_file")
    (tmp_path / "keys").write_text("short\n")
    npmlm("serve", f"index={built_index}", f"key_file={tmp_path / 'keys'}").refused("key_file", "at least 8")
    npmlm("serve", f"index={tmp_path / 'none'}", "port=0").refused(str(tmp_path / "none"))
    npmlm("serve", f"index={built_index}", "port=0", "fill.retrieval=blocks").refused("block vectors")
    npmlm("serve", f"index={built_index}", "port=0", f"examples={tmp_path / 'none'}").refused("examples")
    npmlm("serve", f"index={built_index}", "port=0", f"log={tmp_path}").refused("log")
    npmlm("serve", f"index={built_index}", "port=0", "queue_texts=3").refused("queue_texts", "got 3")
    npmlm("serve", f"index={built_index}", "port=65536").refused("port")
