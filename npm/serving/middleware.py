"""The way of every request: its id, host and key, the limits of its body, headers, log and metrics.

One class of plain ASGI: a middleware that wraps responses would hide from the routes that a client has left, and a
dependency would check the key of a request whose body has been read. Starlette's check of hosts answers 400 and knows
no IPv6.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from time import perf_counter
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from npm.serving.log import RequestLog
from npm.serving.metrics import ServerMetrics
from npm.serving.problems import Problem, http_problem, stopping
from npm.serving.settings import ServeSettings

REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
FINGERPRINT_DIGITS = 12
"""Of the SHA-256 of a key, which stands for it in the log."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
POLICY = "default-src 'self'; base-uri 'none'; frame-ancestors 'none'"
DOCS_POLICY = POLICY + "; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
"""Of the page at /docs, whose library writes styles into elements."""
STATE = "npmlm"
"""Key of the `RequestState` of a request in its scope."""


@dataclass(slots=True)
class RequestState:
    """What is known of a request besides its content."""

    id: str
    arrived: float = field(default_factory=perf_counter)
    key: str = ""
    """Fingerprint of the key it came with."""
    logged: dict[str, Any] = field(default_factory=dict)
    """What its route adds to its line in the log."""


class Frame:
    """The application with its guards around it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: ServeSettings,
        keys: Sequence[str],
        metrics: ServerMetrics,
        log: RequestLog,
    ) -> None:
        self._app, self._settings, self._metrics, self._log = app, settings, metrics, log
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
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

        try:
            if (problem := self._refusal(scope, headers, state)) is not None:
                await problem.response(state.id)(scope, receive, answer)
            else:
                await self._app(scope, self._limited(receive), answer)
        except asyncio.CancelledError:  # the server was told to stop, and its grace is over
            if begun:
                raise
            await stopping().response(state.id)(scope, receive, answer)
        finally:
            seconds = perf_counter() - state.arrived
            # the route's pattern, or what was never a route: ids and guesses must not become labels
            route = str(getattr(scope.get("route"), "path", "other"))
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.request_seconds.observe(seconds)
            self._log.write(
                request_id=state.id,
                method=scope["method"],
                route=route,
                status=status,
                seconds=round(seconds, 6),
                key=state.key,
                **state.logged,
            )

    def _refusal(self, scope: Scope, headers: Headers, state: RequestState) -> Problem | None:
        """The reason why a request is not let in, whatever its content."""
        host = re.sub(r":\d*$", "", headers.get("host", "")).strip("[]").lower()
        # Another host name that leads to the loopback address is how a foreign page would reach a local server.
        if self._settings.host in LOOPBACK and host not in LOOPBACK:
            return Problem(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"Host must be 127.0.0.1, localhost or [::1] or the server started with host=, got {host[:100]!r}",
            )
        if (length := headers.get("content-length", "")).isdigit() and int(length) > self._settings.max_body_bytes:
            self._metrics.rejected("body")
            return http_problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"Connection": "close"})
        if not self._keys or not scope["path"].startswith("/v1/") or scope["method"] == "OPTIONS":
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = (token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")).encode()
        # all keys are compared, so that the time taken does not tell which one was near
        if any([hmac.compare_digest(key, each) for each in self._keys]):
            state.key = hashlib.sha256(key).hexdigest()[:FINGERPRINT_DIGITS]
            return None
        self._metrics.rejected("key")
        return Problem(
            HTTPStatus.UNAUTHORIZED,
            f"{'wrong' if key else 'missing'} key: send Authorization: Bearer KEY, or X-API-Key: KEY",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _limited(self, receive: Receive) -> Receive:
        """`receive` that refuses a body that grows too long, or does not come in time."""
        byte_count, in_body = 0, True

        async def limited() -> Message:
            nonlocal byte_count, in_body
            try:
                message = await asyncio.wait_for(receive(), self._settings.timeout_seconds if in_body else None)
            except TimeoutError:
                self._metrics.rejected("slow_body")
                raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, headers={"Connection": "close"}) from None
            if message["type"] == "http.request":
                byte_count += len(message.get("body", b""))
                in_body = bool(message.get("more_body"))
                if byte_count > self._settings.max_body_bytes:
                    self._metrics.rejected("body")
                    raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, headers={"Connection": "close"})
            return message

        return limited
