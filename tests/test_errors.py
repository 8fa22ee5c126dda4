"""Errors of the user: one sentence, equal also when another process raised it."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from npm.core.errors import (
    ArtifactError,
    CorpusError,
    EncoderError,
    QueryError,
    ServerError,
    SettingError,
    StorageError,
    UserError,
)
from npm.evaluation.demo import QuestionFileError
from npm.evaluation.tasks.prompts import TemplateError
from npm.evaluation.tasks.task_file import TaskFileError
from npm.evaluation.zero_shot.parametric import LabelWordError
from tests.helpers.command_line import run_subprocess

KINDS = (
    *(UserError, ArtifactError, CorpusError, EncoderError, QueryError, ServerError, SettingError, StorageError),
    *(LabelWordError, QuestionFileError, CorpusError, TaskFileError, TemplateError),
)


def refusal(kind: type[UserError]) -> UserError:
    return kind("k must be at least 1, got 0")


def test_every_class_of_user_errors_is_among_those_tried() -> None:
    ours = {kind for kind in UserError.__subclasses__() if kind.__module__.partition(".")[0] in ("npm", "index")}
    assert ours <= set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_the_same_after_pickling(kind: type[UserError]) -> None:
    error = refusal(kind)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_a_removed_working_directory_is_one_sentence(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    outcome = run_subprocess("sh", "-c", f"rmdir {here}; exec {sys.executable} -m npm fill x", cwd=here)
    assert outcome.status == 2
    assert "working directory" in outcome.err
