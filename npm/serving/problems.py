"""Refused requests as `application/problem+json` (RFC 9457), without a path of the server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, NamedTuple

from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import Field

from npm.core.errors import QueryError, SettingError, shown_start

SHOWN_CHARS = 200
"""Maximum characters of a client's value in a message."""
CLIENT_LEFT = 499
"""Status in the log of a request whose client left; nobody receives it."""


class Refusal(NamedTuple):
    """A kind of refusal: its status, and what it means."""

    status: int
    meaning: str


REFUSALS = {
    "invalid_json": Refusal(400, "the body cannot be read: send JSON as /docs shows"),
    "unauthorized": Refusal(401, "the key is missing or wrong"),
    "not_found": Refusal(404, "unknown address or document: /docs lists all addresses"),
    "method_not_allowed": Refusal(405, "this address takes other methods: see the header Allow"),
    "body_timeout": Refusal(408, "the body did not come in time: send the request again"),
    "body_too_long": Refusal(413, "the body is too long: send fewer texts in a request; the limits are in /v1/index"),
    "wrong_media_type": Refusal(415, "the body must be JSON: send the header Content-Type: application/json"),
    "wrong_host": Refusal(421, "the header Host does not name this machine"),
    **{code: Refusal(422, meaning) for kind in (QueryError, SettingError) for code, meaning in kind.codes.items()},
    "unknown_field": Refusal(422, "a field that the route does not have"),
    "missing_field": Refusal(422, "a required field is missing"),
    "wrong_type": Refusal(422, "a value of another type"),
    "out_of_range": Refusal(422, "a number that is too small or too large"),
    "unknown_value": Refusal(422, "a name that the field does not accept: the message lists the accepted names"),
    "too_many": Refusal(422, "a list with too many entries"),
    "too_few": Refusal(422, "a list with too few entries"),
    "invalid_value": Refusal(422, "another value that the field does not accept"),
    "busy": Refusal(429, "too many texts are waiting: ask again after Retry-After seconds"),
    "internal": Refusal(500, "internal server error: report it with the request_id"),
    "shutting_down": Refusal(503, "the server is shutting down: ask another one, or this one again when it is back"),
    "index_unavailable": Refusal(503, "the index is damaged: tell the server's administrator"),
    "partitions_lost": Refusal(503, "partitions of the index do not answer: ask again in some seconds"),
    "timeout": Refusal(
        504, "no answer within timeout_ms or the server's limit: ask again later, for fewer texts or with more time"
    ),
}
"""Every kind of refusal by its code; of several with one status, the first is that of the status itself."""
CODES_OF_MISTAKES = {
    "extra_forbidden": "unknown_field",
    "missing": "missing_field",
    "literal_error": "unknown_value",
    "string_unicode": "invalid_unicode",
    "string_too_long": "too_long",
    "too_long": "too_many",
    "too_short": "too_few",
}
"""Codes by pydantic's names of mistakes; those of types and bounds are recognized by how their names begin or end."""


@dataclass(frozen=True, slots=True)
class ProblemDetails:
    """A refused request, or text of a request (RFC 9457)."""

    type: str
    """Address of the description of the code, on this server."""
    code: Annotated[str, Field(json_schema_extra={"enum": list(REFUSALS)})]
    """Kind of the refusal, stable within v1."""
    title: str
    """A sentence with the field and its value, for people."""
    status: int
    """Status of the response that refuses a request in this way."""
    field: str | None
    """Field of the request that is refused."""
    request_id: str
    """Id of the request in the server's log."""


class Problem(Exception):
    """A refused request: a code of `REFUSALS`, and a message that names the value."""

    def __init__(
        self,
        code: str,
        message: str | None = None,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        kind = REFUSALS[code]
        super().__init__(message or kind.meaning)
        self.code, self.status, self.field = code, kind.status, field
        self.headers = dict(headers or {})

    def details(self, request_id: str) -> ProblemDetails:
        """The members of the JSON object."""
        return ProblemDetails(f"/docs#{self.code}", self.code, str(self), self.status, self.field, request_id)

    def response(self, request_id: str) -> Response:
        """The answer to the request."""
        content = json.dumps(asdict(self.details(request_id))).encode()
        return Response(content, self.status, self.headers, "application/problem+json")


def http_problem(status: int, headers: Mapping[str, str] | None = None) -> Problem:
    """The problem of a status."""
    code = next((code for code, kind in REFUSALS.items() if kind.status == status), "internal")
    return Problem(code, headers=headers)


def stopping() -> Problem:
    """The refusal of a server that is shutting down."""
    return Problem("shutting_down", headers={"Retry-After": "5"})


def invalid_request(error: RequestValidationError) -> Problem:
    """The first mistake in the form of a request."""
    first = error.errors()[0]
    value, place, mistake = first.get("input"), first["loc"][1:], first["type"]  # without body or query
    if isinstance(value, bytes):  # what is not said to be JSON is not read
        return Problem("wrong_media_type")
    if mistake == "json_invalid":
        return Problem("invalid_json", f"the body is invalid JSON: {first['ctx']['error']}")
    code = CODES_OF_MISTAKES.get(mistake, "invalid_value")
    if mistake.endswith(("_type", "_parsing")):
        code = "wrong_type"
    elif mistake.startswith(("greater_", "less_")):
        code = "out_of_range"
    where = shown_start(".".join(map(str, place)) or "body", SHOWN_CHARS)
    got = shown_start(json.dumps(value, default=str), SHOWN_CHARS)
    message = f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}, got {got}; see /docs"
    return Problem(code, message, field=shown_start(str(place[0]), SHOWN_CHARS) if place else None)
