"""The way of every request: its id, host and key, the limits of its body, headers, log and metrics.

One class of plain ASGI: a middleware that wraps responses would hide from the routes that a client has left, and a
dependency would check the key of a request whose body has been read. Starlette's check of hosts answers 400 and knows
no IPv6.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from npm.core.errors import SettingError
from npm.serving.metrics import ServerMetrics
from npm.serving.problems import Problem, stopping
from npm.serving.settings import LOOPBACK, ServeSettings

REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
POLICY = "default-src 'self'; base-uri 'none'; frame-ancestors 'none'"
DOCS_POLICY = POLICY + "; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
"""Of the page at /docs, whose library writes styles into elements."""
LEAST_KEY_CHARS = 8
STATE = "npmlm"
"""Key of the `RequestState` of a request in its scope."""


@dataclass(slots=True)
class RequestState:
    """Facts about a request besides its content."""

    id: str
    arrived: float = field(default_factory=perf_counter)
    logged: dict[str, Any] = field(default_factory=dict)
    """Entries that its route adds to its line in the log."""


def state_of(request: Request) -> RequestState:
    """State of a request that came through the middleware."""
    state: RequestState = request.scope[STATE]
    return state


class ClientKeys:
    """The keys of a file, read again when the file changes.

    No key is valid while the file holds none, or an unusable one; those of before are while it cannot be read.
    """

    def __init__(self, file: str, notice: Callable[[str], None]) -> None:
        """Raises SettingError as `read_keys` does."""
        self._file, self._notice = file, notice
        self._seen = self._state()
        self._keys = read_keys(file)

    def _state(self) -> tuple[int, ...]:
        """Time, size and number of the file, which tell its versions apart; nothing while there is no file."""
        try:
            found = Path(self._file).stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino

    def accepts(self, key: str) -> bool:
        """Return True for a key that the file has now."""
        if (state := self._state()) != self._seen:
            self._seen = state
            try:
                self._keys = read_keys(self._file)
                self._notice(f"{len(self._keys)} keys are valid now, those of key_file={self._file}")
            except SettingError as error:
                if error.__cause__ is None:  # the file was read
                    self._keys = []
                self._notice(f"{'the keys of before stay' if self._keys else 'no key is'} valid: {error}")
        # all keys are compared, so that the time taken does not tell which one was near
        return any([hmac.compare_digest(key.encode(), each.encode()) for each in self._keys])


def read_keys(file: str) -> list[str]:
    """The keys in a file, one a line. Raises SettingError for a file that holds none, or short ones."""
    try:
        keys = [line.strip() for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"key_file: cannot read {file}: {error}") from error
    if not keys or min(map(len, keys)) < LEAST_KEY_CHARS or not all(key.isascii() for key in keys):
        raise SettingError(
            f"key_file: {file} must hold keys of at least {LEAST_KEY_CHARS} ASCII characters, one a line; "
            "write one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return keys


@dataclass
class RequestMiddleware:
    """The application with its guards around it; `log`, opened without a buffer, gets a line of JSON a request."""

    app: ASGIApp
    settings: ServeSettings
    keys: ClientKeys | None
    metrics: ServerMetrics
    log: BinaryIO | None
    notice: Callable[[str], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        state = scope[STATE] = RequestState(given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex)
        status, begun = HTTPStatus.INTERNAL_SERVER_ERROR.value, False

        async def answer(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                begun, status, path = True, message["status"], scope["path"]
                added = MutableHeaders(scope=message)
                added["X-Request-ID"] = state.id
                added.setdefault("X-Content-Type-Options", "nosniff")
                added.setdefault("Referrer-Policy", "no-referrer")
                added.setdefault("Content-Security-Policy", DOCS_POLICY if path == "/docs" else POLICY)
                if not path.startswith("/v1/"):  # files of two versions must not be mixed by a browser that kept some
                    added.setdefault("Cache-Control", "no-cache")
            await send(message)

        # what answers HEAD is the answer to GET, of which uvicorn sends the headers only
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        try:
            if (problem := self._refusal(scope, headers)) is not None:
                await problem.response(state.id)(scope, receive, answer)
            else:
                await self.app(inner, self._limited(receive), answer)
        except asyncio.CancelledError:  # the server is shutting down, and its grace period is over
            if begun:
                raise
            await stopping().response(state.id)(scope, receive, answer)
        finally:
            seconds = perf_counter() - state.arrived
            # the route's pattern, or what was never a route: ids and guesses must not become labels
            route = str(getattr(inner.get("route"), "path", "other"))
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.request_seconds.observe(seconds)
            self._write(
                time=datetime.now(UTC).isoformat(timespec="milliseconds"),
                request_id=state.id,
                method=scope["method"],
                route=route,
                status=status,
                seconds=round(seconds, 6),
                **state.logged,
            )

    def _write(self, **record: Any) -> None:
        """Add a line to the log; one that takes no more lines does not stop the server."""
        if self.log is not None:
            try:
                self.log.write((json.dumps(record, ensure_ascii=False) + "\n").encode())
            except OSError as error:
                self.log = None
                self.notice(f"the request log ends here: {error.strerror or error}")

    def _refusal(self, scope: Scope, headers: Headers) -> Problem | None:
        """The reason why a request is refused, for any content."""
        host = re.sub(r":\d*$", "", headers.get("host", "")).strip("[]").lower()
        # Another host name that leads to the loopback address is how a foreign page would reach a local server.
        if self.settings.host in LOOPBACK and host not in LOOPBACK:
            return Problem(
                "wrong_host",
                f"Host must be 127.0.0.1, localhost or [::1] or the server started with host=, got {host[:100]!r}",
            )
        if (length := headers.get("content-length", "")).isdigit() and int(length) > self.settings.max_body_bytes:
            self.metrics.rejected("body")
            return Problem("body_too_long", headers={"Connection": "close"})
        trusted = self.settings.trusted_header
        is_open = self.keys is None and not trusted
        if is_open or not scope["path"].startswith("/v1/") or scope["method"] == "OPTIONS":
            return None
        if trusted and headers.get(trusted, "").strip():
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if self.keys is not None and self.keys.accepts(key):
            return None
        self.metrics.rejected("key")
        if self.keys is None:
            return Problem("unauthorized", f"the proxy sent no {trusted}: log in there, and ask through it")
        return Problem(
            "unauthorized",
            f"{'wrong' if key else 'missing'} key: send Authorization: Bearer KEY, or X-API-Key: KEY",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _limited(self, receive: Receive) -> Receive:
        """`receive` that refuses a body that grows too long, or is not complete in time."""
        byte_count, in_body = 0, True
        clock = asyncio.get_running_loop().time
        late = clock() + self.settings.timeout_seconds

        async def limited() -> Message:
            nonlocal byte_count, in_body
            try:
                message = await asyncio.wait_for(receive(), max(0.0, late - clock()) if in_body else None)
            except TimeoutError:
                self.metrics.rejected("slow_body")
                raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, headers={"Connection": "close"}) from None
            if message["type"] == "http.request":
                byte_count += len(message.get("body", b""))
                in_body = bool(message.get("more_body"))
                if byte_count > self.settings.max_body_bytes:
                    self.metrics.rejected("body")
                    raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, headers={"Connection": "close"})
            return message

        return limited
