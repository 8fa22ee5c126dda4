"""The YAML files of settings in configs/, and those of users."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Safe loader that reads 1e-4 as a number, as YAML 1.2 does."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def config_folder() -> Path:
    """The folder configs: in the package when installed, next to it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def has_studies() -> bool:
    """Return True if the folder `studies` is beside the package; its verbs and methods are registered then."""
    return (Path(__file__).parents[2] / "studies" / "verbs.py").is_file()


def read_yaml(text: str, *, words_only: bool = False) -> Any:
    """The value that a YAML text holds, with `words_only` its words and numbers as they are written. Raises ValueError.

    >>> read_yaml("{a: 1e-4, b: [yes, null]}"), read_yaml("{no: [yes, 7]}", words_only=True)
    ({'a': 0.0001, 'b': [True, None]}, {'no': ['yes', '7']})
    """
    try:
        return yaml.load(text, Loader=yaml.BaseLoader if words_only else _Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
