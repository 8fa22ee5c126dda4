"""The jobs of a build, in the order of its stages; `cluster=local` runs them one after the other in this process.

A job is a pure function of folder, settings, stage and shard. All that jobs know of each other is what lies on the
disk, which they must therefore share under one path.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from npm.core.artifact import MANIFEST_NAME, clear_locks
from npm.core.errors import ArtifactError
from npm.core.settings import Shard
from npm.core.types import Progress, silent
from npm.indexing.build import BuildResult, build_index, clears_failed_build, print_nothing
from npm.indexing.generation import Generation
from npm.indexing.layout import refuse_others
from npm.indexing.settings import IndexBuildSettings, Stage
from npm.models.encoder import Encoder
from npm.models.settings import Precision

SHARDS = {
    Stage.pack: "segments/*/corpus/*",
    Stage.encode: "segments/*/vectors/*",
    Stage.quantise: "quantiser",
    Stage.code: "segments/*/codes/*",
    Stage.merge: "search/*",
}
"""What each stage writes, each with a manifest when it is finished; the exact tier has nothing after `encode`."""


@dataclass(frozen=True, slots=True)
class Job:
    """One shard of a stage."""

    folder: Path  # of the index
    settings: IndexBuildSettings
    stage: Stage
    shard: Shard
    working_directory: Path  # in which relative paths of the settings are meant

    def run(self) -> list[str]:
        """Do it; returns what there is to say. Raises ArtifactError where the folder is not, else as build_index."""
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


Runner = Callable[[Sequence[Job]], Iterator[list[str]]]
"""Runs the jobs of a stage; yields now and then, and at the end of each job, what there is to say by then."""


def one_by_one(jobs: Sequence[Job]) -> Iterator[list[str]]:
    """Run `jobs` in order in this process."""
    return (job.run() for job in jobs)


def jobs_of(folder: Path, settings: IndexBuildSettings, count: int) -> Iterator[tuple[Stage, list[Job]]]:
    """The jobs of each stage, `count` of them where there is as much to divide; a stage needs the one before it."""
    most = {Stage.pack: settings.segments, Stage.quantise: 1, Stage.merge: 1}
    for stage in Stage:
        own = min(count, most.get(stage, count))
        yield stage, [Job(folder, settings, stage, Shard(number, own), Path.cwd()) for number in range(1, own + 1)]


def build_by_jobs(
    folder: str | Path,
    settings: IndexBuildSettings,
    count: int,
    *,
    run: Runner = one_by_one,
    progress: Progress = silent,
    notice: Callable[[str], None] = print_nothing,
) -> BuildResult:
    """Build the index in `folder` by `count` jobs a stage, or go on where this was stopped.

    The bytes are those of `build_index`, which says what is raised. Progress is the shards that lie on the disk.
    """
    folder = Path(folder).absolute()
    if (folder / MANIFEST_NAME).is_file():
        return build_index(folder, settings, notice=notice)  # which compares the files of the corpus, as no job does
    refuse_others(folder)
    is_resumed = folder.is_dir() and any(folder.iterdir())
    said: set[str] = set()
    with clears_failed_build(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for stage, jobs in jobs_of(folder, settings, count):
            for notices in run(jobs):
                for each in dict.fromkeys(notices):
                    if each not in said:
                        notice(each)
                said.update(notices)
                progress(stage.value, _shard_count(folder, stage), None)
            if written := _shard_count(folder, stage):
                progress(stage.value, written, written)
    clear_locks(folder)  # of workers that were killed
    if is_resumed:  # with files that may have changed since: jobs take their digests for known
        build_index(folder, settings, notice=notice)
    return BuildResult(Generation.read(folder).manifest, was_finished=False)


def _shard_count(folder: Path, stage: Stage) -> int:
    return sum(1 for _ in folder.glob(f"{SHARDS[stage]}/{MANIFEST_NAME}"))
