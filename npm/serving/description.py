"""Parts of the OpenAPI description that the routes share."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from npm.serving.problems import REFUSALS

PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "A refused request (RFC 9457).",
    "required": ["type", "code", "title", "status", "field", "request_id"],
    "properties": {
        "type": {"type": "string", "description": "Address of the description of the code, on this server."},
        "code": {"enum": list(REFUSALS), "description": "Kind of the refusal, stable within v1."},
        "title": {"type": "string", "description": "A sentence with the field and its value, for people."},
        "status": {"type": "integer", "description": "The status of the response."},
        "field": {
            "anyOf": [{"type": "string"}, {"type": "null"}],
            "description": "Field of the request that is refused.",
        },
        "request_id": {"type": "string", "description": "Id of the request in the server's log."},
    },
}
DESCRIPTION = "\n".join(
    [
        "Offsets are Unicode code points. A refused request is answered with `application/problem+json` and one of "
        "these codes:",
        "",
        "| code | status | meaning |",
        "|---|---|---|",
        *(f"| `{code}` | {kind.status} | {kind.meaning.replace('<', '&lt;')} |" for code, kind in REFUSALS.items()),
    ]
)


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The responses of a route that refuses with some statuses, 421 and 500 in any case."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    responses: dict[int | str, dict[str, Any]] = {}
    for status in sorted({*statuses, 421, 500}):
        codes = ", ".join(f"`{code}`" for code, kind in REFUSALS.items() if kind.status == status)
        responses[status] = {"description": f"{HTTPStatus(status).phrase}: {codes}", "content": content}
    return responses


COMPUTED = (401, 422, 429, 503, 504)
"""Statuses of routes that compute an answer."""
WITH_BODY = (400, 408, 413, 415, *COMPUTED)
