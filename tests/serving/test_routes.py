"""Every route of a real server, every status, and that answers are the library's."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import npm
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FillSettings, Retrieval
from npm.serving.problems import REFUSALS
from tests.helpers.command_line import QUESTION
from tests.helpers.running_server import MEMBERS, Reply, RunningServer, assert_problem

TEXTS = [QUESTION, "<mask> and Kraków are cities in Poland.", "Don Quixote was written by <mask> in Madrid."]

NINE = "<mask> " * 9
"""A text with more masks than are filled."""


@pytest.fixture(scope="module")
def filler(built_index: Path) -> PhraseFiller:
    return PhraseFiller.open(built_index)


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(asdict(value)))


def close_to(value: Any) -> Any:
    """The value with scores that may differ by 1e-6."""
    if isinstance(value, dict):
        return {name: close_to(each) for name, each in value.items()}
    if isinstance(value, list):
        return [close_to(each) for each in value]
    return pytest.approx(value, abs=1e-6) if isinstance(value, float) else value


def assert_close(ours: Any, theirs: Any) -> None:
    """Equal, but for scores."""
    assert ours == close_to(theirs)


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
        "min_confidence": None,
        "scoring": "default",
    }
    assert reply["index"] == {"generation": 0, "digest": filler.index.manifest.digest}
    assert reply["took_ms"].keys() == {"queue", "encode", "search", "total"}
    assert reply["partitions"] == {"asked": 1, "answered": 1, "missing_rows_share": 0.0}
    server_choice = {"k": None, "occurrences": None, "retrieval": None, "documents": None, "where": None}
    assert server.fill(QUESTION, **server_choice).json["answers"] == server.fill(QUESTION).json["answers"]
    nothing = server.fill(QUESTION, documents=[]).json["answers"][0]
    assert nothing["phrases"] == [] and "empty" in nothing["notes"][0]


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


def test_lines_of_json_begin_once_a_text_can_be_answered_and_come_one_for_each(server: RunningServer) -> None:
    def asked(**body: Any) -> Reply:
        return server.ask("POST", "/v1/fill", {"text": TEXTS, **body}, headers={"Accept": "application/x-ndjson"})

    reply = asked()
    assert reply.headers["content-type"].startswith("application/x-ndjson")
    *lines, last = map(json.loads, reply.body.splitlines())
    expected = server.fill(TEXTS).json
    assert lines == [{"index": number, "answer": answer} for number, answer in enumerate(expected.pop("answers"))]
    assert last == {"summary": {**expected, "took_ms": last["summary"]["took_ms"]}}
    far = f"<mask> {'word ' * 600}<mask>"
    for code, wrong in (
        ("no_such_document", {"documents": ["nowhere"]}),
        ("too_many_masks", {"text": [NINE, far]}),
        ("masks_too_far_apart", {"text": far}),
        ("timeout", {"text": ["a <mask> b " + "word " * 900] * 8, "timeout_ms": 1}),
    ):
        assert assert_problem(asked(**wrong), REFUSALS[code].status)["code"] == code


def test_a_text_that_cannot_be_answered_has_its_problem_in_its_place(server: RunningServer) -> None:
    bad = {
        NINE: "too_many_masks",
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
    assert_problem(server.fill(list(bad)), 422, "too_many_masks", "text.0")
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


def test_passages_that_come_along_are_answered_from(server: RunningServer, filler: PhraseFiller) -> None:
    passages = ["Our cat is called Felix.", "Rex is the dog of the neighbors, 😀 and old."]
    text = "The dog is called <mask>."
    own = PhraseFiller.over(passages, filler.encoder, settings=FillSettings(retrieval=Retrieval.dense, k=4))
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
    texts = [text, NINE, "The cat is called <mask>."]
    several = server.ask("POST", "/v1/over", {"passages": passages, "text": texts, "k": 4}).json["answers"]
    assert_close([several[0], several[2]], [as_json(own.fill(texts[0])), as_json(own.fill(texts[2]))])
    assert several[1]["problem"]["code"] == "too_many_masks"
    body = {"passages": titled, "text": texts, "words": words}
    several = server.ask("POST", "/v1/over", body).json
    assert several["scores"][0] == pytest.approx(scored["scores"], abs=1e-6)
    assert several["scores"][1]["problem"]["code"] == "too_many_masks" and several["evidence"][1] is None
    assert several["evidence"][0] == pytest.approx(scored["evidence"], abs=1e-6)


def test_labels_have_shares_words_and_places(server: RunningServer, built_index: Path) -> None:
    labels = {"town": ["Paris", "Oslo", "nowhere"], "man": ["Miguel de Cervantes", "Amadeo Giannini"]}
    texts = ["It is <mask>.", "He is <mask>."]
    reply = server.ask("POST", "/v1/labels", {"text": texts, "labels": labels}).json
    first, second = reply["answers"]
    assert [first["text"], second["text"]] == texts
    for text, own in zip(texts, reply["answers"], strict=True):
        alone = server.ask("POST", "/v1/labels", {"text": text, "labels": labels}).json["answers"]
        assert_close(alone, [own])
    in_python = npm.label(texts, labels, built_index, template="{text}")
    for found, answer in zip(in_python, reply["answers"], strict=True):
        shares = {each.label: each.score for each in found.ranked}
        assert shares == pytest.approx({each["label"]: each["share"] for each in answer["labels"]}, abs=1e-3)
    assert [each["label"] for each in first["labels"]] == ["town", "man"]
    assert sum(each["share"] for each in first["labels"]) == pytest.approx(1)
    for each in first["labels"] + second["labels"]:
        assert each["word"] in labels[each["label"]]
        place = each["occurrence"]
        first = place["start_char"] - place["context_start_char"]
        assert place["context"][first : first + len(each["word"])].casefold() == each["word"].casefold()
    assert any("nowhere" in note for note in reply["notes"])
    mixed = server.ask("POST", "/v1/labels", {"text": [NINE, *texts], "labels": labels}).json["answers"]
    assert mixed[0]["problem"]["code"] == "too_many_masks"
    assert_close(mixed[1:], reply["answers"])
    long = "It is <mask>. " + "word " * 900
    answers = server.ask("POST", "/v1/labels", {"text": [texts[0], long], "labels": labels}).json["answers"]
    assert [each["cut"] for each in answers] == [False, True]


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


def test_facts_of_the_index_hold_no_path(server: RunningServer, filler: PhraseFiller, built_index: Path) -> None:
    facts = server.ask("GET", "/v1/index").json
    assert (facts["documents"], facts["tier"], facts["rotation"], facts["fields"]) == (6, "exact", "none", [])
    assert facts["encoder"]["fingerprint"] == filler.encoder.fingerprint
    assert facts["limits"]["texts"] == 8 and facts["limits"]["body_bytes"] == 200_000
    sizes = {"k": 5, "occurrences": 3}
    assert facts["defaults"] == {**sizes, "retrieval": "hybrid", "min_share": 0.0, "min_confidence": None}
    assert str(built_index.parent) not in json.dumps(facts)


def test_a_part_of_a_document_is_counted_in_code_points(server: RunningServer) -> None:
    text = "🜨 Reykjavík is the capital of Iceland. It lies on Faxaflói."
    window = server.ask("GET", "/v1/documents/iceland?start_char=2&end_char=11&around=1").json
    assert window["text"] == text[1:12] and text[window["start_char"] : window["end_char"]] == "Reykjavík"
    assert (window["window_start_char"], window["window_end_char"], window["total_chars"]) == (1, 12, len(text))
    whole = server.ask("GET", "/v1/documents/iceland?start_char=999").json
    assert whole["text"] == text and whole["start_char"] == len(text)
    turned = server.ask("GET", "/v1/documents/iceland?start_char=11&end_char=2&around=1").json
    assert (turned["text"], turned["start_char"], turned["end_char"]) == (text[10:12], 11, 11)
    assert_problem(server.ask("GET", "/v1/documents/no%2Fwhere%1B"), 404, r"no/where\\x1b")


def test_the_description_of_the_routes_is_the_committed_one(server: RunningServer) -> None:
    committed = Path(__file__).parents[2] / "docs" / "openapi.json"
    ours = server.ask("GET", "/openapi.json").json
    if os.environ.get("NPMLM_WRITE_OPENAPI"):
        committed.write_text(json.dumps(ours, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert json.loads(committed.read_text(encoding="utf-8")) == ours, (
        "the routes have changed: write the new description with make openapi"
    )
