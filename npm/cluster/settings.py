"""What runs the jobs of a build, or holds the partitions of an index that is served."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from npm.core.settings import Bounds, CheckedSettings


class Engine(Enum):
    """Who does it."""

    none = "none"
    local = "local"
    ray = "ray"


@dataclass(kw_only=True, slots=True)
class ClusterSettings(CheckedSettings):
    """An engine, and where it is."""

    engine: Engine = Engine.none
    """`none`: this process, undivided; `local`: jobs or partitions, all in this process; `ray`: a Ray cluster."""
    address: str = "local"
    """Of the Ray cluster, as HOST:PORT; `auto`: the one that this machine belongs to; `local`: one is started on this
    machine and ends with the command."""


@dataclass(kw_only=True, slots=True)
class BuildCluster(ClusterSettings):
    """What runs the jobs of a build, and with how much of a machine each."""

    cpus_per_job: Annotated[int, Bounds(1)] = 1
    """Processor cores that Ray reserves for a job, which computes with as many threads."""
    gpus_per_job: Annotated[float, Bounds(0, 1)] = 0.0
    """Of one GPU, what Ray reserves for a job that encodes; the other stages need none. A part, such as 0.5, lets jobs
    share one."""


@dataclass(kw_only=True, slots=True)
class ServeCluster(ClusterSettings):
    """What holds the partitions of a served index."""

    replicas: Annotated[int, Bounds(1)] = 1
    """Of each partition on Ray; with several, one may be lost and nothing is."""
    cpus_per_replica: Annotated[float, Bounds(above=0)] = 0.5
    """Processor cores that Ray reserves for a replica; a new generation needs as many again for a while."""
