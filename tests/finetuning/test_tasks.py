"""The tasks: the forms in which their files lie, and what constant answers reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from npm.core.errors import CorpusError, SettingError
from npm.corpus.labelled import encode_labelled, read_labelled
from npm.finetuning.run import prepare
from npm.finetuning.settings import FinetuneSettings
from npm.finetuning.tasks import TASKS, chosen_tasks, task_data
from npm.models.encoder import Encoder
from tests.helpers.labelled_texts import write_rows
from tests.helpers.tiny_models import tiny_encoder

SHARED = Path(__file__).parents[3] / "shared" / "data"
GLUE = [name for name, task in TASKS.items() if not task.of_words]
OFFICIAL = {
    "cola": "gj04\t1\t\tShe left.\nbc01\t0\t*\tLeft she did not it.\n",
    "sst2": "sentence\tlabel\nfine film \t1\nbad \t0\n",
    "mrpc": '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tHe said "a\t He said a\n0\t9\t1\tb\tc\n',
    "qqp": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    "1\t2\t3\tWho?\tWhat?\t0\n4\t5\t6\tbroken\n7\t8\t9\ta?\tb?\t1\n",
    "stsb": "index\tgenre\tscore_of\tsentence1\tsentence2\tscore\n0\tmain\tx\ta b\tc\t4.5\n1\tmain\tx\td\te\t0.0\n",
    "mnli": "index\tsentence1\tsentence2\tlabel1\tgold_label\n"
    "0\ta\tb\tneutral\tneutral\n1\tc\td\tentailment\tentailment\n",
    "qnli": "index\tquestion\tsentence\tlabel\n0\tWho?\tHe.\tentailment\n1\ta\tb\tnot_entailment\n",
    "rte": "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n1\tc\td\tnot_entailment\n",
    "wnli": "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n1\tc\td\t0\n",
}
HUB = {"stsb": 4.5, "mnli": 1, "qnli": 0, "rte": 0, "cola": 1, "sst2": 1, "mrpc": 1, "qqp": 0, "wnli": 1}
"""The label of the first row of each official file, as the hub has it."""


@pytest.mark.parametrize("name", GLUE)
def test_official_files_parquet_and_json_lines_are_read_alike(tmp_path: Path, name: str) -> None:
    task = TASKS[name]
    endings = [f"_{half}" if half else "" for half in task.halves]
    official = tmp_path / "official"
    for file in ("train", *(f"dev{ending}" for ending in endings)):
        (official / task.folder).mkdir(parents=True, exist_ok=True)
        (official / task.folder / f"{file}.tsv").write_text(OFFICIAL[name], encoding="utf-8")
    rows = [(row.texts, row.targets) for row in read_labelled(task_data_of(name, official).train)]
    assert len(rows) == 2
    assert rows[0][1] == (HUB[name],)
    assert task_data_of(name, official).development.keys() == set(task.halves)

    hub = [dict(zip(task.hub, (*texts, label), strict=True)) for texts, (label,) in rows]
    (tmp_path / "hub" / name).mkdir(parents=True)
    for file in ("train", *(f"validation{ending}" for ending in endings)):
        parquet.write_table(pa.Table.from_pylist(hub), tmp_path / "hub" / name / f"{file}-00000-of-00001.parquet")
    own = [dict(zip(task.own, (*texts, label), strict=True)) for texts, (label,) in rows]
    for file in ("train", *(f"dev{ending}" for ending in endings)):
        write_rows(tmp_path / "own" / f"{name}-{file}.jsonl", own)
    for folder in ("hub", "own"):
        data = task_data_of(name, tmp_path / folder)
        for settings in (data.train, *data.development.values()):
            assert [(row.texts, row.targets) for row in read_labelled(settings)] == rows, folder


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
    examples = encode_labelled(whole, tiny().tokenizer)
    assert len(examples) == dev_count
    answers = type(prepared)(prepared.task, prepared.data, {"": examples}, train_count, {}).constant()
    assert {metric: answers[metric] for metric in constants} == pytest.approx(constants, abs=5e-4)


def tiny() -> Encoder:
    return tiny_encoder("bert")
