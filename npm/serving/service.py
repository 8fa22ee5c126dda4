"""What the routes work with: the opened index, the queue in front of the computing thread, and times."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import Message

from npm.core.errors import ArtifactError, UserError
from npm.core.types import MASK_TEXT
from npm.serving import schema
from npm.serving.compute import ComputeQueue, Done, Job, computing_times
from npm.serving.keeper import IndexKeeper
from npm.serving.metrics import ServerMetrics
from npm.serving.middleware import STATE, RequestState
from npm.serving.opened import OpenedIndex
from npm.serving.problems import Problem, http_problem, invalid_request
from npm.serving.settings import ServeSettings

LEFT = 499
"""Status in the log of a request whose client left; nobody receives it."""


@dataclass
class Service:
    """What the routes work with; `ready` turns False when the server is told to stop."""

    settings: ServeSettings
    keeper: IndexKeeper
    metrics: ServerMetrics
    queue: ComputeQueue
    notice: Callable[[str], None]
    ready: bool = True

    @contextlib.asynccontextmanager
    async def running(self, _: FastAPI) -> AsyncIterator[None]:
        """Compute and look for new generations as long as the application runs."""
        self.queue.start()
        self.keeper.start()
        try:
            yield
        finally:
            await self.keeper.stop()
            await self.queue.stop()

    def jobs(self, opened: OpenedIndex, texts: Sequence[str], options: schema.Options) -> list[Job]:
        """A job for each text, which may be filled together with others that are filled alike.

        A text of several masks is filled alone: only its tokens tell whether it can be, and its refusal is its own.
        """
        settings, deadline = opened.fill_settings(options), self.deadline(options.timeout_ms)
        group = f"{opened.state.digest} {options.allow_partial} {settings}"
        run = partial(opened.fill, settings=settings, allow_partial=options.allow_partial)
        jobs: list[Job] = []
        for number, text in enumerate(texts):
            if text.count(MASK_TEXT) > 1:
                where = f"text.{number}" if len(texts) > 1 else "text"
                jobs.append(Job(partial(run, where=where), deadline, text=text))
            else:
                jobs.append(Job(run, deadline, group, text))
        return jobs

    def submit(self, request: Request, jobs: Sequence[Job]) -> None:
        """Queue the jobs of one request. Raises Problem (429)."""
        self.queue.submit(jobs)
        if self.settings.log_texts:
            state_of(request).logged["text"] = [job.text for job in jobs]

    def deadline(self, timeout_ms: int | None) -> float:
        """When an answer to the request that just came is too late, by the clock of the event loop."""
        seconds = self.settings.timeout_seconds
        if timeout_ms is not None:
            seconds = min(seconds, timeout_ms / 1000)
        return asyncio.get_running_loop().time() + seconds

    def problem(self, error: Exception) -> Problem:
        """The problem that a client gets for an error, without the index's folder."""
        if isinstance(error, Problem):
            return error
        if isinstance(error, RequestValidationError):
            return invalid_request(error)
        if isinstance(error, HTTPException):
            return http_problem(error.status_code, error.headers)
        if not isinstance(error, UserError):
            return http_problem(500)
        opened = self.keeper.current
        if isinstance(error, ArtifactError):  # a broken index is the server's matter
            self.notice(str(error))
            message = f"the index {opened.facts.name} cannot be read: tell who runs the server, whose log says more"
            return Problem(503, message, headers={"Retry-After": "60"})
        return Problem(422, str(error).replace(str(opened.folder), opened.facts.name), about=type(error))

    async def results(self, request: Request, jobs: Sequence[Job]) -> list[Done]:
        """What is computed for the jobs of one request, in their order.

        Raises Problem (429, 504), or whatever the computation raised. Of a client that leaves nothing more is computed.
        """
        self.submit(request, jobs)
        everything = asyncio.gather(*(job.result for job in jobs))
        left = asyncio.create_task(_until_left(request))
        seconds = jobs[0].deadline - asyncio.get_running_loop().time()
        try:
            awaited: list[asyncio.Future[Any]] = [everything, left]
            await asyncio.wait(awaited, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
            # the queue, too, gives up what is too late, perhaps a moment before it is noticed here
            if everything.done() and not any(job.result.cancelled() for job in jobs):
                return everything.result()
            if left.done():
                raise HTTPException(LEFT)
            self.metrics.rejected("deadline")
            raise http_problem(504)
        finally:
            left.cancel()
            everything.add_done_callback(_retrieve)
            give_up(jobs)


def give_up(jobs: Sequence[Job]) -> None:
    """Compute nothing more of the jobs of a request that is answered, or that nobody waits for."""
    for job in jobs:
        if not job.result.cancel():
            _retrieve(job.result)


def _retrieve(ended: asyncio.Future[Any]) -> None:
    """Take note of an error that nobody waits for, which would be written as a mistake of the program otherwise."""
    if not ended.cancelled():
        ended.exception()


async def _until_left(request: Request) -> None:
    """Return when the client has closed the connection."""
    message: Message = {}
    while message.get("type") != "http.disconnect":
        message = await request.receive()


def state_of(request: Request) -> RequestState:
    """What the frame knows of a request."""
    state: RequestState = request.scope[STATE]
    return state


def took(request: Request, done: Sequence[Done]) -> schema.Milliseconds:
    """Where the time of a request went: the longest wait, and the computation of the batches with its texts."""
    batches, state = computing_times(done), state_of(request)
    parts = {
        "queue": max((each.queue_seconds for each in done), default=0.0),
        "encode": sum(encode_seconds for encode_seconds, _ in batches),
        "search": sum(search_seconds for _, search_seconds in batches),
        "total": perf_counter() - state.arrived,
    }
    times = schema.Milliseconds(**{name: round(1000 * seconds, 3) for name, seconds in parts.items()})
    state.logged |= {"texts": len(done), "took_ms": asdict(times)}
    return times
