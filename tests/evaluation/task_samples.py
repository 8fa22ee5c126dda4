"""Small tasks with their files and data files, for the tests of tasks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from npm.core.errors import CorpusError, SettingError
from npm.evaluation.data import read_task
from npm.evaluation.tasks import EXAMPLE, Example, Label, Task, TaskData, load_task

SHIPPED = Path(__file__).parents[2] / "configs" / "task"
SMALL: dict[str, Any] = yaml.safe_load(EXAMPLE)
OPEN_SMALL: dict[str, Any] = {"suite": "open", "data": {"file": "q.jsonl"}, "template": "{{ question }} <mask>."}
LABELS = [Label(value=0, name="bad", words=["bad"]), Label(value=1, name="good", words=["good"])]
REVIEWS = [{"text": "dull .", "label": 0}, {"text": "it 's great !", "label": 1}, {"text": "fine", "label": 1}]


def written(folder: Path, rows: Sequence[dict[str, Any]], name: str = "data.jsonl") -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def read_examples(task: Task, data_dir: Path | None = None, **more: Any) -> list[Example]:
    return read_task(task, data_dir, **more)


def closed(**data: Any) -> Task:
    data = {"file": "data.jsonl", **data}
    template = "{{ text }} It was <mask>."
    return Task(name="reviews", suite="closed", data=TaskData(**data), template=template, labels=LABELS)


def opened(**more: Any) -> Task:
    columns = {"group": "relation", "subject": "subject"}
    data, template = TaskData(file="data.jsonl", columns=columns), "{{ subject }} is <mask>."
    return Task(name="facts", suite="open", data=data, template=template, **more)


def facts(count: int, groups: int = 3) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {"relation": f"P{rng.integers(groups)}", "subject": f"s{number}", "answers": ["the " * int(rng.integers(1, 7))]}
        for number in range(count)
    ]


def refused(folder: Path, task: Task, rows: Sequence[dict[str, Any]] = REVIEWS, **more: Any) -> str:
    written(folder, rows)
    with pytest.raises(CorpusError) as raised:
        read_examples(task, folder, **more)
    return str(raised.value)


def task_written(folder: Path, content: object) -> Path:
    file = folder / "mine.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return file


def file_refused(folder: Path, content: object) -> str:
    """The message for a task's file with this content."""
    with pytest.raises(SettingError) as raised:
        load_task(task_written(folder, content), folder=SHIPPED)
    assert "mine" in str(raised.value)
    return str(raised.value)
