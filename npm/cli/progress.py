"""Progress bars with rate and time left, on stderr; quiet where stderr is not a terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from types import TracebackType
from typing import Any

UNITS = {
    "lexicon": "shards",
    "pack": "jobs",
    "encode": "jobs",
    "quantise": "jobs",
    "code": "jobs",
    "merge": "jobs",
    "quantiser": "iterations",
    "codes": "vectors",
    "encoder": "batches",
    "search": "measurements",
    "lists": "lists",
    "rows": "vectors",
    "questions": "questions",
    "exact scores": "vectors",
    "exact answers": "answers",
    "settings": "settings",
    "articles": "articles",
    "sets": "sets",
    "models": "models",
    "documents": "documents",
    "verify": "bytes",
    "publish": "bytes",
    "fetch": "bytes",
    "sentences": "sentences",
    "task": "answers",
}
"""What is counted in a stage, or in all whose first word it is; tokens in all others."""


def unit_of(stage: str) -> str:
    """What is counted in `stage`.

    >>> unit_of("task sst2"), unit_of("exact scores"), unit_of("vectors")
    ('answers', 'vectors', 'tokens')
    """
    return UNITS.get(stage) or UNITS.get(stage.partition(" ")[0], "tokens")


class StageProgress:
    """One bar a stage: name, share done, count, rate and time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._tasks: dict[str, Any] = {}
        self._said: set[str] = set()
        self._console = Console(file=sys.stderr)
        self._progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[counted]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            disable=not sys.stderr.isatty(),
        )

    def __enter__(self) -> StageProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, stage: str, done: float, total: float | None, *, note: str = "") -> None:
        """Show that `done` of `total` (None: not known) are done in `stage`."""
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total, counted="", note="")
        task = self._tasks[stage]
        speed = self._progress.tasks[task].speed
        rate = f", {speed:,.0f}/s" if speed else ""
        counted = f"{done:,.0f} {unit_of(stage)}{rate}"
        self._progress.update(task, completed=done, total=total, counted=counted, note=note)
        finished = total is not None and done >= total
        if finished and not sys.stderr.isatty() and stage not in self._said:
            self._said.add(stage)
            unit = unit_of(stage)
            one = unit.removesuffix("es" if unit == "batches" else "s")
            self.say(f"{stage}: {done:,.0f} {one if done == 1 else unit}")

    def say(self, message: str) -> None:
        """Print a line above the bars."""
        with suppress(OSError):
            self._console.print(message, highlight=False, markup=False)


def say(message: str) -> None:
    """One line on stderr: everything but answers goes there; one that cannot be written changes nothing else."""
    with suppress(OSError):
        sys.stderr.write(message + "\n")
        sys.stderr.flush()
