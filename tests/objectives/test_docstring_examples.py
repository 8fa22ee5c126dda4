"""The examples in the docstrings of models, objectives and training are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import npm.models
import npm.objectives
import npm.training

MODULES = sorted(
    module.name
    for package in (npm.models, npm.objectives, npm.training)
    for module in pkgutil.iter_modules(package.__path__, prefix=f"{package.__name__}.")
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples_to_run() -> None:
    found = {name for name in MODULES if doctest.testmod(importlib.import_module(name)).attempted}
    assert {"npm.models.similarity", "npm.objectives.nonparametric", "npm.training.schedule"} <= found
