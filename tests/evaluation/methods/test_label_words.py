"""Words of labels: their lists and files, and what a label's score is, by hand and against plain sums."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from npm.core.errors import SettingError
from npm.evaluation.methods.nonparametric import LabelWords, label_logs, label_shares
from npm.evaluation.methods.occurrences import WordOccurrences, WordScores
from npm.evaluation.tasks import Label, LabelMean, Task, TaskData, Verbalizer, load_task, load_verbalizer
from tests.evaluation.task_samples import SHIPPED


def scores_of(sums: list[list[float]], counts: list[int]) -> WordScores:
    evidence = np.array(sums)
    logs = np.log(evidence, out=np.full(evidence.shape, -np.inf), where=evidence > 0)
    return WordScores(log_sums=logs, counts=np.array(counts), best=np.zeros(logs.shape, dtype=np.int64), best_logs=logs)


def occurrences_of(counts: dict[str, int], totals: list[int]) -> WordOccurrences:
    offsets = np.cumsum([0, *counts.values()])
    of_each = np.arange(offsets[-1])
    return WordOccurrences(tuple(counts), offsets, of_each, of_each, of_each, of_each, np.array(totals))


def labels_of(words: dict[str, tuple[str, ...]], occurrences: WordOccurrences) -> LabelWords:
    labels = [Label(value=name, words=[f"{name} {number}"]) for number, name in enumerate(words)]
    task = Task(name="t", suite="closed", data=TaskData(file="t"), template="{{ a }} <mask>", labels=labels)
    return LabelWords(task, Verbalizer("mine", tuple(words.values())), occurrences)


WORDS = {"good": ("great", "fine", "superb"), "bad": ("awful", "dull")}
COUNTS = {"great": 4, "fine": 1, "superb": 0, "awful": 2, "dull": 4}
LABELS = labels_of(WORDS, occurrences_of(COUNTS, [4, 1, 0, 2, 4]))


@pytest.mark.parametrize(
    ("mean", "expected"),
    [
        ("sum", [6 + 2 + 0, 3 + 6]),
        ("occurrences", [(6 + 2) / (4 + 1), (3 + 6) / (2 + 4)]),
        ("words", [(6 / 4 + 2 / 1) / 2, (3 / 2 + 6 / 4) / 2]),
    ],
)
def test_means_over_occurrences_and_words_by_hand(mean: LabelMean, expected: list[float]) -> None:
    scores = scores_of([[6, 2, 0, 3, 6]], counts=[*COUNTS.values()])
    assert np.exp(label_logs(LABELS.numbers, scores, mean)[0]).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("mean", get_args(LabelMean))
def test_a_label_without_evidence_has_none_whatever_the_mean(mean: LabelMean) -> None:
    scores = scores_of([[0, 0, 0, 3, 0], [0, 0, 0, 0, 0]], counts=[*COUNTS.values()])
    logs = label_logs(LABELS.numbers, scores, mean)
    assert np.isneginf(logs).tolist() == [[True, False], [True, True]]
    assert label_shares(logs).tolist() == [[0, 1], [0.5, 0.5]]


@pytest.mark.parametrize("mean", get_args(LabelMean))
def test_means_equal_plain_sums_over_random_words(mean: LabelMean) -> None:
    rng = np.random.default_rng(3)
    words = {label: tuple(f"{label}-{word}" for word in range(rng.integers(1, 6))) for label in "abcd"}
    every = [word for own in words.values() for word in own]
    counts = rng.integers(1, 9, len(every))
    sums = rng.random((7, len(every)))
    labels = labels_of(words, occurrences_of(dict(zip(every, counts.tolist(), strict=True)), counts.tolist()))
    got = np.exp(label_logs(labels.numbers, scores_of(sums.tolist(), counts.tolist()), mean))
    for query in range(7):
        for label, of_label in enumerate(words.values()):
            pairs = [(sums[query, n], counts[n]) for n in (every.index(word) for word in of_label)]
            expected = sum(evidence for evidence, _ in pairs)
            if mean == "occurrences":
                expected /= sum(count for _, count in pairs)
            elif mean == "words":
                expected = sum(evidence / count for evidence, count in pairs) / len(pairs)
            assert got[query, label] == pytest.approx(expected)


def test_a_label_none_of_whose_words_the_corpus_holds_is_refused_with_counts() -> None:
    none = dict.fromkeys(COUNTS, 0) | {"great": 3}
    with pytest.raises(SettingError, match=r"'bad'.*awful \(0\), dull \(5\)"):
        labels_of(WORDS, occurrences_of(none, totals=[3, 0, 0, 0, 5]))


def places(of_words: dict[str, list[int]], lengths: dict[str, int]) -> WordOccurrences:
    """Words at token positions."""
    offsets = np.cumsum([0, *map(len, of_words.values())])
    starts = np.array([start for own in of_words.values() for start in own])
    tokens = np.repeat([lengths.get(word, 1) for word in of_words], np.diff(offsets))
    return WordOccurrences(tuple(of_words), offsets, starts, tokens, starts, starts, np.diff(offsets))


def test_words_of_one_label_at_the_same_places_count_once() -> None:
    words = {"money": ("payment", "cash", "páyment", "cash flow", "none", "nil"), "river": ("Rhine",)}
    where = {"payment": [3, 9], "cash": [4, 7], "páyment": [3, 9], "cash flow": [4, 7], "none": [], "nil": []}
    labels = labels_of(words, places({**where, "Rhine": [3, 8]}, lengths={"cash flow": 2}))
    scores = scores_of([[6, 4, 6, 1, 0, 0, 2]], counts=[2, 2, 2, 2, 0, 0, 2])
    assert np.exp(label_logs(labels.numbers, scores, "words")[0, 0]) == pytest.approx((3 + 2 + 0.5) / 3)
    assert np.exp(label_logs(labels.numbers, scores, "occurrences")[0, 0]) == pytest.approx((6 + 4 + 1) / 6)
    once, missing = labels.notes
    assert "'payment' and 'páyment' of the label 'money'" in once and "count once" in once
    assert missing.startswith("2 of the 6 words")


def test_words_of_two_labels_at_the_same_places_are_refused_with_both_named() -> None:
    words = {"money": ("cash", "payment"), "form": ("sheet", "páyment")}
    labels_of(words, places({"cash": [1], "payment": [3, 9], "sheet": [2], "páyment": [3, 10]}, lengths={}))
    with pytest.raises(SettingError, match="'payment' and 'páyment' of 'money' and 'form'"):
        labels_of(words, places({"cash": [1], "payment": [3, 9], "sheet": [2], "páyment": [3, 9]}, lengths={}))


RATINGS = [Label(value=0, name="bad", words=["terrible"]), Label(value=1, name="good", words=["great"])]
TOY = Task(
    name="toy", suite="closed", data=TaskData(file="t.jsonl"), template="{{ text }} It was <mask>.", labels=RATINGS
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
