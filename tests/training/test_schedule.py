"""The learning rate over a run, in numbers worked by hand."""

from __future__ import annotations

import pytest

from npm.core.errors import SettingError
from npm.training.schedule import ScheduleSettings


def test_the_rate_rises_to_its_peak_and_falls_to_its_final_share() -> None:
    """Warm-up takes the first fifth; 0.6 is half way from there to the end, and 0.3125 half way from 0.5 to 0.125."""
    schedule = ScheduleSettings(max_steps=10, learning_rate=0.5, warmup_fraction=0.2, final_fraction=0.25)
    rates = [schedule.learning_rate_at(progress) for progress in (0.0, 0.1, 0.2, 0.6, 1.0)]
    assert rates == pytest.approx([0.0, 0.25, 0.5, 0.3125, 0.125])


def test_without_warm_up_the_rate_starts_at_its_peak() -> None:
    schedule = ScheduleSettings(max_steps=10, learning_rate=0.5, warmup_fraction=0)
    assert schedule.learning_rate_at(0.0) == 0.5
    assert schedule.learning_rate_at(1.0) == 0.0


def test_progress_counts_steps_or_minutes_whichever_the_run_is_measured_in() -> None:
    by_steps = ScheduleSettings(max_steps=8)
    assert [by_steps.progress(steps_done=steps, minutes_done=99) for steps in (0, 2, 8, 9)] == [0, 0.25, 1, 1]
    by_clock = ScheduleSettings(max_minutes=2.5)
    assert [by_clock.progress(steps_done=99, minutes_done=minutes) for minutes in (0, 0.5, 2.5, 3)] == [0, 0.2, 1, 1]


@pytest.mark.parametrize("both", [{}, {"max_steps": 5, "max_minutes": 1.0}])
def test_a_run_is_measured_in_exactly_one_way(both: dict[str, float]) -> None:
    with pytest.raises(SettingError, match="max_steps"):
        ScheduleSettings(**both)  # type: ignore[arg-type]
