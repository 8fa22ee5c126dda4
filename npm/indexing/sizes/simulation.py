"""What a build by many machines will take, from the costs of its stages on one: time, repeated work, bytes, limits.

An expectation to first order, without chance: jobs are equal, a stage begins when the one before it has ended, and
takes as long as the slowest of processors, network and shared disk. A machine fails every `mtbf_hours`, loses half a
shard on average (what is finished is kept), and is there again, or replaced, after `restart_seconds`. Left out are jobs
that are slower than others, failures that come together, and shards so long that a second failure meets them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from npm.core.files import shown_bytes
from npm.indexing.settings import EstimateSettings

HOUR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class StageCosts:
    """What one stage takes, whoever does it."""

    stage: str
    seconds: float  # of one machine that does all of it
    shards: float  # pieces that are kept once they are finished
    read_bytes: float
    read_bytes_by_job: float  # what every job reads beside its share
    written_bytes: float
    most_jobs: float = math.inf  # among which it can be divided, beside one for each shard


@dataclass(frozen=True, slots=True)
class StageRun:
    """The same, done by several machines."""

    stage: str
    jobs: int
    seconds: float  # wall time, with failures
    failures: float  # expected
    repeated_seconds: float  # machine time that failures waste
    moved_bytes: float  # read and written, over network and disk
    limited_by: str  # processor, network or disk
    disk_bound_from: int  # machines from which on the shared disk, and not their number, sets the time


@dataclass(frozen=True, slots=True)
class ClusterEstimate:
    """A build by several machines; without stages if one machine with one job is asked about."""

    stages: tuple[StageRun, ...] = ()
    notes: tuple[str, ...] = ()  # sentences

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return {run.stage: asdict(run) for run in self.stages}

    def rows(self) -> list[tuple[str, ...]]:
        """A heading, a row a stage, and the whole, as plain strings."""
        rows: list[tuple[str, ...]] = [
            ("stage", "jobs", "wall time", "failures", "repeated", "moved", "limited by", "disk-bound from")
        ]
        summed = ("seconds", "failures", "repeated_seconds", "moved_bytes")
        sums = {name: sum(getattr(run, name) for run in self.stages) for name in summed}
        longest = max(self.stages, key=lambda run: run.seconds)
        for run in (*self.stages, replace(longest, stage="all", **sums)):
            times = (shown_seconds(run.seconds), f"{run.failures:.1f}", shown_seconds(run.repeated_seconds))
            limits = (shown_bytes(run.moved_bytes), run.limited_by, f"{run.disk_bound_from:,} machines")
            rows.append((run.stage, f"{run.jobs:,}", *times, *limits))
        rows[-1] = (*rows[-1][:-1], "")
        return rows


def simulate(costs: Sequence[StageCosts], settings: EstimateSettings) -> ClusterEstimate:
    """Each stage with `settings.jobs` jobs on `settings.machines` machines.

    >>> settings = EstimateSettings(jobs=8, machines=4, mtbf_hours=2.0, restart_seconds=0.0)
    >>> stage = StageCosts("vectors", 14400.0, shards=10, read_bytes=0.0, read_bytes_by_job=0.0, written_bytes=1.0)
    >>> run = simulate([stage], settings).stages[0]  # an hour with two failures; each repeats half of 1440 s
    >>> run.failures, run.repeated_seconds, run.seconds
    (2.0, 1440.0, 3960.0)
    """
    if settings.jobs == settings.machines == 1:
        return ClusterEstimate()
    stages = tuple(_run(each, settings) for each in costs)
    divided = [run for run, each in zip(stages, costs, strict=True) if each.most_jobs > 1 and run.moved_bytes]
    first = min(divided or stages, key=lambda run: run.disk_bound_from)
    notes = [f"saturates first: the disk that all share, in {first.stage}, from {first.disk_bound_from:,} machines on"]
    if (idle := settings.machines - settings.jobs) > 0:
        fix = "give jobs= of four times as many, so that one that is repeated costs little"
        notes.append(f"note: {idle:,} of {settings.machines:,} machines have no job; {fix}")
    return ClusterEstimate(stages, tuple(notes))


def _run(costs: StageCosts, settings: EstimateSettings) -> StageRun:
    jobs = int(min(settings.jobs, costs.most_jobs, max(1, math.ceil(costs.shards))))
    machines = min(settings.machines, jobs)
    moved = costs.read_bytes + jobs * costs.read_bytes_by_job + costs.written_bytes
    limits = {
        "processor": costs.seconds / jobs * math.ceil(jobs / machines),
        "network": moved / (machines * settings.network_gbit_per_second * 1e9 / 8),
        "disk": moved / (settings.disk_mb_per_second * 1e6),
    }
    limited_by = max(limits, key=lambda name: limits[name])
    undisturbed = limits[limited_by]
    failures = machines * undisturbed / (settings.mtbf_hours * HOUR_SECONDS)
    repeated = failures * undisturbed * machines / max(1.0, costs.shards) / 2
    seconds = undisturbed + (repeated + failures * settings.restart_seconds) / machines
    disk_bound_from = max(1, math.ceil(costs.seconds / max(limits["disk"], 1e-9)))
    return StageRun(costs.stage, jobs, seconds, failures, repeated, moved, limited_by, disk_bound_from)


def shown_seconds(seconds: float) -> str:
    """A time for people.

    >>> shown_seconds(0.25), shown_seconds(75), shown_seconds(3 * 3600 + 20 * 60)
    ('0.2 s', '1 min 15 s', '3 h 20 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes} min {left} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
