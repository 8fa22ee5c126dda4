"""Figures: panels, colors and markers, and their files.

A figure is drawn into a `Figure`, never with the state of `pyplot`, and comes with its numbers: tables for people, JSON
for programs.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npm.core.errors import ArtifactError, SettingError
from npm.core.files import replace_file
from npm.core.types import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MARK, MARKED_BYTES = "npmlm plot", 2048
"""Mark in our figures, and the bytes that it is in: a file without it is not replaced."""
SUFFIXES = (".png", ".svg")
DPI = 110
PANEL_COLUMNS = 3
PANEL_INCHES = (4.6, 3.2)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Of Okabe and Ito (2008), distinct for color-blind readers too, without the yellow that is pale on white."""
MARKERS = "osD^vP*X<>"


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure and the numbers in it."""

    figure: Figure
    table: Table
    record: dict[str, Any]
    """All numbers, as JSON values."""


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
    if file.suffix.lower() not in SUFFIXES or file.is_dir():
        raise SettingError(f"out must be a PNG or SVG file, such as out=plot.svg, got {file}")
    if file.is_file() and MARK.encode() not in file.read_bytes()[:MARKED_BYTES]:
        raise ArtifactError(f"{file} was not drawn by npmlm plot: choose another name with out=, or move it")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a complete figure, as PNG or SVG by the suffix of `path`; the same figure gives the same bytes."""
    from matplotlib import rc_context

    is_svg = path.suffix.lower() == ".svg"
    metadata = {"Creator": MARK, "Date": None} if is_svg else {"Software": MARK}
    data = BytesIO()
    with rc_context({"svg.hashsalt": MARK}), warnings.catch_warnings():
        # A folder's name may have characters that are missing from the font; a box is drawn instead.
        warnings.filterwarnings("ignore", message="Glyph ")
        figure.savefig(data, format="svg" if is_svg else "png", dpi=DPI, metadata=metadata)
    replace_file(path, data.getvalue())


def new_panels(count: int, *, inches: tuple[float, float] = PANEL_INCHES) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels of that size, at most `PANEL_COLUMNS` in a row."""
    from matplotlib.figure import Figure

    columns = min(PANEL_COLUMNS, count)
    rows = ceil(count / columns)
    figure = Figure(figsize=(columns * inches[0], rows * inches[1]), layout="constrained")
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels[count:]:
        panel.remove()
    return figure, panels[:count]


def color(number: int) -> str:
    """Color of series `number`."""
    return COLOURS[number % len(COLOURS)]


def marker(number: int) -> str:
    """Marker of series `number`, so that no series is known by its color alone."""
    return MARKERS[number % len(MARKERS)]


def shown_name(name: str) -> str:
    """A name from outside as matplotlib shows it: not as a formula, and not hidden from a legend.

    >>> shown_name("_run $1$"), shown_name("a\\nb\\0")
    (' _run \\\\$1\\\\$', 'a b�')
    """
    words = " ".join(name.split())
    plain = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in words).replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain


def plain_axes(axes: Axes, *, x: str, y: str, title: str = "") -> None:
    """Label the axes and remove lines that carry no information."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def count_ticks(axes: Axes) -> None:
    """Large counts along x as 200 k, 3 M."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(EngFormatter())


def legend_below(figure: Figure, axes: Sequence[Axes], *, columns: int) -> None:
    """One legend for all `axes`, under them, each label once."""
    entries: dict[str, Any] = {}
    for each in axes:
        handles, labels = each.get_legend_handles_labels()
        entries |= {label: handle for label, handle in zip(labels, handles, strict=True) if label not in entries}
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower center", ncols=columns, frameon=False, fontsize=8
    )


def folder_names(folders: Sequence[Path]) -> list[str]:
    """Names of folders; with as many parent folders as needed to distinguish them.

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
