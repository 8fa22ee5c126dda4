"""Two evaluations of the same examples, side by side: difference, paired bootstrap and exact McNemar test.

Masked tokens are counted by document: there whole documents are drawn, and no test of single examples is made.

Shapes: n examples that both runs answered, r resamples, T tasks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from npm.core.artifact import read_manifest, refuse_changed
from npm.core.errors import ArtifactError, SettingError
from npm.evaluation.metrics import Interval, bootstrap_interval
from npm.evaluation.report import Row, percent
from npm.evaluation.results import EVALUATION_KIND, read_predictions

CONFIDENCE = 0.95
MASKED_TOKENS = "masked_tokens"
_LINE_TYPES = {"task": str, "method": str, "id": str, "text": str, "correct": bool}


@dataclass(frozen=True, slots=True)
class Judged:
    """What a line of predictions.jsonl says about right and wrong."""

    gold: str  # JSON
    correct: bool
    prompt_sha256: bytes  # of the text that was asked


Judgements = dict[tuple[str, str], dict[str, Judged]]
"""(task, method) → example id → judgement."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One task, answered twice: by a method of run A and by one of run B."""

    task: str
    method_a: str
    method_b: str
    count: int  # examples that both answered
    share_a: float  # of them right in A
    share_b: float
    difference: Interval  # share_b − share_a, paired bootstrap
    only_a: int | None  # right in A, wrong in B; None where only counts by document are known, as below
    only_b: int | None
    p_value: float | None  # exact McNemar test; not corrected for the number of comparisons

    @property
    def methods(self) -> str:
        """As a table shows them."""
        return self.method_a if self.method_a == self.method_b else f"{self.method_a} / {self.method_b}"


@dataclass(frozen=True, slots=True)
class AverageComparison:
    """The mean over tasks, each of them counting the same."""

    methods: str
    task_count: int
    share_a: float
    share_b: float
    difference: Interval  # examples resampled within each task


@dataclass(frozen=True, slots=True)
class RunComparison:
    """All that two runs share."""

    comparisons: tuple[Comparison, ...]
    averages: tuple[AverageComparison, ...]  # of methods with more than one task
    notes: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def compare_results(
    a: str | Path,
    b: str | Path,
    *,
    methods: tuple[str, str] | None = None,
    seed: int = 0,
    resamples: int = 10_000,
) -> RunComparison:
    """Compare the result folders `a` and `b` on every example, by task and id, that both answered.

    Methods of equal names are compared; `methods` names one of `a` and one of `b` instead, which may be the same
    folder. Where each folder holds a single method, these two are compared whatever they are called. Every example
    counts the same, also of tasks whose reported number is a mean over groups. Examples that are not in both, and
    those that the two were asked with different prompts, are counted in the notes. Two results of `task=masked_tokens`
    are compared document by document, if the same tokens were masked.

    Raises ArtifactError for a folder without such predictions or with a damaged file, SettingError if the two share
    nothing or disagree on what is right.
    """
    a, b = Path(a), Path(b)
    if methods is None and (masked := _masked_tokens(a, b, seed=seed, resamples=resamples)) is not None:
        return RunComparison((masked,), (), ())
    judged_a = read_judgements(a)
    judged_b = judged_a if a == b else read_judgements(b)
    pairs = _method_pairs(judged_a, judged_b, methods, where=f"{a}, {b}")
    found: list[Comparison] = []
    notes: list[str] = []
    for method_a, method_b in pairs:
        for task in (task for task, method in judged_a if method == method_a and (task, method_b) in judged_b):
            lines_a, lines_b = judged_a[task, method_a], judged_b[task, method_b]
            rights = _paired(task, lines_a, lines_b, where=f"{a}, {b}")  # bool [2, n]
            if rights.shape[1] < max(len(lines_a), len(lines_b)):
                notes.append(
                    f"{task}: {rights.shape[1]} examples are in both, of {len(lines_a)} in A and {len(lines_b)} in B."
                )
            shared = lines_a.keys() & lines_b.keys()
            if other := sum(lines_a[each].prompt_sha256 != lines_b[each].prompt_sha256 for each in shared):
                notes.append(f"{task}: A and B asked with different prompts in {other} of {rights.shape[1]} examples.")
            found.append(_comparison(task, (method_a, method_b), rights, seed=seed, resamples=resamples))
    return RunComparison(
        tuple(found), tuple(_averages(found, seed=seed, resamples=resamples)), tuple(dict.fromkeys(notes))
    )


def comparison_rows(comparison: RunComparison) -> tuple[Row, list[Row]]:
    """Header and rows of a table: shares in per cent, differences in percentage points."""
    header = ["task", "method", "examples", "A, %", "B, %", "B − A [95 %]", "only A right", "only B right", "p"]
    rows: list[Row] = [
        [
            each.task,
            each.methods,
            str(each.count),
            *_shares(each.share_a, each.share_b, each.difference),
            "" if each.only_a is None else str(each.only_a),
            "" if each.only_b is None else str(each.only_b),
            "" if each.p_value is None else f"{each.p_value:.2g}",
        ]
        for each in comparison.comparisons
    ]
    for average in comparison.averages:
        shares = _shares(average.share_a, average.share_b, average.difference)
        rows.append([f"average of {average.task_count}", average.methods, "", *shares, "", "", ""])
    return header, rows


def mcnemar_p_value(only_a: int, only_b: int) -> float:
    """Two-sided exact McNemar test (McNemar 1947): P(|X − m/2| ≥ |only_a − m/2|), X ~ Binomial(m, ½), m both together.

    >>> mcnemar_p_value(1, 5), mcnemar_p_value(3, 3), mcnemar_p_value(0, 0)
    (0.21875, 1.0, 1.0)
    """
    from scipy.stats import binomtest  # takes a second to load, which the other verbs need not wait for

    return float(binomtest(only_a, only_a + only_b, 0.5).pvalue) if only_a + only_b else 1.0


def read_judgements(folder: Path) -> Judgements:
    """What predictions.jsonl of a result folder says, by task and method in the order of the file.

    Raises ArtifactError if the folder holds no results, a file is damaged, or it is of a task that has no right and
    wrong answers by example.
    """
    judged: Judgements = {}
    expected_keys = ", ".join([*_LINE_TYPES, "gold"])
    for where, line in read_predictions(folder):
        wrong = [key for key, kind in _LINE_TYPES.items() if not isinstance(line.get(key), kind)]
        if wrong or "gold" not in line:
            raise ArtifactError(
                f"{where}: expected an object with {expected_keys}; give two folders that npmlm evaluate suite=… or "
                "task=… wrote, or two of task=masked_tokens"
            )
        of_method = judged.setdefault((line["task"], line["method"]), {})
        if line["id"] in of_method:
            raise ArtifactError(f"{where}: {line['method']} answers the example {line['id']} of {line['task']} twice")
        prompt_sha256 = sha256(line["text"].encode()).digest()
        of_method[line["id"]] = Judged(json.dumps(line["gold"], sort_keys=True), line["correct"], prompt_sha256)
    return judged


def _masked_tokens(a: Path, b: Path, *, seed: int, resamples: int) -> Comparison | None:
    """Masked accuracy in A and B, paired by document; None unless both are results of `task=masked_tokens`.

    Raises ArtifactError, naming what differs, unless both were asked for the same masked tokens.
    """
    made = [read_manifest(folder, kind=EVALUATION_KIND).settings for folder in (a, b)]
    if any(each.get("task") != MASKED_TOKENS for each in made):
        return None
    asked = [
        {
            "settings": each["settings"],
            "corpus_digest": each["corpus_digest"],
            "tokenizer": each["encoder"]["tokenizer_fingerprint"],
        }
        for each in made
    ]
    refuse_changed(
        asked[0], asked[1], where=b, fix="evaluate both on the same file with the same settings and one tokenizer"
    )
    lines = [[line for _, line in read_predictions(folder)] for folder in (a, b)]
    masked = [
        {str(number): f"{line['document']}, {line['predictions']} tokens" for number, line in enumerate(each)}
        for each in lines
    ]
    refuse_changed(masked[0], masked[1], where=b, fix="evaluate both again")
    right_a, right_b = (np.array([line["correct"] for line in each], dtype=np.float64) for each in lines)  # [n] each
    counts = np.array([line["predictions"] for line in lines[0]])  # i64 [n] of each document
    return Comparison(
        task=MASKED_TOKENS,
        method_a=made[0]["encoder"]["name"],
        method_b=made[1]["encoder"]["name"],
        count=int(counts.sum()),
        share_a=float(right_a.sum() / counts.sum()),
        share_b=float(right_b.sum() / counts.sum()),
        difference=bootstrap_interval(
            right_b - right_a,
            np.random.default_rng(seed),
            counts=counts,
            resamples=resamples,
            confidence=CONFIDENCE,
        ),
        only_a=None,
        only_b=None,
        p_value=None,
    )


def _method_pairs(
    judged_a: Judgements, judged_b: Judgements, methods: tuple[str, str] | None, *, where: str
) -> list[tuple[str, str]]:
    names_a, names_b = (list(dict.fromkeys(method for _, method in each)) for each in (judged_a, judged_b))
    if methods is not None:
        pairs = [methods] if methods[0] in names_a and methods[1] in names_b else []
    elif len(names_a) == len(names_b) == 1:
        pairs = [(names_a[0], names_b[0])]
    else:
        pairs = [(name, name) for name in names_a if name in names_b]
    tasks = [task for task, method in judged_a if any(m == method and (task, n) in judged_b for m, n in pairs)]
    if not tasks:
        asked = "" if methods is None else f" for {methods[0]} in A and {methods[1]} in B"
        raise SettingError(
            f"{where} have no task and method in common{asked}: A has {_named(judged_a)}; B has {_named(judged_b)}"
        )
    return pairs


def _paired(task: str, a: Mapping[str, Judged], b: Mapping[str, Judged], *, where: str) -> np.ndarray:
    """Which of the examples in both are right in A (first row) and in B: bool [2, n]."""
    shared = [example for example in a if example in b]
    if not shared:
        raise SettingError(f"{where} have no example of {task} in common: evaluate both with the same split and seed")
    for example in shared:
        if a[example].gold != b[example].gold:
            raise SettingError(
                f"{where} are of different data: the gold of example {example} of {task} is {a[example].gold:.80} in A "
                f"and {b[example].gold:.80} in B"
            )
    return np.array([[each[example].correct for example in shared] for each in (a, b)])  # bool [2, n]


def _comparison(task: str, methods: tuple[str, str], rights: np.ndarray, *, seed: int, resamples: int) -> Comparison:
    """From `rights` bool [2, n]."""
    a, b = rights  # bool [n] each
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    return Comparison(
        task=task,
        method_a=methods[0],
        method_b=methods[1],
        count=rights.shape[1],
        share_a=float(a.mean()),
        share_b=float(b.mean()),
        difference=bootstrap_interval(
            b.astype(np.float64) - a, np.random.default_rng(seed), resamples=resamples, confidence=CONFIDENCE
        ),
        only_a=only_a,
        only_b=only_b,
        p_value=mcnemar_p_value(only_a, only_b),
    )


def _averages(found: Sequence[Comparison], *, seed: int, resamples: int) -> Iterator[AverageComparison]:
    for methods in dict.fromkeys(each.methods for each in found):
        of_methods = [each for each in found if each.methods == methods]
        if len(of_methods) > 1:
            yield AverageComparison(
                methods=methods,
                task_count=len(of_methods),
                share_a=float(np.mean([each.share_a for each in of_methods])),
                share_b=float(np.mean([each.share_b for each in of_methods])),
                difference=average_difference(of_methods, np.random.default_rng(seed), resamples=resamples),
            )


def average_difference(found: Sequence[Comparison], rng: np.random.Generator, *, resamples: int) -> Interval:
    """The mean over tasks of share_b − share_a, and its interval when examples are resampled within each task.

    To resample n differences of −1, 0 and 1 is to draw how many there are of each from a multinomial distribution.
    """
    means = np.zeros(resamples)  # f64 [r]
    for each in found:
        assert each.only_a is not None and each.only_b is not None, "tasks are averaged by example"
        shares = np.array([each.only_a, each.only_b, each.count - each.only_a - each.only_b]) / each.count  # f64 [3]
        drawn = rng.multinomial(each.count, shares, size=resamples)  # i64 [r, 3]
        means += (drawn[:, 1] - drawn[:, 0]) / (each.count * len(found))
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(np.mean([each.difference.mean for each in found])), float(low), float(high))


def _shares(a: float, b: float, difference: Interval) -> list[str]:
    return [f"{100 * a:.1f}", f"{100 * b:.1f}", percent(difference, sign="+")]


def _named(judged: Judgements) -> str:
    return ", ".join(f"{task} by {method}" for task, method in judged) or "no answers"
