"""Ray: connecting to a cluster, and the jobs of a build as its tasks.

A job is a pure function of folder, settings, stage and shard; all that jobs know of each other is on the disk, which
they must therefore share under one path. This is the only place where objects are pickled: inside a cluster Ray speaks
cloudpickle, so whoever reaches its ports runs code there. Its token authentication is therefore on unless the
environment says otherwise.
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
from contextlib import chdir, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from npm.cluster.settings import BuildCluster, ClusterSettings
from npm.core.artifact import MANIFEST_NAME, clear_locks
from npm.core.errors import ArtifactError, SettingError, UserError
from npm.core.settings import Shard
from npm.core.types import Progress, silent
from npm.indexing.build import BuildResult, build_index, clears_failed_build, no_notice
from npm.indexing.generation import Generation, refuse_others
from npm.indexing.settings import IndexBuildSettings, Stage
from npm.models.encoder import Encoder
from npm.models.settings import Precision

JOBS_PER_WORKER = 4
"""More jobs than run at once, so that little is lost with one of them."""
RETRIES = 3
"""Of a job whose worker or machine is lost; a mistake of the user is not retried."""
CONNECT_SECONDS, POLL_SECONDS, CANCEL_SECONDS = 5.0, 1.0, 10.0


@dataclass(frozen=True, slots=True)
class Job:
    """One shard of a stage."""

    folder: Path  # of the index
    settings: IndexBuildSettings
    stage: Stage
    shard: Shard
    working_directory: Path  # to which paths of the settings are relative

    def run(self) -> list[str]:
        """Run it; returns its notices. Raises ArtifactError where the folder is missing, else as build_index."""
        if not self.folder.is_dir():
            raise ArtifactError(
                f"no folder {self.folder} on {socket.gethostname()}: index must be on a disk that all machines of the "
                "cluster share under one path, such as NFS"
            )
        notices: list[str] = []
        settings = self.settings
        with chdir(self.working_directory) if self.working_directory.is_dir() else nullcontext():
            encoder = _encoder(settings.encoder, settings.device, settings.precision, not settings.copy_encoder)
            build_index(self.folder, settings, encoder, stage=self.stage, shard=self.shard, notice=notices.append)
        return notices


@lru_cache(maxsize=1)
def _encoder(name: str, device: str, precision: Precision, for_reading: bool) -> Encoder:
    """The encoder, which a process loads once for all of its jobs."""
    return Encoder.load(name, device=device, dtype=precision, for_reading=for_reading)


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
    notice: Callable[[str], None] = no_notice,
) -> BuildResult:
    """`build_by_jobs` with the jobs as tasks of Ray; without `job_count`, four for each that runs at once.

    Raises SettingError as `connect` does, and if no machine of the cluster has what a job requests.
    """
    with connect(cluster):
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        running = sum(
            int(node.get("CPU", 0) // cluster.cpus_per_job)
            for node in nodes
            if node.get("GPU", 0) >= cluster.gpus_per_job
        )
        if running == 0:  # Ray would wait forever
            held = "; ".join(f"{node.get('CPU', 0):g} cores and {node.get('GPU', 0):g} GPUs" for node in nodes)
            raise SettingError(
                f"no machine of the Ray cluster has {cluster.cpus_per_job} cores and {cluster.gpus_per_job:g} GPUs, "
                f"only {held}: lower cluster.cpus_per_job or cluster.gpus_per_job, or start Ray on such a machine"
            )
        count, run = job_count or JOBS_PER_WORKER * running, partial(run_on_ray, cluster)
        return build_by_jobs(folder, settings, count, run, progress=progress, notice=notice)


def build_by_jobs(
    folder: str | Path,
    settings: IndexBuildSettings,
    count: int,
    run: Callable[[Sequence[Job]], Iterator[list[list[str]]]],
    *,
    progress: Progress = silent,
    notice: Callable[[str], None] = no_notice,
) -> BuildResult:
    """Build the index in `folder` by `count` jobs a stage, where there is as much to divide, or resume that.

    `run` runs the jobs of a stage, and yields now and then the notices of each that has ended since. The bytes are
    those of `build_index`, which says what is raised.
    """
    folder = Path(folder).absolute()
    if (folder / MANIFEST_NAME).is_file():
        return build_index(folder, settings, notice=notice)  # which compares the files of the corpus, as no job does
    refuse_others(folder)
    is_resumed = folder.is_dir() and any(folder.iterdir())
    most = {Stage.pack: settings.segments, Stage.quantize: 1, Stage.merge: 1}
    said: set[str] = set()
    with clears_failed_build(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for stage in Stage:
            own, done = min(count, most.get(stage, count)), 0
            jobs = [Job(folder, settings, stage, Shard(number, own), Path.cwd()) for number in range(1, own + 1)]
            for ended in run(jobs):
                for each in dict.fromkeys(note for notices in ended for note in notices):
                    if each not in said:
                        notice(each)
                    said.add(each)
                done += len(ended)
                progress(stage.value, done, own)
    clear_locks(folder)  # of workers that were killed
    if is_resumed:  # with files that may have changed since: jobs take their digests for known
        build_index(folder, settings, notice=notice)
    return BuildResult(Generation.read(folder).manifest, was_finished=False)


def run_on_ray(cluster: BuildCluster, jobs: Sequence[Job]) -> Iterator[list[list[str]]]:
    """Run the jobs of a stage as tasks; those left are stopped if one fails, or when the caller ends."""
    import ray

    task = ray.remote(lambda job: job.run()).options(
        num_cpus=cluster.cpus_per_job,
        num_gpus=cluster.gpus_per_job if jobs[0].stage is Stage.encode else 0,
        max_retries=RETRIES,
    )
    pending = [task.remote(job) for job in jobs]
    try:
        while pending:
            ended, pending = ray.wait(pending, timeout=POLL_SECONDS)
            yield ray.get(ended)
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
