"""The queue in front of the computing thread, with jobs that end when the test lets them."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Sequence

import pytest
from starlette.requests import Request
from starlette.types import Message

from npm.serving.compute import ComputeQueue, Done, Job
from npm.serving.metrics import ServerMetrics
from npm.serving.middleware import STATE, RequestState
from npm.serving.problems import Problem
from npm.serving.routes import _lines
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


def test_an_error_reaches_all_of_its_batch_and_the_thread_goes_on() -> None:
    async def scenario() -> None:
        work, ours = Work(), queue()
        work.gate.set()
        wrong, right = [work.job("bad"), work.job("b")], work.job("c", "other")
        ours.submit([*wrong, right])
        for job in wrong:
            with pytest.raises(ValueError, match="bad"):
                await job.result
        assert (await right.result).value == "C"
        await ours.stop()

    run(scenario())


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


def test_a_text_dropped_as_too_late_is_a_504_and_nothing_is_left_to_be_reported() -> None:
    reports: list[object] = []

    async def never() -> Message:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits so long")

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
        ours = queue()
        service = Service(ServeSettings(), None, ServerMetrics(), ours, print)  # type: ignore[arg-type] - no index
        request = Request({"type": "http", STATE: RequestState("id")}, never)
        late, wrong = Work().job("late"), Work().job("bad")
        late.result.cancel()  # as the queue does
        with pytest.raises(Problem) as refused:
            await service.results(request, [late])
        assert refused.value.status == 504
        wrong.result.set_exception(ValueError())
        wrong.give_up()
        await asyncio.sleep(0)
        del late, wrong
        gc.collect()
        await ours.stop()

    run(scenario())
    assert reports == []


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
