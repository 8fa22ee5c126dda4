"""A corpus of four files, its build of several segments as a command, and jobs that lose their worker."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from npm.cluster.ray_builds import Job
from npm.core.files import NewFile
from npm.indexing.settings import Stage
from tests.helpers.command_line import DOCUMENTS, write_corpus

LISTS = ("search.tier=ivf_pq", "search.list_count=4", "search.train_iterations=4", "search.thread_count=1")
MEMORY = 80 << 20
"""Of the object store of each machine."""
TIERS = {"exact": (), "lists": LISTS}
WRITES = {
    Stage.pack: "/corpus-",
    Stage.encode: "/vectors-",
    Stage.quantize: "quantizer-",
    Stage.code: "/codes-",
    Stage.merge: "/search-",
}
"""Where each stage writes first what it makes."""


def write_files(folder: Path) -> Path:
    """Four files of six documents each, in `folder`."""
    folder.mkdir()
    for number in range(4):
        documents = [{**document, "id": f"{document['id']}-{number}"} for document in DOCUMENTS]
        write_corpus(folder / f"{number}.jsonl", documents)
    return folder


def arguments(corpus: Path, encoder: Path, index: Path, tier: str = "lists") -> list[str]:
    """The build of `index` in three segments, of about ten vector shards."""
    return [
        "build",
        f"corpus.files={corpus}/*.jsonl",
        f"encoder={encoder}",
        f"index={index}",
        "segments=3",
        "blocks.max_block_tokens=24",
        "vectors.tokens_per_shard=60",
        *TIERS[tier],
    ]


@dataclass(frozen=True, slots=True)
class DeadlyJob(Job):
    """A job: the first worker of each stage kills itself as soon as it writes, and leaves a mark in `index`.killed."""

    @property
    def marks(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.killed")

    def run(self) -> list[str]:
        write = NewFile.__dict__["write"]

        def deadly(file: NewFile, data: bytes) -> int:
            if WRITES[self.stage] in str(file.name) and not (self.marks / self.stage.value).exists():
                self.marks.mkdir(exist_ok=True)
                (self.marks / self.stage.value).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return write(file, data)  # type: ignore[no-any-return]

        NewFile.write = deadly  # type: ignore[method-assign]
        try:
            return Job.run(self)
        finally:
            NewFile.write = write  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class WaitingJob(Job):
    """A job that, on the machine of Ray that is named in `index`.lost, begins there and waits to be lost with it."""

    def run(self) -> list[str]:
        import time

        import ray

        lost = self.folder.with_name(f"{self.folder.name}.lost")
        if ray.get_runtime_context().get_node_id() == lost.read_text(encoding="utf-8"):
            lost.with_suffix(".begun").touch()
            time.sleep(600)
        return Job.run(self)


def remade(kind: type[Job], job: Job) -> Job:
    """`job` as one of another class."""
    return kind(job.folder, job.settings, job.stage, job.shard, job.working_directory)
