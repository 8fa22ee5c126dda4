"""A command of a study: where its results are, what it reads, and whether it has finished."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

METRICS = "metrics.json"
LAST_FILES = {"train": "encoder/config.json", "edit": "edit.json", "tokenizer": "tokenizer.json"}
LAST_FILES |= dict.fromkeys(("generate", "build"), "manifest.json") | dict.fromkeys(("finetune", "evaluate"), METRICS)
"""The file that is in the folder of a stage once its command has finished."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A command, its folder, and the stages that it reads."""

    command: list[str]
    folder: Path
    before: list[Stage]
    per_seed: bool

    def is_finished(self) -> bool:
        file = self.folder / LAST_FILES[self.command[0]]
        return file.is_file() and '"unfinished":' not in file.read_text("utf-8")

    def unfinished(self) -> Iterator[Stage]:
        """The stages to run for this one, in order: those before it only where it is not finished itself."""
        if not self.is_finished():
            yield from (*(other for stage in self.before for other in stage.unfinished()), self)
