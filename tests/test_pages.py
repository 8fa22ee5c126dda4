"""What the pages name exists: settings, presets, tasks, programs and studies, in blocks and within lines."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from npm.cli.main import MULTIRUN, split_arguments
from npm.cli.registry import MODULES, find_verb
from npm.cli.settings import FOLDERS, combinations, compose_settings
from npm.core.settings import config_folder
from npm.evaluation.evaluate import BUILT_IN_TASKS
from scripts.study import Study
from tests.helpers.command_line import REPOSITORY
from tests.helpers.shell_blocks import pages_of_docs

PAGES = [REPOSITORY / "README.md", *pages_of_docs(), *sorted((REPOSITORY / "docs/results").glob("*.md"))]
CODE = re.compile(r"^```\w*\n(.*?)^```|((?:^    .*\n)+)|`([^`\n]+(?:\n[^`\n]+)?)`", flags=re.MULTILINE | re.DOTALL)
DOTTED = re.compile(r"(?<![\w./$-])([a-z]\w*(?:\.[a-z]\w*)+)=")
PROGRAM = re.compile(r"python (-m )?((?:scripts|benchmarks)[\w./]+)")


def code_of(page: Path) -> Iterator[str]:
    """The code of a page, of today alone: what is in a paragraph that names a commit is not looked up."""
    for paragraph in re.split(r"\n{2,}(?=\S)", page.read_text(encoding="utf-8")):
        if not re.search(r"commit [0-9a-f]{7}|until November", paragraph):
            yield from ("".join(found.groups(default="")) for found in CODE.finditer(f"{paragraph}\n"))


def commands_of(page: Path, program: str) -> Iterator[list[str]]:
    """The words of every command of a page that begins with `program`; `a|b` is a command each."""
    for code in code_of(page):
        for line in code.replace("\\\n", " ").splitlines():
            line = line.strip().removeprefix("$ ").removeprefix("OMP_NUM_THREADS=1 ")
            if not line.startswith(f"{program} "):
                continue
            try:
                words = shlex.split(line.replace("$SLURM_", ""), comments=True)
            except ValueError:  # prose with an apostrophe
                continue
            ways = [word.split("|") if re.fullmatch(r"[\w.]+=[\w.]+(\|[\w.]+)+", word) else [word] for word in words]
            for chosen in itertools.product(*ways):
                heads = [word.partition("=")[0] + "=" if "=" in word else "" for word in words]
                yield [
                    word if "=" in word or not head else head + word for word, head in zip(chosen, heads, strict=True)
                ]


ALL_SETTINGS = {name for verb in MODULES for name in find_verb(verb).settings}
GROUPS = {name.partition(".")[0] for name in ALL_SETTINGS if "." in name}
TASKS = {*BUILT_IN_TASKS, "demo", *(path.stem for path in (config_folder() / "task").glob("*.yaml"))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_every_dotted_setting_is_one_of_a_verb(page: Path) -> None:
    codes = list(code_of(page))
    named = {name for code in codes for name in DOTTED.findall(code)}
    alone = {code for code in codes if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", code) and code.partition(".")[0] in GROUPS}
    groups = {name.rpartition(".")[0] for name in ALL_SETTINGS}
    files = {name for name in alone if name.rpartition(".")[2] in ("py", "md", "json", "yaml", "jsonl", "csv")}
    assert not sorted((named | alone) - ALL_SETTINGS - groups - files)


def typed(words: list[str]) -> list[str]:
    """A command without the words that only stand for something, such as `out=…`."""
    return [word for word in words if "…" not in word and not word.startswith("[") and word not in (">", ">>", "&&")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_every_command_with_a_preset_a_task_or_several_values_composes(page: Path) -> None:
    for _, verb, *rest in commands_of(page, "npmlm"):
        if verb not in MODULES or not re.search(r"\b(experiment|task|size|scoring)=|^-m ", " ".join(rest)):
            continue
        words = typed(rest)
        if words[:1] in MULTIRUN:
            jobs = list(combinations(split_arguments(words[1:])[0]))
            assert len(jobs) > 1 and verb in FOLDERS
        else:
            jobs = [split_arguments(words)[0]]
        needed = find_verb(verb).required
        for job in jobs:
            given = needed and not any(setting.startswith(f"{needed}=") for setting in job)
            settings = compose_settings(verb, [*job, f"{needed}=x"] if given else job)
            if verb == "evaluate":
                assert not [task for task in settings.task if task not in TASKS and not task.endswith(".yaml")], job


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_every_program_is_there_and_every_study_composes(page: Path) -> None:
    for code in code_of(page):
        for is_module, program in PROGRAM.findall(code):
            path = f"{program.replace('.', '/')}.py" if is_module else program
            assert (REPOSITORY / path).is_file(), program
    for _, program, *words in commands_of(page, "python"):
        if program != "scripts/study.py" or "…" in " ".join(words):
            continue
        name, *given = typed(words)
        study = Study.of(name, given)
        for cell in study.chosen:
            for stage in study.measured(cell, 0).values():
                for each in [*stage.before, stage]:
                    compose_settings(each.command[0], each.command[1:])
