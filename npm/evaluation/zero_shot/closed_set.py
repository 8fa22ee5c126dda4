"""Closed tasks: methods choose among the labels of a task; accuracy, macro F1 and the confusion of labels.

Shapes: n examples, C labels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from npm.core.errors import SettingError
from npm.core.files import sha256_of_bytes
from npm.core.types import Progress, silent
from npm.evaluation.metrics import Interval, bootstrap_interval
from npm.evaluation.tasks.task import ClosedMethod, Example, LabelPrediction, OpenMethod, Suite, Task, TaskScores

BLIND_METHODS = ("majority",)
"""Methods that give every example the same label by what they are, which is worth no note."""
SUM_TOLERANCE = 1e-4
"""How far the scores of an example may be from 1 in sum: float32 rounding, not a method that forgot to divide."""


@dataclass(frozen=True, slots=True)
class ClosedMethodResult:
    """What one method answered to all examples of a task, and how often it was right."""

    name: str
    predictions: tuple[LabelPrediction, ...]
    accuracy: Interval
    macro_f1: float
    confusion: np.ndarray  # i64 [C, C], examples by gold label (row) and predicted label (column)
    facts: dict[str, Any]  # what the predictions depend on, as the method says

    @property
    def predicted_counts(self) -> np.ndarray:
        """How often each label was predicted: i64 [C]."""
        counts: np.ndarray = self.confusion.sum(0)  # i64 [C]
        return counts


@dataclass(frozen=True, slots=True)
class ClosedTaskResult:
    """One closed task, answered by one or more methods on the same examples."""

    task: Task
    examples: tuple[Example, ...]
    methods: tuple[ClosedMethodResult, ...]
    overlap: np.ndarray | None = None  # bool [n], examples that stand in the corpus; None where it was not looked for

    @property
    def gold_counts(self) -> np.ndarray:
        """How many examples have each label: i64 [C]."""
        return np.bincount([example.label for example in self.examples], minlength=len(self.task.labels))  # i64 [C]

    def scores(self) -> TaskScores:
        """The task's row of a table."""
        accuracies = {method.name: method.accuracy for method in self.methods}
        return TaskScores(self.task.name, len(self.examples), accuracies, paper=dict(self.task.paper))

    def notes(self) -> list[str]:
        """What a reader of the table should know: texts cut, a method's own notes, methods that see no difference."""
        found = []
        if cut := sum(example.cut for example in self.examples):
            found.append(
                f"{self.task.name}: {cut} of {len(self.examples)} texts were cut to the longest prompt allowed."
            )
        if blank := sum(example.blank for example in self.examples):
            found.append(f"{self.task.name}: {blank} of {len(self.examples)} examples have nothing in their fields.")
        if self.overlap is not None and self.overlap.any():
            shares = ", ".join(f"{method.name} {100 * self._elsewhere(method):.1f}" for method in self.methods)
            found.append(
                f"{self.task.name}: {self.overlap.sum()} of {len(self.examples)} examples stand in the corpus; "
                f"accuracy without them: {shares}."
            )
        for method in self.methods:
            found += [f"{self.task.name}, {method.name}: {note}" for note in method.facts.get("notes", ())]
            only = np.flatnonzero(method.predicted_counts)  # i64 [labels predicted]
            if len(only) == 1 < np.count_nonzero(self.gold_counts) and method.name not in BLIND_METHODS:
                name = self.task.labels[only[0]].name
                found.append(f"{self.task.name}: {method.name} answers {name!r} to every example.")
        return found

    def _elsewhere(self, method: ClosedMethodResult) -> float:
        """Accuracy on the examples that do not stand in the corpus."""
        assert self.overlap is not None, "asked for where overlap was not looked for"
        right = np.array(
            [p.label == each.label for p, each in zip(method.predictions, self.examples, strict=True)]
        )  # bool [n]
        return float(right[~self.overlap].mean()) if not self.overlap.all() else float("nan")

    def metrics(self) -> dict[str, Any]:
        """The task's part of metrics.json."""
        names = [label.name for label in self.task.labels]
        return {
            "suite": Suite.closed.value,
            "count": len(self.examples),
            "cut_count": sum(example.cut for example in self.examples),
            "standing_in_corpus": None if self.overlap is None else int(self.overlap.sum()),
            "examples_sha256": examples_digest(self.examples),
            "task_sha256": self.task.digest,
            "labels": names,
            "gold_counts": self.gold_counts.tolist(),
            "methods": {
                method.name: {
                    "accuracy": asdict(method.accuracy),
                    "macro_f1": method.macro_f1,
                    "confusion": method.confusion.tolist(),
                    "predicted_counts": method.predicted_counts.tolist(),
                    "facts": method.facts,
                }
                for method in self.methods
            },
        }

    def records(self) -> Iterator[dict[str, Any]]:
        """The task's lines of predictions.jsonl: an example and a method each; `scores` are in the order of labels."""
        names = [label.name for label in self.task.labels]
        for method in self.methods:
            for example, prediction in zip(self.examples, method.predictions, strict=True):
                yield {
                    "task": self.task.name,
                    "method": method.name,
                    "id": example.id,
                    "text": example.text,
                    "gold": names[example.label],
                    "prediction": names[prediction.label],
                    "correct": prediction.label == example.label,
                    **prediction.record(),
                }


def evaluate_closed(
    task: Task,
    examples: Sequence[Example],
    methods: Sequence[ClosedMethod],
    *,
    overlap: np.ndarray | None = None,
    seed: int = 0,
    resamples: int = 10_000,
    progress: Progress = silent,
) -> ClosedTaskResult:
    """Ask each method for the labels of all examples and count what is right.

    `overlap` bool [n] says which examples stand in the corpus; notes say the accuracy without them.

    `seed` and `resamples` are those of the bootstrap; every method is resampled with the same draws, so that columns
    can be compared. `progress` counts examples times methods. Raises SettingError without examples or methods, and
    whatever a method raises; ValueError if a method does not answer with one score a label and example.
    """
    check_something_to_do(task, examples, methods)
    gold = np.array([example.label for example in examples], dtype=np.int64)  # i64 [n]
    results: list[ClosedMethodResult] = []
    for number, method in enumerate(methods):

        def method_progress(stage: str, done: float, _: float | None, before: int = number * len(examples)) -> None:
            progress(stage, before + done, len(examples) * len(methods))

        predictions = method.predict(task, examples, method_progress)
        # a method of ours that is wrong is refused before its numbers are taken for a result
        if len(predictions) != len(examples):
            raise ValueError(
                f"{method.name}: {len(predictions)} predictions for {len(examples)} examples of {task.name}"
            )
        for example, prediction in zip(examples, predictions, strict=True):
            # NaN fails the comparison too
            if len(prediction.scores) != len(task.labels) or not abs(sum(prediction.scores) - 1) <= SUM_TOLERANCE:
                raise ValueError(f"{method.name}, example {example.id} of {task.name}: scores {prediction.scores}")
        predicted = np.array([prediction.label for prediction in predictions], dtype=np.int64)  # i64 [n]
        confusion = confusion_counts(gold, predicted, len(task.labels))  # i64 [C, C]
        results.append(
            ClosedMethodResult(
                name=method.name,
                predictions=tuple(predictions),
                accuracy=bootstrap_interval(predicted == gold, np.random.default_rng(seed), resamples=resamples),
                macro_f1=macro_f1(confusion),
                confusion=confusion,
                facts=method.facts(),
            )
        )
    return ClosedTaskResult(task, tuple(examples), tuple(results), overlap)


def confusion_counts(gold: np.ndarray, predicted: np.ndarray, label_count: int) -> np.ndarray:
    """Examples by gold label (row) and predicted label (column), i64 [C, C], of `gold` and `predicted` i64 [n].

    >>> confusion_counts(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    cells = np.bincount(gold * label_count + predicted, minlength=label_count**2)  # i64 [C·C]
    return cells.reshape(label_count, label_count)  # i64 [C, C]


def macro_f1(confusion: np.ndarray) -> float:
    """Mean over labels of F1 = 2 · right / (gold + predicted), from `confusion` i64 [C, C].

    Labels that neither the examples nor the predictions have are left out (Opitz and Burst 2019, arXiv 1911.03347).

    >>> round(macro_f1(np.array([[1, 1, 0], [0, 1, 0], [0, 0, 0]])), 4)
    0.6667
    """
    right = np.diagonal(confusion)  # i64 [C]
    mentioned = confusion.sum(0) + confusion.sum(1)  # i64 [C]
    known = mentioned > 0  # bool [C]
    return float(np.mean(2 * right[known] / mentioned[known]))


def examples_digest(examples: Sequence[Example]) -> str:
    """SHA-256 over ids, texts and what is right: equal for two runs that were asked the same."""
    asked = [[each.id, each.text, each.label, list(each.answers), each.group] for each in examples]
    return sha256_of_bytes(json.dumps(asked, ensure_ascii=False).encode())


def check_something_to_do(
    task: Task, examples: Sequence[Example], methods: Sequence[ClosedMethod | OpenMethod]
) -> None:
    """Raise SettingError without examples or methods, or if a method is named twice."""
    if not examples:
        raise SettingError(f"task {task.name} has no examples: choose another file, split or limit")
    check_distinct([method.name for method in methods])


def check_distinct(methods: Sequence[str]) -> None:
    """Raise SettingError without methods, or if one is named twice."""
    if not methods or len(set(methods)) < len(methods):
        raise SettingError(f"method must have one or more names, each once, got [{', '.join(methods)}]")
