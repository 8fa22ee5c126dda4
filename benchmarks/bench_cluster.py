"""Cost of partitions and jobs on one machine: against one index, and against one process, in one run.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_cluster index=DIR [texts=64] [rounds=5] [partitions=2] [kills=3]
        [seed=0] [corpus=FILE] [jobs=2] [documents=400]

Asks texts made from the documents of an exact index, in turns: of one index, of partitions in this process, and of
partitions on Ray, whose calls go through this process as a server's do (goal: p50 at most 1.3 × with two). Kills
a partition's process and waits until it answers again. Says how much memory a partition holds beside what its vectors
need. With `corpus` it builds the first documents of that file too: as one process, and as jobs of two workers (goal: at
least 0.85 of the speed that two would have).
"""

from __future__ import annotations

import os

# Before numpy is imported: its thread pool is made then.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import itertools
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.drawn_questions import draw_questions
from npm.cluster.ray_partitions import serving_on_ray
from npm.cluster.settings import ServeCluster
from npm.core.display import markdown_table
from npm.corpus.documents import read_corpus
from npm.corpus.settings import CorpusSettings
from npm.indexing.partitions import local_searcher
from npm.indexing.phrase_index import PhraseIndex
from npm.models.memory import private_bytes
from npm.retrieval.filler import PhraseFiller
from npm.serving.partitions import PartitionsLost, ServedPartitions
from tests.helpers.running_server import replica_processes

GOAL_RATIO, GOAL_EFFICIENCY = 1.3, 0.85
MIB = 2**20
LONGEST_SECONDS = 120


def p50_ms(fillers: dict[str, PhraseFiller], texts: Sequence[str], rounds: int, retrieval: str) -> dict[str, float]:
    """The median time of one text with each filler, asked in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in fillers}
    for _, text in itertools.product(range(rounds), texts):
        for name, filler in fillers.items():
            started = time.perf_counter()
            filler.fill(text, retrieval=retrieval)
            seconds[name].append(time.perf_counter() - started)
    return {name: 1000 * float(np.median(found)) for name, found in seconds.items()}


def seconds_until(holds: Callable[[], bool]) -> float:
    """Seconds until something holds."""
    started = time.perf_counter()
    while not holds():
        assert time.perf_counter() - started < LONGEST_SECONDS, "it never came about"
        time.sleep(0.05)
    return time.perf_counter() - started


def kill_and_wait(searcher: ServedPartitions, filler: PhraseFiller, text: str) -> tuple[float, float]:
    """Seconds from the kill of a partition to the first refusal, and to the first whole answer."""

    def answers() -> bool:
        try:
            filler.fill(text, retrieval="dense")
        except PartitionsLost:
            return False
        return True

    os.kill(replica_processes(os.getpid())[0], signal.SIGKILL)
    refused = seconds_until(lambda: not answers())
    return refused, refused + seconds_until(lambda: not searcher.lost and answers())


def build_seconds(corpus: Path, documents: int, jobs: int) -> dict[str, float]:
    """Wall-clock seconds of building the first documents of a corpus, by who does it."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "texts.jsonl"
        first = itertools.islice(read_corpus(CorpusSettings(files=[str(corpus)])), documents)
        texts.write_text("".join(json.dumps(asdict(document)) + "\n" for document in first), encoding="utf-8")
        build = [sys.executable, "-m", "npm", "build", f"corpus.files={texts}", "vectors.tokens_per_shard=16384"]
        ways = {"one process": [], f"{jobs} jobs on Ray": ["cluster=ray", f"jobs={jobs}"]}
        for way, (name, settings) in enumerate(ways.items()):
            started = time.perf_counter()
            subprocess.run([*build, f"index={folder}/{way}", *settings], check=True, stderr=subprocess.DEVNULL)
            found[name] = time.perf_counter() - started
    return found


def main(arguments: list[str]) -> None:
    """Print the tables."""
    given = {
        "texts": "64",
        "rounds": "5",
        "partitions": "2",
        "kills": "3",
        "seed": "0",
        "jobs": "2",
        "documents": "400",
    }
    given |= dict(argument.split("=", 1) for argument in arguments)
    folder, count = Path(given["index"]), int(given["partitions"])
    whole = PhraseFiller.open(folder)
    texts = [each.text for each in draw_questions(whole.index, int(given["texts"]), seed=int(given["seed"]))]
    cluster = ServeCluster(engine="ray", cpus_per_replica=1 / count)
    with serving_on_ray(cluster, count, timeout_seconds=10, notice=print) as open_searcher:
        on_ray = PhraseIndex.open(folder, open_searcher)
        fillers = {
            "one index": whole,
            f"{count} partitions, this process": PhraseFiller(
                PhraseIndex.open(folder, local_searcher(count)), whole.encoder
            ),
            f"{count} partitions on Ray": PhraseFiller(on_ray, whole.encoder),
        }
        rows = []
        for retrieval in ("hybrid", "dense"):
            found = p50_ms(fillers, texts, int(given["rounds"]), retrieval)
            base = found["one index"]
            rows += [[retrieval, name, f"{ms:.1f}", f"{ms / base:.2f}"] for name, ms in found.items()]
        print(f"{len(texts)} texts, {whole!r}; goal {GOAL_RATIO} ×\n")
        print(markdown_table(["retrieval", "searched by", "p50 ms", "ratio"], rows))
        held = [private_bytes(process) / MIB for process in replica_processes(os.getpid())]
        needed = [4 * part.row_count * part.dimensions / MIB for part in on_ray.searcher.parts]
        print(f"\nmemory of a partition's process, MiB: {held}; its vectors in float32: {needed}")
        for _ in range(int(given["kills"])):
            refused, back = kill_and_wait(on_ray.searcher, fillers[f"{count} partitions on Ray"], texts[0])
            print(f"killed a partition: refused after {refused:.1f} s, whole again after {back:.1f} s")
        on_ray.searcher.close()
    if "corpus" in given:
        seconds = build_seconds(Path(given["corpus"]), int(given["documents"]), int(given["jobs"]))
        one, several = seconds.values()
        print(f"\n{seconds}: {one / several / 2:.2f} of twice the speed; goal {GOAL_EFFICIENCY}")


if __name__ == "__main__":
    main(sys.argv[1:])
