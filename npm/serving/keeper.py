"""Keeps the newest generation of an index open: looks for a new one, opens it beside the old, and exchanges them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from npm.core.errors import UserError
from npm.indexing.phrase_index import OpenSearcher
from npm.models.encoder import Encoder
from npm.serving.metrics import ServerMetrics
from npm.serving.opened import OpenedIndex
from npm.serving.settings import ServeSettings


class IndexKeeper:
    """The opened index that new requests are answered from.

    A request is answered by the generation that was open when it came, whatever is opened meanwhile; an index that
    cannot be opened leaves the old one in its place.
    """

    def __init__(
        self,
        folder: Path,
        encoder: Encoder,
        settings: ServeSettings,
        *,
        metrics: ServerMetrics,
        notice: Callable[[str], None],
        open_searcher: OpenSearcher | None = None,
    ) -> None:
        """Opens the index. Raises UserError and PartitionsLost as `OpenedIndex.open` does."""
        self._folder, self._encoder, self._settings, self._open_searcher = folder, encoder, settings, open_searcher
        self._metrics, self._notice = metrics, notice
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reload")
        self._watcher: asyncio.Task[None] | None = None
        self.current = self._take(OpenedIndex.open(folder, encoder, settings, open_searcher=open_searcher))
        metrics.partitions_lost.set_function(lambda: len(self.current.partitions_lost))

    def start(self) -> None:
        """Begin to look for new generations; to be called in the event loop."""
        if self._settings.reload_seconds is not None:
            self._watcher = asyncio.create_task(self._watch(self._settings.reload_seconds))

    async def stop(self) -> None:
        """Look no longer."""
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        self._thread.shutdown(wait=False, cancel_futures=True)  # an opening may wait for machines

    def _take(self, opened: OpenedIndex) -> OpenedIndex:
        facts = opened.facts
        self._metrics.index_is(documents=facts.documents, rows=facts.rows, generation=facts.generation)
        return opened

    async def _watch(self, every_seconds: float) -> None:
        loop, failure = asyncio.get_running_loop(), ""  # the last one that was noted, so that it is noted once
        while True:
            await asyncio.sleep(every_seconds)
            try:
                opened = await loop.run_in_executor(self._thread, self._newer)
                failure, note = "", ""
                if opened is not None:
                    old, self.current = self.current, self._take(opened)
                    # by then nobody waits for an answer of it any more
                    loop.call_later(2 * self._settings.timeout_seconds, old.close)
                    self._metrics.reloads.labels("taken").inc()
                    note = f"generation {opened.state.generation} of the index answers now"
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._metrics.reloads.labels("failed").inc()
                message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
                old_one = f"generation {self.current.state.generation} goes on"
                note = "" if message == failure else f"the index cannot be opened anew, {old_one}: {message}"
                failure = message
            if note:
                with contextlib.suppress(OSError):  # a full disk behind standard error must not end the watch
                    self._notice(note)

    def _newer(self) -> OpenedIndex | None:
        """The generation in the folder, opened and warm, if it is another one; runs beside the computing thread."""
        if self.current.filler.index.is_current:
            return None
        return OpenedIndex.open(
            self._folder, self._encoder, self._settings, self.current.facts.examples, self._open_searcher
        )
