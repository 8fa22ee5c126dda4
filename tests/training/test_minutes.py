"""What the loop does by the clock, with one that the test sets, and by the step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from npm.training import trainer as trainer_module
from npm.training.settings import ScheduleSettings
from npm.training.trainer import StepReport, Trainer
from tests.helpers.toy_training import metrics_of, toy_trainer


@dataclass
class Clock:
    """Stands for the module `time`: a clock that stands still, and one that goes on by `pace` seconds at each look."""

    now: float = 1000.0
    counter: float = 0.0
    pace: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        self.counter += self.pace
        return self.counter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(trainer_module, "time", clock)
    return clock


def checkpoints_after_each_step(trainer: Trainer, seconds: list[float], clock: Clock) -> list[list[int]]:
    """The steps of the checkpoints that are there while the next step runs; step n ends at second n of the list."""
    found: list[list[int]] = []
    began = clock.now

    def look(done: StepReport) -> None:
        folder = trainer.run_folder.path / "checkpoints"
        found.append([int(path.name.removeprefix("step-")) for path in sorted(folder.glob("step-*"))])
        clock.now = began + seconds[min(done.step, len(seconds) - 1)]

    clock.now = began
    trainer.train(look)
    return found


def test_a_checkpoint_is_written_when_its_minutes_are_over_and_not_before(tmp_path: Path, clock: Clock) -> None:
    trainer = toy_trainer(tmp_path / "run", max_steps=7, checkpoint_every_minutes=2.0)
    seconds = [0.0, 119.0, 120.0, 239.0, 240.0, 241.0, 359.0]
    assert checkpoints_after_each_step(trainer, seconds, clock) == [[], [], [], [3], [3], [5], [5]]


@pytest.mark.parametrize(("minutes", "steps"), [(2.0, 3), (1.98, 2)])
def test_a_run_by_the_clock_ends_with_its_minutes(minutes: float, steps: int, tmp_path: Path, clock: Clock) -> None:
    trainer = toy_trainer(tmp_path / "run", max_steps=1)
    trainer.schedule = ScheduleSettings(max_minutes=minutes)
    checkpoints_after_each_step(trainer, [0.0, 119.0, 120.0], clock)
    assert trainer.step == steps


def test_a_part_of_a_run_ends_with_its_minutes_without_an_encoder(tmp_path: Path, clock: Clock) -> None:
    trainer = toy_trainer(tmp_path / "run", max_steps=9)
    times = iter([59.0, 60.0, 61.0])

    def look(done: StepReport) -> None:
        clock.now = 1000.0 + next(times)

    trainer.train(look, most_minutes=1.0)
    assert trainer.step == 3
    assert not (tmp_path / "run" / "encoder").exists()


def test_each_line_has_the_speed_of_its_own_steps(tmp_path: Path, clock: Clock) -> None:
    """Three looks at the clock a step: before the data, behind them, and at the end."""
    pace = {1: 0.5, 2: 0.5, 3: 4.0, 4: 4.0}

    def quicken(done: StepReport) -> None:
        clock.pace = pace.get(done.step + 1, 0.0)

    clock.pace = pace[1]
    toy_trainer(tmp_path / "run", max_steps=4, log_every_steps=2).train(quicken)
    first, second = metrics_of(tmp_path / "run")
    assert first["tokens_per_second"] == pytest.approx(first["tokens"] / (2 * 2 * 0.5), abs=0.1)
    assert second["tokens_per_second"] == pytest.approx((second["tokens"] - first["tokens"]) / (2 * 2 * 4), abs=0.1)
    assert (first["data_fraction"], second["data_fraction"]) == (0.5, 0.5)


def test_the_rate_of_a_step_is_that_at_its_end(tmp_path: Path, clock: Clock) -> None:
    """So that the first one changes something, and the last one has the final rate."""
    trainer = toy_trainer(tmp_path / "run", max_steps=4)
    trainer.schedule = ScheduleSettings(max_steps=4, learning_rate=1e-3, warmup_fraction=0.5)
    trainer.train()
    rates = [line["learning_rate"] for line in metrics_of(tmp_path / "run")]
    assert rates == pytest.approx([0.5e-3, 1e-3, 0.5e-3, 0.0])
    by_clock = toy_trainer(tmp_path / "by-clock", max_steps=1)
    by_clock.schedule = ScheduleSettings(max_minutes=60.0, learning_rate=1e-2)
    by_clock.train(lambda _: setattr(clock, "now", clock.now + 3600))
    assert 0 < metrics_of(tmp_path / "by-clock")[0]["learning_rate"] < 1e-4
