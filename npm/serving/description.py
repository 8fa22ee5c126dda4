"""Parts of the OpenAPI description besides the routes: examples, tags, keys, lines and refusals."""

from __future__ import annotations

import json
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import Security
from fastapi.security import APIKeyHeader, HTTPBearer
from pydantic import TypeAdapter

from npm.serving.problems import REFUSALS
from npm.serving.replies import Summary

EXAMPLES = Path(__file__).parent / "examples.json"
"""A request and its response for each operation, from the demo index."""
TAGS = [
    {"name": "answers", "description": "Texts in, answers out."},
    {"name": "index", "description": "The index and its documents."},
    {"name": "state", "description": "State of the server. These routes need no key."},
]
KEY = "A key of the server's `key_file`; without such a file no key is necessary."
KEYS = [
    Security(HTTPBearer(scheme_name="bearer", description=KEY, auto_error=False)),
    Security(APIKeyHeader(name="X-API-Key", scheme_name="apiKey", description=KEY, auto_error=False)),
]
"""Schemes of keys, for the description alone: the middleware checks keys before a body is read."""

LINES = "application/x-ndjson"
ANSWER_LINES = {
    "description": "An answer for each text. As NDJSON: a line for each text, in order, with its `index` and its "
    "`answer` or `problem`, and a last line with the `summary`; a response without it was cut off.",
    "content": {
        LINES: {
            "schema": {
                "type": "object",
                "properties": {
                    "index": {"type": "integer", "description": "Number of the text in the request, from 0."},
                    "answer": {
                        "anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in ("JointAnswer", "Answer")]
                    },
                    "problem": {"$ref": "#/components/schemas/ProblemDetails"},
                    "summary": {"$ref": "#/components/schemas/Summary"},
                },
            }
        }
    },
}
"""Response of the routes that fill."""
TAG = {"ETag": {"description": "Tag of the answer, for If-None-Match.", "schema": {"type": "string"}}}
LINK_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {**ANSWER_LINES, "headers": TAG},
    304: {"description": "The client has the answer.", "headers": TAG},
}
"""Responses of the route that fills a link, without refusals."""
DESCRIPTION = "\n".join(
    [
        "Offsets are Unicode code points. A refused request is answered with `application/problem+json` and one of "
        "these codes:",
        "",
        "| code | status | meaning |",
        "|---|---|---|",
        *(
            f'| <code id="{code}">{code}</code> | {kind.status} | {kind.meaning.replace("<", "&lt;")} |'
            for code, kind in REFUSALS.items()  # the `type` of a problem leads to the id
        ),
    ]
)


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The responses of a route that refuses with some statuses, 421 and 500 in any case."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
    responses: dict[int | str, dict[str, Any]] = {}
    for status in sorted({*statuses, 421, 500}):
        codes = ", ".join(f"`{code}`" for code, kind in REFUSALS.items() if kind.status == status)
        responses[status] = {"description": f"{HTTPStatus(status).phrase}: {codes}", "content": content}
    return responses


COMPUTED = (401, 422, 429, 503, 504)
"""Statuses of routes that compute an answer."""
WITH_BODY = (400, 408, 413, 415, *COMPUTED)


def complete(described: dict[str, Any]) -> None:
    """Add summaries, examples and the objects of lines to a description that FastAPI made."""
    schemas, examples = described["components"]["schemas"], json.loads(EXAMPLES.read_text("utf-8"))
    schemas["Summary"] = TypeAdapter(Summary).json_schema(ref_template="#/components/schemas/{model}")
    del schemas["Summary"]["$defs"]  # they are all among the schemas
    for name, base in (("JointAnswer", "Answer"), ("Answers", "Summary")):  # docstrings of inherited fields
        inherited, own = schemas[base]["properties"], schemas[name]["properties"]
        schemas[name]["properties"] = {field: {**inherited.get(field, {}), **own[field]} for field in own}
    for operation in (each for methods in described["paths"].values() for each in methods.values()):
        operation["summary"], _, rest = operation.pop("description").partition("\n\n")
        operation |= {"description": rest} if rest else {}
        example = examples.get(operation["operationId"], {})
        for parameter in operation.get("parameters", ()):
            if parameter["name"] in example["request"]:
                parameter["example"] = example["request"][parameter["name"]]
        if "requestBody" in operation:
            operation["requestBody"]["content"]["application/json"]["example"] = example["request"]
        if "response" in example:
            operation["responses"]["200"]["content"]["application/json"]["example"] = example["response"]
