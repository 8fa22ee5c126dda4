"""Where the data of tasks is: a file, the hub, or nowhere, told before anything is read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from npm.core.errors import CorpusError
from npm.corpus import readers
from npm.corpus.sources import Source
from npm.evaluation.tasks.readers import OFFLINE_VARIABLES, data_file, find_data, missing_data
from npm.evaluation.tasks.task import Development, Split, Task
from tests.evaluation.tasks.task_samples import REVIEWS, closed, opened, read_examples, written


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the hub could be asked; no test asks it."""
    for name in OFFLINE_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_data_that_is_not_there_is_told_with_the_file_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=re.escape(str(tmp_path / "data.jsonl"))):
        read_examples(closed(), tmp_path)
    with pytest.raises(CorpusError, match=r"data\.jsonl.*data_dir=DIR"):
        read_examples(closed())


def test_a_file_at_hand_is_read_and_else_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def hub(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
        asked.append(source.path)
        yield from enumerate(REVIEWS, start=1)

    monkeypatch.setattr(readers, "_hub_rows", hub)
    task = closed(hub="owner/reviews", config="small", split="validation")
    assert find_data(task, tmp_path, split=Split.test) is None
    assert [each.label for each in read_examples(task, tmp_path)] == [0, 1, 1]
    assert set(asked) == {"hub:owner/reviews@small/validation"}
    asked.clear()
    written(tmp_path, REVIEWS)
    assert len(read_examples(task, tmp_path)) == 3 and not asked


def test_a_hub_that_does_not_answer_is_told_with_the_file_that_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hub(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
        raise CorpusError(f"cannot read {source.path}: ConnectionError")

    monkeypatch.setattr(readers, "_hub_rows", hub)

    def told(task: Task, data_dir: Path | None) -> str:
        with pytest.raises(CorpusError, match="ConnectionError") as raised:
            read_examples(task, data_dir)
        return str(raised.value)

    named = closed(hub="owner/reviews")
    assert f"no file {tmp_path / 'data.jsonl'}" in told(named, tmp_path)
    assert "no data_dir=" in told(named, None)
    assert "no data.file" in told(closed(file="", hub="owner/reviews"), tmp_path)


@pytest.mark.parametrize("value", ["0", "1", "true", ""])
@pytest.mark.parametrize("variable", OFFLINE_VARIABLES)
def test_data_is_missing_without_a_file_and_a_hub_that_can_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    written(tmp_path, REVIEWS)
    here = closed(hub="owner/reviews")
    nowhere, on_hub = closed(file="absent.csv"), closed(file="absent.csv", hub="owner/reviews")
    only_hub = closed(file="", hub="owner/reviews")
    offline = [on_hub, only_hub] if value in ("1", "true") else []
    tasks = [here, on_hub, nowhere, only_hub]
    assert [task in [nowhere, *offline] for task in tasks] == [
        task in missing_data(tasks, tmp_path, split=Split.test) for task in tasks
    ]
    assert (here in missing_data(tasks, None, split=Split.test)) == bool(offline)
    beside = closed(file=str(tmp_path / "data.jsonl"))
    assert missing_data([beside], None, split=Split.test) == []


def test_the_development_file_is_what_is_missing_for_dev(tmp_path: Path) -> None:
    written(tmp_path, REVIEWS)
    own_file = closed(hub="owner/reviews", development_file="dev.jsonl")
    halves, none = closed(development=Development.first_half), closed()
    far = replace(opened(), data=replace(halves.data, file="absent.jsonl"))
    tasks = [own_file, halves, none, far]
    assert missing_data(tasks, tmp_path, split=Split.dev) == [own_file, far]
    assert missing_data(tasks, tmp_path, split=Split.test) == [far]
    assert [data_file(task, Split.dev) for task in tasks] == ["dev.jsonl", "data.jsonl", "data.jsonl", "absent.jsonl"]
    assert data_file(own_file, Split.test) == "data.jsonl"
