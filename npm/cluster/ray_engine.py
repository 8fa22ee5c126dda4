"""Ray: connecting to a cluster of it, and the jobs of a build as its tasks.

The one border at which objects are pickled: inside a cluster Ray speaks cloudpickle, so whoever reaches its ports runs
code there. Its token authentication is therefore on unless the environment says otherwise.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from npm.cluster.jobs import Job, build_by_jobs
from npm.cluster.settings import BuildCluster, ClusterSettings
from npm.core.errors import SettingError, UserError
from npm.core.types import Progress, silent
from npm.indexing.build import BuildResult, print_nothing
from npm.indexing.settings import IndexBuildSettings, Stage

JOBS_PER_WORKER = 4
"""More jobs than run at once, so that little is lost with one of them."""
RETRIES = 3
"""Of a job whose worker or machine is lost; a mistake of the user is not tried again."""
CONNECT_SECONDS, POLL_SECONDS, CANCEL_SECONDS = 5.0, 1.0, 10.0


@contextmanager
def connect(settings: ClusterSettings) -> Iterator[None]:
    """Be connected to the Ray cluster at `settings.address`, or use the connection that this process has already.

    Raises SettingError if Ray is not installed, or there is no cluster that takes us.
    """
    if "ray" not in sys.modules:  # which reads this when it is imported; later its processes would disagree on it
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    starts_one = settings.address == "local"
    if starts_one:  # a token of its own, which dies with it, rather than one that Ray would write into the home folder
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        # by default Ray's workers come after all else that the machine has to do
        os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        import ray
    except ImportError as error:
        raise SettingError(f'cluster needs Ray ({error}): pip install "ray>=2.60"') from error
    if ray.is_initialized():
        yield
        return
    at_terminate = signal.getsignal(signal.SIGTERM)
    try:
        if ":" in settings.address:  # Ray itself would try for minutes
            host, _, port = settings.address.rpartition(":")
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        ray.init(
            settings.address,
            include_dashboard=False if starts_one else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (OSError, OverflowError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        text = " ".join(str(getattr(error, "message", error)).split())  # without Ray's own advice
        raise SettingError(
            f"no Ray cluster at cluster.address={settings.address} ({text or type(error).__name__}): check the "
            "address, the versions of Ray and Python, and the token (~/.ray/auth_token, or RAY_AUTH_TOKEN); without "
            "cluster.address one is started on this machine"
        ) from error
    # Ray's own handler would end this process with a trace of C++ and a status of its own
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, at_terminate)
    try:
        yield
    finally:
        ray.shutdown()


def build_on_ray(
    folder: str | Path,
    settings: IndexBuildSettings,
    cluster: BuildCluster,
    job_count: int | None = None,
    *,
    progress: Progress = silent,
    notice: Callable[[str], None] = print_nothing,
) -> BuildResult:
    """`build_by_jobs` with the jobs as tasks of Ray; without `job_count`, four for each that runs at once.

    Raises SettingError as `connect` does, and if no machine of the cluster has what a job asks for.
    """
    with connect(cluster):
        running = _jobs_at_once(cluster)
        count = job_count or JOBS_PER_WORKER * running
        return build_by_jobs(
            folder, settings, count, run=partial(run_on_ray, cluster), progress=progress, notice=notice
        )


def _jobs_at_once(cluster: BuildCluster) -> int:
    """How many jobs the cluster runs at once by its cores. Raises SettingError if it would wait for ever."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fitting = [
        int(node.get("CPU", 0) // cluster.cpus_per_job)
        for node in nodes
        if node.get("CPU", 0) >= cluster.cpus_per_job and node.get("GPU", 0) >= cluster.gpus_per_job
    ]
    if fitting:
        return sum(fitting)
    held = "; ".join(f"{node.get('CPU', 0):g} cores and {node.get('GPU', 0):g} GPUs" for node in nodes)
    raise SettingError(
        f"no machine of the Ray cluster has {cluster.cpus_per_job} cores and {cluster.gpus_per_job:g} GPUs, only "
        f"{held}: lower cluster.cpus_per_job or cluster.gpus_per_job, or start Ray on such a machine"
    )


def run_on_ray(cluster: BuildCluster, jobs: Sequence[Job]) -> Iterator[list[str]]:
    """Run the jobs of a stage as tasks; those left are stopped if one fails, or when the caller ends."""
    import ray

    task = ray.remote(_run_job).options(
        num_cpus=cluster.cpus_per_job,
        num_gpus=cluster.gpus_per_job if jobs[0].stage is Stage.encode else 0,
        max_retries=RETRIES,
    )
    pending = [task.remote(job) for job in jobs]
    try:
        while pending:
            ended, pending = ray.wait(pending, timeout=POLL_SECONDS)
            yield [notice for notices in ray.get(ended) for notice in notices]
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise UserError(
            f"a job of stage {jobs[0].stage.value} was lost {1 + RETRIES} times, or could not begin "
            f"({' '.join(str(error).split())}): see the logs of Ray in /tmp/ray, then run the same command again"
        ) from error
    finally:
        for each in pending:
            ray.cancel(each, force=True)
        if pending:
            ray.wait(pending, num_returns=len(pending), timeout=CANCEL_SECONDS)


def _run_job(job: Job) -> list[str]:
    return job.run()
