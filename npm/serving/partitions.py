"""Partitions of an index in other processes: queried in parallel, omitted while they do not answer, then used again.

A question is answered by all partitions that it needs, or refused; with `allow_partial` by the rest, with a note.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from typing import Any, Protocol

from index.search import PartitionedSearcher
from index.types import Searcher
from npm.serving.problems import Problem

CHECK_SECONDS = 1.0


class RemotePart(Searcher, Protocol):
    """A searcher in another process. Every call ends in time, with ConnectionError where nothing answers."""

    def check(self) -> None:
        """Raise ConnectionError unless it answers."""

    def close(self) -> None:
        """End; may be called again."""


class PartitionsLost(Problem):
    """Of the partitions, `asked` in number, those with the numbers `lost` do not answer."""

    def __init__(self, lost: Iterable[int], asked: int) -> None:
        self.lost, self.asked = frozenset(lost), asked
        super().__init__(
            "partitions_lost",
            f"{len(self.lost)} of {asked} partitions of the index do not answer: "
            "ask again in some seconds, or with allow_partial=true for an answer from the rest",
            headers={"Retry-After": "2"},
        )


class ServedPartitions(PartitionedSearcher):
    """A searcher over remote parts, which are queried in parallel and checked every `CHECK_SECONDS`.

    One that did not answer is not queried, and refused at once, until it answers again. `notice` reports it.
    """

    def __init__(self, parts: Sequence[RemotePart], *, notice: Callable[[str], None]) -> None:
        super().__init__(parts, ask=self._ask_at_once)
        self.lost: frozenset[int] = frozenset()
        """Numbers of the parts that do not answer at present."""
        self._remote, self._notice = tuple(parts), notice
        # a call to a part that was lost under way may hold its thread until its time is over
        self._calls = ThreadPoolExecutor(4 * len(parts), thread_name_prefix="partition")
        self._checks = ThreadPoolExecutor(len(parts), thread_name_prefix="partition-check")
        self._ended, self._changes = threading.Event(), threading.Lock()
        threading.Thread(target=self._watch, name="partitions", daemon=True).start()

    @property
    def closed(self) -> bool:
        """Return True after `close`."""
        return self._ended.is_set()

    def close(self) -> None:
        """Ask nothing any more, and let the parts go."""
        self._ended.set()
        for pool in (self._calls, self._checks):
            pool.shutdown(wait=False, cancel_futures=True)
        for part in self._remote:
            part.close()

    def _ask_at_once(self, call: Callable[[int], Any], numbers: Iterable[int]) -> list[Any]:
        """Answers of the parts `numbers`, in their order. Raises PartitionsLost with all that do not answer."""
        asked = list(numbers)
        if lost := self.lost.intersection(asked):
            raise PartitionsLost(lost, len(self.parts))
        futures = [self._calls.submit(call, number) for number in asked]
        answers, missed = [], set()
        for number, future in zip(asked, futures, strict=True):
            try:
                while not wait([future], timeout=CHECK_SECONDS / 4).done:
                    if number in self.lost:  # found to be lost meanwhile
                        raise ConnectionError
                answers.append(future.result())
            except ConnectionError:
                missed.add(number)
        if missed:
            self._change(frozenset(missed), kept=True)
            raise PartitionsLost(missed, len(self.parts))
        return answers

    def _watch(self) -> None:
        while not self._ended.wait(CHECK_SECONDS):
            try:
                found = list(self._checks.map(_answers, self._remote))
            except (RuntimeError, CancelledError):  # closed meanwhile
                return
            self._change(frozenset(number for number, answers in enumerate(found) if not answers))

    def _change(self, silent: frozenset[int], *, kept: bool = False) -> None:
        """Record which parts are lost: those that are silent, and with `kept` those that were lost before."""
        with self._changes:
            if self.closed:
                return
            lost = silent | self.lost if kept else silent
            for number in sorted(lost ^ self.lost):
                state = "does not answer" if number in lost else "answers again"
                self._notice(f"partition {number} of {len(self.parts)} {state}")
            self.lost = lost


def _answers(part: RemotePart) -> bool:
    try:
        part.check()
    except Exception:  # the others are looked at in any case
        return False
    return True
