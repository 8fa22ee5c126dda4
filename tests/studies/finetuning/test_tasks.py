"""The tasks: the forms of their files, what constant answers reach, and the metrics against scipy and by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy import stats

from npm.core.errors import CorpusError, SettingError
from npm.corpus.labeled import encode_labeled, read_labeled
from npm.models.encoder import Encoder
from studies.finetuning.run import prepare
from studies.finetuning.settings import FinetuneSettings
from studies.finetuning.tasks import METRICS, TASKS, chosen_tasks, entity_f1, task_data
from tests.helpers.labeled_texts import write_rows

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
def test_public_files_have_the_published_sizes_and_constant_answers(name: str, encoder: Encoder) -> None:
    folder = SHARED / ("sts" if name == "stsb" else "glue")
    if not (folder / f"{name}-train.jsonl").is_file():
        pytest.skip(f"{folder} is not there")
    train_count, dev_count, constants = CONSTANTS[name]
    settings = FinetuneSettings(task=[name], data_dir=str(folder), limit=200)
    prepared = prepare(TASKS[name], settings, encoder)
    lines = (folder / f"{name}-train.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == train_count
    whole = task_data(TASKS[name], str(folder), max_tokens=16, limit=None).development[""]
    examples = encode_labeled(whole, encoder.tokenizer)
    assert len(examples) == dev_count
    answers = type(prepared)(prepared.task, prepared.data, {"": examples}, train_count, {}).constant()
    assert {metric: answers[metric] for metric in constants} == pytest.approx(constants, abs=5e-4)


def test_correlations_are_those_of_scipy(rng: np.random.Generator) -> None:
    gold = rng.integers(0, 6, 200).astype(float)
    predicted = gold + rng.normal(0, 2, 200)
    assert METRICS["pearson"](predicted, gold) == pytest.approx(stats.pearsonr(predicted, gold).statistic, abs=1e-12)
    assert METRICS["spearman"](predicted, gold) == pytest.approx(stats.spearmanr(predicted, gold).statistic, abs=1e-12)
    assert METRICS["spearman"](np.full(200, 2.5), gold) == METRICS["pearson"](np.full(200, 2.5), gold) == 0


def test_matthews_and_f1_are_those_of_the_four_counts(rng: np.random.Generator) -> None:
    gold, predicted = (rng.random(500) < 0.7).astype(int), (rng.random(500) < 0.6).astype(int)
    tp, tn = int((predicted & gold).sum()), int(((1 - predicted) & (1 - gold)).sum())
    fp, fn = int((predicted & (1 - gold)).sum()), int(((1 - predicted) & gold).sum())
    root = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert METRICS["matthews"](predicted, gold) == pytest.approx((tp * tn - fp * fn) / root, abs=1e-12)
    assert METRICS["f1"](predicted, gold) == pytest.approx(2 * tp / (2 * tp + fp + fn), abs=1e-12)
    assert METRICS["accuracy"](predicted, gold) == pytest.approx((tp + tn) / 500, abs=1e-12)


def test_whole_entities_count_where_borders_and_kind_are_right() -> None:
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG"]]
    assert entity_f1(gold, gold) == 1
    assert entity_f1([["O"] * 4, ["O"] * 2], gold) == 0
    # one of three found, and one that is none: 2 · 1 / (2 + 3)
    assert entity_f1([["B-PER", "I-PER", "O", "O"], ["B-ORG", "O"]], gold) == pytest.approx(0.4)
    # two B- side by side are two entities, an I- of another kind ends one
    assert entity_f1([["B-PER", "B-PER"]], [["B-PER", "I-PER"]]) == 0
    assert entity_f1([["B-PER", "I-LOC"]], [["B-PER", "B-LOC"]]) == 1
