"""A filler that queries a server of `npmlm serve`, with the options, answers and errors of a local one."""

from __future__ import annotations

import math
import re
import ssl
import time
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Self, TypeVar, Unpack, overload

import httpx2
from pydantic import Field, TypeAdapter

from npm.core.errors import QueryError, ServerError, SettingError, place_of, shown_start
from npm.core.settings import as_json, checked
from npm.core.types import Answer, JointAnswer
from npm.retrieval.queries import MAX_MASKS, Texts, read_queries
from npm.retrieval.settings import FillOptions, FillSettings, closed_error, given_options

MAX_TRIES = 5
FIRST_PAUSE_SECONDS = 0.5
"""First pause, doubled after each try, unless the server says how long to wait."""
MAX_TEXTS = 16
"""Texts of a request, fewer than most servers take: their time limit holds for all texts of a request together."""
SHOWN_CHARS = 500
"""Characters of a server's response in a message."""
URL = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:\d{1,5})?(/[^\s?#]*)?", re.ASCII)
Member = TypeVar("Member")
ANSWER, JOINT_ANSWER = TypeAdapter(Answer), TypeAdapter(JointAnswer)


class RemoteFiller:
    """A filler at a server's address; `fill` is that of `PhraseFiller`. Made by `PhraseFiller.connect`."""

    def __init__(self, url: str, key: str | None = None, *, timeout_seconds: float = 30.0) -> None:
        """Request the facts of the index of the server at `url`; `timeout_seconds` is the time for a request.

        Raises SettingError for an unusable argument or a key that the server does not know, and ServerError where no
        server of `npmlm serve` answers.
        """
        self.url = checked(url, str, "url").strip().rstrip("/")
        if not URL.fullmatch(self.url):
            raise SettingError(f"url must be such as http://127.0.0.1:8080, got {shown_start(url, SHOWN_CHARS)!r}")
        if checked(key, str | None, "key") is not None and not re.fullmatch("[!-~]+", str(key)):
            raise SettingError("key must be printable ASCII without spaces")  # its value is a secret
        self._key = key
        self._timeout_seconds: float = checked(
            timeout_seconds, Annotated[float, Field(gt=0, le=3_600)], "timeout_seconds"
        )
        headers = {"User-Agent": "npmlm", **({} if key is None else {"Authorization": f"Bearer {key}"})}
        alone, trusted = httpx2.Limits(max_keepalive_connections=0), ssl.create_default_context()
        self._client = httpx2.Client(headers=headers, limits=alone, verify=trusted)
        self._index: dict[str, Any] = self._ask("GET", "/v1/index")
        try:
            facts = self._index
            self._facts = f"{facts['documents']:,} documents, {facts['tokens']:,} tokens, {facts['encoder']['name']}"
            self._texts_at_once = max(1, min(MAX_TEXTS, facts["limits"]["texts"]))
        except (KeyError, TypeError, ValueError) as error:
            raise self._unexpected("/v1/index", repr(self._index)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return partial(RemoteFiller, timeout_seconds=self._timeout_seconds), (self.url, self._key)

    def __repr__(self) -> str:
        return "RemoteFiller(closed)" if self._client.is_closed else f"RemoteFiller({self.url!r}, {self._facts})"

    def close(self) -> None:
        """Close the filler: it answers no more."""
        self._client.close()

    @property
    def index(self) -> dict[str, Any]:
        """Facts of the index that the server reported at connection, as under /v1/index."""
        if self._client.is_closed:
            raise closed_error(self)
        return self._index

    @overload
    def fill(self, texts: str, k: int | None = None, **options: Unpack[FillOptions]) -> Answer: ...

    @overload
    def fill(self, texts: Texts, k: int | None = None, **options: Unpack[FillOptions]) -> list[Answer]: ...

    def fill(self, texts: str | Texts, k: int | None = None, **options: Unpack[FillOptions]) -> Answer | list[Answer]:
        """The best phrases for each text, as `PhraseFiller.fill` gives them; None means the server's default.

        Long lists are sent in several requests, after all texts were checked. Raises QueryError and SettingError as
        `PhraseFiller.fill` does, and where the server's limits are narrower, and ServerError if it is gone, too busy
        or too slow.
        """
        if self._client.is_closed:
            raise closed_error(self)
        several = [query.text for query in read_queries(texts, max_masks=MAX_MASKS)]
        given = given_options(FillSettings, k=k, **options)
        settings = FillSettings(**given)
        body = as_json({name: getattr(settings, name) for name in given})
        body["timeout_ms"] = math.ceil(1000 * self._timeout_seconds)
        answers: list[Answer] = []
        for first in range(0, len(several), self._texts_at_once):
            batch = several[first : first + self._texts_at_once]
            try:
                reply = self._ask("POST", "/v1/fill", {"text": batch, **body})
                for each in reply["answers"]:
                    if failed := each.get("problem"):
                        raise QueryError(shown_start(failed["title"], SHOWN_CHARS), code=failed["code"])
                kinds = [JOINT_ANSWER if "masks" in each else ANSWER for each in reply["answers"]]
                found = [kind.validate_python(each) for kind, each in zip(kinds, reply["answers"], strict=True)]
                if [answer.text for answer in found] != batch:
                    raise ValueError("other answers than to the texts that were sent")
            except (QueryError, SettingError) as error:  # texts are numbered among all, not in their request
                numbered = partial(_place_among, first=first, count=len(several))
                message = re.sub(r"\btext\.(\d{1,9})\b", numbered, str(error))
                raise type(error)(message, code=error.code) from error
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise self._unexpected("/v1/fill", str(error)) from error
            answers += found
        return answers[0] if isinstance(texts, str) else answers

    def ask(self, path: str, body: Mapping[str, Any], member: str, kind: type[Member]) -> Member:
        """The `member` of the answer to a request at `path`, as a `kind`; raises what `fill` raises."""
        if self._client.is_closed:
            raise closed_error(self)
        reply = self._ask("POST", path, {**body, "timeout_ms": math.ceil(1000 * self._timeout_seconds)})
        try:
            return TypeAdapter(kind).validate_python(reply[member])
        except (KeyError, TypeError, ValueError) as error:
            raise self._unexpected(path, str(error)) from error

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON that the server answers with, requested again while it is busy and there is time."""
        deadline = time.monotonic() + self._timeout_seconds
        for attempt in range(MAX_TRIES):
            left = max(0.001, deadline - time.monotonic())
            try:
                response = self._client.request(method, self.url + path, json=body, timeout=left)
            except httpx2.TimeoutException as error:
                raise ServerError(
                    f"{self.url} did not answer within {self._timeout_seconds:g} seconds; "
                    "give a longer timeout_seconds, or ask for less at once"
                ) from error
            except httpx2.HTTPError as error:
                raise ServerError(
                    f"cannot reach {self.url}: {error}; check the address, and whether npmlm serve runs"
                ) from error
            wait = response.headers.get("Retry-After", "")
            pause = float(wait) if re.fullmatch(r"\d{1,9}", wait) else FIRST_PAUSE_SECONDS * 2**attempt
            in_time = attempt + 1 < MAX_TRIES and time.monotonic() + pause <= deadline
            if response.status_code not in (429, 503) or not in_time:
                break
            time.sleep(pause)
        status = response.status_code
        try:
            found = response.json()
            if status == 200:
                return found
            title, code = found["title"], found["code"]  # a problem of RFC 9457
            title = shown_start(title, SHOWN_CHARS)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            shown = f"status {status}, {response.headers.get('Location') or response.text}"
            raise self._unexpected(path, shown) from error
        if status == 401:
            raise SettingError(f'{self.url} requires another key: give it with connect(url, key="…")')
        if status in (413, 422):
            kind = QueryError if code in QueryError.codes or status == 413 else SettingError
            raise kind(title, code=code)
        raise ServerError(f"{self.url}: {title} (status {status} to request {found.get('request_id')})")

    def _unexpected(self, path: str, got: str) -> ServerError:
        return ServerError(
            f"{self.url}{path} does not answer as npmlm serve does, got {shown_start(got, SHOWN_CHARS)}; "
            "check the address, and that client and server have the same version"
        )


def _place_among(found: re.Match[str], *, first: int, count: int) -> str:
    """Name among all `count` texts of one in a request that begins with number `first`."""
    return place_of(first + int(found[1]) + 1, count)
