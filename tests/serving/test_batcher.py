"""The queue in front of the computing thread and who waits for it, with jobs that end when the test lets them."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.types import Message

from npm.serving.batcher import Batcher, Done, Job
from npm.serving.metrics import ServerMetrics
from npm.serving.middleware import STATE, RequestState
from npm.serving.problems import CLIENT_LEFT, Problem
from npm.serving.routes import answer_lines, took
from npm.serving.service import Service
from npm.serving.settings import ServeSettings


class Work:
    """Computes a text as its upper case, once the gate is open; remembers what was computed together."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.batches: list[list[str]] = []

    def __call__(self, texts: Sequence[str]) -> list[Done]:
        self.batches.append(list(texts))
        self.begun.set()
        assert self.gate.wait(30)
        if "bad" in texts:
            raise ValueError("bad")
        return [Done(text.upper()) for text in texts]

    def job(self, text: str, group: str = "g") -> Job:
        return Job(self, group, text)

    def jobs(self, texts: str) -> list[Job]:
        return [self.job(text) for text in texts]


@asynccontextmanager
async def busy(work: Work) -> AsyncIterator[Batcher]:
    """A batcher that is computing the job "a"."""
    ours = Batcher(most_waiting=5, batch_texts=3, metrics=ServerMetrics())
    async with ours.running():
        first = work.job("a")
        ours.submit([first])
        while not work.begun.is_set():
            await asyncio.sleep(0.005)
        yield ours
        work.gate.set()
        await asyncio.wait([first.result])


def served(batcher: Batcher) -> Service:
    """The service of a server without an index."""
    return Service(ServeSettings(timeout_seconds=5), None, ServerMetrics(), batcher, print)  # type: ignore[arg-type]


def asked(*, leaves: bool = False) -> Request:
    """A request whose client stays, or leaves at once."""

    async def receive() -> Message:
        if leaves:
            return {"type": "http.disconnect"}
        await asyncio.sleep(60)
        raise AssertionError("nobody waits so long")

    return Request({"type": "http", STATE: RequestState("id")}, receive)


def in_loop(scenario: Callable[[Work], Awaitable[None]]) -> Callable[[], None]:
    """A test that runs in an event loop."""

    def test() -> None:
        asyncio.run(scenario(Work()))  # type: ignore[arg-type]

    return test


@in_loop
async def test_what_waits_is_computed_together_within_a_group_and_in_order(work: Work) -> None:
    async with busy(work) as ours:
        jobs = [*work.jobs("bcde"), work.job("f", "other")]
        ours.submit(jobs)
        work.gate.set()
        assert [(await job.result).value for job in jobs] == list("BCDEF")
        alone = [work.job(text, "") for text in "gh"]
        ours.submit(alone)
        assert [(await job.result).value for job in alone] == ["G", "H"]
    assert work.batches == [["a"], ["b", "c", "d"], ["e"], ["f"], ["g"], ["h"]]


@in_loop
async def test_after_an_error_only_what_somebody_still_waits_for_is_tried_by_itself(work: Work) -> None:
    def fails(texts: Sequence[str]) -> list[Done]:
        work.batches.append(list(texts))
        left.result.cancel()
        raise ValueError("bad")

    async with busy(work) as ours:
        stays, left = Job(fails, "x", "b"), Job(fails, "x", "c")
        ours.submit([stays, left])
        work.gate.set()
        with pytest.raises(ValueError, match="bad"):
            await stays.result
    assert work.batches == [["a"], ["b", "c"], ["b"]]


@in_loop
async def test_more_than_the_queue_holds_is_refused_as_a_whole(work: Work) -> None:
    async with busy(work) as ours:
        ours.submit(work.jobs("bcd"))
        with pytest.raises(Problem) as caught:
            ours.submit(work.jobs("efg"))
        assert caught.value.status == 429 and caught.value.headers == {"Retry-After": "1"}
        last = work.jobs("hi")
        ours.submit(last)  # there was room for two, and none of the three had taken it
        work.gate.set()
        assert [(await job.result).value for job in last] == ["H", "I"]
    assert work.batches == [["a"], ["b", "c", "d"], ["h", "i"]]


@in_loop
async def test_what_nobody_waits_for_is_not_computed_and_makes_room(work: Work) -> None:
    async with busy(work) as ours:
        left = work.jobs("xy")
        ours.submit([*left, *work.jobs("bcd")])
        for job in left:
            job.result.cancel()
        last = work.job("e")
        ours.submit([last])
        work.gate.set()
        assert (await last.result).value == "E"
    assert work.batches == [["a"], ["b", "c", "d"], ["e"]]


@in_loop
async def test_an_error_over_one_text_is_not_the_answer_to_others_of_its_batch(work: Work) -> None:
    async with busy(work) as ours:
        jobs = [work.job(text) for text in ("b", "bad", "c")]
        ours.submit(jobs)
        work.gate.set()
        with pytest.raises(ValueError, match="bad"):
            await jobs[1].result
        assert [(await jobs[number].result).value for number in (0, 2)] == ["B", "C"]
        last = work.job("d")
        ours.submit([last])
        assert (await last.result).value == "D"
    assert work.batches == [["a"], ["b", "bad", "c"], ["b"], ["bad"], ["c"], ["d"]]


@in_loop
async def test_what_is_too_late_is_not_computed_and_leaves_no_unheard_error(work: Work) -> None:
    unheard: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context["message"]))
    async with busy(work) as ours:
        with pytest.raises(TimeoutError):
            await ours.results(asked(), work.jobs("de"), asyncio.get_running_loop().time() + 0.01)
        failing = asyncio.create_task(
            ours.results(asked(), [work.job("bad"), work.job("bad")], asyncio.get_running_loop().time() + 30)
        )
        await asyncio.sleep(0)
        work.gate.set()
        with pytest.raises(ValueError, match="bad"):
            await failing
        del failing
    assert ["d", "e"] not in work.batches
    gc.collect()
    await asyncio.sleep(0)
    assert unheard == []


@in_loop
async def test_of_a_client_that_left_nothing_is_computed_and_no_deadline_is_missed(work: Work) -> None:
    async with busy(work) as ours:
        with pytest.raises(HTTPException) as caught:
            await ours.results(asked(leaves=True), work.jobs("b"), asyncio.get_running_loop().time() + 30)
        assert caught.value.status_code == CLIENT_LEFT
    assert work.batches == [["a"]]


@in_loop
async def test_the_servers_limit_counts_and_a_deadline_is_504(work: Work) -> None:
    service, now = served(Batcher(most_waiting=1, batch_texts=1, metrics=ServerMetrics())), 0.0
    now = asyncio.get_running_loop().time()
    assert service.deadline(None) - now >= 5 > 2 > service.deadline(1) - now
    assert service.deadline(60_000) < now + 60
    assert service.problem(TimeoutError()).status == 504
    assert b'npmlm_rejected_total{reason="deadline"} 1.0' in service.metrics.text()


def test_times_of_a_batch_count_once_for_a_request() -> None:
    together = [Done("a", 0.5, 0.25, 0.125), Done("b", 0.75, 0.25, 0.125)]
    times = took(asked(), [*together, Done("c", 1.0, 0.5, 1.0)])
    assert (times.queue, times.encode, times.search) == (1000, 750, 1125)


@in_loop
async def test_an_error_of_the_server_is_the_last_of_the_lines_and_is_raised(work: Work) -> None:
    async with busy(work) as ours:
        jobs: list[Any] = [work.job("bad"), work.job("b")]
        ours.submit(jobs)
        work.gate.set()
        lines = answer_lines(served(ours), asked(), jobs, asyncio.get_running_loop().time() + 30, pytest.fail)
        assert json.loads(await anext(lines))["problem"]["status"] == 500
        with pytest.raises(ValueError, match="bad"):
            await anext(lines)
