"""What an analysis shows: shares with their intervals at some points, a line for each method; tables, JSON, a figure.

`npmlm plot` draws the panels that an evaluation has left in metrics.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from index.settings import read_record
from npm.core.artifact import check_folder
from npm.core.errors import ArtifactError
from npm.core.figures import (
    NumberTable,
    Picture,
    check_panel_count,
    colour,
    folder_names,
    legend_below,
    marker,
    new_panels,
    plain_axes,
    shown_name,
)
from npm.core.files import read_object
from npm.evaluation.metrics import Interval
from npm.evaluation.report import Row, markdown_table, percent, terminal_table
from npm.evaluation.results import EVALUATION_KIND, METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console


MISSING = "–"
KEY = "panels"
"""Where metrics.json has them."""
APART = 0.12
"""Between the points of two lines that stand at one place."""


@dataclass(frozen=True, slots=True)
class Point:
    """A share over some examples, one at least."""

    name: str
    """Which ones, such as a bin."""
    count: int
    share: Interval
    x: float | None = None
    """Its place on the axis; None: points stand side by side."""


@dataclass(frozen=True, slots=True)
class Line:
    """The points of one method."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over the same points."""

    title: str
    x: str
    """What the points differ in."""
    y: str
    """What the shares are of."""
    lines: tuple[Line, ...]
    is_log: bool = False
    """Whether places on the axis are shown as powers of two."""


def panel_rows(panel: Panel) -> tuple[Row, list[Row]]:
    """Header and rows: a row a point, a column a method; a cell is per cent, interval and number of examples."""
    names = list(dict.fromkeys(point.name for line in panel.lines for point in line.points))
    of_line = [{point.name: _cell(point) for point in line.points} for line in panel.lines]
    rows: list[Row] = [[name, *(cells.get(name, MISSING) for cells in of_line)] for name in names]
    return [panel.x, *(line.name for line in panel.lines)], rows


def _cell(point: Point) -> str:
    return f"{percent(point.share)}\nn={point.count}"


def show_panels(panels: Sequence[Panel], console: Console) -> None:
    """Print each as a table."""
    for panel in panels:
        header, rows = panel_rows(panel)
        console.print(terminal_table(header, rows, title=f"{panel.title}: {panel.y}, %"))


def panels_markdown(panels: Sequence[Panel]) -> str:
    """Each as a Markdown table under its title."""
    return "\n\n".join(f"## {each.title}: {each.y}, %\n\n{markdown_table(*panel_rows(each))}" for each in panels)


def panels_picture(folders: Sequence[Path]) -> Picture:
    """The panels of all `folders`, each with its numbers.

    Raises SettingError without folders or for more panels than a picture can hold, ArtifactError for a folder without
    any, or one that is damaged.
    """
    found = [
        (panel, f"{name}: {panel.title}" if len(folders) > 1 else panel.title)
        for name, folder in zip(folder_names(folders), folders, strict=True)
        for panel in read_panels(folder)
    ]
    check_panel_count([title for _, title in found])
    tables = []
    for panel, title in found:
        header, rows = panel_rows(panel)
        tables.append(NumberTable(f"{title}: {panel.y}, %", tuple(header), tuple(map(tuple, rows))))
    record = {"picture": KEY, KEY: [{**asdict(panel), "title": title} for panel, title in found]}
    return Picture(draw_panels(found), tuple(tables), record)


def read_panels(folder: Path) -> Iterator[Panel]:
    """The panels that an evaluation left in `folder`. Raises ArtifactError if there is none."""
    check_folder(folder, kind=EVALUATION_KIND).file(METRICS)
    entries = read_object(folder / METRICS, fix="evaluate again").get(KEY)
    if not entries:
        raise ArtifactError(
            f"{folder} has no panels: name results of breakdown, corpus_shares, article_questions, unseen_words or "
            "word_sense"
        )
    yield from read_record(tuple[Panel, ...], entries, file=folder / METRICS, key=KEY)


def draw_panels(titled: Sequence[tuple[Panel, str]]) -> Figure:
    """A panel for each, with its title; one legend for all."""
    figure, axes = new_panels(len(titled))
    names = list(dict.fromkeys(line.name for panel, _ in titled for line in panel.lines))
    for own, (panel, title) in zip(axes, titled, strict=True):
        _draw_panel(own, panel, title, names)
    legend_below(figure, axes, columns=min(len(names), 6))
    return figure


def _draw_panel(axes: Axes, panel: Panel, title: str, names: Sequence[str]) -> None:
    places: dict[str, float] = {}
    for point in (point for line in panel.lines for point in line.points):
        places.setdefault(point.name, len(places) if point.x is None else point.x)
    is_measured = all(point.x is not None for line in panel.lines for point in line.points)
    for number, line in enumerate(panel.lines):
        shift = 0.0 if is_measured else APART * (number - (len(panel.lines) - 1) / 2)
        means = [100 * point.share.mean for point in line.points]
        below = [100 * (point.share.mean - point.share.low) for point in line.points]
        above = [100 * (point.share.high - point.share.mean) for point in line.points]
        style = names.index(line.name)
        axes.errorbar(
            [places[point.name] + shift for point in line.points],
            means,
            yerr=[below, above],
            color=colour(style),
            marker=marker(style),
            markersize=4.5,
            linewidth=1.3,
            capsize=2.5,
            label=shown_name(line.name),
        )
    plain_axes(axes, x=shown_name(panel.x), y=f"{panel.y}, %", title=shown_name(title))
    if panel.is_log:
        axes.set_xscale("log", base=2)
    if not is_measured:
        # Long names, such as those of variants, would run into each other.
        tilt = 30 if max(map(len, places), default=0) > 6 else 0
        axes.set_xticks(list(places.values()), list(map(shown_name, places)), rotation=tilt, fontsize=8)
