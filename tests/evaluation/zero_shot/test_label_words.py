from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npm.core.errors import SettingError
from npm.evaluation.tasks.task import LabelMean
from npm.evaluation.zero_shot.occurrences import WordOccurrences, WordScores, find_occurrences
from npm.evaluation.zero_shot.verbalizers import LabelWords, label_logs, label_shares
from tests.evaluation.zero_shot.word_indexes import index_of_texts
from tests.helpers.tiny_models import SENTENCES, tiny_encoder


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
    with pytest.raises(SettingError, match=r"task t: .*'bad'.*awful \(0\), great \(5\)"):
        LABELS.check(occurrences, where="task t")


def places(of_words: dict[str, list[int]], lengths: dict[str, int]) -> WordOccurrences:
    """Words at token positions."""
    offsets = np.cumsum([0, *map(len, of_words.values())])
    starts = np.array([start for own in of_words.values() for start in own])
    tokens = np.repeat([lengths.get(word, 1) for word in of_words], np.diff(offsets))
    return WordOccurrences(tuple(of_words), offsets, starts, tokens, starts, starts, np.diff(offsets))


def test_words_of_one_label_at_the_same_places_count_once() -> None:
    labels = LabelWords(("money", "river"), (("payment", "cash", "páyment", "cash flow", "none", "nil"), ("Rhine",)))
    where = {"payment": [3, 9], "cash": [4, 7], "páyment": [3, 9], "cash flow": [4, 7], "none": [], "nil": []}
    occurrences = places({**where, "Rhine": [3, 8]}, lengths={"cash flow": 2})
    scores = scores_of([[6, 4, 6, 1, 0, 0, 2]], counts=[2, 2, 2, 2, 0, 0, 2])
    assert np.exp(label_logs(scores, labels, LabelMean.words)[0, 0]) == pytest.approx((3 + 2 + 3 + 0.5) / 4)
    for _ in range(2):
        labels.check(occurrences, where="task t")
        assert np.exp(label_logs(scores, labels, LabelMean.words)[0, 0]) == pytest.approx((3 + 2 + 0.5) / 3)
        assert np.exp(label_logs(scores, labels, LabelMean.occurrences)[0, 0]) == pytest.approx((6 + 4 + 1) / 6)
        once, missing = labels.notes(occurrences)
        assert "'payment' and 'páyment' of the label 'money'" in once and "count once" in once
        assert missing.startswith("2 of the 5 words")


def test_words_of_two_labels_at_the_same_places_are_refused_with_both_named() -> None:
    labels = LabelWords(("money", "form"), (("cash", "payment"), ("sheet", "páyment")))
    apart = places({"cash": [1], "payment": [3, 9], "sheet": [2], "páyment": [3, 10]}, lengths={})
    labels.check(apart, where="task t")
    with pytest.raises(SettingError, match="'payment' of the label 'money' and 'páyment' of 'form'"):
        labels.check(places(dict(zip(labels.words, [[1], [3, 9], [2], [3, 9]], strict=True)), {}), where="task t")


def test_an_uncased_index_refuses_labels_that_only_an_accent_tells_apart(tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    index = index_of_texts(tmp_path / "index", SENTENCES, encoder)
    labels = LabelWords(("here", "there"), (("Paris",), ("páris",)))
    with pytest.raises(SettingError, match="'Paris' of the label 'here' and 'páris'"):
        labels.check(find_occurrences(index, encoder, labels.words), where="task t")
    one = LabelWords(("here", "there"), (("Paris", "páris"), ("Oslo",)))
    one.check(find_occurrences(index, encoder, one.words), where="task t")
    assert [len(numbers) for numbers in one.numbers] == [1, 1]
