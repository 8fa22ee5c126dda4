"""Two evaluations of the same examples: difference A − B, paired bootstrap and exact McNemar test.

A line with `predictions` is a document with that many masked tokens, of which `correct` are right: entire documents are
drawn, and no test of single examples is made.

Shapes: n examples that both runs answered, r resamples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from npm.core.artifact import check_folder
from npm.core.display import Table
from npm.core.errors import ArtifactError, SettingError, damaged
from npm.evaluation.metrics import Interval, bootstrap_interval, percent, percentile_interval
from npm.evaluation.results import EVALUATION_KIND, PREDICTIONS

LINE_TYPES = {"task": str, "method": str, "id": str, "text": str, "gold": object, "correct": int}
"""Keys of a line of predictions.jsonl that are read."""
Line = Mapping[str, Any]
Answers = dict[tuple[str, str], dict[str, Line]]  # (task, method) → example id → line


@dataclass(frozen=True, slots=True)
class Comparison:
    """One task, or the average of several, by a method of run A and one of run B."""

    task: str
    methods: str
    count: int | None  # examples that both answered; None of an average
    share_a: float  # of them right in A
    share_b: float
    difference: Interval  # share_a − share_b, paired bootstrap; of an average within each task
    only_a: int | None = None  # right in A, wrong in B; None where only counts by document are known
    only_b: int | None = None
    p_value: float | None = None  # exact McNemar test; not corrected for the number of comparisons


@dataclass(frozen=True, slots=True)
class RunComparison:
    """All tasks that two runs share, then averages of methods with more than one."""

    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()


def compare_results(
    a: str | Path, b: str | Path, *, methods: tuple[str, str] | None = None, seed: int = 0, resamples: int = 10_000
) -> RunComparison:
    """Compare the result folders `a` and `b` on every example, by task and id, that both answered.

    Methods of equal names are compared; `methods` names one of `a` and one of `b` instead, which may be the same
    folder. Where each folder has a single method, these two are compared, even with different names. Every example
    counts the same, also of tasks whose reported number is a mean over groups. Examples that are not in both, and those
    with different prompts in the two, are counted in the notes.

    Raises ArtifactError for a folder without such predictions or with a damaged file, SettingError if the two share
    nothing or disagree on what is right.
    """
    a, b = Path(a), Path(b)
    where = f"{a}, {b}"
    answers_a = read_answers(a)
    answers_b = answers_a if a == b else read_answers(b)
    found: list[Comparison] = []
    notes: dict[str, None] = {}
    for task, method_a, method_b in _shared(answers_a, answers_b, methods, where=where):
        lines_a, lines_b = answers_a[task, method_a], answers_b[task, method_b]
        shared = [(line, lines_b[example]) for example, line in lines_a.items() if example in lines_b]
        if not shared:
            raise SettingError(
                f"{where} have no example of {task} in common: evaluate both with the same split and seed"
            )
        for ours, theirs in shared:
            if ours["gold"] != theirs["gold"]:
                raise SettingError(
                    f"{where} are of different data: the gold of example {ours['id']} of {task} is "
                    f"{ours['gold']!r:.80} in A and {theirs['gold']!r:.80} in B"
                )
        if len(shared) < max(len(lines_a), len(lines_b)):
            notes[f"{task}: {len(shared)} examples are in both, of {len(lines_a)} in A and {len(lines_b)} in B."] = None
        if other := sum(ours["text"] != theirs["text"] for ours, theirs in shared):
            notes[f"{task}: A and B asked with different prompts in {other} of {len(shared)} examples."] = None
        name = method_a if method_a == method_b else f"{method_a} / {method_b}"
        found.append(_compared(task, name, shared, np.random.default_rng(seed), resamples=resamples))
    by_methods: dict[str, list[Comparison]] = {}
    for each in found:
        by_methods.setdefault(each.methods, []).append(each)
    several = [own for own in by_methods.values() if len(own) > 1]
    found += [average_of(own, np.random.default_rng(seed), resamples=resamples) for own in several]
    return RunComparison(tuple(found), tuple(notes))


def _compared(
    task: str, methods: str, shared: Sequence[tuple[Line, Line]], rng: np.random.Generator, *, resamples: int
) -> Comparison:
    """One task by the lines of each example in both runs."""
    rights = np.array([(ours["correct"], theirs["correct"]) for ours, theirs in shared], dtype=np.float64).T  # [2, n]
    counts = np.array([ours.get("predictions", 1) for ours, _ in shared])  # i64 [n]
    share_a, share_b = (rights.sum(axis=1) / counts.sum()).tolist()
    difference = bootstrap_interval(rights[0] - rights[1], rng, counts=counts, resamples=resamples)
    found = Comparison(task, methods, int(counts.sum()), share_a, share_b, difference)
    if any("predictions" in ours for ours, _ in shared):
        return found
    only_a, only_b = int((rights[0] > rights[1]).sum()), int((rights[1] > rights[0]).sum())
    return replace(found, only_a=only_a, only_b=only_b, p_value=mcnemar_p_value(only_a, only_b))


def comparison_table(comparison: RunComparison) -> Table:
    """Table of all comparisons: shares in per cent, differences in percentage points."""
    header = ["task", "method", "examples", "A, %", "B, %", "A − B [95 %]", "only A right", "only B right", "p"]
    rows = []
    for each in comparison.comparisons:
        counts = ("" if count is None else str(count) for count in (each.only_a, each.only_b))
        shares = (f"{100 * share:.1f}" for share in (each.share_a, each.share_b))
        p_value = "" if each.p_value is None else f"{each.p_value:.2g}"
        count = "" if each.count is None else str(each.count)
        rows.append([each.task, each.methods, count, *shares, percent(each.difference, sign="+"), *counts, p_value])
    return Table("", header, rows, range(2, len(header)))


def mcnemar_p_value(only_a: int, only_b: int) -> float:
    """Two-sided exact McNemar test (McNemar 1947): P(|X − m/2| ≥ |only_a − m/2|), X ~ Binomial(m, ½), m both together.

    >>> mcnemar_p_value(1, 5), mcnemar_p_value(3, 3), mcnemar_p_value(0, 0)
    (0.21875, 1.0, 1.0)
    """
    from scipy.stats import binomtest  # a second to import

    return float(binomtest(only_a, only_a + only_b, 0.5).pvalue) if only_a + only_b else 1.0


def average_of(found: Sequence[Comparison], rng: np.random.Generator, *, resamples: int) -> Comparison:
    """The mean over tasks of one method, and its interval when examples are resampled within each task.

    To resample n differences of −1, 0 and 1 is to draw how many there are of each from a multinomial distribution.
    """
    means = np.zeros(resamples)  # f64 [r]
    for each in found:
        assert each.count is not None and each.only_a is not None and each.only_b is not None, "compared by example"
        shares = np.array([each.only_a, each.only_b, each.count - each.only_a - each.only_b]) / each.count  # f64 [3]
        drawn = rng.multinomial(each.count, shares, size=resamples)  # i64 [r, 3]
        means += (drawn[:, 0] - drawn[:, 1]) / (each.count * len(found))
    share_a, share_b, difference = np.mean([[e.share_a, e.share_b, e.difference.mean] for e in found], axis=0).tolist()
    interval = percentile_interval(difference, means)
    return Comparison(f"average of {len(found)}", found[0].methods, None, share_a, share_b, interval)


def read_answers(folder: Path) -> Answers:
    """Lines of predictions.jsonl of a result folder, by task and method in the order of the file.

    Raises ArtifactError if the folder has no results, a file is damaged, or it is of a task that has no right and wrong
    answers by example.
    """
    check_folder(folder, kind=EVALUATION_KIND, hash_all=True).file(PREDICTIONS)
    answers: Answers = {}
    with (folder / PREDICTIONS).open("rb") as lines:
        for number, data in enumerate(lines, start=1):
            try:
                line = json.loads(data)
            except ValueError as error:
                raise damaged(folder / PREDICTIONS, f"line {number} is not JSON ({error})") from error
            has_keys = isinstance(line, dict) and line.keys() >= LINE_TYPES.keys()
            if not (has_keys and all(isinstance(line[key], kind) for key, kind in LINE_TYPES.items())):
                raise ArtifactError(
                    f"{folder / PREDICTIONS} has a line without {', '.join(LINE_TYPES)}; compare two folders that "
                    "npmlm evaluate suite=… or task=… wrote"
                )
            kept = {key: line[key] for key in line.keys() & {*LINE_TYPES, "predictions"}}
            answers.setdefault((line["task"], line["method"]), {})[line["id"]] = kept
    return answers


def _shared(a: Answers, b: Answers, methods: tuple[str, str] | None, *, where: str) -> list[tuple[str, str, str]]:
    """Each task with a method of A and one of B that are compared."""
    names_a, names_b = (list(dict.fromkeys(method for _, method in each)) for each in (a, b))
    pairs = [(name, name) for name in names_a if name in names_b]
    if methods is not None:
        pairs = [methods]
    elif len(names_a) == len(names_b) == 1:
        pairs = [(names_a[0], names_b[0])]
    shared = [(task, own, other) for own, other in pairs for task, method in a if method == own and (task, other) in b]
    if not shared:
        asked = "" if methods is None else f" for {methods[0]} in A and {methods[1]} in B"
        held_a, held_b = (", ".join(f"{task} by {method}" for task, method in each) or "no answers" for each in (a, b))
        raise SettingError(f"{where} have no task and method in common{asked}: A has {held_a}; B has {held_b}")
    return shared
