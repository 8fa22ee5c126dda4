"""One row of a result table: what each method scores on a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from npm.evaluation.metrics import Interval


@dataclass(frozen=True, slots=True)
class TaskScores:
    """A task's metric by method, over the same examples."""

    task: str
    count: int
    """Examples."""
    methods: Mapping[str, Interval]
    """Method name → mean and 95 % confidence interval, as shares of 1."""
    paper: Mapping[str, float] = field(default_factory=dict)
    """Method name → what Min et al. 2022 report, per cent."""
