"""Recall and agreement over latency: what one or several tunes measured, in one picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from index.settings import read_record
from npm.core.errors import ArtifactError
from npm.core.figures import (
    GREY,
    NumberTable,
    Picture,
    colour,
    folder_names,
    legend_below,
    log_ticks,
    marker,
    new_panels,
    plain_axes,
    shown_name,
)
from npm.core.files import read_object

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


JSON_NAME = "tune.json"
RANKS = ("1", "10", "100")
DRAWN_RANK = "100"
MEASURE_AGAIN = "measure again with npmlm tune out=DIR"
MARK_AREA, RING_AREA = 26, 130
Item = TypeVar("Item")


def pareto_front(items: Iterable[Item], cost: Callable[[Item], float], gain: Callable[[Item], float]) -> list[Item]:
    """The items that no other one beats in both, cheapest first.

    >>> pareto_front([(2, 0.9), (1, 0.5), (3, 0.9), (1, 0.4)], lambda each: each[0], lambda each: each[1])
    [(1, 0.5), (2, 0.9)]
    """
    best: list[Item] = []
    for each in sorted(items, key=lambda item: (cost(item), -gain(item))):
        if not best or gain(each) > gain(best[-1]):
            best.append(each)
    return best


@dataclass(frozen=True, slots=True)
class SearchPoint:
    """One way to search an index, as tune.json has it."""

    probed_lists: int | None
    reranked_rows: int | None
    candidates_per_side: int
    recall: dict[str, float]  # by rank, of RANKS
    agreement: float
    p50_ms: float
    p95_ms: float

    @property
    def drawn_recall(self) -> float:
        """Recall at the rank that is drawn."""
        return self.recall[DRAWN_RANK]


@dataclass(frozen=True, slots=True)
class _TunedIndex:
    tier: str
    factory: str | None


@dataclass(frozen=True, slots=True)
class _Questions:
    asked: int


@dataclass(frozen=True, slots=True)
class _Goals:
    recall_at_100: float
    agreement: float


@dataclass(frozen=True, slots=True)
class _Choice:
    probed_lists: int | None
    rerank_factor: int | None
    candidates_per_side: int

    def is_of(self, point: SearchPoint) -> bool:
        """Whether it is what `point` measures."""
        rows = None if self.rerank_factor is None else self.rerank_factor * self.candidates_per_side
        own = (self.probed_lists, rows, self.candidates_per_side)
        return own == (point.probed_lists, point.reranked_rows, point.candidates_per_side)


@dataclass(frozen=True, slots=True)
class TuneMeasurements:
    """What one tune measured, as tune.json has it."""

    index: _TunedIndex
    questions: _Questions
    goals: _Goals
    before: _Choice
    chosen: _Choice
    points: tuple[SearchPoint, ...] = ()

    @classmethod
    def of_record(cls, record: Mapping[str, Any], *, file: Path) -> TuneMeasurements:
        """From the JSON object that stands in `file`. Raises ArtifactError if it is none of `npmlm tune`."""
        measured = read_record(list[Any], record.get("measured"), file=file, key="measured")
        points = [
            read_record(SearchPoint, each, file=file, key=f"measured {number}") for number, each in enumerate(measured)
        ]
        wrong = [point for point in points if not point.recall.keys() >= {*RANKS} or not point.p50_ms > 0]
        if wrong or not points:
            raise ArtifactError(
                f"{file} must have recall at {', '.join(RANKS)} and a latency above 0, got "
                + (f"recall at {', '.join(wrong[0].recall)} and {wrong[0].p50_ms} ms" if wrong else "no measurement")
                + f"; {MEASURE_AGAIN}"
            )
        plain = {name: value for name, value in record.items() if name != "points"}
        found = read_record(cls, plain, file=file)
        return cls(found.index, found.questions, found.goals, found.before, found.chosen, tuple(points))

    @property
    def title(self) -> str:
        """Which index was asked how many questions."""
        return f"{self.index.factory or self.index.tier}, {self.questions.asked} questions"

    def marks(self, point: SearchPoint) -> list[str]:
        """What is to be said of a point: chosen, before, on a front."""
        fronts = [pareto_front(self.points, _latency, gain) for gain in MEASURES.values()]
        held = {
            "chosen": self.chosen.is_of(point),
            "before": self.before.is_of(point),
            "front": any(point in front for front in fronts),
        }
        return [name for name, holds in held.items() if holds]


def _latency(point: SearchPoint) -> float:
    return point.p50_ms


def _agreement(point: SearchPoint) -> float:
    return point.agreement


def _recall(point: SearchPoint) -> float:
    return point.drawn_recall


MEASURES = {
    f"recall@{DRAWN_RANK} of stored vectors, share": _recall,
    "best phrase as by exact search, share": _agreement,
}
"""What is drawn over latency, a panel each."""


def tune_picture(folders: Sequence[Path]) -> Picture:
    """What the tunes in `folders` measured, with every point on a front, the chosen ones and those before.

    Raises SettingError without folders, ArtifactError for a folder without a whole tune.json.
    """
    tunes: dict[str, TuneMeasurements] = {}
    for name, folder in zip(folder_names(folders), folders, strict=True):
        file = folder / JSON_NAME
        tunes[name] = TuneMeasurements.of_record(read_object(file, fix=MEASURE_AGAIN), file=file)
    header = ("tune", "lists", "reranked", "candidates", f"recall@{DRAWN_RANK}", "agreement", "p50 ms", "")
    rows = [
        (name, *_cells(point), ", ".join(marks))
        for name, tune in tunes.items()
        for point in sorted(tune.points, key=_latency)
        if (marks := tune.marks(point))
    ]
    record = [
        {"tune": name, "index": asdict(tune.index), "questions": tune.questions.asked, "goals": asdict(tune.goals)}
        | {"measured": [{**asdict(point), "marks": tune.marks(point)} for point in tune.points]}
        for name, tune in tunes.items()
    ]
    return Picture(
        figure=draw_tunes(tunes),
        tables=(NumberTable("ways to search", header, tuple(rows)),),
        record={"picture": "tune", "tunes": record},
        notes=tuple(f"{name}: {tune.title}" for name, tune in tunes.items()),
    )


def _cells(point: SearchPoint) -> tuple[str, ...]:
    counts = (point.probed_lists, point.reranked_rows, point.candidates_per_side)
    shares = (point.drawn_recall, point.agreement)
    return (
        *("–" if count is None else str(count) for count in counts),
        *(f"{share:.3f}" for share in shares),
        f"{point.p50_ms:.1f}",
    )


def draw_tunes(tunes: Mapping[str, TuneMeasurements]) -> Figure:
    """A panel for each measure over median latency in ms: a colour and a marker for each tune, its front as a line.

    Of a single tune, each number of candidates has a colour and a marker of its own.
    """
    figure, panels = new_panels(len(MEASURES), inches=(4.8, 3.9))
    for panel, (label, gain) in zip(panels, MEASURES.items(), strict=True):
        for number, (name, tune) in enumerate(tunes.items()):
            if len(tunes) == 1:
                _draw_widths(panel, tune, gain)
            else:
                _draw_points(panel, tune.points, gain, number, name)
            front = pareto_front(tune.points, _latency, gain)
            line = GREY if len(tunes) == 1 else colour(number)
            panel.step(*_places(front, gain), where="post", color=line, linewidth=1.2, zorder=1)
            if len(tunes) == 1:
                goal = tune.goals.recall_at_100 if gain is _recall else tune.goals.agreement
                panel.axhline(goal, color="black", linestyle=":", linewidth=1, label="goal")
        for tune in tunes.values():
            _draw_rings(panel, tune, gain)
        low, high = panel.get_ylim()
        panel.set_ylim(low, min(high, 1 + 0.06 * (1 - low)))  # a share is never above 1
        log_ticks(panel, [point.p50_ms for tune in tunes.values() for point in tune.points])
        plain_axes(panel, x="median latency of a search on one core, ms", y=label)
    heading = next(iter(tunes.values())).title if len(tunes) == 1 else ""
    if heading:
        figure.suptitle(shown_name(heading), fontsize=10)
    legend_below(figure, panels, columns=5)
    return figure


def _draw_widths(panel: Axes, tune: TuneMeasurements, gain: Callable[[SearchPoint], float]) -> None:
    for number, width in enumerate(sorted({point.candidates_per_side for point in tune.points})):
        points = [point for point in tune.points if point.candidates_per_side == width]
        _draw_points(panel, points, gain, number, f"{width} candidates a side")


def _draw_points(
    panel: Axes, points: Sequence[SearchPoint], gain: Callable[[SearchPoint], float], number: int, label: str
) -> None:
    look: dict[str, Any] = {"marker": marker(number), "color": colour(number), "linewidths": 0}
    panel.scatter(*_places(points, gain), s=MARK_AREA, alpha=0.75, label=shown_name(label), **look)


def _draw_rings(panel: Axes, tune: TuneMeasurements, gain: Callable[[SearchPoint], float]) -> None:
    """A ring around the chosen point, a square around the one before; circles and squares differ without colour."""
    for label, choice, shape in (("chosen", tune.chosen, "o"), ("before", tune.before, "s")):
        points = [point for point in tune.points if choice.is_of(point)]
        look: dict[str, Any] = {"marker": shape, "facecolors": "none", "edgecolors": "black", "linewidths": 1.0}
        panel.scatter(*_places(points, gain), s=RING_AREA, label=label, **look)


def _places(points: Sequence[SearchPoint], gain: Callable[[SearchPoint], float]) -> tuple[list[float], list[float]]:
    return [point.p50_ms for point in points], [gain(point) for point in points]
