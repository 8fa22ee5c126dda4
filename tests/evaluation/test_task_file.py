"""What a task's YAML file says, the shipped tasks, and the message for each mistake in one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from index.files import sha256_of_bytes
from npm.errors import SettingError, UserError
from npm.evaluation.prompts import TemplateError
from npm.evaluation.task import Calibration, Development, Label, LabelMean, Macro, Suite, TooLong
from npm.evaluation.task_file import EXAMPLE, TaskFileError, load_task, task_names

SHIPPED = Path(__file__).parents[2] / "configs" / "task"
CLOSED = ["agn", "amazon", "cr", "mr", "rt", "rte", "sst2", "subj", "yahoo"]
OPEN = ["entity_translation", "google_re", "kamel", "nq", "templama", "trex", "trivia_qa"]
SMALL: dict[str, Any] = yaml.safe_load(EXAMPLE)
OPEN_SMALL: dict[str, Any] = {"suite": "open", "data": {"file": "q.jsonl"}, "template": "{question} <mask>."}


def written(folder: Path, content: object) -> Path:
    file = folder / "mine.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return file


def refused(folder: Path, content: object, error: type[UserError] = TaskFileError) -> UserError:
    """The error for a file with this content; all its parts are filled."""
    with pytest.raises(error) as raised:
        load_task(written(folder, content), folder=SHIPPED)
    told = raised.value
    assert all((told.problem, told.expected, told.got, told.fix)) and "mine" in told.where
    return told


def test_the_smallest_task_takes_defaults_and_the_first_word_as_name(tmp_path: Path) -> None:
    file = written(tmp_path, EXAMPLE)
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
        "scoring": {"k": 7, "temperature": 2, "label_mean": "words", "calibration": "prompt"},
        "paper": {"npm": 70, "mlm": 60.5},
    }
    task = load_task(written(tmp_path, content), folder=SHIPPED)
    assert (task.name, task.verbalizer, task.corpus, task.max_prompt_tokens) == ("stars", "sentiment", "reviews", 99)
    assert task.labels[0] == Label("a", "A", ("x y",))
    assert (task.data.config, task.data.split, task.data.detokenise) == ("c", "s", True)
    assert (task.data.development, task.too_long) == (Development.first_half, TooLong.keep_end)
    assert (task.scoring.k, task.scoring.temperature, task.scoring.retrieval) == (7, 2.0, None)
    assert (task.scoring.label_mean, task.scoring.calibration) == (LabelMean.words, Calibration.prompt)
    assert task.paper == {"npm": 70.0, "mlm": 60.5}


def test_a_template_column_is_the_template(tmp_path: Path) -> None:
    content = {"suite": "open", "data": {"file": "q.jsonl", "columns": {"subject": "s"}}, "template_column": "cloze"}
    assert load_task(written(tmp_path, content), folder=SHIPPED).template == "{cloze}"


def test_data_beside_the_file_is_found_there_and_other_data_keeps_its_name(tmp_path: Path) -> None:
    content = {**SMALL, "data": {**SMALL["data"], "development_file": "dev.csv"}}
    (tmp_path / "my-reviews.csv").write_text("review,stars\n", encoding="utf-8")
    data = load_task(written(tmp_path, content), folder=SHIPPED).data
    assert data.file == str(tmp_path / "my-reviews.csv") and data.development_file == "dev.csv"


@pytest.mark.parametrize("name", CLOSED + OPEN)
def test_every_shipped_task_can_be_loaded(name: str) -> None:
    task = load_task(name, folder=SHIPPED)
    assert task.name == name and task.suite is (Suite.closed if name in CLOSED else Suite.open)
    assert task.corpus in {"reviews", "news", "subj", "wiki"}
    assert not Path(task.data.file).is_absolute()
    assert (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8").startswith("# ")


def test_the_shipped_tasks_are_those_of_the_paper_with_its_labels_and_numbers() -> None:
    assert task_names(SHIPPED) == sorted(CLOSED + OPEN)
    tasks = {name: load_task(name, folder=SHIPPED) for name in CLOSED}
    for method, average in {"npm": 76.34, "npm-single": 75.04, "mlm": 72.10}.items():  # of the rounded columns
        numbers = [task.paper[method] for task in tasks.values()]
        assert sum(numbers) / len(numbers) == pytest.approx(average, abs=0.006)
    words = {name: [word for label in task.labels for word in label.words] for name, task in tasks.items()}
    assert words["rte"] == ["Yes", "No"] and words["subj"] == ["review", "summary"]
    assert words["agn"] == ["politics", "sports", "business", "technology"]
    assert all(words[name] == ["terrible", "great"] for name in ("sst2", "mr", "rt", "cr", "amazon"))
    assert len(words["yahoo"]) == 10


@pytest.mark.parametrize(("name", "fix"), [("sst", "task=sst2"), ("trecs", "task=trex"), ("zzz", "choose one")])
def test_an_unknown_name_is_answered_with_the_nearest(name: str, fix: str) -> None:
    with pytest.raises(TaskFileError, match="there is no task") as raised:
        load_task(name, folder=SHIPPED)
    assert fix in raised.value.fix and "sst2" in raised.value.expected


@pytest.mark.parametrize(
    ("change", "problem", "fix"),
    [
        ({"templat": "x"}, "unknown key templat", "write template"),
        ({"digest": "x"}, "unknown key digest", "take it out"),
        ({"data": {"file": "a.csv", "colums": {}}}, "unknown key data.colums", "write columns"),
        ({"scoring": {"temprature": 1}}, "unknown key scoring.temprature", "write temperature"),
        (
            {"labels": [{"value": 0, "words": ["a"]}, {"valu": 1, "words": ["b"]}]},
            "unknown key labels[1].valu",
            "value",
        ),
        ({"data": {"file": "a.csv", "columns": {"texts": "review"}}}, "data.columns names texts", "write text"),
        ({"data": {"columns": {}}}, "lacks data.file", "add file"),
        ({"labels": [{"value": 0, "words": ["a"]}, {"words": ["b"]}]}, "lacks labels[1].value", "add value"),
        ({"labels": [{"value": 0, "words": ["a"]}, {"value": 1}]}, "lacks labels[1].words", "add words"),
        ({"suite": "close"}, "suite has the wrong form", "mend suite"),
        ({"labels": "good"}, "labels has the wrong form", "mend labels"),
        ({"labels": [{"value": 1, "words": ["a"]}, {"value": 0, "words": "bad"}]}, "words has the wrong form", "words"),
        ({"labels": [{"value": 0, "words": [True]}, {"value": 1, "words": ["No"]}]}, "words[0]", "quotation marks"),
        ({"max_prompt_tokens": 1.5}, "max_prompt_tokens has the wrong form", "mend max_prompt_tokens"),
        ({"paper": {"npm": "76"}}, "paper.npm has the wrong form", "mend paper.npm"),
        ({"data": ["a.csv"]}, "data has the wrong form", "mend data"),
        ({"data": {"file": "a.csv", "detokenise": "yes please"}}, "data.detokenise", "mend"),
    ],
)
def test_unknown_missing_and_misshapen_keys_are_named(
    tmp_path: Path, change: dict[str, Any], problem: str, fix: str
) -> None:
    told = refused(tmp_path, {**SMALL, **change})
    assert problem in told.problem and fix in told.fix


@pytest.mark.parametrize("key", ["suite", "data", "template"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    told = refused(tmp_path, {name: value for name, value in SMALL.items() if name != key})
    assert told.problem == f"the task lacks {key}" and "suite" in told.fix


def one(value: object, *words: str, **more: object) -> dict[str, Any]:
    return {"value": value, "words": list(words), **more}


@pytest.mark.parametrize(
    ("labels", "problem", "got"),
    [
        ([one(0, "a"), one("0", "b")], "two labels with one value", "0"),
        ([one(0, "a"), one(1)], "a label without words", "no words for the label 1"),
        ([one(0, "a"), one(1, name="b")], "a label without words", "no words for the label 1"),
        ([one(0, "a", name="x"), one(1, "b", name="x")], "two labels with one name", "x"),
        ([one(0, "a", "good"), one(1, "b", "Good")], "a word that names two labels", "good"),
        ([one(0, "a"), one(1, " b")], "a word with stray spaces", "' b'"),
        ([one(0, "a"), one(1, "")], "a word with stray spaces", "''"),
        ([one(0, "a")], "too few labels", "1"),
        ([], "too few labels", "0"),
    ],
)
def test_labels_that_cannot_be_told_apart_are_refused(tmp_path: Path, labels: Any, problem: str, got: str) -> None:
    told = refused(tmp_path, {**SMALL, "labels": labels})
    assert problem in told.problem and got in told.got


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{text} It was great.", "the template has no <mask>"),
        ("{text} <mask> <mask>.", "the template has several <mask>"),
        ("It was <mask>.", "takes nothing from an example"),
        ("{text} {label} <mask>", "shows the label"),
        ("{text} {answers} <mask>", "shows the answers"),
        ("{text It was <mask>.", "cannot be read"),
        ("{text} } <mask>.", "cannot be read"),
        ("{text:>5} <mask>.", "cannot be read"),
        ("{} <mask>.", "cannot be read"),
        ("{text|lower_frist} <mask>.", "unknown edit 'lower_frist'"),
    ],
)
def test_a_template_without_one_mask_and_a_field_is_refused(tmp_path: Path, template: str, problem: str) -> None:
    told = refused(tmp_path, {**SMALL, "template": template}, TemplateError)
    assert problem in told.problem and told.where.endswith("mine.yaml: template")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"labels": SMALL["labels"]}, "is open and has labels"),
        ({"macro": "group"}, "has no groups"),
        ({"examples_per_group": 5}, "samples groups that it does not have"),
        ({"examples_per_group": 0, "macro": "answer_tokens"}, "samples groups that it does not have"),
        ({"data": {"file": ""}}, "names no data"),
        ({"data": {"file": "a", "development": "first_half", "development_file": "b"}}, "development data twice"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    assert problem in refused(tmp_path, {**OPEN_SMALL, **change}).problem


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"macro": "answer_tokens"}, "has no answers to count"),
        ({"template_column": "t"}, "is closed and has template_column"),
    ],
)
def test_a_closed_task_takes_nothing_that_only_open_ones_have(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    assert problem in refused(tmp_path, {**SMALL, **change}).problem


def test_a_setting_out_of_its_range_is_told_with_the_file(tmp_path: Path) -> None:
    told = refused(tmp_path, {**SMALL, "scoring": {"k": 0}}, SettingError)
    assert "closed.k" in told.problem and told.where.endswith("scoring")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff\xfe", "is not UTF-8"),
        (b"suite: [closed", "is not YAML"),
        (b"suite: closed\nsuite: open\n", "is not YAML"),
        (b"data: {file: a, file: b}\n", "is not YAML"),
        (b"a: !!python/object/apply:os.getcwd []\n", "is not YAML"),
        (b"\x00", "is not YAML"),
        (b"", "does not describe a task"),
        (b"- suite\n", "does not describe a task"),
        (b"just text", "does not describe a task"),
    ],
)
def test_what_is_no_yaml_mapping_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    with pytest.raises(TaskFileError, match=problem) as raised:
        load_task(str(file), folder=SHIPPED)
    assert raised.value.where == str(file) and raised.value.got


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskFileError, match="cannot be read") as raised:
        load_task(f"{tmp_path}/absent", folder=SHIPPED)
    assert raised.value.got == "No such file or directory"
