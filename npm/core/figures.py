"""What all pictures have in common: panels, colours and markers, and how a picture gets into its file.

A picture is drawn from data into a `Figure` of its own, never with the state of `pyplot`, and comes with its numbers:
as tables for people, as JSON for programs.
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

from npm.core.errors import ArtifactError, SettingError, named
from npm.core.files import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


MARK, MARKED_BYTES = "npmlm plot", 2048
"""What our pictures say of themselves, and where: one that does not is not replaced."""
SUFFIXES = (".png", ".svg")
DPI = 110
PANEL_COLUMNS, MOST_PANELS = 3, 12
PANEL_INCHES = (4.6, 3.2)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Of Okabe and Ito (2008), told apart by colour-blind people too, without the yellow that is pale on white."""
MARKERS = "osD^vP*X<>"
GREY = "0.45"


@dataclass(frozen=True, slots=True)
class NumberTable:
    """Numbers of a picture, for people: the first column is text, the others are numbers."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure and the numbers in it."""

    figure: Figure
    tables: tuple[NumberTable, ...]
    record: dict[str, Any]
    """All numbers, as JSON values."""
    notes: tuple[str, ...] = ()
    """What a reader of the numbers should know."""


def can_draw() -> bool:
    """Whether matplotlib, of the extra `plots`, is installed."""
    return find_spec("matplotlib") is not None


def check_picture(picture: Path) -> None:
    """Refuse a picture that cannot be drawn or may not be written, before the work.

    Raises SettingError without matplotlib or for a name that is neither PNG nor SVG, ArtifactError for a file that is
    there and that we did not draw.
    """
    if not can_draw():
        raise SettingError("matplotlib is not installed: pip install matplotlib")
    if picture.suffix.lower() not in SUFFIXES or picture.is_dir():
        got = f"the folder {picture}" if picture.is_dir() else picture
        raise SettingError(f"out must be a PNG or SVG file, such as out=plot.png, got {got}")
    if picture.is_file() and MARK.encode() not in picture.read_bytes()[:MARKED_BYTES]:
        raise ArtifactError(f"{picture} was not drawn by npmlm plot: choose another name with out=, or move it")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure whole, as PNG or SVG by the suffix of `path`; the same figure gives the same bytes.

    Raises StorageError if the system refuses.
    """
    from matplotlib import rc_context

    is_svg = path.suffix.lower() == ".svg"
    metadata = {"Creator": MARK, "Date": None} if is_svg else {"Software": MARK}
    data = BytesIO()
    with rc_context({"svg.hashsalt": MARK}), warnings.catch_warnings():
        # A folder may have a name that the font lacks; a box is drawn in the place of such a character.
        warnings.filterwarnings("ignore", message="Glyph ")
        figure.savefig(data, format="svg" if is_svg else "png", dpi=DPI, metadata=metadata)
    replace_file(path, data.getvalue())


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of that size in inches, whose parts make room for each other."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def new_panels(count: int, *, inches: tuple[float, float] = PANEL_INCHES) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels of that size, at most `PANEL_COLUMNS` in a row."""
    columns = min(PANEL_COLUMNS, count)
    rows = ceil(count / columns)
    figure = new_figure(columns * inches[0], rows * inches[1])
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels[count:]:
        panel.remove()
    return figure, panels[:count]


def check_panel_count(names: Sequence[str]) -> None:
    """Raise SettingError for more panels, by their names, than a picture can hold."""
    if len(names) > MOST_PANELS:
        raise SettingError(
            f"too many panels for one picture, {len(names)} of at most {MOST_PANELS} ({named(names)}): choose some "
            "with tasks=[…] and methods=[…], or name fewer folders"
        )


def colour(number: int) -> str:
    """The colour of series `number`."""
    return COLOURS[number % len(COLOURS)]


def marker(number: int) -> str:
    """The marker of series `number`, so that no series is known by its colour alone."""
    return MARKERS[number % len(MARKERS)]


def shown_name(name: str) -> str:
    """A name from outside as matplotlib shows it: not as a formula, and not left out of a legend.

    >>> shown_name("_run $1$"), shown_name("a\\nb\\0")
    (' _run \\\\$1\\\\$', 'a b�')
    """
    words = " ".join(name.split())
    plain = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in words).replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain


def plain_axes(axes: Axes, *, x: str, y: str, title: str = "") -> None:
    """Label the axes and take away what carries no number."""
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


def log_ticks(axes: Axes, values: Sequence[float]) -> None:
    """A log axis x over `values` above 0, with plain numbers at 1, 2 and 5 times powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.set_xlim(min(values) / 1.6, max(values) * 1.6)
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def legend_below(figure: Figure | SubFigure, axes: Sequence[Axes], *, columns: int) -> None:
    """One legend for all `axes`, under them, each label once."""
    entries: dict[str, Any] = {}
    for each in axes:
        handles, labels = each.get_legend_handles_labels()
        entries |= {label: handle for label, handle in zip(labels, handles, strict=True) if label not in entries}
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower center", ncols=columns, frameon=False, fontsize=8
    )


def folder_names(folders: Sequence[Path]) -> list[str]:
    """Names of folders; with as many of the folders above as it takes to tell them apart.

    Raises SettingError without folders, or if one is named twice.

    >>> folder_names([Path("a/long"), Path("b/short")]), folder_names([Path("a/same"), Path("b/same")])
    (['long', 'short'], ['a/same', 'b/same'])
    """
    if not folders:
        raise SettingError("no folder is named: give those that npmlm train, tune or evaluate wrote")
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise SettingError(f"a folder is named twice: {', '.join(map(str, folders))}")
