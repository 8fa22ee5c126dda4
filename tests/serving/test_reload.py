"""The generation that is kept open, and what becomes of the watch for the next one."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from npm import PhraseFiller, add
from npm.core.types import Document
from npm.serving.metrics import ServerMetrics
from npm.serving.opened import OpenedIndex
from npm.serving.reload import IndexReloader
from npm.serving.replies import IndexFacts
from npm.serving.settings import ServeSettings


class FailingOnce(ServerMetrics):
    """Fails where the second generation would be taken up."""

    def __init__(self) -> None:
        super().__init__()
        self.tries = 0

    def index_is(self, facts: IndexFacts) -> None:
        self.tries += 1
        if self.tries == 2:
            raise OSError("no more descriptors")
        super().index_is(facts)


def reloader(
    folder: Path, metrics: ServerMetrics, notice: Callable[[str], None], **settings_of_it: float
) -> IndexReloader:
    settings = ServeSettings(reload_seconds=0.01, **settings_of_it)
    open_index = partial(OpenedIndex.open, folder, PhraseFiller.open(folder).encoder, settings)
    return IndexReloader(open_index, settings, metrics=metrics, notice=notice)


def test_the_watch_goes_on_after_a_generation_that_could_not_be_taken_up(built_index: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(built_index, tmp_path / "index"))
    metrics, notes = FailingOnce(), list[str]()
    ours = reloader(folder, metrics, notes.append)
    add(Document("iceland-2", "Iceland", "Akureyri is the capital of the north of Iceland."), folder)

    async def scenario() -> None:
        async with asyncio.timeout(60), ours.running():
            while ours.current.state.generation == 0:
                await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert metrics.tries == 3
    assert len(notes) == 2 and "no more descriptors" in notes[0] and "generation 0 stays open" in notes[0]
    assert notes[1] == "generation 1 of the index answers now"
    assert ours.current.facts.documents == 7


def test_generations_are_taken_up_when_nothing_can_be_logged(built_index: Path, tmp_path: Path) -> None:
    def full(line: str) -> None:
        raise OSError("no space left on device")

    folder = Path(shutil.copytree(built_index, tmp_path / "index"))
    ours = reloader(folder, ServerMetrics(), full)

    async def scenario() -> None:
        async with ours.running():
            for generation in (1, 2):
                add(Document(f"iceland-{generation}", "Iceland", f"Akureyri has {generation} harbors."), folder)
                while ours.current.state.generation < generation and len(asyncio.all_tasks()) > 1:
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert ours.current.state.generation == 2


def test_a_failure_is_noted_once_until_a_generation_was_taken_up(
    built_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(built_index, tmp_path / "index"))
    notes, tries, real = list[str](), list[int](), OpenedIndex.open

    def failing(*given: Any) -> OpenedIndex:
        tries.append(len(tries) + 1)
        if tries[-1] in (2, 3, 5, 6):
            raise OSError("no more descriptors")
        return real(*given)

    monkeypatch.setattr(OpenedIndex, "open", failing)
    ours = reloader(folder, ServerMetrics(), notes.append)

    async def scenario() -> None:
        async with asyncio.timeout(60), ours.running():
            for generation in (1, 2):
                add(Document(f"iceland-{generation}", "Iceland", f"Akureyri has {generation} harbors."), folder)
                while ours.current.state.generation < generation:
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert len(tries) == 7
    assert [note.startswith("the new index cannot be opened") for note in notes] == [True, False, True, False]


@pytest.mark.parametrize(("timeout_seconds", "closed_later"), [(30, False), (0.05, True)])
def test_a_generation_stays_open_as_long_as_requests_may_wait_for_it_and_no_longer(
    built_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timeout_seconds: float, closed_later: bool
) -> None:
    """A partitioned one could not answer them any more."""
    folder = Path(shutil.copytree(built_index, tmp_path / "index"))
    closed: list[OpenedIndex] = []
    monkeypatch.setattr(OpenedIndex, "close", lambda self: closed.append(self))
    ours = reloader(folder, ServerMetrics(), lambda note: None, timeout_seconds=timeout_seconds)
    first = ours.current
    add(Document("iceland-2", "Iceland", "Akureyri is the capital of the north of Iceland."), folder)

    async def scenario() -> None:
        async with asyncio.timeout(60), ours.running():
            while ours.current is first:
                await asyncio.sleep(0.01)
            assert not closed
            await asyncio.sleep(0.2)  # a few looks for a third one
            assert closed == [first] * closed_later

    asyncio.run(scenario())
