"""Time of a filled phrase on one core, without the encoder's pass, against two plain scans of the vectors.

    python -m benchmarks.bench_filling parity_dir=../shared/parity [repeats=20] [index=DIR] [dtype=int8]

Claims: unrestricted filling with 4096 candidates a side takes at most 1.5 times two full float32 matrix-vector
products of the same run; filling restricted to three blocks takes at most 3 ms. The index is built in `index`, by
default a temporary folder, which takes about half a minute.
"""

from __future__ import annotations

import os

# Before numpy is imported: its thread pool is made then.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from index.arrays import to_float32
from npm.corpus.store import BlockStore
from npm.indexing.embed import open_vectors
from npm.indexing.generation import Generation
from npm.indexing.settings import IndexBuildSettings, PruningRule, VectorDtype, VectorSettings
from npm.models.encoder import Encoder
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.queries import QueryVectors, encode_queries
from npm.retrieval.settings import FillSettings, Retrieval, ScoringSettings
from tests.parity.corpus import GIVEN_CORPUS, index_block_store, write_parity_store

GOAL_SCANS = 1.5
GOAL_RESTRICTED_SECONDS = 0.003


def open_parity_index(
    parity: Path, recorded: dict[str, Any], index: Path, dtype: VectorDtype = VectorDtype.int8
) -> PhraseFiller:
    """The index over the parity corpus, every boundary token with a vector; built if it is not there."""
    encoder = Encoder.load(str(parity / "model"), device="cpu", dtype="float32")
    if not BlockStore.is_finished(index / GIVEN_CORPUS):
        write_parity_store(index / GIVEN_CORPUS, recorded, encoder)
    vectors = VectorSettings(pruning=PruningRule.word_boundaries, dtype=dtype)
    index_block_store(index, IndexBuildSettings(vectors=vectors), encoder)
    return PhraseFiller.open(index, encoder, settings=FillSettings(retrieval=Retrieval.dense))


def seconds_of(job: Callable[[], object]) -> float:
    """Wall-clock time of one call."""
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def measure(filler: PhraseFiller, queries: list[dict[str, Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of every job for one query after the other, the jobs interleaved."""
    stored = open_vectors([segment.vectors for segment in Generation.read(filler.index.folder).segments]).tokens
    matrix = to_float32(stored.slice(0, len(stored)))  # f32 [n, d]
    scorings = {"default": ScoringSettings(), "reference": FillSettings.reference().scoring}
    times: dict[str, list[float]] = {}
    for turn in range(repeats):
        query = queries[turn % len(queries)]
        texts, blocks = [query["text"]], np.unique(query["block_ids"])
        vectors: QueryVectors = encode_queries(filler.encoder, texts)
        start, end = vectors.start[0], vectors.end[0]  # f32 [d] each
        jobs: dict[str, Callable[[], object]] = {"two scans": lambda s=start, e=end: (matrix @ s, matrix @ e)}
        for name, scoring in scorings.items():
            settings = replace(filler.settings, scoring=scoring)
            jobs[f"unrestricted, {name}"] = lambda t=texts, v=vectors, s=settings: filler.fill_encoded(t, v, settings=s)
            jobs[f"three blocks, {name}"] = lambda t=texts, v=vectors, s=settings, b=blocks: filler.fill_encoded(
                t, v, settings=s, blocks=b
            )
        for name, job in jobs.items():
            times.setdefault(name, []).append(seconds_of(job))
    return times


def main(argv: list[str]) -> None:
    """Build, measure, print a table of medians."""
    given = dict(argument.split("=", 1) for argument in argv)
    parity = Path(given.get("parity_dir", "../shared/parity"))
    repeats = int(given.get("repeats", "20"))
    torch.set_num_threads(1)
    recorded = json.loads((parity / "predictions.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as temporary:
        index = Path(given["index"]) if "index" in given else Path(temporary) / "index"
        filler = open_parity_index(parity, recorded, index, VectorDtype(given.get("dtype", "int8")))
        measure(filler, recorded["queries"], repeats=3)  # warm-up
        medians = {
            name: statistics.median(all_) for name, all_ in measure(filler, recorded["queries"], repeats).items()
        }
    two_scans = medians["two scans"]
    rows = len(filler.index.rows)
    print(f"{rows:,} vectors × {filler.encoder.dimensions}, 4096 candidates a side, 1 thread, median of {repeats}")
    print("| job | ms | two scans | goal |\n|---|---|---|---|")
    for name, seconds in medians.items():
        goal = f"≤ {GOAL_SCANS} scans" if "unrestricted" in name else ""
        goal = f"≤ {GOAL_RESTRICTED_SECONDS * 1e3:.0f} ms" if "blocks" in name else goal
        print(f"| {name} | {seconds * 1e3:.2f} | {seconds / two_scans:.2f} | {goal} |")


if __name__ == "__main__":
    main(sys.argv[1:])
