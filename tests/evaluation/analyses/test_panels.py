"""Panels: their table by hand, and a file that is not what we wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from npm.core.errors import ArtifactError
from npm.evaluation.analyses.panels import Line, Panel, Point, draw_panels, panel_rows, panels_markdown, panels_picture
from npm.evaluation.metrics import Interval
from npm.evaluation.results import write_results

HALF = Interval(0.5, 0.25, 0.75)
PANEL = Panel(
    "trex",
    "tokens",
    "exact match",
    (Line("npm", (Point("1", 4, HALF), Point("2", 9, HALF))), Line("mlm", (Point("2", 9, HALF),))),
)


def test_a_row_is_a_point_and_a_missing_one_is_a_dash() -> None:
    header, rows = panel_rows(PANEL)
    assert header == ["tokens", "npm", "mlm"]
    assert rows == [["1", "50.0 [25.0, 75.0]\nn=4", "–"], ["2", *(["50.0 [25.0, 75.0]\nn=9"] * 2)]]
    assert panels_markdown([PANEL]).startswith("## trex: exact match, %\n\n| tokens | npm | mlm |\n|---|---:|---:|\n")


def test_names_stand_side_by_side_and_numbers_at_their_place() -> None:
    measured = Panel(
        "size", "tokens", "accuracy", (Line("npm", (Point("a", 1, HALF, 4.0), Point("b", 1, HALF, 64.0))),), True
    )
    named, numbered = draw_panels([(PANEL, "one"), (measured, "two")]).axes[:2]
    assert [label.get_text() for label in named.get_xticklabels()] == ["1", "2"]
    assert numbered.get_xscale() == "log"
    assert numbered.lines[0].get_xdata().tolist() == [4.0, 64.0]
    assert numbered.lines[0].get_ydata().tolist() == [50.0, 50.0]


def test_results_without_panels_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    write_results(tmp_path / "none", record={}, predictions=[], metrics={})
    with pytest.raises(ArtifactError, match="no panels"):
        panels_picture([tmp_path / "none"])
    write_results(tmp_path / "other", record={}, predictions=[], metrics={"panels": [{"title": 1}]})
    with pytest.raises(ArtifactError, match="must be"):
        panels_picture([tmp_path / "other"])
