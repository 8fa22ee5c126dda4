"""Settings of a cluster that runs the jobs of a build, or holds the partitions of a served index."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import PositiveFloat, PositiveInt

from npm.core.settings import INNER, Fraction, Settings


class ClusterSettings(Settings):
    """An engine, and where it is."""

    engine: Annotated[Literal["none", "ray"], INNER] = "none"
    """`none`: this process; `ray`: a Ray cluster."""
    address: str = "local"
    """Of the Ray cluster, as HOST:PORT; `auto`: the one that this machine belongs to; `local`: one is started on this
    machine and ends with the command."""


class BuildCluster(ClusterSettings):
    """Cluster that runs the jobs of a build, and resources of a job."""

    cpus_per_job: PositiveInt = 1
    """Processor cores that Ray reserves for a job, which computes with as many threads."""
    gpus_per_job: Fraction = 0.0
    """Of one GPU, what Ray reserves for a job that encodes; the other stages need none. A part, such as 0.5, lets jobs
    share one."""


class ServeCluster(ClusterSettings):
    """Cluster that holds the partitions of a served index."""

    replicas: PositiveInt = 1
    """Of each partition on Ray; with several, one may be lost and nothing is."""
    cpus_per_replica: PositiveFloat = 0.5
    """Processor cores that Ray reserves for a replica; a new generation needs as many again for a while."""
