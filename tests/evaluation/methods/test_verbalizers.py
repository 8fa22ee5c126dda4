"""Words of labels: the task's own, a shipped list, or a file of the user's."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from npm.core.errors import SettingError
from npm.evaluation.tasks import Label, Suite, Task, TaskData, load_task, load_verbalizer
from tests.evaluation.task_samples import SHIPPED

LABELS = [Label(value=0, name="bad", words=["terrible"]), Label(value=1, name="good", words=["great"])]
TOY = Task(
    name="toy", suite=Suite.closed, data=TaskData(file="t.jsonl"), template="{{ text }} It was <mask>.", labels=LABELS
)


def written(folder: Path, name: str, content: object) -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


def refused(choice: str, task: Task = TOY) -> str:
    with pytest.raises(SettingError) as raised:
        load_verbalizer(task, choice)
    return str(raised.value)


@pytest.mark.parametrize("name", ["sst2", "agn", "yahoo", "subj", "rte"])
def test_no_word_of_a_shipped_list_stands_inside_a_phrase_of_another_label(name: str) -> None:
    task = load_task(name, folder=SHIPPED)
    lists = load_verbalizer(task, task.verbalizer).words
    assert min(map(len, lists)) >= (5 if name == "subj" else 25)  # few words mean review or summary
    inside = [
        (word, phrase)
        for words, others in itertools.permutations(lists, 2)
        for word, phrase in itertools.product(words, others)
        if f" {word.lower()} " in f" {phrase.lower()} "
    ]
    assert inside == []


def test_lists_stand_in_the_order_of_the_labels_or_under_their_names(tmp_path: Path) -> None:
    in_order = load_verbalizer(TOY, written(tmp_path, "mine.json", [["bad", "not  good", "Bad"], [" fine "]]))
    named = load_verbalizer(TOY, written(tmp_path, "other.json", {"good": ["fine"], "bad": ["bad", "not good"]}))
    assert in_order.words == named.words == (("bad", "not good"), ("fine",))
    assert in_order.facts["name"] == "mine.json" and in_order.facts["digest"] == named.facts["digest"]
    assert named.facts["digest"] != replace(named, words=named.words[::-1]).facts["digest"]


@pytest.mark.parametrize(
    "content",
    [
        '{"bad": ["awful"], "goood": ["fine"]}',
        '[[], ["good"]]',
        '{"bad": [], "good": ["fine"]}',
        '[["bad"]]',
        '[["bad"], ["good"], ["fair"]]',
        '"bad"',
        '["bad", "good"]',
        '[["bad"], [1]]',
        '{"bad": ["bad"], "good": [" "]}',
    ],
)
def test_a_file_without_a_list_of_words_for_each_label_is_refused(tmp_path: Path, content: str) -> None:
    error = refused(written(tmp_path, "mine.json", content))
    assert "mine.json must have a list of words for each label of task toy: bad, good" in error


def test_what_is_neither_a_file_nor_a_shipped_list_is_refused_with_the_nearest(tmp_path: Path) -> None:
    assert "did you mean 'sentiment'" in refused("sentimnet")
    assert "none.json" in refused(str(tmp_path / "none.json"))
