"""The queue in front of the computing thread and who waits for it, with jobs that end when the test lets them."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Awaitable, Sequence
from typing import cast

import pytest
from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.types import Message

from npm.serving.compute import ComputeQueue, Done, Job
from npm.serving.keeper import IndexKeeper
from npm.serving.metrics import ServerMetrics
from npm.serving.middleware import STATE, RequestState
from npm.serving.problems import Problem
from npm.serving.routes import _lines
from npm.serving.service import LEFT, Service, took
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

    def job(self, text: str, group: str = "g", seconds: float = 30.0) -> Job:
        return Job(self, asyncio.get_running_loop().time() + seconds, group, text)


async def begun(work: Work) -> None:
    """Wait until a first batch is being computed."""
    while not work.begun.is_set():
        await asyncio.sleep(0.005)


def run(scenario: object) -> None:
    asyncio.run(scenario)  # type: ignore[arg-type]


def queue(batch_texts: int = 3, most_waiting: int = 5) -> ComputeQueue:
    made = ComputeQueue(most_waiting=most_waiting, batch_texts=batch_texts, metrics=ServerMetrics())
    made.start()
    return made


def test_what_waits_is_computed_together_within_a_group_and_in_order() -> None:
    async def scenario() -> None:
        work, ours = Work(), queue()
        jobs = [work.job("a"), *(work.job(text) for text in "bcde"), work.job("f", "other")]
        ours.submit(jobs[:1])
        await begun(work)
        ours.submit(jobs[1:])
        work.gate.set()
        done = [await job.result for job in jobs]
        assert [each.value for each in done] == list("ABCDEF")
        assert work.batches == [["a"], ["b", "c", "d"], ["e"], ["f"]]
        await ours.stop()

    run(scenario())


def test_more_than_the_queue_holds_is_refused_as_a_whole() -> None:
    async def scenario() -> None:
        work, ours = Work(), queue()
        ours.submit([work.job("a")])
        await begun(work)
        ours.submit([work.job(text) for text in "bcd"])
        with pytest.raises(Problem) as caught:
            ours.submit([work.job(text) for text in "efg"])
        assert caught.value.status == 429 and caught.value.headers == {"Retry-After": "1"}
        last = [work.job(text) for text in "hi"]
        ours.submit(last)  # there was room for two, and none of the three had taken it
        work.gate.set()
        assert [(await job.result).value for job in last] == ["H", "I"]
        assert work.batches == [["a"], ["b", "c", "d"], ["h", "i"]]
        await ours.stop()

    run(scenario())


def test_what_nobody_waits_for_or_comes_too_late_is_not_computed_and_makes_room() -> None:
    async def scenario() -> None:
        work, ours = Work(), queue()
        ours.submit([work.job("a")])
        await begun(work)
        left, late = work.job("left"), work.job("late", seconds=0.0)
        ours.submit([left, late, *(work.job(text) for text in "bcd")])
        left.result.cancel()
        last = work.job("e")
        ours.submit([last])
        work.gate.set()
        assert (await last.result).value == "E"
        assert late.result.cancelled()
        assert work.batches == [["a"], ["b", "c", "d"], ["e"]]
        await ours.stop()

    run(scenario())


def test_an_error_over_one_text_is_not_the_answer_to_others_of_its_batch() -> None:
    async def scenario() -> None:
        work, ours = Work(), queue()
        work.gate.set()
        jobs = [work.job(text) for text in ("a", "bad", "b")]
        ours.submit(jobs)
        with pytest.raises(ValueError, match="bad"):
            await jobs[1].result
        assert [(await jobs[number].result).value for number in (0, 2)] == ["A", "B"]
        assert work.batches == [["a", "bad", "b"], ["a"], ["bad"], ["b"]]
        last = work.job("c")
        ours.submit([last])
        assert (await last.result).value == "C"
        await ours.stop()

    run(scenario())


def asked(*, leaves: bool = False) -> Request:
    """A request whose client stays, or leaves at once."""

    async def receive() -> Message:
        if leaves:
            return {"type": "http.disconnect"}
        await asyncio.sleep(60)
        raise AssertionError("nobody waits so long")

    return Request({"type": "http", STATE: RequestState("id")}, receive)


async def status_of(results: Awaitable[object]) -> int:
    """The status of a request that is refused; the error, which would keep alive what it passed through, is dropped."""
    with pytest.raises(Problem) as caught:
        await results
    return caught.value.status


def test_what_is_too_late_for_the_queue_or_its_caller_is_504_and_leaves_no_unheard_error() -> None:
    async def scenario() -> None:
        unheard: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context["message"]))
        work, ours = Work(), queue()
        service = Service(ServeSettings(), cast(IndexKeeper, None), ServerMetrics(), ours, print)
        first = work.job("a")
        ours.submit([first])
        await begun(work)
        first.result.cancel()  # its client left while it is computed
        given_up = [work.job("b"), work.job("c")]
        answers = [asyncio.create_task(status_of(service.results(asked(), given_up)))]
        await asyncio.sleep(0)
        given_up[0].result.cancel()  # as the queue does to what is too late
        late = [work.job("d", seconds=0.01), work.job("e")]
        answers.append(asyncio.create_task(status_of(service.results(asked(), late))))
        assert await asyncio.gather(*answers) == [504, 504]
        work.gate.set()
        last = work.job("f")
        ours.submit([last])
        async with asyncio.timeout(30):
            assert (await last.result).value == "F"
        assert work.batches == [["a"], ["f"]]
        gc.collect()
        await asyncio.sleep(0)
        assert unheard == []
        await ours.stop()

    run(scenario())


def test_of_a_client_that_left_nothing_is_computed_and_no_deadline_is_missed() -> None:
    async def scenario() -> None:
        work, ours = Work(), queue()
        service = Service(ServeSettings(timeout_seconds=5), cast(IndexKeeper, None), ServerMetrics(), ours, print)
        ours.submit([work.job("a")])
        await begun(work)
        with pytest.raises(HTTPException) as caught:
            await service.results(asked(leaves=True), [work.job("b")])
        assert caught.value.status_code == LEFT
        assert b'reason="deadline"' not in service.metrics.text()
        now = asyncio.get_running_loop().time()
        assert service.deadline(None) - now >= 5 > 2 > service.deadline(1) - now
        assert service.deadline(60_000) < now + 60  # the server's limit counts
        work.gate.set()
        await ours.stop()
        assert work.batches == [["a"]]

    run(scenario())


def test_times_of_a_batch_count_once_for_a_request() -> None:
    together = [Done("a", 0.5, 0.25, 0.125), Done("b", 0.75, 0.25, 0.125)]
    times = took(asked(), [*together, Done("c", 1.0, 0.5, 1.0)])
    assert (times.queue, times.encode, times.search) == (1000, 750, 1125)


def test_jobs_without_a_group_are_computed_alone() -> None:
    async def scenario() -> None:
        work, ours = Work(), queue()
        work.gate.set()
        jobs = [work.job(text, "") for text in "ab"]
        ours.submit(jobs)
        assert [(await job.result).value for job in jobs] == ["A", "B"]
        assert work.batches == [["a"], ["b"]]
        await ours.stop()

    run(scenario())


def test_an_error_of_the_server_is_the_last_of_the_lines_and_is_raised() -> None:
    async def scenario() -> None:
        ours, work = queue(), Work()
        work.gate.set()
        service = Service(ServeSettings(), None, ServerMetrics(), ours, print)  # type: ignore[arg-type] - no index
        request = Request({"type": "http", STATE: RequestState("id")})
        jobs = [work.job("bad"), work.job("b")]
        service.submit(request, jobs)
        lines = _lines(service, request, jobs)
        assert json.loads(await anext(lines))["status"] == 500
        with pytest.raises(ValueError, match="bad"):
            await anext(lines)
        await ours.stop()

    run(scenario())
