"""The words of all labels in one list, and how the evidence of a label's words becomes the label's.

Shapes: q examples, W words of all labels, L labels, w words of one label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npm.errors import SettingError
from npm.evaluation.task import LabelMean

if TYPE_CHECKING:
    from npm.retrieval.occurrences import WordOccurrences
    from npm.retrieval.word_scores import WordScores

WORDS_NAMED = 12
"""So many words a message lists."""


class LabelWords:
    """The words that stand for each label: a word may stand for several labels, and is looked for once."""

    def __init__(self, names: tuple[str, ...], words: tuple[tuple[str, ...], ...]) -> None:
        """`names` of the labels [L], and the words of each in the same order."""
        self.names = names
        self.words = tuple(dict.fromkeys(word for of_label in words for word in of_label))
        number_of = {word: number for number, word in enumerate(self.words)}
        self.numbers = [np.array([number_of[word] for word in dict.fromkeys(each)], dtype=np.int64) for each in words]

    def check(self, occurrences: WordOccurrences, *, where: str) -> None:
        """Raise SettingError if none of a label's words has an occurrence with vectors."""
        counts, totals = occurrences.counts, occurrences.total_counts  # i64 [W] each
        for name, numbers in zip(self.names, self.numbers, strict=True):
            if not counts[numbers].any():
                shown = ", ".join(f"{self.words[n]} ({totals[n]})" for n in numbers[:WORDS_NAMED].tolist())
                raise SettingError(
                    f"the corpus holds no word of the label {name!r}",
                    expected="at least one of its words in the corpus, with vectors at its ends",
                    got=f"none of {len(numbers)}, by how often they stand there at all: {shown}",
                    where=where,
                    fix="give the label other words with closed.verbalizer, or take a corpus that uses them; "
                    "npmlm inspect index=… says which tokens have vectors",
                )

    def counts(self, occurrences: WordOccurrences) -> dict[str, dict[str, int]]:
        """How many occurrences with vectors each word of each label has."""
        counts = occurrences.counts.tolist()
        return {
            name: {self.words[number]: counts[number] for number in numbers.tolist()}
            for name, numbers in zip(self.names, self.numbers, strict=True)
        }

    def notes(self, occurrences: WordOccurrences) -> list[str]:
        """One line for each label some of whose words have no occurrence."""
        counts, totals = occurrences.counts, occurrences.total_counts  # i64 [W] each
        notes = []
        for name, numbers in zip(self.names, self.numbers, strict=True):
            missing = numbers[counts[numbers] == 0].tolist()
            if missing:
                shown = [
                    f"{self.words[n]} ({totals[n]} without vectors)" if totals[n] else self.words[n] for n in missing
                ]
                more = ", …" if len(shown) > WORDS_NAMED else ""
                notes.append(
                    f"{len(missing)} of the {len(numbers)} words of the label {name!r} are not in the corpus: "
                    + ", ".join(shown[:WORDS_NAMED])
                    + more
                )
        return notes

    def best_words(self, best_logs: np.ndarray) -> np.ndarray:
        """The word with the heaviest occurrence for each label, i64 [q, L], by what these weigh f64 [q, W]."""
        return np.stack([of_label[best_logs[:, of_label].argmax(axis=1)] for of_label in self.numbers], axis=1)


def label_logs(scores: WordScores, labels: LabelWords, mean: LabelMean) -> np.ndarray:
    """log of each label's evidence, f64 [q, L]; -inf without any.

    With E_v the evidence of word v over its n_v occurrences: `sum` is Σ E_v, `occurrences` is Σ E_v / Σ n_v, `words` is
    the mean of E_v / n_v over the words that have occurrences.
    """
    columns = []
    for numbers in labels.numbers:
        held = numbers[scores.counts[numbers] > 0]  # i64 [w]
        logs = scores.log_sums[:, held]  # f64 [q, w]
        if mean is LabelMean.words:
            columns.append(_log_sum(logs - np.log(scores.counts[held])) - np.log(len(held)))
        else:
            count = scores.counts[held].sum() if mean is LabelMean.occurrences else 1
            columns.append(_log_sum(logs) - np.log(count))
    return np.stack(columns, axis=1)  # [q, L]


def label_shares(logs: np.ndarray) -> np.ndarray:
    """e^x over the sum of its row, f64 [q, L]; equal shares where no label has evidence.

    >>> label_shares(np.log([[1.0, 3.0]])).round(6).tolist()
    [[0.25, 0.75]]
    >>> label_shares(np.full((1, 2), -np.inf)).tolist()
    [[0.5, 0.5]]
    """
    tops = logs.max(axis=1, keepdims=True)  # f64 [q, 1]
    weights = np.where(np.isneginf(tops), 1.0, np.exp(logs - np.where(np.isneginf(tops), 0.0, tops)))  # f64 [q, L]
    return weights / weights.sum(axis=1, keepdims=True)


def _log_sum(logs: np.ndarray) -> np.ndarray:
    """log Σ e^x of each row, f64 [q]; -inf of a row of -inf."""
    return np.logaddexp.reduce(logs, axis=1)
