"""What a task's YAML file says, the shipped tasks, and the message for each mistake and contradiction in one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npm.core.errors import SettingError
from npm.core.files import sha256_of_bytes
from npm.evaluation.tasks import (
    EXAMPLE,
    Label,
    load_task,
    load_verbalizer,
    task_names,
)
from tests.evaluation.task_samples import OPEN_SMALL, SHIPPED, SMALL, file_refused, task_written

CLOSED = ["agn", "amazon", "cr", "mr", "rt", "rte", "sst2", "subj", "yahoo"]
OPEN = ["entity_translation", "google_re", "kamel", "nq", "templama", "trex", "trivia_qa"]


def test_the_smallest_task_takes_defaults_and_the_first_word_as_name(tmp_path: Path) -> None:
    file = task_written(tmp_path, EXAMPLE)
    task = load_task(file, folder=SHIPPED)
    assert (task.name, task.suite, task.template) == ("mine", "closed", "{{ text }} It was <mask>.")
    bad = Label(value=0, name="terrible", words=["terrible", "bad"])
    assert task.labels == [bad, Label(value=1, name="great", words=["great"])]
    assert task.data.columns == {"text": "review", "label": "stars"}
    assert (task.verbalizer, task.too_long, task.macro) == ("label_words", "refuse", "none")
    assert task.digest == sha256_of_bytes(file.read_bytes())


def test_every_key_reaches_its_field(tmp_path: Path) -> None:
    content = {
        **SMALL,
        "name": "stars",
        "labels": [{"value": "a", "name": "A", "words": ["x y"]}, {"value": 2, "name": "B", "words": ["z"]}],
        "data": {
            "file": "d.tsv",
            "hub": "h@c/s",
            "development": "first_half",
        },
        "verbalizer": "sentiment",
        "corpus": "reviews",
        "too_long": "keep_end",
        "max_prompt_tokens": 99,
        "scoring": {"k": 7, "retrieval": "top_k", "temperature": 2, "label_mean": "words", "calibration": "prompt"},
    }
    task = load_task(task_written(tmp_path, content), folder=SHIPPED)
    assert (task.name, task.verbalizer, task.corpus, task.max_prompt_tokens) == ("stars", "sentiment", "reviews", 99)
    assert task.labels[0] == Label(value="a", name="A", words=["x y"]) and task.data.hub == "h@c/s"
    assert (task.data.development, task.too_long) == ("first_half", "keep_end")
    assert (task.scoring.k, task.scoring.temperature, task.scoring.retrieval) == (7, 2.0, "top_k")
    assert (task.scoring.label_mean, task.scoring.calibration) == ("words", "prompt")


def test_a_verbalizer_beside_the_file_is_found_there_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside, elsewhere = tmp_path / "task", tmp_path / "elsewhere"
    for folder, words in (
        (beside, '[["awful"], ["fine"]]'),
        (elsewhere, '{"terrible": ["poor"], "great": ["superb"]}'),
    ):
        folder.mkdir()
        (folder / "mine.json").write_text(words, encoding="utf-8")
    (elsewhere / "there.json").write_text('[["dull"], ["fun"]]', encoding="utf-8")
    monkeypatch.chdir(elsewhere)

    def listed(choice: str) -> tuple[tuple[str, ...], ...]:
        task = load_task(task_written(beside, {**SMALL, "verbalizer": choice}), folder=SHIPPED)
        return load_verbalizer(task, task.verbalizer).words

    assert listed("mine.json") == (("awful",), ("fine",))
    assert listed("there.json") == (("dull",), ("fun",))  # where the run starts
    assert listed(str(elsewhere / "mine.json")) == (("poor",), ("superb",))


@pytest.mark.parametrize("name", CLOSED + OPEN)
def test_every_shipped_task_can_be_loaded(name: str) -> None:
    task = load_task(name, folder=SHIPPED)
    assert task.name == name and task.suite == ("closed" if name in CLOSED else "open")
    assert task.corpus in {"reviews", "news", "subj", "wiki"}
    assert not Path(task.data.file).is_absolute()
    assert (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8").startswith("# ")


def test_the_shipped_tasks_are_those_of_the_paper_with_its_labels() -> None:
    assert task_names(SHIPPED) == sorted(CLOSED + OPEN)
    tasks = {name: load_task(name, folder=SHIPPED) for name in CLOSED}
    words = {name: [word for label in task.labels for word in label.words] for name, task in tasks.items()}
    assert words["rte"] == ["Yes", "No"] and words["subj"] == ["review", "summary"]
    assert words["agn"] == ["politics", "sports", "business", "technology"]
    assert all(words[name] == ["terrible", "great"] for name in ("sst2", "mr", "rt", "cr", "amazon"))
    assert len(words["yahoo"]) == 10
    for task in tasks.values():  # each list begins with the word of the prompt
        lists = load_verbalizer(task, task.verbalizer).words
        assert all(own[0] in label.words for own, label in zip(lists, task.labels, strict=True))


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    for name, fix in (("sst", "did you mean 'sst2'"), ("zzz", "choose one")):
        with pytest.raises(SettingError, match="unknown task.*" + fix):
            load_task(name, folder=SHIPPED)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"digest": "x"}, "unknown setting digest"),
        ({"data": {"file": "a.csv", "colums": {}}}, "unknown setting data.colums: did you mean 'columns'"),
        ({"data": {"file": "a.csv", "columns": {"texts": "review"}}}, "data.columns.texts is neither a field of"),
        ({"data": {"columns": {}}}, "data.file or data.hub is required"),
        ({"labels": [{"value": 0, "words": ["a"]}, {"words": ["b"]}]}, "labels[1].value is required"),
        ({"suite": "close"}, "suite must be"),
        ({"labels": [{"value": 0, "words": [True]}, {"value": 1, "words": ["No"]}]}, "labels[0].words[0] must be"),
        ({"data": ["a.csv"]}, "data must be"),
    ],
)
def test_unknown_missing_and_misshapen_keys_are_named(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    message = file_refused(tmp_path, {**SMALL, **change})
    assert problem in message
    assert "folder" not in message.partition("choose one of")[2]  # fields of our own are not offered
    content = {"templat" if key == "template" else key: value for key, value in SMALL.items()}
    assert "unknown setting templat" in file_refused(tmp_path, content)  # not the one that is missing


def test_what_is_no_yaml_mapping_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    for content in (
        b"\xff\xfe",
        b"suite: [closed",
        b"a: !!python/object/apply:os.getcwd []\n",
        b"",
        b"- suite\n",
        b"a",
    ):
        file.write_bytes(content)
        with pytest.raises(SettingError, match=r"cannot read|must be a YAML file"):
            load_task(str(file), folder=SHIPPED)


def one(value: object, *words: str, **more: object) -> dict[str, Any]:
    return {"value": value, "words": list(words), **more}


def columns(**names: str) -> dict[str, Any]:
    return {"data": {"file": "a.csv", "columns": names}}


CLOSED_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"labels": [one(0, "a"), one("0", "b")]}, "must have different"),
    ({"labels": [one(0, "a"), one(1)]}, "labels[1].words must not be empty"),
    ({"labels": [one(0, "a", name="x"), one(1, "b", name="x")]}, "must have different"),
    ({"labels": [one(0, "a", "good"), one(1, "b", "Good")]}, "different words, got 'good'"),
    ({"labels": [one(0, "a"), one(1, "b", "Good", "good")]}, "different words"),
    ({"labels": [one(0, "a"), one(1, " b")]}, "' b'"),
    ({"labels": [one(0, "a"), one(1, "")]}, "''"),
    ({"labels": [one(0, "a")]}, "at least two"),
    ({"labels": []}, "at least two"),
    ({"template": "{{ text }} <mask> <mask>."}, "one <mask>"),
    ({"template": "It was <mask>."}, "a field"),
    ({"template": "{{ text }} {{ label }} <mask>"}, "shows the label"),
    ({"template": "{{ text It was <mask>."}, "invalid template"),
    ({"template": "{{ text | lower_frist }} <mask>."}, "lower_frist"),
    ({**columns(label="y"), "template": "{{ text }} {{ y }} <mask>."}, "shows the label"),
    ({**columns(label="y", stars="y"), "template": "{{ text }} {{ stars }} <mask>."}, "shows the label"),
    ({**columns(label="y", text="body or y"), "template": "{{ text }} <mask>."}, "shows the label"),
    ({"data": {"file": "a.csv", "hub": "x/y", "hub_columns": {"texts": "review"}}}, "texts is neither"),
    ({"data": {"file": "a.csv", "hub_columns": {"text": "review"}}}, "data.hub_columns needs data.hub"),
    (
        {"data": {"file": "a.csv", "hub": "x/y", "columns": {"text": "label"}, "hub_columns": {"text": "body"}}},
        "shows the label",
    ),
    ({**columns(label="y or text"), "template": "{{ text }} <mask>."}, "shows the label"),
    ({**columns(group="label"), "template": "{{ text }} {{ group }} <mask>."}, "shows the label"),
    ({**columns(label="my y", text="my y"), "template": "{{ text }} <mask>."}, "shows the label"),
    ({"macro": "answer_tokens"}, "macro: answer_tokens"),
    ({"where": "a=b"}, "where: for open tasks only"),
    ({"scoring": {"k": 5}}, "scoring.k"),
    ({"scoring": {"k": 5, "retrieval": "exact"}}, "scoring.k"),
    ({"max_prompt_tokens": 7}, "got 7"),
]
OPEN_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"labels": SMALL["labels"]}, "labels: "),
    ({"scoring": {"temperature": 3}}, "scoring: "),
    ({"fill": {"max_phrase": 3}}, "fill.max_phrase"),
    ({"fill": {"k": 0}}, "fill.k must be"),
    ({"macro": "group"}, "data.columns.group"),
    ({"examples_per_group": 5}, "examples_per_group"),
    ({"examples_per_group": 0, "macro": "answer_tokens"}, "got 0"),
    ({"data": {"file": ""}}, "data.file"),
    ({"data": {"file": "a", "development": "first_half", "development_file": "b"}}, "development_file"),
    ({**columns(answers="a"), "template": "{{ question }} {{ a }} <mask>"}, "shows the answers"),
    ({**columns(answers="[value] + aliases"), "template": "{{ aliases }} <mask>"}, "shows the answers"),
    (
        {**columns(answers="answer.value", question="answer.value"), "template": "{{ question }} <mask>"},
        "shows the answers",
    ),
    ({**columns(answers="a", subject="a"), "template": "{{ query | cloze(subject) }}"}, "shows the answers"),
]


@pytest.mark.parametrize(
    ("base", "change", "problem"),
    [
        *((SMALL, *mistake) for mistake in CLOSED_MISTAKES),
        *((OPEN_SMALL, *mistake) for mistake in OPEN_MISTAKES),
    ],
)
def test_what_contradicts_itself_is_refused(
    tmp_path: Path, base: dict[str, Any], change: dict[str, Any], problem: str
) -> None:
    assert problem in file_refused(tmp_path, {**base, **change})
