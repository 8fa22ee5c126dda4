"""Which examples of a task are asked, and how sure its numbers are: settings that all tasks share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from npm.settings import Bounds, CheckedSettings


class Split(Enum):
    """What a question may be used for."""

    dev = "dev"  # to choose settings on
    test = "test"  # to report


@dataclass(kw_only=True, slots=True)
class SampleSettings(CheckedSettings):
    """The sample, and the bootstrap over it."""

    split: Split = Split.test
    """`dev`: the examples or questions to choose settings on; `test`: those to report."""
    limit: Annotated[int | None, Bounds(1)] = None
    """Examples of a task at most; null takes 3000 of a zero-shot task, all questions of demo, and as many articles as
    the task's own settings say (in_batch.articles=…)."""
    seed: Annotated[int, Bounds(0)] = 0
    """Seed of samples, of masks and of the bootstrap."""
    resamples: Annotated[int, Bounds(1)] = 10_000
    """Of the bootstrap, for 95 % confidence intervals."""
