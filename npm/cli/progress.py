"""Progress bars with rate and time left, on stderr; a line per finished stage where stderr is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from npm.core.files import shown_bytes

IN_BYTES = ("verify",)
"""Stages that count bytes."""
UNITS = {
    **dict.fromkeys(("blocks", "vectors", "rotation", "training"), "tokens"),
    **dict.fromkeys(("reading", "find"), "documents"),
    **dict.fromkeys(("pack", "encode", "quantize", "code", "merge"), "jobs"),
    "sample": "blocks",
    "lexicon": "parts",
    "codes": "vectors",
    "trace": "spans",
    "fill": "rows",
    "maps": "steps",
    "encoder": "batch",
}
"""The counted items of stages whose name does not say it, as that of `questions` does."""


class StageProgress(Progress):
    """A bar per stage: name, share, count, rate and time left; below them the newest note."""

    def __init__(self) -> None:
        self._stages: dict[str, TaskID] = {}
        self._note = ""
        super().__init__(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[counted]}"),
            TimeRemainingColumn(),
            console=Console(file=sys.stderr),
            disable=not sys.stderr.isatty(),
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bars, and the note on a separate line."""
        yield self.make_tasks_table(self.tasks)
        if self._note:
            yield Text(self._note)

    def __call__(self, stage: str, done: float, total: float | None, *, note: str = "") -> None:
        """Show that `done` of `total` (None: not known) are done in `stage`."""
        if stage not in self._stages:
            self._stages[stage] = self.add_task(stage, total=total, counted="")
        task = next(each for each in self.tasks if each.id == self._stages[stage])
        was_finished, self._note = task.finished, note
        unit = "examples" if stage.startswith("task ") else UNITS.get(stage, "")
        unit = unit.removesuffix("s") if done == 1 else unit
        show = shown_bytes if stage in IN_BYTES else "{:,.0f}".format
        counted = f"{show(done)} {unit}".rstrip() + (f", {show(task.speed)}/s" if task.speed else "")
        self.update(task.id, completed=done, total=total, counted=counted)
        if self.disable and task.finished and not was_finished:
            self.say(f"{stage}: {show(done)} {unit}".rstrip())

    def say(self, message: str) -> None:
        """Print a line above the bars."""
        with suppress(OSError):
            self.console.print(message, highlight=False, markup=False, soft_wrap=True)
