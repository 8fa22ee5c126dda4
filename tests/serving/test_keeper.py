"""The generation that is kept open, and what becomes of the watch for the next one."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from npm import PhraseFiller, add
from npm.core.types import Document
from npm.serving.keeper import IndexKeeper
from npm.serving.metrics import ServerMetrics
from npm.serving.settings import ServeSettings


class FailingOnce(ServerMetrics):
    """Fails where the second generation would be taken up."""

    def __init__(self) -> None:
        super().__init__()
        self.tries = 0

    def index_is(self, *, documents: int, rows: int, generation: int) -> None:
        self.tries += 1
        if self.tries == 2:
            raise OSError("no more descriptors")
        super().index_is(documents=documents, rows=rows, generation=generation)


def test_the_watch_goes_on_after_a_generation_that_could_not_be_taken_up(built_index: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(built_index, tmp_path / "index"))
    encoder = PhraseFiller.open(folder).encoder
    metrics, notes = FailingOnce(), list[str]()
    keeper = IndexKeeper(folder, encoder, ServeSettings(reload_seconds=0.01), metrics=metrics, notice=notes.append)
    add(Document("iceland-2", "Iceland", "Akureyri is the capital of the north of Iceland."), folder)

    async def scenario() -> None:
        keeper.start()
        async with asyncio.timeout(60):
            while keeper.current.state.generation == 0:
                await asyncio.sleep(0.01)
        await keeper.stop()

    asyncio.run(scenario())
    assert metrics.tries == 3
    assert len(notes) == 2 and "no more descriptors" in notes[0] and "generation 0 goes on" in notes[0]
    assert notes[1] == "generation 1 of the index answers now"
    assert keeper.current.facts.documents == 7


def test_generations_are_taken_up_when_nothing_can_be_logged(built_index: Path, tmp_path: Path) -> None:
    def full(line: str) -> None:
        raise OSError("no space left on device")

    folder = Path(shutil.copytree(built_index, tmp_path / "index"))
    encoder = PhraseFiller.open(folder).encoder
    keeper = IndexKeeper(folder, encoder, ServeSettings(reload_seconds=0.01), metrics=ServerMetrics(), notice=full)

    async def scenario() -> None:
        keeper.start()
        for generation in (1, 2):
            add(Document(f"iceland-{generation}", "Iceland", f"Akureyri has {generation} harbors."), folder)
            while keeper.current.state.generation < generation and len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0.01)
        await keeper.stop()

    asyncio.run(scenario())
    assert keeper.current.state.generation == 2
