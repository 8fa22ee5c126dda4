"""One thread that computes, and a bounded queue in front of it.

What waits is taken as soon as the thread is free, several texts at once where that helps; there is no waiting for more
to come. What a client has given up, or what is too late, is never computed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from npm.serving.metrics import ServerMetrics
from npm.serving.problems import Problem


@dataclass(frozen=True, slots=True)
class Done:
    """What was computed for a job, and how long it took, with all that was computed together with it."""

    value: Any
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
    deadline: float
    """When it is too late, by the clock of the event loop."""
    group: str = ""
    """Jobs of equal groups may be computed together; "" is never."""
    text: str = ""
    arrived: float = field(default_factory=perf_counter)
    result: asyncio.Future[Done] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class ComputeQueue:
    """Jobs in the order of their arrival, at most `most_waiting` of them, computed by one thread."""

    def __init__(self, *, most_waiting: int, batch_texts: int, metrics: ServerMetrics) -> None:
        self._most_waiting, self._batch_texts, self._metrics = most_waiting, batch_texts, metrics
        self._waiting: deque[Job] = deque()
        self._not_empty = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._worker: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to compute; to be called in the event loop."""
        self._worker = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """End, after what is being computed; who still waits is not answered."""
        if self._worker is not None:
            self._worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._worker
        self._thread.shutdown(wait=True)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue the jobs of one request: all of them, or none. Raises Problem (429) where they would be too many."""
        if len(self._waiting) + len(jobs) > self._most_waiting:
            self._drop_abandoned()  # who left makes room
        if len(self._waiting) + len(jobs) > self._most_waiting:
            self._metrics.rejected("queue_full")
            raise Problem(
                429,
                f"the server is busy, with {len(self._waiting)} texts waiting: ask again in a second",
                headers={"Retry-After": "1"},
            )
        self._waiting.extend(jobs)
        self._metrics.queue_texts.set(len(self._waiting))
        self._not_empty.set()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._not_empty.wait()
            batch = self._take()
            if not batch:
                continue
            self._metrics.batch_texts.observe(len(batch))
            try:
                outcomes = await loop.run_in_executor(self._thread, _computed, batch)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                outcomes = [error] * len(batch)
            done = [each for each in outcomes if isinstance(each, Done)]
            for each in done:
                self._metrics.queue_seconds.observe(each.queue_seconds)
            for encode_seconds, search_seconds in computing_times(done):
                self._metrics.encode_seconds.observe(encode_seconds)
                self._metrics.search_seconds.observe(search_seconds)
            for job, outcome in zip(batch, outcomes, strict=True):
                if job.result.done():  # nobody waits for it any more
                    continue
                if isinstance(outcome, BaseException):
                    job.result.set_exception(outcome)
                else:
                    job.result.set_result(outcome)

    def _take(self) -> list[Job]:
        """The jobs that are computed next: the first that somebody waits for, and those of its group behind it."""
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
        """Take out the jobs that nobody waits for any more, or that are too late."""
        now = asyncio.get_running_loop().time()
        for job in self._waiting:
            if not job.result.done() and now >= job.deadline:
                job.result.cancel()
        kept = [job for job in self._waiting if not job.result.done()]
        if len(kept) < len(self._waiting):
            self._metrics.rejected("abandoned", len(self._waiting) - len(kept))
            self._waiting = deque(kept)
        if not self._waiting:
            self._not_empty.clear()


def computing_times(done: Sequence[Done]) -> set[tuple[float, float]]:
    """Seconds of encoding and of searching of each batch among `done`, whose texts all have the times of the batch."""
    return {(each.encode_seconds, each.search_seconds) for each in done}


def _computed(batch: Sequence[Job]) -> list[Done | BaseException]:
    """The results of jobs of one group, or what each of them raised; runs in the computing thread."""
    started = perf_counter()
    try:
        found = batch[0].run([job.text for job in batch])
    except Exception as error:
        # one by one, so that an error over one text is not the answer to those of other requests
        if len(batch) == 1:
            return [error]
        return [outcome for job in batch for outcome in ([error] if job.result.done() else _computed([job]))]
    return [replace(done, queue_seconds=started - job.arrived) for job, done in zip(batch, found, strict=True)]
