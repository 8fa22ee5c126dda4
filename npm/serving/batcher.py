"""One thread that computes, and a bounded queue in front of it.

The thread takes waiting texts as soon as it is free, several at once where that helps, and does not wait for more.
Abandoned requests are dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.types import Message

from npm.serving.metrics import ServerMetrics
from npm.serving.problems import CLIENT_LEFT, Problem


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a job, and the seconds it took together with all that was computed in one batch with it."""

    value: Any
    """The answer, or the QueryError of a text that cannot be answered."""
    queue_seconds: float = 0.0
    encode_seconds: float = 0.0
    search_seconds: float = 0.0
    lost: frozenset[int] = frozenset()
    """Numbers of the index's partitions that were left out."""


@dataclass(eq=False, slots=True)
class Job:
    """One thing to compute: a text to fill, which may be filled together with others, or any call."""

    run: Callable[[Sequence[str]], list[Done]]
    """Computes the texts of several jobs of one group, or this job alone; one result for each text."""
    group: str = ""
    """Jobs of equal groups may be computed together; "" is never."""
    text: str = ""
    arrived: float = field(default_factory=perf_counter)
    result: asyncio.Future[Done] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Cancelled when nobody waits for it any more."""


class Batcher:
    """Jobs in the order of their arrival, at most `most_waiting` of them, computed by one thread."""

    def __init__(self, *, most_waiting: int, batch_texts: int, metrics: ServerMetrics) -> None:
        self._most_waiting, self._batch_texts, self._metrics = most_waiting, batch_texts, metrics
        self._waiting: deque[Job] = deque()
        self._not_empty = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Compute within the block; what is being computed at its end is finished, what still waits is not."""
        with ThreadPoolExecutor(1, thread_name_prefix="compute") as thread:
            worker = asyncio.create_task(self._work(thread))
            try:
                yield
            finally:
                worker.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await worker

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue the unfinished jobs of one request: all, or none. Raises Problem (429) if they would be too many."""
        jobs = [job for job in jobs if not job.result.done()]
        if len(self._waiting) + len(jobs) > self._most_waiting:
            self._drop_abandoned()
        if len(self._waiting) + len(jobs) > self._most_waiting:
            self._metrics.rejected("queue_full")
            raise Problem(
                "busy",
                f"the server is busy, with {len(self._waiting)} texts waiting: ask again in a second",
                headers={"Retry-After": "1"},
            )
        self._waiting.extend(jobs)
        self._metrics.queue_texts.set(len(self._waiting))
        self._not_empty.set()

    async def results(
        self, request: Request, jobs: Sequence[Job], deadline: float, *, until_answer: bool = False
    ) -> list[Done]:
        """Results of the jobs of one request, in their order.

        With `until_answer` those up to the first that is no error; the other jobs stay in the queue. Raises Problem
        (429), TimeoutError at the `deadline` by the clock of the event loop, HTTPException (499) when the client
        leaves, or the exception of a job; then nothing more of them is computed.
        """

        async def client_left() -> None:
            message: Message = {}
            while message.get("type") != "http.disconnect":
                message = await request.receive()
            give_up(jobs)

        self.submit(jobs)
        left = asyncio.create_task(client_left())
        try:
            async with asyncio.timeout_at(deadline):
                done: list[Done] = []
                for job in jobs:
                    done.append(await job.result)
                    if until_answer and not isinstance(done[-1].value, Exception):
                        break
                return done
        except BaseException as error:
            give_up(jobs)
            if isinstance(error, asyncio.CancelledError) and left.done():
                raise HTTPException(CLIENT_LEFT) from None
            raise
        finally:
            left.cancel()

    async def _work(self, thread: ThreadPoolExecutor) -> None:
        while True:
            await self._not_empty.wait()
            if not (batch := self._take()):
                continue
            self._metrics.batch_texts.observe(len(batch))
            outcomes = await asyncio.get_running_loop().run_in_executor(thread, _computed, batch)
            for job, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, Done):
                    self._metrics.queue_seconds.observe(outcome.queue_seconds)
                if job.result.done():  # nobody waits for it any more
                    continue
                if isinstance(outcome, Done):
                    job.result.set_result(outcome)
                else:
                    job.result.set_exception(outcome)

    def _take(self) -> list[Job]:
        """The jobs that are computed next: the first that somebody waits for, and those of its group after it."""
        self._drop_abandoned()
        batch: list[Job] = []
        while self._waiting and len(batch) < self._batch_texts:
            if batch and not (batch[0].group and batch[0].group == self._waiting[0].group):
                break
            batch.append(self._waiting.popleft())
        if not self._waiting:
            self._not_empty.clear()
        self._metrics.queue_texts.set(len(self._waiting))
        return batch

    def _drop_abandoned(self) -> None:
        kept = [job for job in self._waiting if not job.result.done()]
        if dropped := len(self._waiting) - len(kept):
            self._metrics.rejected("abandoned", dropped)
            self._waiting = deque(kept)


def give_up(jobs: Sequence[Job]) -> None:
    """Compute nothing more of the jobs of a request that is answered, or that nobody waits for."""
    for job in jobs:
        if not job.result.cancel() and not job.result.cancelled():
            job.result.exception()  # retrieved: asyncio logs exceptions that nobody has


def _computed(batch: Sequence[Job]) -> list[Done | BaseException]:
    """The results of jobs of one group, or what each of them raised; runs in the computing thread."""
    started = perf_counter()
    try:
        found = batch[0].run([job.text for job in batch])
    except BaseException as error:  # a panic in the tokenizer's Rust code is not a subclass of Exception
        # one by one, so that an error over one text is not the answer to those of other requests
        if len(batch) == 1:
            return [error]
        return [outcome for job in batch for outcome in ([error] if job.result.done() else _computed([job]))]
    return [replace(done, queue_seconds=started - job.arrived) for job, done in zip(batch, found, strict=True)]
