"""The newest generation of an index: found, opened next to the old one, and put into its place."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from npm.core.errors import UserError
from npm.serving.metrics import ServerMetrics
from npm.serving.opened import OpenedIndex
from npm.serving.settings import ServeSettings


class IndexReloader:
    """The opened index that new requests are answered from.

    A request is answered by the generation that was open when it came, even if another is opened meanwhile. An index
    that cannot be opened leaves the old one in its place.
    """

    def __init__(
        self,
        open_index: Callable[[Sequence[str] | None], OpenedIndex],
        settings: ServeSettings,
        *,
        metrics: ServerMetrics,
        notice: Callable[[str], None],
        refresh: Callable[[], None] | None = None,
    ) -> None:
        """Open the index by `open_index`, which gets the page's examples where they are known. Raises what it does.

        `refresh` brings the index up to date with its files before each look for a new generation.
        """
        self._refresh = refresh
        self._open_index, self._settings, self._metrics, self._notice = open_index, settings, metrics, notice
        self.current = open_index(None)
        metrics.index_is(self.current.facts)
        metrics.partitions_lost.set_function(lambda: len(self.current.partitions_lost))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Look for new generations within the block."""
        if self._settings.reload_seconds is None:
            yield
            return
        thread = ThreadPoolExecutor(1, thread_name_prefix="reload")
        watcher = asyncio.create_task(self._watch(self._settings.reload_seconds, thread))
        try:
            yield
        finally:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
            thread.shutdown(wait=False, cancel_futures=True)  # an opening may wait for machines

    async def _watch(self, every_seconds: float, thread: ThreadPoolExecutor) -> None:
        loop, failure = asyncio.get_running_loop(), ""  # the last one that was noted, so that it is noted once
        while True:
            await asyncio.sleep(every_seconds)
            try:
                opened = await loop.run_in_executor(thread, self._newer)
                failure, note = "", ""
                if opened is not None:
                    self._metrics.index_is(opened.facts)
                    # by then nobody waits for an answer of it any more
                    loop.call_later(2 * self._settings.timeout_seconds, self.current.close)
                    self.current = opened
                    self._metrics.reloads.labels("taken").inc()
                    note = f"generation {opened.state.generation} of the index answers now"
            except Exception as error:
                self._metrics.reloads.labels("failed").inc()
                message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
                present = f"generation {self.current.state.generation} stays open"
                note = "" if message == failure else f"the new index cannot be opened, {present}: {message}"
                failure = message
            if note:
                with contextlib.suppress(OSError):  # a full disk behind standard error must not end the watch
                    self._notice(note)

    def _newer(self) -> OpenedIndex | None:
        """The generation in the folder, opened and warm, if it is another one; runs next to the computing thread."""
        if self._refresh is not None:
            self._refresh()
        if self.current.filler.index.is_current:
            return None
        return self._open_index(self.current.facts.examples)
