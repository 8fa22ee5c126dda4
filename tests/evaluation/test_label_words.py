from __future__ import annotations

import numpy as np
import pytest

from npm.errors import SettingError
from npm.evaluation.label_words import LabelWords, label_logs, label_shares
from npm.evaluation.task import LabelMean
from npm.retrieval.occurrences import WordOccurrences
from npm.retrieval.word_scores import WordScores


def scores_of(sums: list[list[float]], counts: list[int]) -> WordScores:
    evidence = np.array(sums)
    logs = np.log(evidence, out=np.full(evidence.shape, -np.inf), where=evidence > 0)
    return WordScores(log_sums=logs, counts=np.array(counts), best=np.zeros(logs.shape, dtype=np.int64), best_logs=logs)


def occurrences_of(counts: dict[str, int], totals: list[int]) -> WordOccurrences:
    offsets = np.cumsum([0, *counts.values()])
    of_each = np.arange(offsets[-1])
    return WordOccurrences(tuple(counts), offsets, of_each, of_each, of_each, of_each, np.array(totals))


LABELS = LabelWords(("good", "bad"), (("great", "fine", "superb"), ("awful", "great")))


def test_a_word_of_two_labels_is_looked_for_once() -> None:
    assert LABELS.words == ("great", "fine", "superb", "awful")
    assert [numbers.tolist() for numbers in LABELS.numbers] == [[0, 1, 2], [3, 0]]


@pytest.mark.parametrize(
    ("mean", "expected"),
    [
        (LabelMean.sum, [6 + 2 + 0, 3 + 6]),
        (LabelMean.occurrences, [(6 + 2) / (4 + 1), (3 + 6) / (2 + 4)]),
        (LabelMean.words, [(6 / 4 + 2 / 1) / 2, (3 / 2 + 6 / 4) / 2]),
    ],
)
def test_means_over_occurrences_and_words_by_hand(mean: LabelMean, expected: list[float]) -> None:
    scores = scores_of([[6, 2, 0, 3]], counts=[4, 1, 0, 2])
    assert np.exp(label_logs(scores, LABELS, mean)[0]).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("mean", list(LabelMean))
def test_a_label_without_evidence_has_none_whatever_the_mean(mean: LabelMean) -> None:
    scores = scores_of([[0, 0, 0, 3], [0, 0, 0, 0]], counts=[4, 1, 0, 2])
    logs = label_logs(scores, LABELS, mean)
    assert np.isneginf(logs).tolist() == [[True, False], [True, True]]
    assert label_shares(logs).tolist() == [[0, 1], [0.5, 0.5]]


@pytest.mark.parametrize("mean", list(LabelMean))
def test_means_equal_plain_sums_over_random_words(mean: LabelMean) -> None:
    rng = np.random.default_rng(3)
    words = tuple(tuple(f"{label}-{word}" for word in range(rng.integers(1, 6))) for label in range(4))
    labels = LabelWords(tuple("abcd"), words)
    counts = rng.integers(1, 9, len(labels.words))
    sums = rng.random((7, len(labels.words)))
    got = np.exp(label_logs(scores_of(sums.tolist(), counts.tolist()), labels, mean))
    for query in range(7):
        for label, of_label in enumerate(words):
            pairs = [(sums[query, n], counts[n]) for n in (labels.words.index(word) for word in of_label)]
            expected = sum(evidence for evidence, _ in pairs)
            if mean is LabelMean.occurrences:
                expected /= sum(count for _, count in pairs)
            elif mean is LabelMean.words:
                expected = sum(evidence / count for evidence, count in pairs) / len(pairs)
            assert got[query, label] == pytest.approx(expected)


def test_words_that_the_corpus_lacks_are_told_with_counts() -> None:
    occurrences = occurrences_of({"great": 2, "fine": 0, "superb": 0, "awful": 1}, totals=[2, 0, 7, 1])
    LABELS.check(occurrences, where="task t")
    assert LABELS.counts(occurrences) == {
        "good": {"great": 2, "fine": 0, "superb": 0},
        "bad": {"awful": 1, "great": 2},
    }
    (note,) = LABELS.notes(occurrences)
    assert note.startswith("2 of the 3 words of the label 'good' are not in the corpus: ")
    assert note.endswith("fine, superb (7 without vectors)")


def test_a_label_none_of_whose_words_the_corpus_holds_is_refused_with_counts() -> None:
    occurrences = occurrences_of({"great": 0, "fine": 3, "superb": 0, "awful": 0}, totals=[5, 3, 0, 0])
    with pytest.raises(SettingError) as refused:
        LABELS.check(occurrences, where="task t")
    assert "'bad'" in refused.value.problem
    assert "awful (0), great (5)" in refused.value.got
    assert refused.value.where == "task t"
