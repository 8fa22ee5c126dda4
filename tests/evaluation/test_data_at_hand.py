"""Where the data of tasks is: a file, the hub, or nowhere, told before anything is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from npm.core.errors import CorpusError
from npm.corpus import readers
from npm.corpus.sources import Source
from npm.evaluation.data import find_data
from npm.evaluation.tasks import Development, Split, Task
from tests.evaluation.task_samples import REVIEWS, closed, read_examples, written

OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the hub could be asked; no test asks it."""
    for name in OFFLINE_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_data_that_is_not_there_is_told_with_the_file_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"data\.jsonl; set data_dir"):
        read_examples(closed(), tmp_path)


def test_a_file_at_hand_is_read_and_else_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def hub(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
        asked.append(source.path)
        yield from enumerate(REVIEWS, start=1)

    monkeypatch.setattr(readers, "_hub_rows", hub)
    task = closed(hub="owner/reviews@small/validation")
    assert [each.label for each in read_examples(task, tmp_path)] == [0, 1, 1]
    assert set(asked) == {"hub:owner/reviews@small/validation"}
    asked.clear()
    written(tmp_path, REVIEWS)
    assert len(read_examples(task, tmp_path)) == 3 and not asked


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

    def missing(task: Task, folder: Path | None) -> bool:
        return find_data(task, folder, Split.test) is None

    for task in (here, on_hub, nowhere, only_hub):
        assert missing(task, tmp_path) == (task in [nowhere, *offline])
    assert missing(here, None) == bool(offline)


def test_the_development_file_is_what_is_missing_for_dev(tmp_path: Path) -> None:
    written(tmp_path, REVIEWS)
    own_file, halves = (
        closed(hub="owner/reviews", development_file="dev.jsonl"),
        closed(development=Development.first_half),
    )
    assert find_data(own_file, tmp_path, Split.dev) is None  # for which no hub data set stands in
    assert find_data(own_file, tmp_path, Split.test) == find_data(halves, tmp_path, Split.dev) is not None
    with pytest.raises(CorpusError, match="no development data"):
        find_data(closed(), tmp_path, Split.dev)
