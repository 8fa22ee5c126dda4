"""The tasks: the forms in which their files lie, and what constant answers reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from npm.core.errors import CorpusError, SettingError
from npm.corpus.labeled import encode_labeled, read_labeled
from npm.finetuning.run import prepare
from npm.finetuning.settings import FinetuneSettings
from npm.finetuning.tasks import TASKS, chosen_tasks, task_data
from npm.models.encoder import Encoder
from tests.helpers.labeled_texts import write_rows
from tests.helpers.tiny_models import tiny_encoder

SHARED = Path(__file__).parents[3] / "shared" / "data"
GLUE = [name for name, task in TASKS.items() if not task.of_words]


@pytest.mark.parametrize("name", GLUE)
def test_parquet_and_json_lines_are_read_alike(tmp_path: Path, name: str) -> None:
    task = TASKS[name]
    endings = [f"_{half}" if half else "" for half in task.halves]
    rows = [[*"ab"[: len(task.hub) - 1], 1], [*"cd"[: len(task.hub) - 1], 0]]
    (tmp_path / "hub" / name).mkdir(parents=True)
    for file in ("train", *(f"validation{ending}" for ending in endings)):
        table = pa.Table.from_pylist([dict(zip(task.hub, row, strict=True)) for row in rows])
        parquet.write_table(table, tmp_path / "hub" / name / f"{file}-00000-of-00001.parquet")
    for file in ("train", *(f"dev{ending}" for ending in endings)):
        own = [dict(zip(task.own, row, strict=True)) for row in rows]
        write_rows(tmp_path / "own" / f"{name}-{file}.jsonl", own)
    for folder in ("hub", "own"):
        data = task_data_of(name, tmp_path / folder)
        assert data.development.keys() == set(task.halves)
        for settings in (data.train, *data.development.values()):
            assert [[*row.texts, *row.targets] for row in read_labeled(settings)] == rows, folder


def task_data_of(name: str, folder: Path) -> Any:
    return task_data(TASKS[name], str(folder), max_tokens=128, limit=None)


def test_the_hub_is_named_by_its_splits() -> None:
    data = task_data(TASKS["mnli"], "hub:nyu-mll/glue", max_tokens=128, limit=None)
    assert data.train.files == ["hub:nyu-mll/glue@mnli/train"]
    assert data.development["mismatched"].files == ["hub:nyu-mll/glue@mnli/validation_mismatched"]
    assert data.train.columns == ("premise", "hypothesis", "label")


def test_a_task_that_is_not_there_is_refused_with_the_forms_it_may_have(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"cola-train.jsonl"):
        task_data(TASKS["cola"], str(tmp_path), max_tokens=128, limit=None)
    for names in (["colla"], [], ["rte", "rte"]):
        with pytest.raises(SettingError, match="task"):
            chosen_tasks(names)


CONSTANTS = {
    "cola": (8551, 1043, {"dev_matthews": 0}),
    "sst2": (67349, 872, {"dev_accuracy": 0.509}),
    "rte": (2490, 277, {"dev_accuracy": 0.527}),
    "wnli": (635, 71, {"dev_accuracy": 0.563}),
    "stsb": (5749, 1500, {"dev_spearman": 0, "dev_pearson": 0}),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_public_files_have_the_published_sizes_and_constant_answers(name: str, tmp_path: Path) -> None:
    folder = SHARED / ("sts" if name == "stsb" else "glue")
    if not (folder / f"{name}-train.jsonl").is_file():
        pytest.skip(f"{folder} is not there")
    train_count, dev_count, constants = CONSTANTS[name]
    settings = FinetuneSettings(task=[name], data_dir=str(folder), limit=200)
    prepared = prepare(TASKS[name], settings, tiny())
    lines = (folder / f"{name}-train.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == train_count
    whole = task_data(TASKS[name], str(folder), max_tokens=16, limit=None).development[""]
    examples = encode_labeled(whole, tiny().tokenizer)
    assert len(examples) == dev_count
    answers = type(prepared)(prepared.task, prepared.data, {"": examples}, train_count, {}).constant()
    assert {metric: answers[metric] for metric in constants} == pytest.approx(constants, abs=5e-4)


def tiny() -> Encoder:
    return tiny_encoder("bert")
