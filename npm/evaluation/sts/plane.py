"""The plane of alignment and uniformity: a point for each encoder, or a path of its checkpoints.

Wang and Isola 2020 (arXiv 2005.10242, §4); drawn for sentence encoders by Gao et al. 2021 (arXiv 2104.08821, figure 2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.settings import read_record
from npm.core.artifact import check_folder
from npm.core.errors import ArtifactError, SettingError
from npm.core.figures import (
    NumberTable,
    Picture,
    colour,
    folder_names,
    legend_below,
    marker,
    new_figure,
    plain_axes,
    shown_name,
)
from npm.core.files import read_object
from npm.evaluation.results import EVALUATION_KIND, METRICS
from npm.evaluation.sts.evaluate import BEFORE_AND_AFTER

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class PlanePoint:
    """Where the sentence vectors of one encoder lie; less is better of both."""

    name: str
    encoder: str
    alignment: float
    uniformity: float


@dataclass(frozen=True, slots=True)
class PlanePath:
    """One encoder, or several states of one in the order of training."""

    name: str
    points: tuple[PlanePoint, ...]


@dataclass(frozen=True, slots=True)
class _Geometry:
    alignment: float
    uniformity: float


@dataclass(frozen=True, slots=True)
class _Encoder:
    name: str
    geometry: Any = None  # None: it was not measured


@dataclass(frozen=True, slots=True)
class _Metrics:
    geometry: dict[str, Any] = field(default_factory=dict)  # the pairs it was measured on; empty: it was not
    encoders: list[Any] = field(default_factory=list)


def geometry_picture(folders: Sequence[Path], *, arrows: bool = False) -> Picture:
    """Alignment over uniformity of the encoders that task `sts` measured in `folders`.

    Two encoders of one folder are before and after. With `arrows` the results that lie in one folder are states of one
    encoder, in the order in which they are named.

    Raises SettingError without folders, where results are of different sentences, or for arrows without a path;
    ArtifactError for a folder without a geometry.
    """
    paths = list(read_paths(folders, arrows=arrows))
    if arrows and all(len(path.points) == 1 for path in paths):
        raise SettingError("arrows needs two results in one folder, such as RUN/sts/step-1000 and RUN/sts/step-2000")
    rows = tuple(
        (f"{number} {point.name}" if len(path.points) > 1 else point.name, point.encoder, *_cells(point))
        for path in paths
        for number, point in enumerate(path.points, start=1)
    )
    header = ("point", "encoder", "alignment ↓", "uniformity ↓")
    return Picture(
        figure=draw_plane(paths),
        tables=(NumberTable("sentence vectors of STS-B", header, rows),),
        record={"picture": "geometry", "paths": [asdict(path) for path in paths]},
    )


def _cells(point: PlanePoint) -> tuple[str, str]:
    return f"{point.alignment:.3f}", f"{point.uniformity:.3f}"


def read_paths(folders: Sequence[Path], *, arrows: bool) -> Iterator[PlanePath]:
    """The paths of `geometry_picture`, of one point each where nothing is known to come after another."""
    measured_on: dict[str, Any] = {}
    by_parent: dict[Path, list[PlanePoint]] = {}
    for name, folder in zip(folder_names(folders), folders, strict=True):
        sentences, points = _read_points(name, folder)
        if (measured_on := measured_on or sentences) != sentences:
            raise SettingError(
                f"{folder} was measured on other sentences ({_flat(sentences)}) than the first ({_flat(measured_on)}):"
                " evaluate with the same data_dir, split and sts.geometry.pairs"
            )
        if arrows:
            by_parent.setdefault(folder.resolve().parent, []).extend(points)
        else:
            yield PlanePath(name, tuple(points))
    for parent, points in by_parent.items():
        yield PlanePath(parent.name if len(points) > 1 else points[0].name, tuple(points))


def _read_points(name: str, folder: Path) -> tuple[dict[str, Any], list[PlanePoint]]:
    """What the geometry of a folder was measured on, and its encoders. Raises ArtifactError."""
    check_folder(folder, kind=EVALUATION_KIND).file(METRICS)
    file = folder / METRICS
    metrics = read_record(_Metrics, read_object(file, fix="evaluate again"), file=file)
    encoders = [read_record(_Encoder, each, file=file, key="encoders") for each in metrics.encoders]
    if not encoders or not metrics.geometry or any(each.geometry is None for each in encoders):
        raise ArtifactError(
            f"{folder} has no alignment and uniformity: evaluate task=sts with STS-B in data_dir, and without"
            " sts.geometry.pairs=none"
        )
    names = [name] if len(encoders) == 1 else [f"{name}, {when}" for when in BEFORE_AND_AFTER]
    points = [
        PlanePoint(
            each, encoder.name, **asdict(read_record(_Geometry, encoder.geometry, file=file, key="encoders.geometry"))
        )
        for each, encoder in zip(names, encoders, strict=False)
    ]
    return metrics.geometry, points


def _flat(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(facts.items()))


def draw_plane(paths: Sequence[PlanePath]) -> Figure:
    """A colour and a marker for each path; the states on it are numbered and joined by arrows."""
    figure = new_figure(5.6, 4.6 + 0.2 * len(paths))
    axes = figure.add_subplot()
    for number, path in enumerate(paths):
        x, y = [point.uniformity for point in path.points], [point.alignment for point in path.points]
        axes.plot(
            x,
            y,
            linestyle="none",
            marker=marker(number),
            color=colour(number),
            markersize=8,
            label=shown_name(path.name),
        )
        for first, second in pairwise(zip(x, y, strict=True)):
            look = {"arrowstyle": "-|>", "color": colour(number), "shrinkA": 6, "shrinkB": 6, "linewidth": 1.2}
            axes.annotate("", xy=second, xytext=first, arrowprops=look)
        if len(path.points) > 1:
            for place, at in enumerate(zip(x, y, strict=True), start=1):
                axes.annotate(str(place), xy=at, xytext=(6, 6), textcoords="offset points", fontsize=8)
    axes.margins(0.15)
    plain_axes(axes, x="uniformity (lower is better)", y="alignment (lower is better)")
    legend_below(figure, [axes], columns=2 if len(paths) > 1 else 1)
    return figure
