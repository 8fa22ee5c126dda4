"""The plot of `npmlm tune`: latency against agreement of every way to search. The only file that draws."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npm.retrieval.tune import TuneResult
    from npm.retrieval.tune_measures import Measured

MARKERS = "osD^vP*X<>"


def can_plot() -> bool:
    """Whether matplotlib, of the extra `plots`, is installed."""
    return find_spec("matplotlib") is not None


def draw_pareto(result: TuneResult, path: Path) -> None:
    """Write a PNG: p50 latency in ms against agreement, a marker for each number of candidates, the front as a line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes = figure.add_subplot()
    widths = sorted({each.choice.candidates_per_side for each in result.measured})
    for place, width in enumerate(widths):
        points = [each for each in result.measured if each.choice.candidates_per_side == width]
        marker = MARKERS[place % len(MARKERS)]
        axes.scatter(*_coordinates(points), marker=marker, s=24, alpha=0.7, label=f"{width} candidates a side")
    axes.step(*_coordinates(result.front), where="post", color="0.4", linewidth=1, label="no other is better in both")
    axes.scatter(*_coordinates([result.chosen]), s=160, facecolors="none", edgecolors="tab:red", label="chosen")
    present = [each for each in result.measured if each.choice == result.present]
    axes.scatter(*_coordinates(present), s=160, facecolors="none", edgecolors="tab:blue", label="before")
    axes.axhline(result.settings.agreement_goal, color="tab:red", linestyle=":", linewidth=1)
    axes.set_xscale("log")
    for ticks in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        ticks(ScalarFormatter())
    axes.set_xlabel("median latency of a search on one core, ms")
    axes.set_ylabel("best phrase equal to exact search, share")
    axes.set_title(f"{result.factory or result.tier}: {result.question_count} questions", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    FigureCanvasAgg(figure).print_png(str(path), metadata={"Software": None})


def _coordinates(points: tuple[Measured, ...] | list[Measured]) -> tuple[list[float], list[float]]:
    return [each.p50_ms for each in points], [each.agreement for each in points]
