"""The learning rate as a function of progress, counted in steps or on the wall clock."""

from __future__ import annotations

from dataclasses import dataclass

from npm.errors import SettingError, check_range


@dataclass(kw_only=True, slots=True)
class ScheduleSettings:
    """How long a run lasts and how its learning rate moves. Set `max_steps` or `max_minutes`, not both."""

    max_steps: int | None = None
    """Optimiser steps in the whole run; such a run can be repeated exactly."""
    max_minutes: float | None = None
    """Minutes of training in the whole run, resumed time included; the learning rate follows the clock."""
    learning_rate: float = 5e-4
    """Peak learning rate."""
    warmup_fraction: float = 0.06
    """Share of the run in which the learning rate rises linearly from zero; it then falls linearly."""
    final_fraction: float = 0.0
    """Learning rate at the end of the run, as a share of the peak."""

    def __post_init__(self) -> None:
        if (self.max_steps is None) == (self.max_minutes is None):
            raise SettingError(
                "how long to train is not said once",
                expected="either schedule.max_steps or schedule.max_minutes",
                got=f"max_steps={self.max_steps}, max_minutes={self.max_minutes}",
                where="schedule",
                fix="set one of them and leave the other null",
            )
        for name, low, high in (
            ("max_steps", 1, float("inf")),
            ("max_minutes", 0, float("inf")),
            ("learning_rate", 0, 1),
            ("warmup_fraction", 0, 0.999),
            ("final_fraction", 0, 1),
        ):
            value = getattr(self, name)
            right = value is None or low <= value <= high
            check_range(right, f"schedule.{name}", expected=f"a number from {low} to {high}", got=value)

    def progress(self, *, steps_done: int, minutes_done: float) -> float:
        """Share of the run that is over, from 0 to 1."""
        if self.max_steps is not None:
            return min(1.0, steps_done / self.max_steps)
        assert self.max_minutes is not None, "checked in __post_init__"
        return min(1.0, minutes_done / self.max_minutes) if self.max_minutes else 1.0

    def learning_rate_at(self, progress: float) -> float:
        """Linear warm-up to the peak, then linear fall to `final_fraction` of it.

        >>> settings = ScheduleSettings(max_steps=10, learning_rate=1.0, warmup_fraction=0.2)
        >>> [settings.learning_rate_at(p) for p in (0.1, 0.2, 0.6, 1.0)]
        [0.5, 1.0, 0.5, 0.0]
        """
        if progress < self.warmup_fraction:
            return self.learning_rate * progress / self.warmup_fraction
        left = (1.0 - progress) / (1.0 - self.warmup_fraction)
        return self.learning_rate * (self.final_fraction + (1.0 - self.final_fraction) * left)
