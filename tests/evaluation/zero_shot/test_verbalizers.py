"""Which words stand for a label: the task's own, a shipped list, or a file of the user's."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from npm.core.errors import SettingError
from npm.evaluation.tasks.task import Label, Suite, Task, TaskData
from npm.evaluation.zero_shot.verbalizers import load_verbalizer, shipped_verbalizers

YAHOO_TOPICS = (
    "society",
    "science",
    "health",
    "education",
    "computer",
    "sports",
    "business",
    "entertainment",
    "family",
    "politics",
)
LABELS = {
    "sentiment": [("negative", "terrible"), ("positive", "great")],
    "agn": [("politics", "politics"), ("sports", "sports"), ("business", "business"), ("technology", "technology")],
    "yahoo": [(topic, topic) for topic in YAHOO_TOPICS],
    "subj": [("subjective", "review"), ("objective", "summary")],
    "rte": [("entailment", "Yes"), ("not_entailment", "No")],
}


def task_with(*labels: tuple[str, str]) -> Task:
    named = tuple(Label(value, name, (word,)) for value, (name, word) in enumerate(labels))
    return Task("toy", Suite.closed, TaskData("toy.jsonl"), "{text} It was <mask>.", named)


TOY = task_with(("bad", "terrible"), ("good", "great"))


def written(folder: Path, name: str, content: object) -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


def refused(choice: str, task: Task = TOY) -> str:
    with pytest.raises(SettingError) as raised:
        load_verbalizer(task, choice)
    return str(raised.value)


def test_label_words_are_those_of_the_task() -> None:
    verbalizer = load_verbalizer(TOY, "label_words")
    assert verbalizer.words == (("terrible",), ("great",))
    assert verbalizer.name == "label_words"


@pytest.mark.parametrize("name", LABELS)
def test_a_shipped_list_serves_labels_by_their_names(name: str) -> None:
    task = task_with(*LABELS[name])
    verbalizer = load_verbalizer(task, name)
    assert min(map(len, verbalizer.words)) >= (5 if name == "subj" else 25)  # few words mean review or summary
    assert verbalizer.notes == ()
    for label, words in zip(task.labels, verbalizer.words, strict=True):
        assert label.words[0] in words


@pytest.mark.parametrize("name", LABELS)
def test_a_shipped_list_serves_labels_of_other_names_by_their_words(name: str) -> None:
    named = load_verbalizer(task_with(*LABELS[name]), name)
    backwards = [(f"class {number}", word) for number, (_, word) in enumerate(LABELS[name])][::-1]
    assert load_verbalizer(task_with(*backwards), name).words == named.words[::-1]


def test_every_shipped_list_is_tested_here() -> None:
    assert shipped_verbalizers() == sorted(LABELS)


@pytest.mark.parametrize("name", LABELS)
def test_no_word_of_a_shipped_list_stands_inside_a_phrase_of_another_label(name: str) -> None:
    lists = load_verbalizer(task_with(*LABELS[name]), name).words
    inside = [
        (word, phrase)
        for words, others in itertools.permutations(lists, 2)
        for word, phrase in itertools.product(words, others)
        if f" {word.lower()} " in f" {phrase.lower()} "
    ]
    assert inside == []


def test_lists_in_json_stand_in_the_order_of_the_labels(tmp_path: Path) -> None:
    verbalizer = load_verbalizer(TOY, written(tmp_path, "mine.json", [["bad", "not  good"], [" fine "]]))
    assert verbalizer.words == (("bad", "not good"), ("fine",))
    assert verbalizer.name == "mine.json"


def test_lists_under_names_are_found_in_any_order(tmp_path: Path) -> None:
    file = written(tmp_path, "mine.json", {"Good": ["fine"], "bad": ["awful"]})
    assert load_verbalizer(TOY, file).words == (("awful",), ("fine",))


def test_a_list_under_the_name_goes_before_one_with_the_word(tmp_path: Path) -> None:
    file = written(tmp_path, "mine.json", {"bad": ["awful"], "good": ["fine"], "mixed": ["great"]})
    verbalizer = load_verbalizer(TOY, file)
    assert verbalizer.words == (("awful",), ("fine",))
    assert verbalizer.notes == ("no label of task toy has the lists mixed of mine.json",)


@pytest.mark.parametrize("other", ["Bad", "BAD", " bad "])
def test_two_names_that_differ_in_case_or_spaces_are_refused(tmp_path: Path, other: str) -> None:
    error = refused(written(tmp_path, "mine.json", {"bad": ["awful"], other: ["fine"], "good": ["great"]}))
    assert f"'bad' and {other!r}" in error


def test_a_text_file_has_a_line_of_words_for_each_label(tmp_path: Path) -> None:
    file = written(tmp_path, "mine.txt", "bad, not good ,awful\r\n\ngreat\n")
    assert load_verbalizer(TOY, file).words == (("bad", "not good", "awful"), ("great",))


def test_the_name_is_that_of_the_file_and_the_digest_that_of_the_words(tmp_path: Path) -> None:
    first = load_verbalizer(TOY, written(tmp_path, "mine.txt", "bad\ngood\n"))
    again = load_verbalizer(TOY, written(tmp_path, "other.json", {"good": ["good"], "bad": ["bad"]}))
    assert (first.name, again.name) == ("mine.txt", "other.json")
    assert first.digest == again.digest != replace(first, words=first.words[::-1]).digest


def test_a_word_listed_twice_for_one_label_counts_once_and_is_told(tmp_path: Path) -> None:
    verbalizer = load_verbalizer(TOY, written(tmp_path, "mine.json", [["bad", "awful", "Bad"], ["good"]]))
    assert verbalizer.words == (("bad", "awful"), ("good",))
    assert verbalizer.notes == ("listed twice for a label in mine.json, counted once: Bad",)


def test_a_word_of_two_labels_is_refused_whatever_its_case(tmp_path: Path) -> None:
    error = refused(written(tmp_path, "mine.json", [["bad", "fine"], ["good", "Fine"]]))
    assert "'Fine'" in error and "bad and good" in error
    assert "two labels" in refused("label_words", task_with(("a", "fine"), ("b", "Fine")))


def test_a_label_that_the_list_does_not_name_is_refused(tmp_path: Path) -> None:
    error = refused(written(tmp_path, "mine.json", {"bad": ["awful"], "goood": ["fine"]}))
    assert "'good'" in error and "bad, goood" in error


def test_a_list_that_would_be_that_of_two_labels_is_refused(tmp_path: Path) -> None:
    error = refused(written(tmp_path, "mine.json", {"all": ["terrible", "great"], "rest": ["fine"]}))
    assert "'good'" in error


def test_a_label_whose_words_stand_in_two_lists_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, "mine.json", {"low": ["terrible"], "high": ["great"], "peak": ["great", "superb"]})
    assert "high, peak" in refused(file)


@pytest.mark.parametrize("content", ['[[], ["good"]]', '{"bad": [], "good": ["fine"]}'])
def test_a_label_without_words_is_refused(tmp_path: Path, content: str) -> None:
    assert "no words for the label 'bad'" in refused(written(tmp_path, "mine.json", content))


def test_a_line_of_commas_is_a_label_without_words(tmp_path: Path) -> None:
    assert "no words for the label 'bad'" in refused(written(tmp_path, "mine.txt", ", ,\ngood"))


@pytest.mark.parametrize("name, content", [("a.json", '[["bad"]]'), ("a.txt", "bad\ngood\nfair"), ("b.txt", "")])
def test_another_number_of_lists_than_labels_is_refused(tmp_path: Path, name: str, content: str) -> None:
    assert "task toy has 2 labels" in refused(written(tmp_path, name, content))


@pytest.mark.parametrize(
    "content, got",
    [
        ('[["bad"], ["good"]', "delimiter"),
        ('"bad"', "JSON str"),
        ('["bad", "good"]', "in list 1, got 'bad'"),
        ('[["bad"], [1]]', "in list 2, got 1"),
        ('{"bad": ["bad"], "good": [" "]}', "under 'good', got ' '"),
        ('{"bad": ["bad"], "bad": ["good"]}', "stands twice"),
        ('[["bad"], ["\\ud800"]]', "in list 2, got '\\ud800'"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_json_of_another_form_is_refused(tmp_path: Path, content: str, got: str) -> None:
    error = refused(written(tmp_path, "mine.json", content))
    assert got in error and "mine.json" in error


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_bytes(b"bad\nd\xe9j\xe0 vu")
    assert "0xe9" in refused(str(tmp_path / "mine.txt"))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refused(str(tmp_path / "none.json"))


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    assert "did you mean 'sentiment'" in refused("sentimnet")


def test_expanding_without_an_index_is_refused() -> None:
    assert "index=DIR" in refused("expanded")
