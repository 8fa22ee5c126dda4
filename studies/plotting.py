"""Curves of several training runs in one figure, a panel per term, and their numbers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import BytesIO
from math import ceil, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import PositiveInt

from npm.core.display import Table
from npm.core.errors import ArtifactError, SettingError, unknown
from npm.core.files import replace_file
from npm.core.settings import Settings
from npm.training.record import read_metrics
from npm.training.settings import HELD_OUT_PREFIX

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COUNTERS = {"step", "tokens", "seconds", "learning_rate", "tokens_per_second", "data_fraction", "gradient_norm"}
"""Numbers in metrics.jsonl about the course of a run rather than its quality; drawn on request only."""
MARK, MARKED_BYTES = "npmlm plot", 2048
"""Mark in our figures, and the bytes that it is in: a file without it is not replaced."""
PANEL_COLUMNS, PANEL_INCHES = 3, (4.6, 3.2)
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Of Okabe and Ito (2008), distinct for color-blind readers too, without the yellow that is pale on white."""


class CurveSettings(Settings):
    """Settings of the curves of training runs."""

    terms: list[str] = field(default_factory=list)
    """Terms and metrics by their names in metrics.jsonl, a panel each; empty: all that the runs have in common."""
    x: Literal["tokens", "steps"] = "tokens"
    """Horizontal axis: tokens of training text seen, or optimizer steps."""
    smoothed_points: PositiveInt = 25
    """A point of a training curve is the mean of this many lines of metrics up to it; held-out curves are drawn as
    measured."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One number of one run as it moved."""

    x: np.ndarray  # f64 [points], tokens or steps
    y: np.ndarray  # f64 [points]
    smoothed: bool  # a training curve; else it was measured now and then


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure and the numbers in it, as a table and as JSON values."""

    figure: Figure
    table: Table
    record: dict[str, Any]


def draw_runs(runs: Sequence[Path], settings: CurveSettings) -> Plot:
    """The curves of `runs`, held-out ones dashed, with where each begins, ends, and is lowest and highest.

    Raises SettingError without runs, or where no term is to be drawn; ArtifactError for a folder without readable
    metrics.
    """
    from matplotlib.figure import Figure

    curves = {name: read_curves(run, settings) for name, run in zip(folder_names(runs), runs, strict=True)}
    terms = chosen_terms(curves, settings.terms)
    columns = min(PANEL_COLUMNS, len(terms))
    lines = ceil(len(terms) / columns)
    figure = Figure(figsize=(columns * PANEL_INCHES[0], lines * PANEL_INCHES[1]), layout="constrained")
    panels: list[Axes] = list(figure.subplots(lines, columns, squeeze=False).flat)
    for panel in panels[len(terms) :]:
        panel.remove()
    rows, record = [], []
    for panel, term in zip(panels, terms, strict=False):
        for number, (run, found) in enumerate(curves.items()):
            for name, label in ((term, run), (HELD_OUT_PREFIX + term, f"{run} (held out)")):
                if (curve := found.get(name)) is None:
                    continue
                look: dict[str, Any] = {"linestyle": "-"} if curve.smoothed else {"linestyle": "--", "marker": "o"}
                color = COLORS[number % len(COLORS)]
                panel.plot(curve.x, curve.y, label=shown_name(label), color=color, linewidth=1.4, markersize=4, **look)
                values = (curve.y[0], curve.y[-1], np.fmin.reduce(curve.y), np.fmax.reduce(curve.y))
                shown = (f"{value:.4g}" for value in values)
                rows.append((f"{run}: {name}", str(len(curve.y)), f"{curve.x[-1]:,.0f}", *shown))
                points = {"x": curve.x.tolist(), "y": [y if isfinite(y) else None for y in curve.y.tolist()]}
                record.append({"run": run, "term": name, "smoothed": curve.smoothed, **points})
        _label(panel, x="tokens" if settings.x == "tokens" else "optimizer steps", y=shown_name(term))
    drawn = {line.get_label(): line for panel in panels[: len(terms)] for line in panel.lines}
    figure.legend(handles=list(drawn.values()), loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    title = f"curves; of training, means of up to {settings.smoothed_points} lines"
    table = Table(title, ("curve", "points", settings.x, "first", "last", "lowest", "highest"), rows)
    return Plot(figure, table, {"x": settings.x, "curves": record})


def read_curves(run: Path, settings: CurveSettings) -> dict[str, Curve]:
    """Every number in the metrics of a run, by name."""
    file = run / "metrics.jsonl"
    if not file.is_file():
        raise ArtifactError(f"{file} is missing: name the folder of a training run that has logged its first steps")
    axis = "step" if settings.x == "steps" else "tokens"
    points: dict[str, list[tuple[float, float]]] = {}
    trained: set[str] = set()
    for _, line in read_metrics(file):
        for name, value in line.items():
            if name != "step" and value is not None and line.get(axis) is not None:
                points.setdefault(name, []).append((line[axis], value))
                if "learning_rate" in line and not name.startswith(HELD_OUT_PREFIX):  # not a line of an evaluation
                    trained.add(name)
    curves = {}
    for name, pairs in points.items():
        x, y = np.array(pairs, dtype=np.float64).T  # f64 [points] each
        curves[name] = Curve(x, trailing_mean(y, settings.smoothed_points) if name in trained else y, name in trained)
    return curves


def trailing_mean(values: np.ndarray, window: int) -> np.ndarray:
    """At each of the values [points] the mean of it and up to `window` - 1 values before it.

    >>> trailing_mean(np.array([1.0, 3.0, 5.0, 7.0]), 2).tolist()
    [1.0, 2.0, 4.0, 6.0]
    """
    sums = np.concatenate([[0.0], np.cumsum(values)])  # f64 [points + 1]
    ends = np.arange(1, len(values) + 1)  # i64 [points]
    starts = np.maximum(0, ends - window)  # i64 [points]
    return (sums[ends] - sums[starts]) / (ends - starts)


def chosen_terms(curves: dict[str, dict[str, Curve]], asked: Sequence[str]) -> list[str]:
    """The terms to draw: those asked for, each in one run at least, or all that every run has.

    A held-out term has a separate panel only if it was not also trained on. Raises SettingError where there is
    nothing to draw.
    """
    known = sorted(set().union(*curves.values()))
    for term in asked:
        if term not in known:
            raise unknown("term", term, known)
    if asked:
        return list(asked)
    terms = {
        run: {
            name for name in found.keys() - COUNTERS if name.removeprefix(HELD_OUT_PREFIX) not in found.keys() - {name}
        }
        for run, found in curves.items()
    }
    if not (common := sorted(set.intersection(*terms.values()))):
        shown = "; ".join(f"{run}: {', '.join(sorted(found)) or 'none'}" for run, found in terms.items())
        raise SettingError(f"the runs have no term in common: set terms, or draw them apart; they have {shown}")
    return common


def can_draw() -> bool:
    """Return True if matplotlib, of the extra `plots`, is installed."""
    return find_spec("matplotlib") is not None


def check_figure(file: Path) -> None:
    """Refuse, before the work, a figure that cannot be drawn or written.

    Raises SettingError without matplotlib or for a name that is neither PNG nor SVG, ArtifactError for a file that we
    did not draw.
    """
    if not can_draw():
        raise SettingError("matplotlib is not installed: pip install matplotlib")
    if file.suffix.lower() not in (".png", ".svg") or file.is_dir():
        raise SettingError(f"out must be a PNG or SVG file, such as out=plot.svg, got {file}")
    if file.is_file() and MARK.encode() not in file.read_bytes()[:MARKED_BYTES]:
        raise ArtifactError(f"{file} was not drawn by npmlm plot: choose another name with out=, or move it")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a complete figure, as PNG or SVG by the suffix of `path`; the same figure gives the same bytes."""
    from matplotlib import rc_context

    kind = path.suffix.lower()[1:]
    metadata = {"Creator": MARK, "Date": None} if kind == "svg" else {"Software": MARK}
    data = BytesIO()
    with rc_context({"svg.hashsalt": MARK}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph ")  # of a folder's name; a box is drawn instead
        figure.savefig(data, format=kind, dpi=110, metadata=metadata)
    replace_file(path, data.getvalue())


def shown_name(name: str) -> str:
    """A name from outside as matplotlib shows it: not as a formula, and not hidden from a legend.

    >>> shown_name("_run $1$"), shown_name("a\\nb\\0")
    (' _run \\\\$1\\\\$', 'a b�')
    """
    words = " ".join(name.split())
    plain = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in words).replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain


def _label(axes: Axes, *, x: str, y: str) -> None:
    """Label the axes, with large counts along x as 200 k, 3 M."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(EngFormatter())


def folder_names(folders: Sequence[Path]) -> list[str]:
    """Names of folders, with the parent folders needed to distinguish them.

    Raises SettingError without folders, or if one is named twice.

    >>> folder_names([Path("a/long"), Path("b/short")]), folder_names([Path("a/same"), Path("b/same")])
    (['long', 'short'], ['a/same', 'b/same'])
    """
    if not folders:
        raise SettingError("no folder is named: give those of npmlm train")
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise SettingError(f"a folder is named twice: {', '.join(map(str, folders))}")
