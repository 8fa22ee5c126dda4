"""docs/analyses.md: every command composes, and every program is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from npm.cli.main import split_arguments
from npm.cli.settings import compose_settings
from scripts.study import Study

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "analyses.md").read_text(encoding="utf-8")


def commands(program: str) -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)
    lines = [shlex.split(line.removeprefix("OMP_NUM_THREADS=1 ")) for block in blocks for line in block.splitlines()]
    return [line for line in lines if line[0] == program]


@pytest.mark.parametrize("words", commands("npmlm"), ids=" ".join)
def test_every_command_of_the_page_composes(words: list[str]) -> None:
    settings, texts = split_arguments(words[2:])
    assert compose_settings(words[1], settings)
    assert texts == {"compare": ["runs/oracle"]}.get(words[1], [])


def test_programs_that_the_page_starts_are_there_and_its_studies_compose() -> None:
    for _, first, *others in commands("python"):
        program = others.pop(0).replace(".", "/") + ".py" if first == "-m" else first
        assert (REPOSITORY / program).is_file(), program
        if program == "scripts/study.py":
            study = Study.of(others[0], others[1:])
            stage = study.measured(study.chosen[0], 0)["in_batch"]
            assert compose_settings(stage.command[0], stage.command[1:]).task == ["in_batch"]
    assert len(commands("python")) == 6
