"""A filler that asks a server of `npmlm serve`, with the options, the answers and the errors of one on this machine."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from email.message import Message
from email.utils import parsedate_to_datetime
from functools import cache
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from typing import Annotated, Any, Self, Unpack, overload
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pydantic import Field, TypeAdapter

from npm.core.errors import QueryError, ServerError, SettingError, UserError
from npm.core.settings import as_json, checked
from npm.core.types import Answer, JointAnswer
from npm.retrieval.filler import RemoteOptions, closed_error, given_options
from npm.retrieval.queries import MOST_MASKS, check_query, checked_texts, place_of, shown_start
from npm.retrieval.settings import FillSettings, Retrieval

USUAL_TIMEOUT_SECONDS = 30.0
MOST_TRIES = 5
FIRST_PAUSE_SECONDS = 0.5
Timeout = Annotated[float, Field(gt=0, le=3_600)]
"""A pause doubles from try to try, where the server does not say how long to wait."""
MOST_TEXTS = 16
"""Texts of a request, fewer than most servers take: their time limit holds for all texts of a request together."""
PIECE_BYTES, MOST_BODY_BYTES = 1 << 16, 1 << 29
SHOWN_CHARS = 500
"""Of what a server sent, in a message."""
BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class NoRedirects(HTTPRedirectHandler):
    """A server of ours never redirects, and a key must not follow to where another one points."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Leave the redirect to be reported as what it is."""
        return


class RemoteFiller:
    """A filler behind a server's address; `fill` is that of `PhraseFiller`. Made by `PhraseFiller.connect`."""

    def __init__(self, url: str, key: str | None = None, *, timeout_seconds: float = USUAL_TIMEOUT_SECONDS) -> None:
        """Ask the server at `url` what it answers from; `timeout_seconds` hold for each request with all its tries.

        Raises SettingError for an argument that cannot be, or a key that the server does not know, and ServerError
        where no server of `npmlm serve` answers.
        """
        self.url = _checked_url(checked(url, str, "url"))
        self._key = _checked_key(checked(key, str | None, "key"))
        self._timeout_seconds: float = checked(timeout_seconds, Timeout, "timeout_seconds")
        self._is_open = True
        self._index = self._facts()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        found = self._index
        counts = f"{found['documents']:,} documents, {found['tokens']:,} tokens, {found['encoder']['name']}"
        return f"RemoteFiller({self.url!r}, {counts})" if self._is_open else "RemoteFiller(closed)"

    def close(self) -> None:
        """Answer nothing from now on."""
        self._is_open = False

    @property
    def index(self) -> dict[str, Any]:
        """What the server said of its index when it was connected to, as under /v1/index."""
        if not self._is_open:
            raise closed_error(self)
        return self._index

    @overload
    def fill(self, texts: str, k: int | None = None, **options: Unpack[RemoteOptions]) -> Answer: ...

    @overload
    def fill(
        self, texts: list[str] | tuple[str, ...], k: int | None = None, **options: Unpack[RemoteOptions]
    ) -> list[Answer]: ...

    def fill(
        self,
        texts: str | list[str] | tuple[str, ...],
        k: int | None = None,
        *,
        occurrences: int | None = None,
        retrieval: Retrieval | str | None = None,
        documents: Sequence[str] | None = None,
        where: Sequence[str] | str | None = None,
    ) -> Answer | list[Answer]:
        """The best phrases for each text, as `PhraseFiller.fill` gives them; what is None is as the server chose.

        Lists longer than the server takes are sent in several requests, after all texts were checked. Raises
        QueryError and SettingError as `PhraseFiller.fill` does, and where the server's limits are narrower, and
        ServerError where it is gone, too busy or too slow.
        """
        limits = self.index["limits"]
        several = checked_texts(texts, name="text")
        for number, text in enumerate(several, start=1):
            check_query(text, where=place_of(number, len(several)), most_masks=MOST_MASKS)
        options = given_options(k, occurrences, retrieval, documents, where)
        settings = FillSettings(**options)
        body = as_json({name: getattr(settings, name) for name in options})
        body["timeout_ms"] = math.ceil(1000 * self._timeout_seconds)
        room_bytes = limits["body_bytes"] - len(json.dumps({"text": [], **body}))
        answers: list[Answer] = []
        while len(answers) < len(several):
            first = len(answers)
            batch = _batch(several[first:], limits["texts"], room_bytes)
            try:
                answers += self._answers(batch, body)
            except (QueryError, SettingError) as error:
                raise type(error)(_numbered_among_all(str(error), first, len(several))) from error
        return answers[0] if isinstance(texts, str) else answers

    def _answers(self, texts: list[str], options: Mapping[str, Any]) -> list[Answer]:
        address = f"{self.url}/v1/fill"
        reply = self._ask(address, {"text": texts, **options})
        found = reply.get("answers") if isinstance(reply, dict) else None
        if not isinstance(found, list) or [isinstance(each, dict) and each.get("text") for each in found] != texts:
            raise _not_ours(address, "other answers than to the texts that were sent")
        return [_read_answer(each, f"answers[{at}]", address) for at, each in enumerate(found)]

    def _facts(self) -> dict[str, Any]:
        """What the server says of its index, as far as it is needed here."""
        address = f"{self.url}/v1/index"
        found = self._ask(address)
        try:
            counts = [found["documents"], found["tokens"], found["limits"]["texts"], found["limits"]["body_bytes"]]
            right = all(type(count) is int and count >= 0 for count in counts) and counts[2] >= 1
            right = right and isinstance(found["encoder"]["name"], str)
        except (KeyError, TypeError):
            right = False
        if not right:
            raise _not_ours(address, shown_start(json.dumps(found), SHOWN_CHARS))
        return dict(found)

    def _ask(self, address: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON that the server answers with, after as many tries as it asks for by its answers 429 and 503."""
        deadline = time.monotonic() + self._timeout_seconds
        for attempt in range(MOST_TRIES):
            status, headers, content = self._reply(address, body, deadline)
            if status not in BUSY or attempt == MOST_TRIES - 1:
                break
            pause = _pause_seconds(headers.get("Retry-After"), FIRST_PAUSE_SECONDS * 2**attempt)
            if time.monotonic() + pause >= deadline:
                break
            time.sleep(pause)
        if status != HTTPStatus.OK:
            raise _refusal(address, status, headers, content)
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise _not_ours(address, shown_start(content.decode(errors="replace"), SHOWN_CHARS)) from error

    def _reply(self, address: str, body: Mapping[str, Any] | None, deadline: float) -> tuple[int, Message, bytes]:
        """Status, headers and body of one try."""
        headers = {"Accept": "application/json", "User-Agent": "npmlm"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body, allow_nan=False).encode()
        try:
            left = max(0.001, deadline - time.monotonic())
            try:
                response = build_opener(NoRedirects).open(Request(address, data, headers), timeout=left)
            except HTTPError as error:  # an answer too
                response = error
            with response:
                return response.status, response.headers, _content(response, deadline)
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: OSError | HTTPException) -> ServerError:
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, TimeoutError):
            return ServerError(
                f"{self.url} did not answer within {self._timeout_seconds:g} seconds; "
                "give a longer timeout_seconds, or ask for less at once"
            )
        got = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        return ServerError(f"cannot reach {self.url}: {got}; check the address, and whether npmlm serve runs")


def _batch(texts: Sequence[str], most_texts: int, room_bytes: int) -> list[str]:
    """The first of `texts`: at least one, and no more than a request may hold.

    >>> _batch(["a", "b", "c"], 2, 100), _batch(["ab", "cd", "ef"], 9, 12)
    (['a', 'b'], ['ab', 'cd'])
    """
    for count, text in enumerate(texts[: min(most_texts, MOST_TEXTS)]):
        room_bytes -= len(json.dumps(text)) + len(", ")
        if room_bytes < 0 and count:
            return list(texts[:count])
    return list(texts[: min(most_texts, MOST_TEXTS)])


def _read_answer(value: dict[str, Any], key: str, address: str) -> Answer:
    """The JSON `value` as an answer; raises ServerError for any other form."""
    try:
        text = json.dumps(value, allow_nan=False)
        found: Answer = _adapter(JointAnswer if "masks" in value else Answer).validate_json(text, strict=True)
    except ValueError as error:
        raise _not_ours(address, f"{key}: {shown_start(str(error), SHOWN_CHARS)}") from error
    return found


@cache
def _adapter(kind: type[Answer]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _content(response: HTTPResponse | HTTPError, deadline: float) -> bytes:
    """The whole body. Raises TimeoutError if it is not there at the `deadline`, however it drips in."""
    pieces: list[bytes] = []
    size = 0
    while piece := response.read1(PIECE_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > MOST_BODY_BYTES:
            raise HTTPException(f"an answer of more than {MOST_BODY_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError
    return b"".join(pieces)


def _pause_seconds(retry_after: str | None, usual: float) -> float:
    """What a header `Retry-After` asks for, in seconds or as a date; `usual` without one that can be read."""
    try:
        return max(0.0, float(retry_after or ""))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(retry_after or "").timestamp() - time.time())
    except ValueError:
        return usual


def _refusal(address: str, status: int, headers: Message, content: bytes) -> UserError:
    """The error that stands for an answer with a status other than 200."""
    if 300 <= status < 400:
        target = shown_start(headers.get("Location") or "nowhere", SHOWN_CHARS)
        return ServerError(f"{address} redirects to {target}: connect to the server itself")
    problem = _problem(content)
    if status == HTTPStatus.UNAUTHORIZED:
        return SettingError(f'{address} requires another key: give it with connect(url, key="…")')
    if "title" not in problem:
        return _not_ours(address, f"status {status}, {shown_start(content.decode(errors='replace'), SHOWN_CHARS)}")
    if status in (HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.REQUEST_ENTITY_TOO_LARGE):
        return (QueryError if problem.get("type") == QueryError.__name__ else SettingError)(problem["title"])
    return ServerError(f"{address}: {problem['title']} (status {status} to request {problem.get('request_id')})")


def _problem(content: bytes) -> dict[str, str]:
    """The members of a problem of RFC 9457 that are text and not empty; none where it is something else."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        name: shown_start(value, SHOWN_CHARS)
        for name, value in found.items()
        if isinstance(value, str) and value.strip()
    }


def _numbered_among_all(message: str, first: int, count: int) -> str:
    """A message of the server with the numbers of texts among all of them, not those in its request.

    >>> _numbered_among_all("text.3 is empty", 64, 100)
    'text 68 of 100 is empty'
    """
    return re.sub(r"\btext\.(\d{1,9})\b", lambda found: place_of(first + int(found[1]) + 1, count), message)


def _checked_url(url: str) -> str:
    """The address without what would stand behind it. Raises SettingError for what is none of a server."""
    try:
        parts = urlsplit(url.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        usable = usable and url.strip().isascii() and url.strip().isprintable() and " " not in url.strip()
        usable = usable and not (parts.query or parts.fragment or parts.username or parts.password)
    except ValueError:
        usable = False
    if not usable:
        raise SettingError(f"url must be such as http://127.0.0.1:8080, got {shown_start(url, SHOWN_CHARS)!r}")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def _checked_key(key: str | None) -> str | None:
    if key is not None and not (key and key.isascii() and key.isprintable() and " " not in key):
        raise SettingError("key must be printable ASCII without spaces")  # its value is a secret
    return key


def _not_ours(address: str, got: str) -> ServerError:
    return ServerError(
        f"{address} does not answer as npmlm serve does, got {got}; "
        "check the address, and that client and server have the same version"
    )
