"""The OpenAPI description and the examples of the page: complete, and answered by the demo index as they say."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from npm.core.types import Answer, JointAnswer
from npm.retrieval.filler import PhraseFiller
from npm.serving.description import EXAMPLES
from tests.helpers.command_line import REPOSITORY
from tests.helpers.precision import is_float32
from tests.helpers.running_server import RunningServer

OPENAPI: dict[str, Any] = json.loads((REPOSITORY / "docs" / "openapi.json").read_text(encoding="utf-8"))
OPERATIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    operation["operationId"]: (method.upper(), path, operation)
    for path, methods in OPENAPI["paths"].items()
    for method, operation in methods.items()
}
VARYING = ("took_ms", "index", "digest", "fingerprint", "generation", "version", "name")
"""Members that depend on the machine, the moment, the folder or the release."""


def comparable(value: Any, number: Callable[[float], Any]) -> Any:
    """A value without what varies, and each `number` in it."""
    if isinstance(value, dict):
        return {name: comparable(each, number) for name, each in value.items() if name not in VARYING}
    if isinstance(value, list):
        return [comparable(each, number) for each in value]
    return number(value) if isinstance(value, float) else value


@pytest.fixture(scope="module")
def demo_server(demo_index: Path) -> Iterator[RunningServer]:
    with RunningServer(demo_index) as running:
        yield running


def test_examples_are_answered_as_they_say(demo_server: RunningServer) -> None:
    examples = json.loads(EXAMPLES.read_text(encoding="utf-8"))
    tolerance = 1e-3 if is_float32() else 2e-2  # they were recorded in float32
    for name, example in examples.items():
        method, path, _ = OPERATIONS[name]
        request = example["request"]
        if method == "GET":
            path = path.format_map({key: quote(str(value)) for key, value in request.items()})
            query = {key: value for key, value in request.items() if f"{{{key}}}" not in OPERATIONS[name][1]}
            reply = demo_server.ask("GET", f"{path}?{urlencode(query)}")
        else:
            reply = demo_server.ask(method, path, request)
        assert reply.status == 200, (name, reply.body)
        if os.environ.get("NPMLM_WRITE_OPENAPI"):
            example["response"] = reply.json
        expected = comparable(example["response"], lambda score: pytest.approx(score, abs=tolerance))
        assert comparable(reply.json, float) == expected, name
    if os.environ.get("NPMLM_WRITE_OPENAPI"):
        lines = (f" {json.dumps(name)}: {json.dumps(each, ensure_ascii=False)}" for name, each in examples.items())
        EXAMPLES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def test_every_operation_has_a_summary_examples_and_its_keys() -> None:
    assert list(OPERATIONS) == [
        *("health", "ready", "metrics", "fill", "fillGet", "answerFromPassages", "classify", "find", "trace"),
        *("getIndex", "getDocument"),
    ]
    for name, (method, path, operation) in OPERATIONS.items():
        assert operation["summary"] and operation["tags"], name
        assert operation.get("security", []) == ([{"bearer": []}, {"apiKey": []}] if path.startswith("/v1") else [])
        assert (method == "POST") == ("requestBody" in operation)
        if path.startswith("/v1"):
            assert operation["responses"]["200"]["content"]["application/json"]["example"], name
        if method == "POST":
            assert operation["requestBody"]["content"]["application/json"]["example"], name


def test_every_field_is_described() -> None:
    for name, schema in OPENAPI["components"]["schemas"].items():
        for field, value in schema.get("properties", {}).items():
            assert "description" in value or "$ref" in value, (name, field)
    for _, _, operation in OPERATIONS.values():
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description"), parameter


def test_the_files_of_the_page_stay_small() -> None:
    files = [path for path in (REPOSITORY / "npm" / "serving" / "static").iterdir() if path.is_file()]
    assert len(files) > 5
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) <= 26 * 1024


DEMO = REPOSITORY / "npm" / "assets" / "demo"
RIGHT = {
    "The biggest moon in the whole Solar System is <mask>.": ["Ganymede"],
    "Who wrote the novel about Captain Ahab and the white whale?": ["Herman Melville"],
    "Who painted The Last Supper?": ["Leonardo da Vinci"],
    "Who painted The School of Athens?": ["Raphael"],
    "Charles Bridge in Prague crosses the <mask>.": ["Vltava"],
    "Penicillin was discovered by <mask> in <mask>.": ["Alexander Fleming", "September 1928"],
    "What is the currency of Hungary?": ["forint"],
}
CLEAR_SHARE = 0.4  # below it the page calls the evidence weak


def best(answer: Answer) -> tuple[list[str], float]:
    if isinstance(answer, JointAnswer):
        return list(answer.fillings[0].phrases), answer.fillings[0].score
    return [answer.phrases[0].phrase], answer.phrases[0].score


def test_every_example_is_right_first_but_those_under_the_heading_that_says_so(demo_index: Path) -> None:
    filler = PhraseFiller.open(demo_index)
    lines = (DEMO / "examples.txt").read_text(encoding="utf-8").splitlines()
    heading = lines.index("# An example with a wrong answer")
    assert len(lines) > heading + 1
    for number, text in enumerate(line for line in lines if not line.startswith("#")):
        phrases, share = best(filler.fill(text))
        assert (phrases == RIGHT[text]) == (number < heading), text
        assert share >= CLEAR_SHARE, text
