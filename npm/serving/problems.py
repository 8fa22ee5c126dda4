"""Refused requests as `application/problem+json` (RFC 9457), without a path of the server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response

from npm.core.errors import QueryError, SettingError, UserError
from npm.retrieval.queries import shown_start

SHOWN_CHARS = 200
"""Of what a client sent, in a message."""
CLIENT_LEFT = 499
"""Status in the log of a request whose client left; nobody receives it."""


class Problem(Exception):
    """A refused request, in one message that names the field, such as `k` or `text.1`.

    `about` is the error that a filler on the client's machine would raise.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        about: type[UserError] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})
        self.type = about.__name__ if about else "about:blank"

    def record(self, request_id: str) -> dict[str, Any]:
        """The members of the JSON object."""
        return {"type": self.type, "title": str(self), "status": self.status, "request_id": request_id}

    def response(self, request_id: str) -> Response:
        """The answer to the request."""
        content = json.dumps(self.record(request_id)).encode()
        return Response(content, self.status, self.headers, "application/problem+json")


OF_STATUS = {
    400: "the body cannot be read: send JSON as /docs shows",
    404: "unknown address: /docs lists all",
    405: "this address takes other methods: see /docs",
    408: "the body did not come in time: send the request again",
    413: "the body is too long: send fewer texts in a request; /v1/index tells the limits",
    500: "internal server error: report it with the request_id",
    503: "the server is shutting down: ask another one, or this one again when it is back",
    504: "no answer within timeout_ms or the server's limit: ask again later, for fewer texts or with more time",
}
"""Refusals that depend on nothing but the status."""


def http_problem(status: int, headers: Mapping[str, str] | None = None) -> Problem:
    """The problem of a status."""
    about = QueryError if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE else None
    return Problem(status, OF_STATUS.get(status, HTTPStatus(status).phrase), about=about, headers=headers)


def stopping() -> Problem:
    """The refusal of a server that was told to stop."""
    return http_problem(HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "5"})


def invalid_request(error: RequestValidationError) -> Problem:
    """The first mistake in the form of a request."""
    first = error.errors()[0]
    value, place = first.get("input"), first["loc"][1:]  # without body or query
    about = SettingError if place and place[0] not in ("text", "documents") else QueryError
    if isinstance(value, bytes):  # what is not said to be JSON is not read
        message = "missing header Content-Type: application/json"
    elif first["type"] == "json_invalid":
        message, about = f"the body is invalid JSON: {first['ctx']['error']}", QueryError
    else:
        where = shown_start(".".join(map(str, place)) or "body", SHOWN_CHARS)
        got = shown_start(json.dumps(value, default=str), SHOWN_CHARS)
        message = f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}, got {got}; see /docs"
    return Problem(422, message, about=about)
