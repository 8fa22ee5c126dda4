"""`npmlm evaluate` on tasks of one's own: what is refused because nothing would read it, or before it goes wrong."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from tests.cli.test_zero_shot import ROWS, TASK
from tests.helpers.command_line import CommandLine

OPEN = """\
suite: open
data: {file: capitals.jsonl}
template: "The capital of {{ country }} is <mask>."
"""


@pytest.fixture
def tasks(tmp_path: Path) -> dict[str, Path]:
    """A closed and an open task with their data."""
    (tmp_path / "places.csv").write_text(ROWS, encoding="utf-8")
    row = {"country": "Norway", "answers": ["Oslo"]}
    (tmp_path / "capitals.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    files = {"closed": tmp_path / "places.yaml", "open": tmp_path / "capitals.yaml"}
    files["closed"].write_text(TASK, encoding="utf-8")
    files["open"].write_text(OPEN, encoding="utf-8")
    return files


@pytest.mark.parametrize(
    ("suite", "settings"),
    [
        ("open", ["method=[npm,npm-dense]", "fill.retrieval=bm25"]),
        ("open", ["method=[npm-dense,npm-bm25]", "scoring=reference"]),
        ("open", ["scoring=reference"]),
        ("closed", ["zero_shot.closed.k=5", "zero_shot.closed.retrieval=top_k", "method=[npm,random]"]),
        *(
            ("closed", ["method=[npm,npm-single]", "zero_shot.closed.temperature=0.001", *more])
            for more in (
                [],
                ["zero_shot.closed.calibration=none", "zero_shot.closed.label_mean=sum"],
                ["zero_shot.closed.calibration=prompt", "zero_shot.closed.combination=sum"],
                ["zero_shot.closed.calibration=corpus_scaled"],
                ["zero_shot.closed.retrieval=top_k"],
            )
        ),
    ],
)
def test_settings_that_some_method_reads_and_the_least_temperature_are_taken(
    suite: str, settings: list[str], npmlm: CommandLine, tasks: dict[str, Path], built_index: Path, tmp_path: Path
) -> None:
    command = ["evaluate", f"task={tasks[suite]}", f"index={built_index}", f"out={tmp_path / 'out'}", "resamples=10"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        outcome = npmlm(*command, *settings)
    assert outcome.status == 0, outcome.err


def test_a_missing_index_is_noted_unless_methods_are_named(
    npmlm: CommandLine, tasks: dict[str, Path], tmp_path: Path
) -> None:
    command = ["evaluate", f"task={tasks['closed']}", f"out={tmp_path / 'out'}", "resamples=10"]
    outcome = npmlm(*command)
    assert outcome.status == 0, outcome.err
    assert "note: without index=DIR" in outcome.err
    assert "without index=DIR" not in npmlm(*command, "method=[majority,random]").err


def test_results_of_another_index_are_not_replaced_without_a_word(
    npmlm: CommandLine, tasks: dict[str, Path], built_index: Path, tmp_path: Path
) -> None:
    command = ["evaluate", f"task={tasks['closed']}", "method=majority", f"out={tmp_path / 'out'}", "resamples=10"]
    assert npmlm(*command).status == 0
    npmlm(*command, f"index={built_index}").refused("results of something else", "sources.places.index")
