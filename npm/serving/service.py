"""State that the routes share: settings, index, queue, and errors as a client gets them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, BinaryIO

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from npm.core.errors import ArtifactError, UserError
from npm.core.types import LIKELY, Answer, JointAnswer
from npm.serving.batcher import Batcher
from npm.serving.metrics import ServerMetrics
from npm.serving.problems import Problem, http_problem, invalid_request
from npm.serving.reload import IndexReloader
from npm.serving.settings import ServeSettings

FIELD = re.compile(r"(text|documents|where|retrieval|phrase|labels|passages|words)\b")
"""Field that the message of an error begins with."""


@dataclass
class Service:
    """State that all routes share; `ready` turns False when the server begins to shut down."""

    settings: ServeSettings
    reloader: IndexReloader
    metrics: ServerMetrics
    batcher: Batcher
    notice: Callable[[str], None]
    unanswered: BinaryIO | None = None
    """File opened without a buffer, for questions without a likely answer."""
    ready: bool = True

    def problem(self, error: Exception) -> Problem:
        """The problem that a client gets for an error, without the index's folder."""
        if isinstance(error, Problem):
            return error
        if isinstance(error, RequestValidationError):
            return invalid_request(error)
        if isinstance(error, HTTPException):
            return http_problem(error.status_code, error.headers)
        if isinstance(error, TimeoutError):
            self.metrics.rejected("deadline")
            return Problem("timeout")
        if not isinstance(error, UserError):
            return Problem("internal")
        opened = self.reloader.current
        if isinstance(error, ArtifactError):  # a broken index is the server's matter
            self.notice(str(error))
            message = f"the index {opened.facts.name} is unavailable: tell the server's administrator"
            return Problem("index_unavailable", message, headers={"Retry-After": "60"})
        message = str(error).replace(str(opened.folder), opened.facts.name)
        named = FIELD.match(message)
        return Problem(error.code, message, field=named[1] if named else None)

    def record_unanswered(self, answer: object) -> None:
        """Add a line to `unanswered` if this is the answer to one mask, and not a likely one."""
        if self.unanswered is None or not isinstance(answer, Answer) or isinstance(answer, JointAnswer):
            return
        is_clear = bool(answer.phrases) and answer.status == "ok"
        if is_clear and (answer.confidence is None or answer.confidence >= LIKELY):
            return
        closest = answer.phrases[0] if answer.phrases else None
        record = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "text": answer.text,
            "confidence": answer.confidence,
            "closest": closest and closest.phrase,
            "document": closest.occurrences[0].document if closest and closest.occurrences else None,
        }
        try:
            self.unanswered.write((json.dumps(record, ensure_ascii=False) + "\n").encode())
        except OSError as error:
            self.unanswered = None
            self.notice(f"the list of unanswered questions ends here: {error.strerror or error}")

    def deadline(self, timeout_ms: int | None) -> float:
        """Time by the clock of the event loop at which an answer to a request that just came is too late."""
        seconds = self.settings.timeout_seconds
        if timeout_ms is not None:
            seconds = min(seconds, timeout_ms / 1000)
        return asyncio.get_running_loop().time() + seconds


async def service_of(request: Request) -> Service:
    """The service of the application that received the request."""
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(service_of)]
