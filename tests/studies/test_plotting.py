"""Metrics of runs as curves, for TensorBoard and Weights & Biases, and what a mistake gets."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from npm.core.errors import SettingError, UserError
from npm.training.settings import TrainingEvaluationSettings
from studies.plotting import (
    CurveSettings,
    check_figure,
    draw_runs,
    folder_names,
    save_figure,
)
from tests.helpers.toy_training import Stopped, stop_at, toy_trainer

pytest.importorskip("matplotlib")
UNSMOOTHED = CurveSettings(smoothed_points=1)
TRAINING = {"learning_rate": 1e-3, "tokens_per_second": 900.0, "data_fraction": 0.01, "seconds": 1.0}


def run_with(folder: Path, lines: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A run of masked LM with evaluations at steps 0, 20 and 25, beyond its last line of training."""
    training = [
        {"step": step, "tokens": 100 * step, **TRAINING, "masked": 8.0 - step / 10, "masked_top1": step / 100}
        for step in (10, 20)
    ]
    held_out = [
        {"step": step, "tokens": 100 * step, "held_out_masked": 9.0 - step / 10, "stsb": step / 50}
        for step in (0, 20, 25)
    ]
    return run_with(tmp_path / "first", [held_out[0], training[0], training[1], *held_out[1:]])


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """A run of two losses without held-out text."""
    lines = [
        {"step": step, "tokens": 50 * step, **TRAINING, "masked": 7.0, "start": 3.0 + step, "end": 1.0}
        for step in (5, 10, 15)
    ]
    return run_with(tmp_path / "second", lines)


def drawn(figure: Any) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    """x and y of every line, by the name of its panel and its label."""
    return {
        panel.get_ylabel(): {
            line.get_label(): (np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist())
            for line in panel.lines
        }
        for panel in figure.axes
    }


def test_the_curves_drawn_are_the_numbers_of_the_runs_over_their_tokens(first: Path, second: Path) -> None:
    found = drawn(draw_runs([first, second], UNSMOOTHED).figure)
    assert found == {
        "masked": {
            "first": ([1000.0, 2000.0], [7.0, 6.0]),
            "first (held out)": ([0.0, 2000.0, 2500.0], [9.0, 7.0, 6.5]),
            "second": ([250.0, 500.0, 750.0], [7.0, 7.0, 7.0]),
        }
    }


def test_over_steps_training_curves_are_smoothed_and_held_out_ones_are_not(first: Path) -> None:
    found = drawn(draw_runs([first], CurveSettings(smoothed_points=2, terms=["masked", "stsb"], x="steps")).figure)
    assert found["masked"]["first"] == ([10.0, 20.0], [7.0, 6.5])
    assert found["masked"]["first (held out)"] == ([0.0, 20.0, 25.0], [9.0, 7.0, 6.5])
    assert found["stsb"] == {"first": ([0.0, 20.0, 25.0], [0.0, 0.4, 0.5])}


def test_the_numbers_of_the_picture_are_those_of_its_curves(first: Path, second: Path) -> None:
    picture = draw_runs([first, second], CurveSettings(smoothed_points=2))
    table = picture.table
    assert table.header == ("curve", "points", "tokens", "first", "last", "lowest", "highest")
    assert tuple(table.rows) == (
        ("first: masked", "2", "2,000", "7", "6.5", "6.5", "7"),
        ("first: held_out_masked", "3", "2,500", "9", "6.5", "6.5", "9"),
        ("second: masked", "3", "750", "7", "7", "7", "7"),
    )
    curves = picture.record["curves"]
    assert [(each["run"], each["term"], each["smoothed"]) for each in curves] == [
        ("first", "masked", True),
        ("first", "held_out_masked", False),
        ("second", "masked", True),
    ]
    assert curves[1]["x"] == [0.0, 2000.0, 2500.0] and curves[1]["y"] == [9.0, 7.0, 6.5]


def test_a_number_that_is_not_finite_is_null_in_the_record(tmp_path: Path) -> None:
    run = run_with(
        tmp_path / "run", [{"step": step, "tokens": step, "learning_rate": 1.0, "masked": 1.0} for step in (1, 2)]
    )
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "tokens": 3, "learning_rate": 1.0, "masked": NaN}\n')
    picture = draw_runs([run], CurveSettings(smoothed_points=1))
    assert picture.record["curves"][0]["y"] == [1.0, 1.0, None]
    assert picture.table.rows[0][-2:] == ("1", "1")


def test_runs_without_metrics_or_the_asked_terms_are_refused(first: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    other = run_with(tmp_path / "other", [{"step": 1, "tokens": 5, **TRAINING, "sentence": 1.0}])
    for runs, settings, named in (
        ([first, tmp_path / "empty"], {}, "empty"),
        ([first, other], {}, "other: sentence"),
        ([first], {"smoothed_points": 0}, "smoothed_points"),
    ):
        with pytest.raises(UserError, match=named):
            draw_runs(runs, CurveSettings(**settings))  # type: ignore[arg-type]
    draw_runs([first, other], CurveSettings(terms=["masked", "sentence"]))


MAGIC = {".png": b"\x89PNG\r\n", ".svg": b"<?xml"}


@pytest.mark.parametrize("suffix", MAGIC)
def test_the_same_figure_has_the_same_bytes_and_takes_the_place_of_none_but_our_own(
    suffix: str, first: Path, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / f"a{suffix}", tmp_path / "new" / f"b{suffix}"]
    for file in files:
        save_figure(draw_runs([first, second], UNSMOOTHED).figure, file)
        check_figure(file)
    assert files[0].read_bytes().startswith(MAGIC[suffix])
    assert files[0].read_bytes() == files[1].read_bytes()
    files[0].write_bytes(MAGIC[suffix] + b" of somebody else")
    (tmp_path / f"folder{suffix}").mkdir()
    for name, named in ((f"a{suffix}", "was not drawn by npmlm"), (f"folder{suffix}", "PNG"), ("x.pdf", "PNG or SVG")):
        with pytest.raises(UserError, match=named):
            check_figure(tmp_path / name)
    monkeypatch.setattr("studies.plotting.find_spec", lambda _: None)
    with pytest.raises(SettingError, match="pip install matplotlib"):
        check_figure(tmp_path / "x.png")


def test_names_from_outside_are_shown_as_they_are(tmp_path: Path) -> None:
    names = ["_begins", "$x_1$", "two\nlines", "😀"]
    lines = [{"step": step, "tokens": step, **TRAINING, "masked": 1.0} for step in (1, 2)]
    figure = draw_runs([run_with(tmp_path / name, lines) for name in names], UNSMOOTHED).figure
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [" _begins", r"\$x_1\$", "two lines", "😀"]
    save_figure(figure, tmp_path / "names.png")  # without a warning, which would be an error here


def test_folders_with_the_same_name_are_told_apart_by_the_folders_above(tmp_path: Path) -> None:
    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "first"]
    assert folder_names(folders) == ["a/run", "b/run", f"{tmp_path.name}/first"]


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs the extra tensorboard")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_shows_each_step_once_though_the_run_was_killed(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings: dict[str, Any] = {
        "max_steps": 4,
        "tensorboard": True,
        "evaluation": TrainingEvaluationSettings(every_steps=2),
    }
    with pytest.raises(Stopped):
        toy_trainer(tmp_path / "run", **settings).train(stop_at(3))
    toy_trainer(tmp_path / "run", **settings).train()
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    steps = {name: [event.step for event in events.Scalars(name)] for name in ("start", "held_out_loss")}
    assert steps["start"] == [1, 2, 3, 4]
    assert steps["held_out_loss"][-2:] == [2, 4]
    assert {"tokens_per_second", "learning_rate", "held_out_masked"} <= set(events.Tags()["scalars"])


class StubRun:
    """Stands for a run of Weights & Biases, and remembers what it was told."""

    def __init__(self, **given: Any) -> None:
        self.given, self.id = given, given["id"] or "made-up"
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.is_finished = False

    def log(self, metrics: dict[str, float], *, step: int) -> None:
        self.logged.append((step, metrics))

    def finish(self) -> None:
        self.is_finished = True


def test_weights_and_biases_get_every_line_and_continue_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[StubRun] = []

    def init(**given: Any) -> StubRun:
        runs.append(StubRun(**given))
        return runs[-1]

    stub: Any = ModuleType("wandb")
    stub.init = init
    stub.__spec__ = importlib.util.spec_from_loader("wandb", loader=None)
    monkeypatch.setitem(sys.modules, "wandb", stub)
    settings: dict[str, Any] = {"max_steps": 4, "wandb_project": "phrases", "checkpoint_every_minutes": 0.0}
    with pytest.raises(Stopped):
        toy_trainer(tmp_path / "run", **settings).train(stop_at(3))
    toy_trainer(tmp_path / "run", **settings).train()
    assert [run.given["id"] for run in runs] == [None, "made-up"]
    assert all(run.given["project"] == "phrases" and run.given["resume"] == "allow" for run in runs)
    assert [[step for step, _ in run.logged] for run in runs] == [[1, 2], [3, 4]]
    assert all("start" in metrics for _, metrics in runs[1].logged)
    assert all(run.is_finished for run in runs)


@pytest.mark.parametrize(
    ("package", "settings"), [("tensorboard", {"tensorboard": True}), ("wandb", {"wandb_project": "phrases"})]
)
def test_a_logger_that_is_not_installed_is_one_message_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, settings: dict[str, Any]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(SettingError, match=f"pip install {package}"):
        toy_trainer(tmp_path / "run", max_steps=1, **settings)
