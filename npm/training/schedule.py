"""The learning rate as a function of progress, counted in steps or on the wall clock."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from npm.core.errors import SettingError
from npm.core.settings import Fraction, Settings


class ScheduleSettings(Settings):
    """Length and learning rate of a run. Set one of `max_steps`, `max_epochs` and `max_minutes`."""

    max_steps: PositiveInt | None = None
    """Optimizer steps in the whole run; such a run can be repeated exactly."""
    max_epochs: PositiveInt | None = None
    """Passes over labeled rows (`labeled.files`), each rounded up to whole steps; it is evaluated after each."""
    max_minutes: PositiveFloat | None = None
    """Minutes of training in the whole run, resumed time included; the learning rate follows the clock."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 5e-4
    """Peak learning rate."""
    warmup_fraction: Annotated[float, Field(ge=0, le=0.999)] = 0.06
    """Fraction of the run in which the learning rate rises linearly from zero; it then falls linearly."""
    constant_fraction: Annotated[float, Field(ge=0, le=0.999)] = 0.0
    """Fraction of the run, warm-up included, after which it begins to fall."""
    final_fraction: Fraction = 0.0
    """Learning rate at the end of the run, as a fraction of the peak."""

    def check(self) -> None:
        """Refuse a length that is given in several ways, or in none."""
        given = [name for name in ("max_steps", "max_epochs", "max_minutes") if getattr(self, name) is not None]
        if len(given) != 1:
            raise SettingError(
                "exactly one of schedule.max_steps, schedule.max_minutes and schedule.max_epochs must be set, "
                f"got {' and '.join(given) or 'none'}; set the others to null, such as "
                f"schedule.{given[0] if given else 'max_minutes'}=null"
            )

    def progress(self, *, steps_done: int, minutes_done: float) -> float:
        """Fraction of the run that is over, from 0 to 1."""
        if self.max_steps is not None:
            return min(1.0, steps_done / self.max_steps)
        assert self.max_minutes is not None, "checked in check"
        return min(1.0, minutes_done / self.max_minutes)

    def learning_rate_at(self, progress: float) -> float:
        """Linear warm-up to the peak, then linear fall to `final_fraction` of it, which may begin later.

        >>> settings = ScheduleSettings(max_steps=10, learning_rate=1.0, warmup_fraction=0.2)
        >>> [settings.learning_rate_at(p) for p in (0.1, 0.2, 0.6, 1.0)]
        [0.5, 1.0, 0.5, 0.0]
        """
        if progress < self.warmup_fraction:
            return self.learning_rate * progress / self.warmup_fraction
        left = min(1.0, (1.0 - progress) / (1.0 - max(self.warmup_fraction, self.constant_fraction)))
        return self.learning_rate * (self.final_fraction + (1.0 - self.final_fraction) * left)
