"""Pictures of the answers of an evaluation: reliability diagrams and confusion matrices.

A reliability diagram shows the share of right answers over the score that they were given; a confusion matrix what the
examples of each label were taken for. Both are of predictions.jsonl, a panel for each task and method.

Shapes: n answers, b bins, C labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.settings import read_record
from npm.core.errors import ArtifactError, SettingError, named
from npm.core.figures import (
    GREY,
    NumberTable,
    Picture,
    check_panel_count,
    colour,
    folder_names,
    legend_below,
    new_figure,
    plain_axes,
    shown_name,
)
from npm.core.files import read_object
from npm.evaluation.metrics import Interval, wilson_interval
from npm.evaluation.report import percent
from npm.evaluation.results import METRICS, read_predictions
from npm.evaluation.zero_shot.closed_set import confusion_counts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


BINS = 10
HISTOGRAM_BINS = 10
CALIBRATED_DRAWS = 1000
SCORE_TOLERANCE = 1e-4
"""How far above 1 the score of an answer may be: float32 rounding."""
COLUMNS = 2
DARK = 0.68
"""Share from which a cell is so dark that white is easier to read in it than black."""
MOST_LABELS = 30


@dataclass(frozen=True, slots=True)
class Answered:
    """What a line of predictions.jsonl says of an answer."""

    right: bool
    score: float | None  # None: no phrase was found
    labels: tuple[str, str] | None  # of a closed task: the right one, and the one that was chosen


@dataclass(frozen=True, slots=True)
class _Phrase:
    score: float


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of predictions.jsonl of task `demo`, of a closed or of an open task."""

    task: str = "demo"
    method: str = "npm"
    correct: bool | None = None
    hit_rank: int | None = None  # of task demo, which has no `correct`
    scores: list[float] | None = None  # of the labels of a closed task
    phrases: list[Any] | None = None
    gold: Any = None
    prediction: str | None = None


@dataclass(frozen=True, slots=True)
class _TaskMetrics:
    labels: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MethodAnswers:
    """What one method answered to one task."""

    name: str  # of folder, task and method
    labels: tuple[str, ...]  # of a closed task, in its order
    answers: list[Answered]


def read_answers(
    folders: Sequence[Path], tasks: Sequence[str] = (), methods: Sequence[str] = ()
) -> list[MethodAnswers]:
    """The answers in result folders, of these tasks and methods alone where some are named.

    Raises SettingError without folders, or for a task or a method that none of them holds; ArtifactError for a folder
    without results, a damaged file, or results without right and wrong answers or without scores.
    """
    found: dict[str, MethodAnswers] = {}
    seen: dict[str, set[str]] = {"tasks": set(), "methods": set()}
    for folder_name, folder in zip(folder_names(folders), folders, strict=True):
        for where, content in read_predictions(folder):
            line = read_record(_Line, content, file=Path(where))
            seen["tasks"].add(line.task)
            seen["methods"].add(line.method)
            if (line.task in tasks or not tasks) and (line.method in methods or not methods):
                name = f"{folder_name}: {line.task}, {line.method}"
                if name not in found:
                    found[name] = MethodAnswers(name, _labels(folder, line.task), [])
                found[name].answers.append(_answered(line, "hit_rank" in content, where))
    for key, asked in (("tasks", tasks), ("methods", methods)):
        for each in asked:
            if each not in seen[key]:
                raise SettingError(
                    f"no folder holds answers of {each}",
                    expected=", ".join(sorted(seen[key])) or "a folder with answers",
                    got=each,
                    where=key,
                    fix=f"choose among these, or leave {key} out",
                )
    if not found:
        raise ArtifactError(
            "these folders hold no answer",
            expected="predictions.jsonl with a line for each answer",
            got="no line" if not tasks or not methods else "no line of these tasks by these methods",
            where=", ".join(map(str, folders)),
            fix="name the folder of an evaluation that answered something",
        )
    return list(found.values())


def _labels(folder: Path, task: str) -> tuple[str, ...]:
    """The labels of a closed task as metrics.json has them; none of another task. Raises ArtifactError."""
    file = folder / METRICS
    content = read_object(file, fix="evaluate again")
    tasks = read_record(dict[str, _TaskMetrics], content.get("tasks", {}), file=file, key="tasks")
    return tuple(tasks[task].labels) if task in tasks else ()


def _answered(line: _Line, is_demo: bool, where: str) -> Answered:
    """Raises ArtifactError for a line without right and wrong, or without a score that is a share of one."""
    is_closed = line.scores is not None and isinstance(line.gold, str) and line.prediction is not None
    lacks_right = line.correct is None and not is_demo
    if lacks_right or (not is_closed and line.phrases is None):
        raise ArtifactError(
            "these results hold no answers with scores",
            expected="results of task=demo, or of a closed or an open task with right and wrong answers",
            got="a line without " + ("right or wrong" if lacks_right else "scores"),
            where=where,
            fix="evaluate such a task, or choose another picture=",
        )
    labels: tuple[str, str] | None = None
    if is_closed:
        assert line.scores is not None and line.prediction is not None, "a closed task"
        score: float | None = max(line.scores, default=-1.0)
        labels = (str(line.gold), line.prediction)
    else:
        first = line.phrases[0] if line.phrases else None
        score = None if first is None else read_record(_Phrase, first, file=Path(where), key="phrases.0").score
    if score is not None and not 0 <= score <= 1 + SCORE_TOLERANCE:
        raise ArtifactError(
            "a score is no share of one",
            expected="scores from 0 to 1, which those of one answer share",
            got=f"{score:g} by {line.method}",
            where=where,
            fix="choose other methods with methods=[…], or evaluate without scoring=reference",
        )
    right = line.hit_rank == 1 if line.correct is None else line.correct
    return Answered(right, None if score is None else min(score, 1.0), labels)


@dataclass(frozen=True, slots=True)
class Bin:
    """Answers of like scores."""

    lowest: float  # score
    highest: float
    count: int
    mean_score: float
    right: Interval  # share of right answers, and its 95 % interval


@dataclass(frozen=True, slots=True)
class Reliability:
    """How the scores of answers agree with the share of right ones."""

    name: str
    bins: tuple[Bin, ...]
    overall: Bin
    """All answers with a score together."""
    ece: float
    """Expected calibration error: Σ over bins of n_b/n · |share right − mean score|."""
    calibrated_ece: float
    """The mean of the same where each answer is right with a probability equal to its score: what chance alone does."""
    histogram: tuple[tuple[int, int], ...]
    """Right and wrong answers by score, in `HISTOGRAM_BINS` bins of equal width."""
    unanswered: int
    """Examples without any phrase, which have no score and are left out."""


def equal_mass_bins(scores: np.ndarray, most: int) -> np.ndarray:
    """The bin, 0 to `most` - 1, of each of `scores` f64 [n]: as many in each as equal scores, kept together, allow.

    A score whose rank from 0 is r, of equal ones the middle, has bin ⌊most · r / n⌋; with few or many equal scores some
    bins are empty.

    >>> [equal_mass_bins(np.array(scores), 3).tolist() for scores in ([0.1, 0.4, 0.2, 0.3], [0.5, 0.5, 0.9])]
    [[0, 2, 0, 1], [0, 0, 2]]
    """
    ordered = np.sort(scores)  # f64 [n]
    first = np.searchsorted(ordered, scores, side="left")  # i64 [n]
    last = np.searchsorted(ordered, scores, side="right") - 1  # i64 [n]
    bins: np.ndarray = (first + last) * most // (2 * len(scores))  # i64 [n]
    return bins


def calibration_error(scores: np.ndarray, right: np.ndarray, bins: np.ndarray) -> float:
    """Expected calibration error of `scores` f64 [n] and `right` bool [n] in `bins` i64 [n].

    Σ n_b/n |right_b − score_b| (Naeini et al. 2015, AAAI, §2), with bins of equal mass (Nixon et al. 2019, arXiv
    1904.01685, §3), which is Σ_b |Σ_i (rightᵢ − scoreᵢ)| / n.

    >>> round(calibration_error(np.array([0.2, 0.4, 0.9]), np.array([False, True, True]), np.array([0, 0, 1])), 6)
    0.166667
    """
    gaps = np.bincount(bins, weights=right - scores)  # f64 [b]
    return float(np.abs(gaps).sum() / len(scores))


def reliability(answered: MethodAnswers, most_bins: int = BINS) -> Reliability:
    """How the scores of answers agree with what is right. Raises ArtifactError if none has a score."""
    name, kept = answered.name, [each for each in answered.answers if each.score is not None]
    if not kept:
        raise ArtifactError(
            f"no answer of {name} has a score",
            expected="phrases for at least one example",
            got=f"{len(answered.answers)} examples without a phrase",
            where=name,
            fix="choose other results, or others of their methods with methods=[…]",
        )
    scores = np.array([each.score for each in kept], dtype=np.float64)  # [n]
    right = np.array([each.right for each in kept])  # bool [n]
    numbers = equal_mass_bins(scores, most_bins)  # i64 [n]
    rng = np.random.default_rng(0)
    drawn = [
        calibration_error(scores, rng.random(len(scores)) < scores, numbers)  # Bröcker and Smith 2007, §2
        for _ in range(CALIBRATED_DRAWS)
    ]
    edges = np.arange(HISTOGRAM_BINS + 1) / HISTOGRAM_BINS  # f64 [bins + 1], each the nearest number to its tenth
    counts = [np.histogram(scores[right == each], edges)[0].tolist() for each in (True, False)]
    return Reliability(
        name=name,
        bins=tuple(_bin(scores[numbers == each], right[numbers == each]) for each in np.unique(numbers)),
        overall=_bin(scores, right),
        ece=calibration_error(scores, right, numbers),
        calibrated_ece=float(np.mean(drawn)),
        histogram=tuple(zip(*counts, strict=True)),
        unanswered=len(answered.answers) - len(kept),
    )


def _bin(scores: np.ndarray, right: np.ndarray) -> Bin:
    """Of the answers with `scores` f64 [n] and `right` bool [n]."""
    share = wilson_interval(int(right.sum()), len(right))
    return Bin(float(scores.min()), float(scores.max()), len(scores), float(scores.mean()), share)


def reliability_picture(answers: Sequence[MethodAnswers], bins: int = BINS) -> Picture:
    """A reliability diagram of each of `answers`, with expected calibration error and a histogram of the scores."""
    check_panel_count([each.name for each in answers])
    found = [reliability(each, bins) for each in answers]
    header = ("score from – to", "answers", "mean score, %", "right, % [95 %]")
    tables = [
        NumberTable(
            f"{each.name}: ECE {100 * each.ece:.1f} % ({100 * each.calibrated_ece:.1f} % if calibrated)",
            header,
            (*(_bin_row(one) for one in each.bins), ("all", *_bin_row(each.overall)[1:])),
        )
        for each in found
    ]
    tables += [_histogram_table(each) for each in found]
    return Picture(
        figure=draw_reliability(found),
        tables=tuple(tables),
        record={"picture": "reliability", "bins": bins, "diagrams": [asdict(each) for each in found]},
        notes=tuple(
            f"{each.name}: {each.unanswered} of {each.unanswered + each.overall.count} examples have no phrase"
            for each in found
            if each.unanswered
        ),
    )


def _bin_row(each: Bin) -> tuple[str, ...]:
    scores = f"{each.lowest:.3f} – {each.highest:.3f}"
    return scores, str(each.count), f"{100 * each.mean_score:.1f}", percent(each.right)


def _histogram_table(found: Reliability) -> NumberTable:
    width = 1 / HISTOGRAM_BINS
    rows = tuple(
        (f"{number * width:.1f} – {(number + 1) * width:.1f}", str(right), str(wrong))
        for number, (right, wrong) in enumerate(found.histogram)
        if right or wrong
    )
    return NumberTable(f"{found.name}: histogram", ("score", "right", "wrong"), rows)


def draw_reliability(found: Sequence[Reliability]) -> Figure:
    """For each a diagram, with the diagonal of a calibrated score, and below it a histogram of right and wrong."""
    figure = new_figure(min(len(found), COLUMNS) * 4.6, ceil(len(found) / COLUMNS) * 5.2)
    for part, each in zip(_parts(figure, len(found)), found, strict=False):
        diagram, histogram = part.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (3, 1)})
        _draw_diagram(diagram, each)
        _draw_histogram(histogram, each)
        legend_below(part, [diagram, histogram], columns=3)
    return figure


def _parts(figure: Figure, count: int) -> Iterator[SubFigure]:
    """Parts of a figure in rows of `COLUMNS`."""
    columns = min(count, COLUMNS)
    yield from figure.subfigures(ceil(count / columns), columns, squeeze=False).flat


def _draw_diagram(axes: Axes, found: Reliability) -> None:
    scores = [each.mean_score for each in found.bins]
    shares = [each.right.mean for each in found.bins]
    lengths = [
        [each.right.mean - each.right.low for each in found.bins],
        [each.right.high - each.right.mean for each in found.bins],
    ]
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1.2, label="calibrated")
    axes.vlines(scores, scores, shares, color=colour(1), linewidth=4, alpha=0.35, label="gap", zorder=1)
    look: dict[str, Any] = {"color": colour(0), "marker": "o", "markersize": 5, "linewidth": 1.2, "capsize": 2.5}
    axes.errorbar(scores, shares, yerr=lengths, elinewidth=0.9, label="bin, 95 % interval", **look)
    error = (
        f"ECE {100 * found.ece:.1f} % ({100 * found.calibrated_ece:.1f} % if calibrated), {found.overall.count} answers"
    )
    plain_axes(axes, x="", y="share of right answers", title=f"{shown_name(found.name)}\n{error}")
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)


def _draw_histogram(axes: Axes, found: Reliability) -> None:
    width = 1 / HISTOGRAM_BINS
    places = (np.arange(HISTOGRAM_BINS) + 0.5) * width  # f64 [bins]
    right, wrong = (np.array(counts) for counts in zip(*found.histogram, strict=True))  # i64 [bins] each
    look: dict[str, Any] = {"width": 0.92 * width, "edgecolor": "black", "linewidth": 0.6}
    axes.bar(places, right, color=colour(0), label="right", **look)
    axes.bar(places, wrong, bottom=right, color="white", hatch="////", label="wrong", **look)
    plain_axes(axes, x="score of the answer", y="answers")


@dataclass(frozen=True, slots=True)
class Confusion:
    """What the examples of each label of a closed task were taken for."""

    name: str
    labels: tuple[str, ...]
    counts: np.ndarray  # i64 [C, C], examples by right label (row) and chosen label (column)

    @property
    def accuracies(self) -> tuple[Interval | None, ...]:
        """Of each label's examples the share that was right, with its interval; None without an example."""
        pairs = zip(np.diagonal(self.counts).tolist(), self.counts.sum(1).tolist(), strict=True)
        return tuple(wilson_interval(right, count) if count else None for right, count in pairs)

    @property
    def accuracy(self) -> Interval:
        """Of all examples."""
        return wilson_interval(int(np.trace(self.counts)), int(self.counts.sum()))

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "name": self.name,
            "labels": list(self.labels),
            "counts": self.counts.tolist(),
            "accuracy": asdict(self.accuracy),
            "label_accuracies": [None if each is None else asdict(each) for each in self.accuracies],
        }


def confusion(answered: MethodAnswers) -> Confusion:
    """The confusion of the labels of a closed task.

    Raises ArtifactError for answers of an open task, labels that the task has not, or more than a picture can hold.
    """
    pairs = [each.labels for each in answered.answers if each.labels is not None]
    known = {label: number for number, label in enumerate(answered.labels)}
    other = sorted({label for pair in pairs for label in pair} - known.keys())
    if other or not pairs or len(known) > MOST_LABELS:
        raise ArtifactError(
            f"{answered.name} has no confusion of labels that can be drawn",
            expected=f"answers of a closed task with at most {MOST_LABELS} labels, which metrics.json names",
            got=f"{len(known)} labels{', and without a name: ' if other else ''}{named(other)}"
            if pairs
            else "answers without labels",
            where=answered.name,
            fix="choose closed tasks with tasks=[…], or another picture=",
        )
    right, chosen = np.array([[known[label] for label in pair] for pair in pairs]).T  # i64 [n] each
    return Confusion(answered.name, answered.labels, confusion_counts(right, chosen, len(known)))


def confusion_picture(answers: Sequence[MethodAnswers]) -> Picture:
    """The confusion matrix of each of `answers`, with the accuracy on each label and 95 % intervals."""
    check_panel_count([each.name for each in answers])
    found = [confusion(each) for each in answers]
    header = ("label", "examples", "chosen", "accuracy, % [95 %]", "most often wrong as")
    return Picture(
        figure=draw_confusion(found),
        tables=tuple(NumberTable(each.name, header, tuple(_label_rows(each))) for each in found),
        record={"picture": "confusion", "matrices": [each.record() for each in found]},
        notes=("intervals are Wilson's; those of metrics.json are from a bootstrap",),
    )


def _label_rows(found: Confusion) -> Iterator[tuple[str, ...]]:
    wrong = found.counts * ~np.eye(len(found.labels), dtype=bool)  # i64 [C, C], without the diagonal
    chosen = found.counts.sum(0)  # i64 [C]
    for number, (label, accuracy) in enumerate(zip(found.labels, found.accuracies, strict=True)):
        most = int(wrong[number].argmax())
        shown = f"{found.labels[most]} ({wrong[number, most]})" if wrong[number, most] else "–"
        share = "–" if accuracy is None else percent(accuracy)
        yield label, str(found.counts[number].sum()), str(chosen[number]), share, shown
    total = str(found.counts.sum())
    yield "all", total, total, percent(found.accuracy), ""


def draw_confusion(found: Sequence[Confusion]) -> Figure:
    """A matrix for each, shares of a row as shades with the counts in them, and accuracies with intervals beside it."""
    labels = max(len(each.labels) for each in found)
    columns = min(len(found), COLUMNS)
    size = max(2.6, 0.5 * labels)
    figure = new_figure(columns * (size + 3.4), ceil(len(found) / columns) * (size + 1.5))
    for part, each in zip(_parts(figure, len(found)), found, strict=False):
        part.suptitle(shown_name(each.name), fontsize=10)
        matrix, accuracy = part.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": (size, 1.9)})
        _draw_matrix(matrix, each)
        _draw_accuracies(accuracy, each)
    return figure


def _draw_matrix(axes: Axes, found: Confusion) -> None:
    counts, names = found.counts, [shown_name(label) for label in found.labels]
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)  # f64 [C, C], of each row
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (row, column), count in np.ndenumerate(counts):
        text = f"{count}\n{100 * shares[row, column]:.0f} %" if len(names) <= MOST_LABELS / 3 else str(count)
        ink = "white" if shares[row, column] > DARK else "black"
        axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=8)
    axes.set_xticks(range(len(names)), names, rotation=40, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xlabel("chosen label")
    axes.set_ylabel("right label")


def _draw_accuracies(axes: Axes, found: Confusion) -> None:
    kept = [(number, each) for number, each in enumerate(found.accuracies) if each is not None]
    means = [100 * each.mean for _, each in kept]
    lengths = [
        [100 * (each.mean - each.low) for _, each in kept],
        [100 * (each.high - each.mean) for _, each in kept],
    ]
    look: dict[str, Any] = {"color": colour(0), "marker": "o", "markersize": 5, "linestyle": "none", "capsize": 2.5}
    axes.errorbar(means, [number for number, _ in kept], xerr=lengths, **look)
    total = 100 * found.accuracy.mean
    axes.axvline(total, color=GREY, linestyle="--", linewidth=1.2)
    axes.set_xlim(-4, 104)
    axes.tick_params(axis="y", length=0)
    plain_axes(axes, x="accuracy, %", y="", title=f"all {total:.1f} %")
