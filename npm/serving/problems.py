"""What is wrong with a request, as `application/problem+json` (RFC 9457), without a path of the server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response

from npm.core.errors import ArtifactError, QueryError, SettingError, UserError
from npm.retrieval.queries import shown_start

MEDIA_TYPE = "application/problem+json"
SHOWN_CHARS = 200
"""Of what a client sent, in a message."""
UNIONS = (["text"], ["passages", 0])
"""Places where one of several forms may stand; 0 is any number."""


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
        self.status, self.message, self.headers = status, message, dict(headers or {})
        self.type = about.__name__ if about else "about:blank"

    def record(self, request_id: str) -> dict[str, Any]:
        """The members of the JSON object."""
        return {"type": self.type, "title": self.message, "status": self.status, "request_id": request_id}

    def response(self, request_id: str) -> Response:
        """The answer to the request."""
        content = json.dumps(self.record(request_id), ensure_ascii=True).encode()
        return Response(content, self.status, self.headers, MEDIA_TYPE)


def problem_of(error: UserError, *, folder: str, name: str) -> Problem:
    """What a client is told of an error in what it asked, where `name` stands for the index in `folder`.

    An index that broke is a matter of the server: 503.
    """
    if isinstance(error, ArtifactError):
        message = f"the index {name} cannot be read: tell who runs the server, whose log says more"
        return Problem(503, message, headers={"Retry-After": "60"})
    return Problem(422, str(error).replace(folder, name), about=type(error))


OF_STATUS = {
    400: "the body cannot be read: send JSON as /docs shows",
    404: "unknown address: /docs lists all",
    405: "this address takes other methods: see /docs",
    408: "the body did not come in time: send the request again",
    413: "the body is too long: send fewer texts in a request; /v1/index tells the limits",
}
"""Refusals that are not ours, by status."""


def http_problem(status: int, headers: Mapping[str, str] | None = None) -> Problem:
    """The problem for a status that the library under the routes answers with."""
    about = QueryError if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE else None
    return Problem(status, OF_STATUS.get(status, HTTPStatus(status).phrase), about=about, headers=headers)


def bug() -> Problem:
    """What a client is told of an error that is not its own: nothing but how to report it."""
    return Problem(500, "an error of the server: report it with the request_id")


def stopping() -> Problem:
    """The refusal of a server that was told to stop."""
    message = "the server is stopping: ask another one, or this one again when it is back"
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, message, headers={"Retry-After": "5"})


def invalid_request(error: RequestValidationError) -> Problem:
    """The first thing that is wrong with the form of a request."""
    errors: Sequence[Any] = error.errors()
    first = errors[0]
    for each in errors:  # of a union, such as a text or a list, each part says what it wanted
        if len(each["loc"]) > len(first["loc"]) or each["type"] == "extra_forbidden":
            first = each
            break
    kind, value, place = str(first["type"]), first.get("input"), list(first["loc"])[1:]  # without body or query
    for union in UNIONS:  # whose part of the form follows its place
        if [part if isinstance(part, str) else 0 for part in place[: len(union)]] == union:
            del place[len(union) : len(union) + 1]
    about = QueryError if kind == "json_invalid" or place[:1] in ([], ["text"], ["documents"]) else SettingError
    where = shown_start(".".join(map(str, place)) or "body", SHOWN_CHARS)
    if isinstance(value, bytes):  # what is not said to be JSON is not read
        message = "missing header Content-Type: application/json"
    elif kind == "json_invalid":
        message = f"the body is invalid JSON: {first.get('ctx', {}).get('error', '')}"
    elif kind == "extra_forbidden":
        message = f"unknown field {where}; /docs lists the fields of this route"
    elif kind == "missing":
        message = f"{where} is required"
    else:
        message = f"{where}: {str(first['msg'])[0].lower()}{str(first['msg'])[1:]}, got {shown(value)}"
    return Problem(422, message, about=about)


def shown(value: object) -> str:
    """What a client sent, shortened."""
    return shown_start(json.dumps(value, default=str), SHOWN_CHARS)
