"""Metrics for TensorBoard and Weights & Biases, and one message where their packages are missing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from npm.core.errors import SettingError
from npm.training.settings import TrainingEvaluationSettings
from npm.training.trainer import StepReport
from tests.helpers.toy_training import toy_trainer


class Stopped(Exception):
    """Stands for a kill."""


def stop_at_three(done: StepReport) -> None:
    if done.step == 3:
        raise Stopped


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
        toy_trainer(tmp_path / "run", **settings).train(stop_at_three)
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
        toy_trainer(tmp_path / "run", **settings).train(stop_at_three)
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
