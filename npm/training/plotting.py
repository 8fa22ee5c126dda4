"""Curves of several training runs in one figure, a panel per term."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveInt

from npm.core.errors import ArtifactError, SettingError, unknown
from npm.core.figures import (
    Plot,
    color,
    count_ticks,
    folder_names,
    legend_below,
    marker,
    new_panels,
    plain_axes,
    shown_name,
)
from npm.core.settings import Settings
from npm.core.types import Table
from npm.training.loggers import read_metrics
from npm.training.settings import HELD_OUT_PREFIX

COUNTERS = frozenset(
    {"step", "tokens", "seconds", "learning_rate", "tokens_per_second", "data_fraction", "gradient_norm"}
)
"""Numbers in metrics.jsonl that say how a run went, not what it reached; drawn when asked for by name."""
MARKERS_OF_A_CURVE = 8
"""About how many points of a training curve have a marker."""


class PlotAxis(Enum):
    """Horizontal axis of the curves."""

    tokens = "tokens"
    steps = "steps"


class CurveSettings(Settings):
    """Settings of the curves of training runs."""

    terms: list[str] = field(default_factory=list)
    """Terms and metrics by their names in metrics.jsonl, a panel each; empty: all that the runs have in common."""
    x: PlotAxis = PlotAxis.tokens
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


def draw_runs(runs: Sequence[Path], settings: CurveSettings) -> Plot:
    """The curves of `runs`, a panel per term, with where each begins, ends, and is lowest and highest.

    Held-out curves are dashed, with a hollow marker at every measurement. Raises SettingError without runs, or where no
    term is to be drawn; ArtifactError for a folder without readable metrics.
    """
    curves = {name: read_curves(run, settings) for name, run in zip(folder_names(runs), runs, strict=True)}
    terms, axis = chosen_terms(curves, settings.terms), settings.x.value
    figure, panels = new_panels(len(terms))
    rows, record = [], []
    for panel, term in zip(panels, terms, strict=True):
        for number, (run, found) in enumerate(curves.items()):
            for name, label in ((term, run), (HELD_OUT_PREFIX + term, f"{run} (held out)")):
                if (curve := found.get(name)) is None:
                    continue
                look: dict[str, Any] = {"linestyle": "--", "markerfacecolor": "white"}
                if curve.smoothed:
                    look = {"markevery": max(1, len(curve.x) // MARKERS_OF_A_CURVE)}
                look |= {"color": color(number), "marker": marker(number), "markersize": 4, "linewidth": 1.4}
                panel.plot(curve.x, curve.y, label=shown_name(label), **look)
                values = (curve.y[0], curve.y[-1], np.fmin.reduce(curve.y), np.fmax.reduce(curve.y))
                shown = (f"{value:.4g}" for value in values)
                rows.append((f"{run}: {name}", str(len(curve.y)), f"{curve.x[-1]:,.0f}", *shown))
                points = {"x": curve.x.tolist(), "y": [y if isfinite(y) else None for y in curve.y.tolist()]}
                record.append({"run": run, "term": name, "smoothed": curve.smoothed, **points})
        plain_axes(panel, x="tokens" if settings.x is PlotAxis.tokens else "optimizer steps", y=shown_name(term))
        count_ticks(panel)
    legend_below(figure, panels, columns=len(panels))
    title = f"curves; of training, means of up to {settings.smoothed_points} lines"
    table = Table(title, ("curve", "points", axis, "first", "last", "lowest", "highest"), rows)
    return Plot(figure=figure, table=table, record={"x": axis, "curves": record})


def read_curves(run: Path, settings: CurveSettings) -> dict[str, Curve]:
    """Every number in the metrics of a run, by name."""
    file = run / "metrics.jsonl"
    if not file.is_file():
        raise ArtifactError(f"{file} is missing: name the folder of a training run that has logged its first steps")
    axis = "step" if settings.x is PlotAxis.steps else "tokens"
    points: dict[str, list[tuple[float, float]]] = {}
    smoothed: set[str] = set()
    for _, record in read_metrics(file):
        for name, value in record.items():
            if name != "step" and value is not None and record.get(axis) is not None:
                points.setdefault(name, []).append((record[axis], value))
                if "learning_rate" in record:  # a line of training, not of an evaluation
                    smoothed.add(name)
    curves = {}
    for name, pairs in points.items():
        x, y = np.array(pairs, dtype=np.float64).T  # f64 [points] each
        is_smoothed = name in smoothed and not name.startswith(HELD_OUT_PREFIX)
        curves[name] = Curve(x, trailing_mean(y, settings.smoothed_points) if is_smoothed else y, is_smoothed)
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
    terms = {run: {name for name in found if name not in COUNTERS} for run, found in curves.items()}
    terms = {run: {_panel(name, found) for name in found} for run, found in terms.items()}
    if not (common := sorted(set.intersection(*terms.values()))) and not asked:
        shown = "; ".join(f"{run}: {', '.join(sorted(found)) or 'none'}" for run, found in terms.items())
        raise SettingError(f"the runs have no term in common: set terms, or draw them apart; they have {shown}")
    return list(asked) or common


def _panel(name: str, names: Collection[str]) -> str:
    term = name.removeprefix(HELD_OUT_PREFIX)
    return term if term in names else name
