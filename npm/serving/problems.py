"""What is wrong with a request, as `application/problem+json` (RFC 9457), without a path of the server."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response

from npm.core.errors import ArtifactError, StorageError, UserError
from npm.retrieval.queries import shown_start

MEDIA_TYPE = "application/problem+json"
SHOWN_CHARS = 200
"""Of what a client sent, in a message."""
KEPT_OUT = "the server's log says more"
EXPECTED = {
    "extra_forbidden": "a field of this route; /docs lists them",
    "missing": "this field, which is required",
    "json_invalid": "a body of valid JSON",
}
"""What is expected where the validation's own sentence would not say it, by its kind of error."""
UNIONS = (["body", "text"], ["body", "passages", 0])
"""Places where one of several forms may stand; 0 is any number."""


class Problem(Exception):
    """A request that is refused. `where` is a field, such as `body.k`, or a header or a route."""

    def __init__(
        self,
        status: int,
        title: str,
        *,
        expected: str = "",
        got: str = "",
        where: str = "",
        fix: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(title)
        self.status, self.title = status, title
        self.expected, self.got, self.where, self.fix = expected, got, where, fix
        self.headers = dict(headers or {})

    def record(self, request_id: str) -> dict[str, Any]:
        """The members of the JSON object."""
        detail = f"expected {self.expected}, got {self.got}" if self.expected else HTTPStatus(self.status).phrase
        return {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": detail,
            "expected": self.expected,
            "got": self.got,
            "where": self.where,
            "fix": self.fix,
            "request_id": request_id,
        }

    def response(self, request_id: str) -> Response:
        """The answer to the request."""
        content = json.dumps(self.record(request_id), ensure_ascii=True).encode()
        return Response(content, self.status, self.headers, MEDIA_TYPE)


def problem_of(error: UserError, *, source: str, folder: str, name: str) -> Problem:
    """What a client is told of an error in what it asked: `source` is `body` or `query`.

    The index, which stands in `folder`, is called `name`. An index that broke is a matter of the server: 503.
    """
    if isinstance(error, ArtifactError | StorageError):
        return Problem(
            503,
            "the index cannot be read",
            expected="an index that is whole",
            got="one that is damaged",
            where=name,
            fix=f"tell who runs the server; {KEPT_OUT}",
            headers={"Retry-After": "60"},
        )

    def told(text: str) -> str:
        return text.replace(folder, name) if folder else text

    fields = re.sub(r"^span( \d+ of \d+)?$", "words", told(error.where))
    fields = re.sub(r"\[(\d+)\]", r".\1", fields)

    return Problem(
        422,
        told(error.problem),
        expected=told(error.expected),
        got=told(error.got),
        where=", ".join(f"{source}.{key}" for key in fields.split(", ")),
        fix=told(error.fix),
    )


OF_STATUS = {
    400: ("the body cannot be read", "a body of JSON", "body", "send JSON as /docs shows"),
    404: ("there is nothing under this address", "an address that /docs lists", "path", "see /docs"),
    405: ("this address takes other methods", "GET or POST, as /docs says", "method", "see /docs"),
    408: ("the body did not come in time", "a whole body", "body", "send the request again"),
    413: (
        "the body is too long",
        "a shorter body: /v1/index tells the limits",
        "body",
        "send fewer texts in a request",
    ),
}
"""Title, what is expected, where, and what to do, of refusals that are not ours, by status."""


def http_problem(status: int, headers: Mapping[str, str] | None = None) -> Problem:
    """The problem for a status that the library under the routes answers with."""
    title, expected, where, fix = OF_STATUS.get(status, (HTTPStatus(status).phrase, "", "", "see /docs"))
    return Problem(status, title, expected=expected, got="another one", where=where, fix=fix, headers=headers)


def bug() -> Problem:
    """What a client is told of an error that is not its own: nothing but how to report it."""
    return Problem(500, "an error of the server", where="server", fix="report it with the request_id")


def stopping() -> Problem:
    """The refusal of a server that was told to stop."""
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "the server is stopping",
        expected="a server that goes on",
        got="one that finishes what it has accepted",
        where="server",
        fix="ask another server, or this one again when it is back",
        headers={"Retry-After": "5"},
    )


def invalid_request(error: RequestValidationError) -> Problem:
    """The first thing that is wrong with the form of a request."""
    errors: Sequence[Any] = error.errors()
    first = errors[0]
    for each in errors:  # of a union, such as a text or a list, each part says what it wanted
        if len(each["loc"]) > len(first["loc"]) or each["type"] == "extra_forbidden":
            first = each
            break
    kind, value, place = str(first["type"]), first.get("input"), list(first["loc"])
    for union in UNIONS:  # whose part of the form follows its place
        if [part if isinstance(part, str) else 0 for part in place[: len(union)]] == union:
            del place[len(union) : len(union) + 1]
    where = shown_start(".".join(map(str, place)), SHOWN_CHARS)
    if isinstance(value, bytes):  # what is not said to be JSON is not read
        return Problem(
            422,
            "the body is not said to be JSON",
            expected="Content-Type: application/json",
            got="another type, or none",
            where="Content-Type",
            fix="send the header Content-Type: application/json",
        )
    if kind == "json_invalid":
        where, got = "body", f"{first.get('ctx', {}).get('error', 'none')}"
    else:
        got = "nothing" if kind == "missing" else shown(value)
    return Problem(
        422,
        {"extra_forbidden": "there is no such field", "missing": "a field is missing"}.get(kind, "a field is wrong"),
        expected=EXPECTED.get(kind, str(first["msg"])[0].lower() + str(first["msg"])[1:]),
        got=got,
        where=where,
        fix="send the request in the form that /docs shows",
    )


def shown(value: object) -> str:
    """What a client sent, shortened."""
    return shown_start(json.dumps(value, default=str), SHOWN_CHARS)
