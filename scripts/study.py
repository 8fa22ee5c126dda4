"""A study: cells of commands that build on one another, several seeds each, and one table of means and deviations.

    python scripts/study.py masking "files=[a.jsonl.zst]" "held_out=[b.jsonl.zst]" "measure=[tokens,words]"

STUDY is a file of scripts/studies, or the path of one of the same form:
    settings   of the study itself, with defaults; null where one must be given
    stages     npmlm commands of every cell; `shared` ones are run once, or once per seed where they depend on it
    cells      settings of each cell, and stages instead of the common ones (null: none); `by_name_only` needs cells=
    columns    [stage, key, …]: a number in the stage's metrics.json; the maximum over seeds where the last key is `max`
In a command $NAME is a setting, or the folder of another stage, which is then run first. $out is the stage's own
folder, $seed the seed, $demo the demo corpus, and $more all arguments that are no settings of the study.

seeds=[0,1,2], out=runs/STUDY and cells=[…] can be set; list=true prints the commands instead of running them.
small=true tries a study in minutes: its first three cells, one seed, 50 steps a run, 200 rows a task, 10 articles.
Finished stages are skipped; OUT has CELL/seed-N/STAGE, shared/STAGE, commands.json, table.md.
"""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from npm.cli.main import main as npmlm
from npm.cli.settings import compose_settings
from npm.core.display import markdown_table
from npm.core.errors import SettingError, UserError, missing, unknown
from npm.core.files import json_bytes, replace_file
from npm.core.settings import parse_list
from npm.evaluation.tasks import DEMO
from studies.cells import SMALL_CELLS, entry, smaller
from studies.stage import METRICS, Stage

FOLDER = Path(__file__).parent / "studies"
NAME = re.compile(r"\$(\w+)")


@dataclass(frozen=True, slots=True)
class Study:
    """A file of scripts/studies with its settings; `chosen` are the cells to run, `more` the settings of $more."""

    out: Path
    seeds: list[int]
    chosen: list[str]
    plan: Mapping[str, Any]
    settings: Mapping[str, str]
    more: Sequence[str]
    small: bool

    @classmethod
    def of(cls, name: str, arguments: Sequence[str], *, small: bool = False) -> "Study":
        """Read a study and its settings; raises SettingError."""
        file = Path(name) if name.endswith(".yaml") else FOLDER / f"{name}.yaml"
        if not file.is_file():
            raise unknown("study", name, sorted(path.stem for path in FOLDER.glob("*.yaml")))
        plan = yaml.safe_load(file.read_text("utf-8"))
        given = dict(argument.partition("=")[::2] for argument in arguments)
        if len(given) < len(arguments) or not all("=" in argument for argument in arguments):
            raise SettingError(f"expected KEY=VALUE, each key once, got {shlex.join(arguments)}")
        settings = {key: given.pop(key, default) for key, default in plan["settings"].items()}
        for key in (key for key, value in settings.items() if value in (None, "[]")):
            raise missing(key)
        out = given.pop("out", f"runs/{file.stem}" + "-small" * small)
        lists = {"seeds": "[0]" if small else "[0,1,2]", "measure": "[]", "cells": "[]"}
        seeds, only, chosen = (parse_list(given.pop(key, default), key) for key, default in lists.items())
        if not all(seed.isdecimal() for seed in seeds or [""]):
            raise SettingError(f"seeds must be integers of at least 0, such as [0,1,2], got {seeds}")
        measures = list(dict.fromkeys(keys[0] for keys in plan["columns"].values()))
        for measure in set(only) - set(measures):
            raise unknown("measure", measure, measures)
        plan["columns"] = {head: keys for head, keys in plan["columns"].items() if not only or keys[0] in only}
        usual = [name for name in plan["cells"] if "by_name_only" not in plan["cells"][name]]
        chosen = chosen or usual[: SMALL_CELLS if small else None]
        for cell in set(chosen) - plan["cells"].keys():
            raise unknown("cell", cell, [*plan["cells"]])
        more = [f"{key}={value}" for key, value in given.items()]
        return cls(Path(out), [*map(int, seeds)], chosen, plan, settings, more, small)

    def stage(self, cell: str, name: str, seed: int) -> Stage:
        stages, shared = self.plan["stages"], self.plan.get("shared", {})
        names = shared | stages | self.plan.get("defaults", {}) | self.settings | self.plan["cells"][cell]
        names |= {"seed": str(seed), "demo": f"[{DEMO}/*.jsonl]"}
        before: dict[str, Stage] = {}

        def value(match: re.Match[str]) -> str:
            key = match[1]
            if key in (stages | shared):
                before[key] = self.stage(cell, key, seed)
                return str(before[key].folder)
            if key not in names and key != "out":
                raise unknown("name", match[0], [f"${name}" for name in names])
            return match[0] if key == "out" else NAME.sub(value, str(names[key]))

        def words(text: str) -> Iterator[str]:
            for word in shlex.split(text):
                if word == "$more":
                    yield from self.more
                elif word[0] == "$" and word[1:] in names.keys() - (stages | shared).keys():
                    yield from words(str(names[word[1:]]))
                else:
                    yield NAME.sub(value, word)

        command = [*words(names[name])]
        command = smaller(command) if self.small else command
        per_seed = "$seed" in names[name] or any(stage.per_seed for stage in before.values())
        shared_name = f"{name}/seed-{seed}" if per_seed else name
        folder = self.out / (f"{cell}/seed-{seed}/{name}" if name in stages else f"shared/{shared_name}")
        return Stage([word.replace("$out", str(folder)) for word in command], folder, [*before.values()], per_seed)

    def measured(self, cell: str, seed: int) -> dict[str, Stage]:
        """The stages of a cell that the table reads."""
        own, columns = self.plan["cells"][cell], self.plan["columns"].values()
        return {name: self.stage(cell, name, seed) for name, *_ in columns if own.get(name, "") is not None}

    def left(self, seeds: Sequence[int], made: Mapping[str, list[str]]) -> list[Stage]:
        """The stages to run, in order. Raises SettingError for a finished one that another command has made."""
        wanted = [stage for s in seeds for cell in self.chosen for stage in self.measured(cell, s).values()]
        for stage in wanted:
            before = made.get(str(stage.folder), stage.command)
            if stage.is_finished() and before != stage.command:
                raise SettingError(f"{stage.folder} is of {shlex.join(before)}: choose another out=")
        return [*{each.folder: each for stage in wanted for each in stage.unfinished()}.values()]

    def check(self, made: Mapping[str, list[str]]) -> None:
        """Compose the settings of all commands, to find mistakes before the first hour of training."""
        for stage in self.left(self.seeds[:1], made):
            compose_settings(stage.command[0], stage.command[1:])

    def run(self) -> int:
        """Run what is not finished; the table is written after each command. Returns the first failure's status."""
        file = self.out / "commands.json"
        made = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        self.check(made)
        self.out.mkdir(parents=True, exist_ok=True)
        for stage in self.left(self.seeds, made):
            replace_file(file, json_bytes(made := made | {str(stage.folder): stage.command}))
            if status := npmlm(stage.command):
                return status
            for part in ("corpus", "checkpoints") * (stage.command[0] == "train"):
                shutil.rmtree(stage.folder / part, ignore_errors=True)
            replace_file(self.out / "table.md", self.table().encode())
        sys.stdout.write(self.table())
        return 0

    def table(self) -> str:
        """Markdown table of the seeds whose measurements are all finished."""
        rows, columns = [], self.plan["columns"]
        for cell in self.plan["cells"]:
            seeds = sorted(int(folder.name[5:]) for folder in (self.out / cell).glob("seed-*"))
            measured = [self.measured(cell, seed) for seed in seeds]
            done = [each for each in measured if all(stage.is_finished() for stage in each.values())]
            files = [{name: stage.folder / METRICS for name, stage in each.items()} for each in done]
            cells = [entry([own[name] for own in files if name in own], keys) for name, *keys in columns.values()]
            rows.append([cell, str(len(done)), *cells])
        return markdown_table(["cell", "seeds", *columns], rows) + "\n"


def main(arguments: list[str]) -> int:
    """Run what is missing and print the table."""
    if "--help" in arguments:
        sys.stdout.write(__doc__ or "")
        return 0
    try:
        given = [each for each in arguments[1:] if each not in ("list=true", "small=true")]
        study = Study.of(arguments[0] if arguments else "", given, small="small=true" in arguments)
        if "list=true" not in arguments:
            return study.run()
        study.check({})
        commands = [f"npmlm {shlex.join(stage.command)}\n" for stage in study.left(study.seeds, {})]
        sys.stdout.write("".join(commands))  # at once: `| head` may close the pipe after the first line
    except UserError as error:
        sys.stderr.write(f"study: error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
