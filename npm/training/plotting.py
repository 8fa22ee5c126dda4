"""`npmlm plot`: the curves of several training runs in one picture, a panel for each term."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib.util import find_spec
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from index.files import made_parents, replace_file
from npm.errors import ArtefactError, SettingError
from npm.settings import Bounds, CheckedSettings, PathText
from npm.training.loggers import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


HELD_OUT = "held_out_"
"""What stands before the name of a term that was measured on held-out text."""
COUNTERS = frozenset(
    {"step", "tokens", "seconds", "learning_rate", "tokens_per_second", "data_fraction", "gradient_norm"}
)
"""Numbers in metrics.jsonl that say how a run went, not what it reached; drawn when asked for by name."""
MARK, MARKED_BYTES = "npmlm plot", 1024
"""What our pictures say of themselves, and where: one that does not is not replaced."""
PANEL_COLUMNS = 3
PANEL_INCHES = (4.6, 3.2)


class PlotAxis(Enum):
    """What the curves run over."""

    tokens = "tokens"
    steps = "steps"


@dataclass(kw_only=True, slots=True)
class PlotSettings(CheckedSettings):
    """Which curves are drawn, and where the picture goes."""

    out: PathText = ""
    """The picture, FILE.png; one that is there is replaced. Required."""
    terms: list[str] = field(default_factory=list)
    """Terms and metrics by their names in metrics.jsonl, a panel each; empty: all that the runs have in common."""
    x: PlotAxis = PlotAxis.tokens
    """What the curves run over: tokens of training text seen, or optimiser steps."""
    smoothed_points: Annotated[int, Bounds(1)] = 25
    """A point of a training curve is the mean of this many lines of metrics up to it; held-out curves are drawn as
    measured."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One number of one run as it moved."""

    x: np.ndarray  # f64 [points], tokens or steps
    y: np.ndarray  # f64 [points]
    smoothed: bool  # a training curve; else it was measured now and then


def plot_runs(runs: Sequence[Path], settings: PlotSettings) -> Path:
    """Draw the curves of `runs`; returns the picture's path.

    Raises SettingError without matplotlib, without runs, or where no term is to be drawn; ArtefactError for a folder
    without readable metrics; StorageError if the system refuses the picture.
    """
    picture = Path(settings.out)
    _check_command(runs, picture)
    names = run_names(runs)
    curves = {name: read_curves(run, settings) for name, run in zip(names, runs, strict=True)}
    figure = draw_curves(curves, chosen_terms(curves, settings.terms), axis=settings.x)
    data = BytesIO()
    figure.savefig(data, format="png", dpi=110, metadata={"Software": MARK})
    with made_parents(picture):
        replace_file(picture, data.getvalue())
    return picture


def run_names(runs: Sequence[Path]) -> list[str]:
    """Names of the runs' folders; with as many of the folders above as it takes to tell them apart.

    >>> run_names([Path("a/long"), Path("b/short")]), run_names([Path("a/same"), Path("b/same")])
    (['long', 'short'], ['a/same', 'b/same'])
    """
    parts = [run.resolve().parts for run in runs]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise SettingError(
        "a run is named twice",
        expected="different run folders",
        got=", ".join(map(str, runs)),
        where="npmlm plot RUN …",
        fix="name each run once",
    )


def read_curves(run: Path, settings: PlotSettings) -> dict[str, Curve]:
    """Every number in the metrics of a run, by name."""
    records = _records(run / "metrics.jsonl")
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
            raise SettingError(
                f"no run has the term {term}",
                expected=", ".join(everything) or "a run with metrics",
                got=term,
                where="terms",
                fix="choose among these, or leave terms out",
            )
    common = sorted(set.intersection(*terms_of_runs))
    if not asked and not common:
        raise SettingError(
            "the runs have no term in common",
            expected="runs of the same objective, or terms=[…]",
            got="; ".join(
                f"{run}: {', '.join(sorted(terms)) or 'none'}" for run, terms in zip(curves, terms_of_runs, strict=True)
            ),
            where="npmlm plot RUN …",
            fix="name terms with terms=[…], or draw the runs apart",
        )
    return list(asked) or common


def draw_curves(curves: dict[str, dict[str, Curve]], terms: Sequence[str], *, axis: PlotAxis) -> Figure:
    """A figure with one panel for each term and one colour for each run; held-out curves are dashed with dots."""
    from matplotlib.figure import Figure

    columns = min(PANEL_COLUMNS, len(terms))
    rows = ceil(len(terms) / columns)
    figure = Figure(figsize=(columns * PANEL_INCHES[0], rows * PANEL_INCHES[1]), layout="constrained")
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, term in zip(panels, terms, strict=False):
        for number, (run, found) in enumerate(curves.items()):
            for name, label in ((term, run), (HELD_OUT + term, f"{run} (held out)")):
                if (curve := found.get(name)) is not None:
                    style: Any = {} if curve.smoothed else {"linestyle": "--", "marker": "o", "markersize": 3}
                    panel.plot(curve.x, curve.y, label=label, color=f"C{number}", **style)
        panel.set_title(term)
        panel.set_xlabel("tokens" if axis is PlotAxis.tokens else "optimiser steps")
        panel.ticklabel_format(axis="x", style="sci", scilimits=(-3, 5))
        panel.grid(alpha=0.3)
        panel.legend(frameon=False, fontsize="small")
    for panel in panels[len(terms) :]:
        panel.remove()
    return figure


def _check_command(runs: Sequence[Path], picture: Path) -> None:
    if find_spec("matplotlib") is None:
        raise SettingError(
            "matplotlib is not installed",
            expected="the package matplotlib",
            got="no module matplotlib",
            where="npmlm plot",
            fix="pip install matplotlib",
        )
    if not runs:
        raise SettingError(
            "no run is named",
            expected="npmlm plot RUN [RUN …] out=FILE.png",
            got="no folder",
            where="npmlm plot",
            fix="name the folders that npmlm train wrote with run=",
        )
    if picture.suffix.lower() != ".png" or picture.is_dir():
        raise SettingError(
            "the picture is a PNG file",
            expected="out=FILE.png",
            got=f"{picture}{', a folder' if picture.is_dir() else ''}",
            where="out",
            fix="give a name that ends in .png",
        )
    if picture.is_file() and MARK.encode() not in picture.read_bytes()[:MARKED_BYTES]:
        raise ArtefactError(
            f"{picture} is another picture",
            expected="a new file, or curves that npmlm plot drew",
            got="a file that it did not make",
            where="out",
            fix="choose another name with out=, or move that file away",
        )


def _records(file: Path) -> list[dict[str, Any]]:
    """What the lines of metrics hold. Raises ArtefactError."""
    if not file.is_file():
        raise ArtefactError(
            "this is not the folder of a training run with metrics",
            expected="a folder that npmlm train wrote, after its first line of metrics (trainer.log_every_steps)",
            got="no metrics.jsonl" if file.parent.is_dir() else "no such folder",
            where=str(file.parent),
            fix="check the name, or wait for the first steps",
        )
    return [record for _, record in read_metrics(file)]


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
