"""Errors of the user: one sentence, equal also when another process raised it."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import pytest

import npm
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

KINDS = (*(UserError, ArtifactError, CorpusError, EncoderError, QueryError, ServerError, SettingError, StorageError),)


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


def test_messages_escape_what_a_terminal_would_obey() -> None:
    assert str(UserError("red \x1b[31m, half \ud800, null \0")) == r"red \x1b[31m, half \ud800, null \x00"


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_paths_and_ids_that_no_file_system_takes_are_one_sentence(text: str, tmp_path: Path) -> None:
    for call in (partial(npm.compact, text), partial(npm.build, "x.txt", text), partial(npm.delete, text, tmp_path)):
        with pytest.raises(UserError):
            call()
