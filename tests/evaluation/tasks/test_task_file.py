"""What a task's YAML file says, the shipped tasks, and the message for each mistake in one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npm.core.errors import SettingError
from npm.core.files import sha256_of_bytes
from npm.evaluation.tasks.prompts import parse_template
from npm.evaluation.tasks.task import (
    Calibration,
    ClosedRetrieval,
    Development,
    Label,
    LabelMean,
    Macro,
    Suite,
    TooLong,
)
from npm.evaluation.tasks.task_file import EXAMPLE, TaskFileError, load_task, task_names
from npm.evaluation.zero_shot.report import PUBLISHED
from npm.evaluation.zero_shot.verbalizers import load_verbalizer
from tests.evaluation.tasks.task_samples import SHIPPED, SMALL, file_refused, task_written

CLOSED = ["agn", "amazon", "cr", "mr", "rt", "rte", "sst2", "subj", "yahoo"]
OPEN = ["entity_translation", "google_re", "kamel", "nq", "templama", "trex", "trivia_qa"]


def test_the_smallest_task_takes_defaults_and_the_first_word_as_name(tmp_path: Path) -> None:
    file = task_written(tmp_path, EXAMPLE)
    task = load_task(file, folder=SHIPPED)
    assert (task.name, task.suite, task.template) == ("mine", Suite.closed, "{text} It was <mask>.")
    assert task.labels == (Label(0, "terrible", ("terrible", "bad")), Label(1, "great", ("great",)))
    assert task.data.columns == {"text": "review", "label": "stars"}
    assert (task.verbalizer, task.too_long, task.macro) == ("label_words", TooLong.refuse, Macro.none)
    assert task.digest == sha256_of_bytes(file.read_bytes())


def test_every_key_reaches_its_field(tmp_path: Path) -> None:
    content = {
        **SMALL,
        "name": "stars",
        "labels": [{"value": "a", "name": "A", "words": ["x y"]}, {"value": 2, "name": "B", "words": ["z"]}],
        "data": {
            "file": "d.tsv",
            "hub": "h",
            "config": "c",
            "split": "s",
            "detokenise": True,
            "development": "first_half",
        },
        "verbalizer": "sentiment",
        "corpus": "reviews",
        "too_long": "keep_end",
        "max_prompt_tokens": 99,
        "scoring": {"k": 7, "retrieval": "top_k", "temperature": 2, "label_mean": "words", "calibration": "prompt"},
        "paper": {"npm": 70, "mlm": 60.5},
    }
    task = load_task(task_written(tmp_path, content), folder=SHIPPED)
    assert (task.name, task.verbalizer, task.corpus, task.max_prompt_tokens) == ("stars", "sentiment", "reviews", 99)
    assert task.labels[0] == Label("a", "A", ("x y",))
    assert (task.data.config, task.data.split, task.data.detokenise) == ("c", "s", True)
    assert (task.data.development, task.too_long) == (Development.first_half, TooLong.keep_end)
    assert (task.scoring.k, task.scoring.temperature, task.scoring.retrieval) == (7, 2.0, ClosedRetrieval.top_k)
    assert (task.scoring.label_mean, task.scoring.calibration) == (LabelMean.words, Calibration.prompt)
    assert task.paper == {"npm": 70.0, "mlm": 60.5}


def test_a_template_column_is_the_template(tmp_path: Path) -> None:
    content = {"suite": "open", "data": {"file": "q.jsonl", "columns": {"subject": "s"}}, "template_column": "cloze"}
    assert load_task(task_written(tmp_path, content), folder=SHIPPED).template == "{cloze}"


def test_a_verbalizer_beside_the_file_is_found_there_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside, elsewhere = tmp_path / "task", tmp_path / "elsewhere"
    for folder, words in ((beside, "awful\nfine\n"), (elsewhere, "poor\nsuperb\n")):
        folder.mkdir()
        (folder / "mine.txt").write_text(words, encoding="utf-8")
    (elsewhere / "there.txt").write_text("dull\nfun\n", encoding="utf-8")
    (beside / "sentiment").write_text("no list", encoding="utf-8")
    monkeypatch.chdir(elsewhere)

    def listed(choice: str) -> tuple[str, tuple[tuple[str, ...], ...]]:
        task = load_task(task_written(beside, {**SMALL, "verbalizer": choice}), folder=SHIPPED)
        scored = load_task(task_written(beside, {**SMALL, "scoring": {"verbalizer": choice}}), folder=SHIPPED)
        assert task.scoring.verbalizer is None and scored.scoring.verbalizer == task.verbalizer
        found = load_verbalizer(task, task.verbalizer)
        return found.name, found.words

    assert listed("mine.txt") == ("mine.txt", (("awful",), ("fine",)))
    assert listed("there.txt") == ("there.txt", (("dull",), ("fun",)))  # where the run starts
    assert listed("sentiment")[0] == "sentiment" and "terrible" in listed("sentiment")[1][0]  # shipped lists stay


def test_data_beside_the_file_is_found_there_and_other_data_keeps_its_name(tmp_path: Path) -> None:
    content = {**SMALL, "data": {**SMALL["data"], "development_file": "dev.csv"}}
    (tmp_path / "my-reviews.csv").write_text("review,stars\n", encoding="utf-8")
    data = load_task(task_written(tmp_path, content), folder=SHIPPED).data
    assert data.file == str(tmp_path / "my-reviews.csv") and data.development_file == "dev.csv"


@pytest.mark.parametrize("name", CLOSED + OPEN)
def test_every_shipped_task_can_be_loaded(name: str) -> None:
    task = load_task(name, folder=SHIPPED)
    assert task.name == name and task.suite is (Suite.closed if name in CLOSED else Suite.open)
    assert task.corpus in {"reviews", "news", "subj", "wiki"}
    assert not Path(task.data.file).is_absolute()
    assert (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("name", CLOSED + OPEN)
def test_a_shipped_task_names_a_hub_data_set_with_its_columns_or_says_that_none_is_known(name: str) -> None:
    task = load_task(name, folder=SHIPPED)
    says_none = "# no data set of this form on the hub is known to us\n" in (SHIPPED / f"{name}.yaml").read_text(
        "utf-8"
    )
    assert says_none == (not task.data.hub)
    if task.data.hub:
        fields = parse_template(task.template).fields
        assert set(task.data.columns) >= {*fields, "label" if task.suite is Suite.closed else "answers"}


def test_the_shipped_tasks_are_those_of_the_paper_with_its_labels_and_numbers() -> None:
    assert task_names(SHIPPED) == sorted(CLOSED + OPEN)
    tasks = {name: load_task(name, folder=SHIPPED) for name in CLOSED}
    for method, average in {"npm": 76.34, "npm-single": 75.04, "mlm": 72.10}.items():  # of the rounded columns
        numbers = [task.paper[method] for task in tasks.values()]
        assert sum(numbers) / len(numbers) == pytest.approx(average, abs=0.006)
    published = {"t5": 58.2, "t5-3b": 59.3, "gpt-2": 57.5, "gpt-2-pmi": 68.3, "gpt-2-knn": 49.3, "gpt-2-knn-lm": 73.4}
    for method, average in (published | {"gpt-3": 60.2, "gpt-3-pmi": 69.5}).items():  # as published, of unrounded ones
        numbers = [task.paper[method] for task in tasks.values()]
        assert sum(numbers) / len(numbers) == pytest.approx(average, abs=0.06)
    assert {name for task in tasks.values() for name in task.paper} == PUBLISHED.keys()
    words = {name: [word for label in task.labels for word in label.words] for name, task in tasks.items()}
    assert words["rte"] == ["Yes", "No"] and words["subj"] == ["review", "summary"]
    assert words["agn"] == ["politics", "sports", "business", "technology"]
    assert all(words[name] == ["terrible", "great"] for name in ("sst2", "mr", "rt", "cr", "amazon"))
    assert len(words["yahoo"]) == 10


@pytest.mark.parametrize(
    ("name", "fix"), [("sst", "did you mean 'sst2'"), ("trecs", "did you mean 'trex'"), ("zzz", "choose one")]
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, fix: str) -> None:
    with pytest.raises(TaskFileError, match="unknown task.*" + fix):
        load_task(name, folder=SHIPPED)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"templat": "x"}, "unknown key templat: did you mean 'template'"),
        ({"digest": "x"}, "unknown key digest"),
        ({"data": {"file": "a.csv", "colums": {}}}, "unknown key data.colums: did you mean 'columns'"),
        ({"scoring": {"temprature": 1}}, "unknown key scoring.temprature: did you mean 'temperature'"),
        (
            {"labels": [{"value": 0, "words": ["a"]}, {"valu": 1, "words": ["b"]}]},
            "unknown key labels[1].valu: did you mean 'value'",
        ),
        ({"data": {"file": "a.csv", "columns": {"texts": "review"}}}, "data.columns.texts: did you mean 'text'"),
        ({"data": {"columns": {}}}, "data.file is required"),
        ({"labels": [{"value": 0, "words": ["a"]}, {"words": ["b"]}]}, "labels[1].value is required"),
        ({"labels": [{"value": 0, "words": ["a"]}, {"value": 1}]}, "labels[1].words is required"),
        ({"suite": "close"}, "suite must be"),
        ({"labels": "good"}, "labels must be"),
        ({"labels": [{"value": 1, "words": ["a"]}, {"value": 0, "words": "bad"}]}, "labels[1].words must be"),
        ({"labels": [{"value": 0, "words": [True]}, {"value": 1, "words": ["No"]}]}, "yes, no, on, off"),
        ({"max_prompt_tokens": 1.5}, "max_prompt_tokens must be"),
        ({"paper": {"npm": "76"}}, "paper.npm must be"),
        ({"data": ["a.csv"]}, "data must be"),
        ({"data": {"file": "a.csv", "detokenise": "yes please"}}, "data.detokenise must be"),
    ],
)
def test_unknown_missing_and_misshapen_keys_are_named(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    assert problem in file_refused(tmp_path, {**SMALL, **change})


@pytest.mark.parametrize("key", ["suite", "data", "template"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    told = file_refused(tmp_path, {name: value for name, value in SMALL.items() if name != key})
    assert f"{key} is required" in told


def test_a_setting_out_of_its_range_is_told_with_the_file(tmp_path: Path) -> None:
    assert "scoring: k" in file_refused(tmp_path, {**SMALL, "scoring": {"k": 0}}, SettingError)
    told = file_refused(tmp_path, {**SMALL, "scoring": {"temperature": 1e-4}}, SettingError)
    assert "scoring: temperature" in told and "0.001" in told


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff\xfe", "cannot read"),
        (b"suite: [closed", "cannot read"),
        (b"suite: closed\nsuite: open\n", "cannot read"),
        (b"data: {file: a, file: b}\n", "cannot read"),
        (b"a: !!python/object/apply:os.getcwd []\n", "cannot read"),
        (b"\x00", "cannot read"),
        (b"", "must be a YAML file"),
        (b"- suite\n", "must be a YAML file"),
        (b"just text", "must be a YAML file"),
    ],
)
def test_what_is_no_yaml_mapping_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    with pytest.raises(TaskFileError, match=problem):
        load_task(str(file), folder=SHIPPED)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskFileError, match="absent: No such file"):
        load_task(f"{tmp_path}/absent", folder=SHIPPED)


@pytest.mark.parametrize(
    "text",
    [
        EXAMPLE.replace("terrible", '"b\\ud800d"'),
        EXAMPLE.replace("It was", "\\ude00"),
        EXAMPLE.replace("stars", '"\\udfff"'),
        EXAMPLE + '"\\ud83d\\ude00": 1\n',  # two halves, as JSON writes them, are not joined in YAML
    ],
)
def test_half_a_character_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    told = file_refused(tmp_path, text)
    assert "half a character" in told and "line " in told
    told.encode()
