"""docs/evaluation.md: its commands compose, and it names what exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from npm.cli.main import split_arguments
from npm.cli.settings import compose_settings
from npm.core.errors import UserError
from npm.core.types import silent
from npm.evaluation.evaluate import BUILT_IN_TASKS, run_evaluation
from npm.evaluation.sts import FORMATS, TEST_PAIRS

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.partition("\n## Plots\n")[0], flags=re.DOTALL)
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
