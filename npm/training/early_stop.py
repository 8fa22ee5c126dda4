"""The best evaluation so far, and whether there is hope for a better one."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class BestSoFar:
    """What the evaluations of a run have come to; part of its checkpoints."""

    value: float | None = None
    """The best value of the metric that was chosen; None before the first finite one."""
    step: int | None = None
    """The step it was measured at."""
    evaluations_since: int = 0
    """Evaluations after it, none of them better."""
    last_step: int | None = None
    """The step of the latest evaluation."""

    def update(self, *, step: int, value: float, higher_is_better: bool) -> bool:
        """Take in an evaluation; whether it is better than all before. A number that is not finite never is.

        >>> best = BestSoFar()
        >>> [best.update(step=step, value=value, higher_is_better=False) for step, value in enumerate([3.0, 2.0, 2.0])]
        [True, True, False]
        """
        self.last_step = step
        better = math.isfinite(value) and (
            self.value is None or (value > self.value if higher_is_better else value < self.value)
        )
        if better:
            self.value, self.step, self.evaluations_since = value, step, 0
        else:
            self.evaluations_since += 1
        return better

    def is_hopeless(self, patience_evaluations: int | None) -> bool:
        """Whether so many evaluations in a row were no better; never without a limit."""
        return patience_evaluations is not None and self.evaluations_since >= patience_evaluations
