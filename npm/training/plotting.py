"""Curves of several training runs in one figure, a panel per term."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import PositiveInt

from npm.core.errors import ArtifactError, SettingError, unknown
from npm.core.figures import (
    NumberTable,
    Plot,
    colour,
    count_ticks,
    folder_names,
    legend_below,
    marker,
    new_panels,
    plain_axes,
    shown_name,
)
from npm.core.settings import Settings
from npm.training.loggers import read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure


HELD_OUT = "held_out_"
"""What stands before the name of a term that was measured on held-out text."""
COUNTERS = frozenset(
    {"step", "tokens", "seconds", "learning_rate", "tokens_per_second", "data_fraction", "gradient_norm"}
)
"""Numbers in metrics.jsonl that say how a run went, not what it reached; drawn when asked for by name."""
MARKERS_OF_A_CURVE = 8
"""About how many points of a training curve have a marker."""


class PlotAxis(Enum):
    """What the curves run over."""

    tokens = "tokens"
    steps = "steps"


class CurveSettings(Settings):
    """Which curves of training runs are drawn, and over what."""

    terms: list[str] = field(default_factory=list)
    """Terms and metrics by their names in metrics.jsonl, a panel each; empty: all that the runs have in common."""
    x: PlotAxis = PlotAxis.tokens
    """What the curves run over: tokens of training text seen, or optimiser steps."""
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
    """The curves of `runs`, with where each begins, ends, and is lowest and highest.

    Raises SettingError without runs, or where no term is to be drawn; ArtifactError for a folder
    without readable metrics.
    """
    curves = {name: read_curves(run, settings) for name, run in zip(folder_names(runs), runs, strict=True)}
    terms = chosen_terms(curves, settings.terms)
    drawn = list(_drawn(curves, terms))
    axis = settings.x.value
    rows = tuple((f"{run}: {name}", *_extremes(curve)) for run, name, curve in drawn)
    header = ("curve", "points", axis, "first", "last", "lowest", "highest")
    record = [
        {"run": run, "term": name, "smoothed": curve.smoothed, "x": _json(curve.x), "y": _json(curve.y)}
        for run, name, curve in drawn
    ]
    title = f"curves; of training, means of up to {settings.smoothed_points} lines"
    return Plot(
        figure=draw_curves(curves, terms, axis=settings.x),
        tables=(NumberTable(title, header, rows),),
        record={"x": axis, "curves": record},
    )


def _drawn(curves: dict[str, dict[str, Curve]], terms: Sequence[str]) -> Iterator[tuple[str, str, Curve]]:
    """Run, name and curve of all that is drawn, panel by panel; a held-out curve stands in the panel of its term."""
    for term in terms:
        for run, found in curves.items():
            yield from ((run, name, found[name]) for name in (term, HELD_OUT + term) if name in found)


def _extremes(curve: Curve) -> tuple[str, ...]:
    y = curve.y  # f64 [points]
    values = (y[0], y[-1], np.fmin.reduce(y), np.fmax.reduce(y))
    return (str(len(y)), f"{curve.x[-1]:,.0f}", *(f"{value:.4g}" for value in values))


def _json(values: np.ndarray) -> list[float | None]:
    """The values [points]; null for those that are not finite, which JSON cannot hold."""
    return [value if isfinite(value) else None for value in values.tolist()]


def read_curves(run: Path, settings: CurveSettings) -> dict[str, Curve]:
    """Every number in the metrics of a run, by name."""
    file = run / "metrics.jsonl"
    if not file.is_file():
        raise ArtifactError(f"{file} is missing: name the folder of a training run that has logged its first steps")
    records = [record for _, record in read_metrics(file)]
    tokens_at = _tokens_at(records)
    points: dict[str, list[tuple[float, float]]] = {}
    measured: set[str] = set()
    for record in records:
        x = float(record["step"]) if settings.x is PlotAxis.steps else tokens_at(record["step"])
        for name, value in record.items():
            if isinstance(value, int | float) and name != "step":
                points.setdefault(name, []).append((x, float(value)))
                if "tokens" not in record:  # a line of an evaluation
                    measured.add(name)
    curves = {}
    for name, pairs in points.items():
        x, y = np.array(pairs, dtype=np.float64).T  # f64 [points] each
        smoothed = name not in measured
        curves[name] = Curve(x, trailing_mean(y, settings.smoothed_points) if smoothed else y, smoothed)
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

    A held-out term has a panel of its own only where it was not trained on as well. Raises SettingError where there is
    nothing to draw.
    """
    terms_of_runs = [
        {name.removeprefix(HELD_OUT) if name.removeprefix(HELD_OUT) in found else name for name in found} - COUNTERS
        for found in curves.values()
    ]
    everything = sorted(set().union(*curves.values()))
    for term in asked:
        if term not in everything:
            raise unknown("term", term, everything)
    common = sorted(set.intersection(*terms_of_runs))
    if not asked and not common:
        shown = "; ".join(
            f"{run}: {', '.join(sorted(terms)) or 'none'}" for run, terms in zip(curves, terms_of_runs, strict=True)
        )
        raise SettingError(f"the runs have no term in common: set terms, or draw them apart; they have {shown}")
    return list(asked) or common


def draw_curves(curves: dict[str, dict[str, Curve]], terms: Sequence[str], *, axis: PlotAxis) -> Figure:
    """A figure with a panel for each term, a colour and a marker for each run.

    Held-out curves are dashed, with a hollow marker at every measurement.
    """
    figure, panels = new_panels(len(terms))
    for panel, term in zip(panels, terms, strict=True):
        for number, (run, found) in enumerate(curves.items()):
            for name, label in ((term, run), (HELD_OUT + term, f"{run} (held out)")):
                if (curve := found.get(name)) is None:
                    continue
                style: dict[str, Any] = {"linestyle": "--", "markerfacecolor": "white"}
                if curve.smoothed:
                    style = {"markevery": max(1, len(curve.x) // MARKERS_OF_A_CURVE)}
                look: dict[str, Any] = {
                    "color": colour(number),
                    "marker": marker(number),
                    "markersize": 4,
                    "linewidth": 1.4,
                }
                panel.plot(curve.x, curve.y, label=shown_name(label), **look, **style)
        plain_axes(panel, x="tokens" if axis is PlotAxis.tokens else "optimiser steps", y=shown_name(term))
        count_ticks(panel)
    legend_below(figure, panels, columns=len(panels))
    return figure


def _tokens_at(records: Sequence[dict[str, Any]]) -> Any:
    """A function from a step to the tokens seen by then; lines of evaluations hold their step only.

    Steps see nearly equal numbers of tokens, so that between and beyond the training lines they are counted evenly.
    """
    known = {0: 0.0} | {
        record["step"]: float(record["tokens"]) for record in records if record.get("tokens") is not None
    }
    steps, tokens = (np.array(values, dtype=np.float64) for values in zip(*sorted(known.items()), strict=True))
    last_rate = tokens[-1] / steps[-1] if steps[-1] else 0.0

    def tokens_at(step: int) -> float:
        beyond = max(0.0, step - steps[-1]) * last_rate
        return float(np.interp(step, steps, tokens) + beyond)

    return tokens_at
