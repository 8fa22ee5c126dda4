"""docs/evaluation.md and docs/analyses.md: their commands compose, and they name what exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from npm.cli.main import split_arguments
from npm.cli.settings import compose_settings
from npm.core.errors import UserError
from npm.core.types import silent
from npm.evaluation.run import BUILT_IN_TASKS, run_evaluation
from npm.evaluation.sts import FORMATS, TEST_PAIRS
from scripts.study import Study

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines() if line.startswith("npmlm evaluate ")]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_of_the_page_names_a_task_and_settings_that_exist(words: list[str], tmp_path: Path) -> None:
    settings = compose_settings(words[1], split_arguments(words[2:])[0])
    assert settings.task[0] in BUILT_IN_TASKS or settings.task[0].endswith(".yaml")
    with pytest.raises(UserError):  # for want of the files
        run_evaluation(settings, task_folder=tmp_path, progress=silent, notice=print)


def test_the_page_names_the_forms_that_are_read() -> None:
    for name in [*FORMATS, *TEST_PAIRS.keys() - {"STS13", "STS14", "STS15"}, "stsb-", "sickr-", "sts12-test"]:
        assert name in PAGE


REPOSITORY = Path(__file__).parents[2]
ANALYSES = (REPOSITORY / "docs" / "analyses.md").read_text(encoding="utf-8")


def commands_of_analyses(program: str) -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", ANALYSES, flags=re.DOTALL)
    lines = [shlex.split(line.removeprefix("OMP_NUM_THREADS=1 ")) for block in blocks for line in block.splitlines()]
    return [line for line in lines if line[0] == program]


@pytest.mark.parametrize("words", commands_of_analyses("npmlm"), ids=" ".join)
def test_every_command_of_the_page_composes(words: list[str]) -> None:
    settings, texts = split_arguments(words[2:])
    assert compose_settings(words[1], settings)
    assert texts == {"compare": ["runs/oracle"]}.get(words[1], [])


def test_programs_that_the_page_starts_are_there_and_its_studies_compose() -> None:
    for _, first, *others in commands_of_analyses("python"):
        program = others.pop(0).replace(".", "/") + ".py" if first == "-m" else first
        assert (REPOSITORY / program).is_file(), program
        if program == "scripts/study.py":
            study = Study.of(others[0], others[1:])
            stage = study.measured(study.chosen[0], 0)["in_batch"]
            assert compose_settings(stage.command[0], stage.command[1:]).task == ["in_batch"]
    assert len(commands_of_analyses("python")) == 6
