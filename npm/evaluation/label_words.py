"""The words of all labels in one list, and how the evidence of a label's words becomes the label's.

Shapes: q examples, W words of all labels, L labels, w words of one label.
"""

from __future__ import annotations

from itertools import pairwise
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
        self._given = [np.array([number_of[word] for word in dict.fromkeys(each)], dtype=np.int64) for each in words]
        self.numbers = self._given  # L times i64 [w], the words that count for each label
        self._counted_once: list[str] = []

    def check(self, occurrences: WordOccurrences, *, where: str) -> None:
        """Raise SettingError if none of a label's words has an occurrence with vectors, or two labels share them all.

        From here on a label's words that are one to the tokenizer, and so found at the same places, count once.
        """
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
        self._count_once(occurrences, where)

    def _count_once(self, occurrences: WordOccurrences, where: str) -> None:
        alike = _alike(occurrences)
        owners: dict[int, tuple[str, int]] = {}  # first of the words that are alike → label and word it counts for
        kept: list[np.ndarray] = []
        self._counted_once = []
        for name, numbers in zip(self.names, self._given, strict=True):
            own: list[int] = []
            for number in numbers.tolist():
                owner, counted = owners.setdefault(alike.get(number, number), (name, number))
                if counted != number and owner != name:
                    raise self._indistinct((owner, counted), (name, number), occurrences, where)
                if counted == number:
                    own.append(number)
                else:
                    self._counted_once.append(
                        f"the words {self.words[counted]!r} and {self.words[number]!r} of the label {name!r} stand at "
                        "the same places of the corpus: they count once"
                    )
            kept.append(np.array(own, dtype=np.int64))
        self.numbers = kept

    def _indistinct(
        self, one: tuple[str, int], other: tuple[str, int], occurrences: WordOccurrences, where: str
    ) -> SettingError:
        named = " and ".join(f"{self.words[number]!r} of the label {name!r}" for name, number in (one, other))
        return SettingError(
            "two labels have words that cannot be told apart",
            expected="words of different labels at different places of the corpus",
            got=f"{named}, both at the same {occurrences.counts[one[1]]} places",
            where=where,
            fix="take one of them out with closed.verbalizer or in the task's labels, or choose an index whose encoder "
            "keeps case and accents",
        )

    def counts(self, occurrences: WordOccurrences) -> dict[str, dict[str, int]]:
        """How many occurrences with vectors each word of each label has."""
        counts = occurrences.counts.tolist()
        return {
            name: {self.words[number]: counts[number] for number in numbers.tolist()}
            for name, numbers in zip(self.names, self.numbers, strict=True)
        }

    def notes(self, occurrences: WordOccurrences) -> list[str]:
        """A line for each label some of whose words have no occurrence, and for words that `check` counts once."""
        counts, totals = occurrences.counts, occurrences.total_counts  # i64 [W] each
        notes = list(self._counted_once)
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

    def best_words(self, logs: np.ndarray) -> np.ndarray:
        """The word of each label with the most evidence, i64 [q, L], of `logs` f64 [q, W]."""
        return np.stack([of_label[logs[:, of_label].argmax(axis=1)] for of_label in self.numbers], axis=1)


def _alike(occurrences: WordOccurrences) -> dict[int, int]:
    """For each word that stands at just the places of an earlier one the first such word, by number."""
    firsts: dict[tuple[int, int], list[int]] = {}
    alike: dict[int, int] = {}
    for number, (first, stop) in enumerate(pairwise(occurrences.offsets.tolist())):
        if first == stop:
            continue
        same_beginning = firsts.setdefault((stop - first, int(occurrences.starts[first])), [])
        for earlier in same_beginning:
            begin = int(occurrences.offsets[earlier])
            here, there = slice(first, stop), slice(begin, begin + stop - first)
            if all(np.array_equal(each[here], each[there]) for each in (occurrences.starts, occurrences.lengths)):
                alike[number] = earlier
                break
        else:
            same_beginning.append(number)
    return alike


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
