from __future__ import annotations

import numpy as np
import pytest

from npm.core.errors import SettingError
from npm.evaluation.methods.label_words import LabelWords, label_logs, label_shares
from npm.evaluation.methods.occurrences import WordOccurrences, WordScores
from npm.evaluation.tasks import Label, LabelMean, Suite, Task, TaskData, Verbalizer


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
    task = Task(name="t", suite=Suite.closed, data=TaskData(file="t"), template="{{ a }} <mask>", labels=labels)
    return LabelWords(task, Verbalizer("mine", tuple(words.values())), occurrences)


WORDS = {"good": ("great", "fine", "superb"), "bad": ("awful", "dull")}
COUNTS = {"great": 4, "fine": 1, "superb": 0, "awful": 2, "dull": 4}
LABELS = labels_of(WORDS, occurrences_of(COUNTS, [4, 1, 0, 2, 4]))


@pytest.mark.parametrize(
    ("mean", "expected"),
    [
        (LabelMean.sum, [6 + 2 + 0, 3 + 6]),
        (LabelMean.occurrences, [(6 + 2) / (4 + 1), (3 + 6) / (2 + 4)]),
        (LabelMean.words, [(6 / 4 + 2 / 1) / 2, (3 / 2 + 6 / 4) / 2]),
    ],
)
def test_means_over_occurrences_and_words_by_hand(mean: LabelMean, expected: list[float]) -> None:
    scores = scores_of([[6, 2, 0, 3, 6]], counts=[*COUNTS.values()])
    assert np.exp(label_logs(LABELS.numbers, scores, mean)[0]).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("mean", list(LabelMean))
def test_a_label_without_evidence_has_none_whatever_the_mean(mean: LabelMean) -> None:
    scores = scores_of([[0, 0, 0, 3, 0], [0, 0, 0, 0, 0]], counts=[*COUNTS.values()])
    logs = label_logs(LABELS.numbers, scores, mean)
    assert np.isneginf(logs).tolist() == [[True, False], [True, True]]
    assert label_shares(logs).tolist() == [[0, 1], [0.5, 0.5]]


@pytest.mark.parametrize("mean", list(LabelMean))
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
            if mean is LabelMean.occurrences:
                expected /= sum(count for _, count in pairs)
            elif mean is LabelMean.words:
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
    assert np.exp(label_logs(labels.numbers, scores, LabelMean.words)[0, 0]) == pytest.approx((3 + 2 + 0.5) / 3)
    assert np.exp(label_logs(labels.numbers, scores, LabelMean.occurrences)[0, 0]) == pytest.approx((6 + 4 + 1) / 6)
    once, missing = labels.notes
    assert "'payment' and 'páyment' of the label 'money'" in once and "count once" in once
    assert missing.startswith("2 of the 6 words")


def test_words_of_two_labels_at_the_same_places_are_refused_with_both_named() -> None:
    words = {"money": ("cash", "payment"), "form": ("sheet", "páyment")}
    labels_of(words, places({"cash": [1], "payment": [3, 9], "sheet": [2], "páyment": [3, 10]}, lengths={}))
    with pytest.raises(SettingError, match="'payment' and 'páyment' of 'money' and 'form'"):
        labels_of(words, places({"cash": [1], "payment": [3, 9], "sheet": [2], "páyment": [3, 9]}, lengths={}))
