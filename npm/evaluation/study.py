"""A study: cells of commands that build on one another, each with several seeds, and one table of means and deviations.

A stage is one command of `npmlm`, such as a training run or an evaluation. In its settings `{out}` is its own folder,
`{seed}` the seed, and `{stage:NAME}` the folder of another stage of the cell, or of one that cells share.

OUT/study.json                 what the study consists of; another study is refused
OUT/CELL/seed-N/STAGE          what the stage of a cell wrote; corpus and checkpoints of a training run go when it ends
OUT/shared/STAGE[/seed-N]      a stage that several cells build on; once for all seeds where it does not depend on them
OUT/table.json, OUT/table.md   the table of what is finished so far
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from index.files import json_bytes, replace_file, storage_errors
from index.manifest import read_object
from index.removal import remove_own_files
from index.store import refuse_changed
from npm.core.errors import ArtifactError, SettingError
from npm.evaluation.metrics import sample_summary

Stages = Mapping[str, Sequence[str]]
"""Commands by their names: a verb and its settings."""
Command = Callable[[list[str]], int]
"""Runs `npmlm` with these arguments in this process; returns its exit status."""
Check = Callable[[list[str]], object]
"""Raises SettingError if `npmlm` would refuse these arguments before it begins."""

LAST_FILES = {
    "train": "encoder/config.json",
    "edit": "edit.json",
    "generate": "manifest.json",
    "tokenizer": "tokenizer.json",
    "build": "manifest.json",
    "finetune": "metrics.json",
    "evaluate": "metrics.json",
}
"""The file that is in the folder of a stage once its verb is through."""
ANOTHER_STAGE = re.compile(r"\{stage:([^}]+)\}")
SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Column:
    """Where a number of the table is found."""

    stage: str
    keys: tuple[str, ...]
    file: str = "metrics.json"
    largest: bool = False
    """Show the largest of the seeds, instead of mean and deviation."""


@dataclass(frozen=True, slots=True)
class Study:
    """What is done, and which numbers of it are wanted."""

    cells: Mapping[str, Stages]
    columns: Mapping[str, Column]  # by their heads; a cell without the stage has none of its numbers
    shared: Stages

    def command(self, cell: str, name: str) -> tuple[Sequence[str], bool]:
        """A stage that a cell names, and whether it is shared. Raises SettingError if there is none."""
        if name in self.cells[cell]:
            return self.cells[cell][name], False
        if name in self.shared:
            return self.shared[name], True
        raise SettingError(
            f"the cell {cell} names a stage that is not there",
            expected=f"one of {', '.join([*self.cells[cell], *self.shared])}",
            got=name,
            where="the cells of the study",
            fix="correct the name",
        )

    def depends_on_seed(self, cell: str, name: str) -> bool:
        """Whether a stage, or one that it builds on, has the seed among its settings."""
        command, _ = self.command(cell, name)
        others = ANOTHER_STAGE.findall(" ".join(command))
        return "{seed}" in " ".join(command) or any(self.depends_on_seed(cell, other) for other in others)

    def wanted(self, cell: str) -> list[str]:
        """The stages of a cell that the table reads."""
        read = dict.fromkeys(column.stage for column in self.columns.values())
        return [name for name in read if name in self.cells[cell]]


@dataclass(frozen=True, slots=True)
class Stage:
    """A command with its folder, and the stages before it."""

    command: list[str]
    folder: Path
    before: tuple[Stage, ...]

    @classmethod
    def of(cls, study: Study, cell: str, name: str, *, out: Path, seed: int) -> Stage:
        """Raises SettingError for a name that is no stage."""
        command, is_shared = study.command(cell, name)
        folder = out / (f"{SHARED}/{name}" if is_shared else f"{cell}/seed-{seed}/{name}")
        if is_shared and study.depends_on_seed(cell, name):
            folder /= f"seed-{seed}"
        names = dict.fromkeys(ANOTHER_STAGE.findall(" ".join(command)))
        before = {other: cls.of(study, cell, other, out=out, seed=seed) for other in names}
        filled = [part.replace("{out}", str(folder)).replace("{seed}", str(seed)) for part in command]
        for other, stage in before.items():
            filled = [part.replace(f"{{stage:{other}}}", str(stage.folder)) for part in filled]
        return cls(filled, folder, tuple(before.values()))

    @property
    def is_finished(self) -> bool:
        file = self.folder / LAST_FILES[self.command[0]]
        if self.command[0] != "finetune" or not file.is_file():
            return file.is_file()
        return not read_object(file, fix=f"remove {self.folder} and run the study again").get("unfinished")

    def left(self) -> Iterator[Stage]:
        """What is to be run for this stage, in order: stages before it only where it is not finished itself."""
        if self.is_finished:
            return
        for stage in self.before:
            yield from stage.left()
        yield self


def run_study(
    study: Study, out: Path, *, seeds: Sequence[int], command: Command, check: Check, cells: Sequence[str] | None = None
) -> int:
    """Run what of `cells`, or of all, is not finished, seed by seed; the table is written after each cell.

    Returns 0, or the exit status of the first command that failed. Raises SettingError if `out` holds another study, or
    what `check` raises for one of the commands, before the first of them.
    """
    chosen = study.cells if cells is None else cells
    for name in chosen:
        for stage in _left(study, name, out, seed=seeds[0]):
            check(stage.command)
    _start(study, out)
    for seed in seeds:
        for name in chosen:
            for stage in _left(study, name, out, seed=seed):
                if stage.is_finished:  # another one of the cell needed it too
                    continue
                if status := command(stage.command):
                    return status
                for part in (stage.folder / "corpus", stage.folder / "checkpoints"):
                    if stage.command[0] == "train":
                        remove_own_files(part, also=[checkpoint.name for checkpoint in part.glob("step-*")])
            write_table(study, out)
    return 0


def _left(study: Study, cell: str, out: Path, *, seed: int) -> list[Stage]:
    wanted = [Stage.of(study, cell, name, out=out, seed=seed) for name in study.wanted(cell)]
    return list({stage.folder: stage for each in wanted for stage in each.left()}.values())


def _start(study: Study, out: Path) -> None:
    """Record the study, or refuse another one where a stage of the old one is finished; files count by their names."""
    stages = {**study.cells, **({SHARED: study.shared} if study.shared else {})}
    record = {
        cell: {name: [_without_folders(setting) for setting in command] for name, command in commands.items()}
        for cell, commands in stages.items()
    }
    file = out / "study.json"
    old = read_object(file, fix="put it back from a copy, or choose another folder") if file.is_file() else {}
    if any(_is_begun(out / cell, name, command) for cell, each in old.items() for name, command in each.items()):
        refuse_changed(
            old,
            record,
            where=file,
            problem=f"{out} was begun with another study",
            fix="repeat it as it was to go on, or choose another folder",
            error=SettingError,
        )
        return
    with storage_errors(file):
        out.mkdir(parents=True, exist_ok=True)
    replace_file(file, json_bytes(record))


def _is_begun(folder: Path, name: str, command: Sequence[str]) -> bool:
    """Whether a stage in the folder of its cell, or of those that are shared, has its last file, with any seed."""
    last = LAST_FILES[command[0]]
    patterns = (f"seed-*/{name}", name, f"{name}/seed-*")
    return any(file.is_file() for pattern in patterns for file in folder.glob(f"{pattern}/{last}"))


def _without_folders(setting: str) -> str:
    """A setting whose files and folders keep their names only.

    >>> _without_folders("corpus.files=[/data/a.jsonl,b.jsonl]"), _without_folders("schedule.max_steps=5")
    ('corpus.files=[a.jsonl,b.jsonl]', 'schedule.max_steps=5')
    """
    key, _, value = setting.partition("=")
    if not key.endswith(("files", "data_dir", "treebank")):
        return setting
    names = ",".join(Path(file).name for file in value.strip("[]").split(","))
    return f"{key}=[{names}]" if value.startswith("[") else f"{key}={names}"


def table_rows(study: Study, out: Path) -> list[dict[str, Any]]:
    """A row for each cell: its name, the seeds that are finished, and by head of column mean, deviation and values.

    The deviation is that of a sample, None with one seed; both are None where nothing is finished.
    Raises ArtifactError.
    """
    rows = []
    for name in study.cells:
        wanted = study.wanted(name)
        seeds = sorted(int(folder.name[5:]) for folder in (out / name).glob("seed-*"))
        stages = [{each: Stage.of(study, name, each, out=out, seed=seed) for each in wanted} for seed in seeds]
        finished = [each for each in stages if all(stage.is_finished for stage in each.values())]
        row: dict[str, Any] = {"cell": name, "seeds": len(finished)}
        for head, column in study.columns.items():
            measured = [_number(each[column.stage].folder, column) for each in finished if column.stage in each]
            row[head] = sample_summary(measured)
        rows.append(row)
    return rows


def _number(folder: Path, column: Column) -> float:
    """The number of a column in the folder of its stage. Raises ArtifactError."""
    fix = f"remove {folder} and run the study again, which repeats this stage"
    found: Any = read_object(folder / column.file, fix=fix)
    try:
        for key in column.keys:
            found = found[key]
        return float(found)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{folder / column.file} holds no such number",
            expected=f"a number at {' / '.join(column.keys)}",
            got=f"{type(error).__name__}: {error}",
            where=str(folder / column.file),
            fix=fix,
        ) from error


def write_table(study: Study, out: Path) -> None:
    """Write table.json and table.md for the cells that are finished; what is not stays empty."""
    rows = table_rows(study, out)
    heads = ["cell", "seeds", *study.columns]
    lines = ["| " + " | ".join(heads) + " |", "| --- " + "| ---: " * (len(heads) - 1) + "|"]
    for row in rows:
        numbers = [_entry(row[head], largest=column.largest) for head, column in study.columns.items()]
        entries = [row["cell"], str(row["seeds"]), *numbers]
        lines.append("| " + " | ".join(entries) + " |")
    replace_file(out / "table.json", json_bytes(rows))
    replace_file(out / "table.md", ("\n".join(lines) + "\n").encode())


def _entry(measured: Mapping[str, Any], *, largest: bool) -> str:
    """Mean ± deviation, or the largest, in four digits, whatever the size of the number."""
    mean, deviation = measured["mean"], measured["deviation"]
    if mean is None:
        return ""
    if largest:
        return f"{max(measured['values']):.4g}"
    return f"{mean:.4g}" if deviation is None else f"{mean:.4g} ± {deviation:.2g}"
