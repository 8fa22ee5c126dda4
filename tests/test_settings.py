"""Settings as classes: each takes its enumerations by value, and no value of a type that a field does not have."""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ByteSize

import npm
from index.settings import SearchSettings
from npm.cli.registry import MODULES, find_verb
from npm.core.errors import ArtifactError, SettingError
from npm.core.settings import Settings, settings_from
from npm.corpus.settings import CorpusSettings
from npm.indexing.settings import LexiconSettings
from npm.retrieval.settings import FillSettings, Retrieval, ScoringSettings

NOTHING_OF_OURS = object()


def of_values(hint: Any) -> list[Any]:
    """The types that `hint` is made of, without what is said about them."""
    if typing.get_origin(hint) is typing.Annotated:
        return of_values(typing.get_args(hint)[0])
    inner = typing.get_args(hint)
    return (
        [hint]
        if typing.get_origin(hint) in (list, dict) or not inner
        else [x for each in inner for x in of_values(each)]
    )


def nested(kind: type) -> Iterator[type]:
    """The class, and those of its fields, of lists and mappings too."""
    yield kind
    for hint in typing.get_type_hints(kind).values():
        for inner in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(inner):
                yield from nested(typing.cast(type, inner))


def settings_classes() -> list[type]:
    """All that can be reached from the verbs, and all that are called so."""
    found = {kind for verb in map(find_verb, MODULES) for kind in nested(verb.root)}
    for package in (npm, importlib.import_module("index")):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith("__main__") or module.name.startswith("npm.integrations."):
                continue
            for value in vars(importlib.import_module(module.name)).values():
                if dataclasses.is_dataclass(value) and isinstance(value, type) and value.__name__.endswith("Settings"):
                    found.add(value)
    # By module too: two classes may share a name, and every process of the tests has to collect them in the same order.
    return sorted(found, key=lambda kind: (kind.__module__, kind.__qualname__))


CLASSES = settings_classes()
FIELDS = [
    pytest.param(
        kind, item.name, typing.get_type_hints(kind, include_extras=True)[item.name], id=f"{kind.__name__}.{item.name}"
    )
    for kind in CLASSES
    for item in dataclasses.fields(kind)
]
ENUMERATIONS = [
    field
    for field in FIELDS
    if any(isinstance(one, type) and issubclass(one, Enum) for one in of_values(field.values[2]))
]


def made(kind: type, /, **values: Any) -> Any:
    """The settings, or the refusal of what does not go together with the defaults."""
    try:
        return kind(**values)
    except SettingError as error:
        return str(error)


def test_all_settings_classes_are_tried() -> None:
    assert {SearchSettings, FillSettings, ScoringSettings, CorpusSettings} <= set(CLASSES)
    assert len(CLASSES) > 40
    assert all(issubclass(kind, Settings) for kind in CLASSES)


@pytest.mark.parametrize(("kind", "name", "hint"), ENUMERATIONS)
def test_an_enumeration_takes_each_of_its_values_as_a_string_and_no_other(kind: type, name: str, hint: Any) -> None:
    (members,) = (one for one in of_values(hint) if isinstance(one, type) and issubclass(one, Enum))
    for member in members:
        assert made(kind, **{name: member.value}) == made(kind, **{name: member})
    with pytest.raises(SettingError) as caught:
        kind(**{name: "magic"})
    assert name in str(caught.value)
    assert all(str(member.value) in str(caught.value) for member in members)


@pytest.mark.parametrize(("kind", "name", "hint"), FIELDS)
def test_a_value_of_another_type_is_refused_by_the_name_of_its_setting(kind: type, name: str, hint: Any) -> None:
    values = of_values(hint)
    wrong: list[Any] = [NOTHING_OF_OURS, {3: "number"}, math.nan, math.inf, [NOTHING_OF_OURS], [[]]]
    wrong += [] if {float, int, bool, ByteSize} & set(values) else [3]
    wrong += [] if str in values else ["nothing like it"]
    wrong += [] if type(None) in values else [None]
    for value in wrong:
        with pytest.raises(SettingError, match=name):
            kind(**{name: value})


def test_what_can_be_nothing_else_is_converted() -> None:
    settings = FillSettings(k=np.int64(3), lexical_weight=2, documents=("a", "b"), retrieval="dense")  # type: ignore[arg-type]
    assert (type(settings.k), settings.k) == (int, 3)
    assert (type(settings.lexical_weight), settings.lexical_weight) == (float, 2.0)
    assert (settings.documents, settings.retrieval) == (["a", "b"], Retrieval.dense)
    assert CorpusSettings(files=[Path("a.txt")], split="line").files == ["a.txt"]  # type: ignore[arg-type, list-item]
    assert FillSettings(k="3", lexical_weight="2e-1").lexical_weight == 0.2  # type: ignore[arg-type]
    assert dataclasses.replace(settings, retrieval="bm25").retrieval is Retrieval.bm25  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"), [("k1", "many"), ("title_repeats", 1.5), ("stemming", "magic"), ("b", None)]
)
def test_settings_that_a_manifest_recorded_are_checked_alike(name: str, value: object) -> None:
    recorded = dataclasses.asdict(LexiconSettings())
    assert settings_from(LexiconSettings, {**recorded, "stemming": "none"}).stemming.value == "none"
    with pytest.raises(ArtifactError, match=name):
        settings_from(LexiconSettings, {**recorded, name: value})
