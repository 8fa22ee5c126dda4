"""Errors of the user: one message of four parts, whole also when another process raised it."""

from __future__ import annotations

import pickle

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
    put_under,
)
from npm.evaluation.demo import QuestionFileError
from npm.evaluation.tasks.prompts import TemplateError
from npm.evaluation.tasks.task_file import TaskFileError
from npm.evaluation.zero_shot.parametric import LabelWordError

KINDS = (
    *(UserError, ArtifactError, CorpusError, EncoderError, QueryError, ServerError, SettingError, StorageError),
    *(LabelWordError, QuestionFileError, CorpusError, TaskFileError, TemplateError),
)


def refusal(kind: type[UserError]) -> UserError:
    return kind("k is out of range", expected="at least 1", got="0", where="k", fix="choose a value in that range")


def test_every_class_of_user_errors_is_among_those_tried() -> None:
    ours = {kind for kind in UserError.__subclasses__() if kind.__module__.partition(".")[0] in ("npm", "index")}
    assert ours <= set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_the_same_after_pickling(kind: type[UserError]) -> None:
    error = refusal(kind)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_settings_are_named_by_their_full_keys_once() -> None:
    error = refusal(SettingError)
    put_under(error, "fill.", ["k"])
    put_under(error, "fill.", ["k"])
    assert (error.problem, error.where) == ("fill.k is out of range", "fill.k")
    error.where = "tier, factory"
    error.expected, error.fix = "tier=faiss beside it", "set tier=faiss, or leave search.factory=… and rank_tier=… out"
    put_under(error, "search.", ["tier", "factory"])
    assert error.where == "search.tier, search.factory"
    assert error.expected == "search.tier=faiss beside it"
    assert error.fix == "set search.tier=faiss, or leave search.factory=… and rank_tier=… out"
