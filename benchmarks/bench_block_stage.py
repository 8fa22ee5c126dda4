"""The first stage over block vectors: the scan of signs against scoring every block, in one run.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_block_stage [blocks=1000000] [dimensions=384] [questions=60] [seed=0]

Vectors are made up: of length 1 in all directions alike (`random`), and around 20,000 centres, with a mean and
directions of unequal strength as those of an encoder have them (`clustered`). A question is a block's vector, half of
it something else. Shown are the processor's and the wall's milliseconds a question (medians), what the first question
takes on top, the share of the exact best 3 and 10 that are found, and how many of a Hamming scan's candidates would
hold as many. Takes some minutes, and 2 bytes a number on the disk.

Shapes: n blocks, q questions, d dimensions, c centres.
"""

from __future__ import annotations

import os

# Before numpy is imported: its thread pool is made then.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from index.arrays import RowSet, ShardedArray
from index.exact import exact_top
from index.sign_codes import CANDIDATES, SignSearcher, sign_codes
from npm.evaluation.report import markdown_table

CENTRES, ROWS_PER_CHUNK, BLOCKS_PER_SHARD = 20_000, 1 << 15, 4_000
KEPT_OF_BLOCK = 0.5
"""Of a question, the share that is its block's vector."""
HAMMING_CANDIDATES = (512, 4096)
ALLOWED_SHARE = 0.3


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors f32 [n, d] at length 1."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def drawn(kind: str, rng: np.random.Generator, dimensions: int) -> Callable[[int], np.ndarray]:
    """Draws vectors f32 [n, d] of a kind."""

    def normal(count: int) -> np.ndarray:
        return rng.standard_normal((count, dimensions), dtype=np.float32)

    if kind == "random":
        return lambda count: unit(normal(count))
    # Mean and strengths about as of all-MiniLM's mean-pooled vectors of Wikipedia's leads.
    strengths = np.geomspace(2, 0.2, dimensions).astype(np.float32)  # f32 [d]
    axes = np.linalg.qr(normal(dimensions))[0]  # f32 [d, d]
    mean = normal(1)[0] * np.sqrt(0.05 * (strengths**2).mean())  # f32 [d]
    centres = normal(CENTRES) * strengths  # f32 [c, d]

    def clustered(count: int) -> np.ndarray:
        near = 0.75 * centres[rng.integers(0, CENTRES, count)] + 0.66 * normal(count) * strengths
        return unit(mean + near @ axes)

    return clustered


def write_vectors(file: Path, draw: Callable[[int], np.ndarray], block_count: int, dimensions: int) -> ShardedArray:
    """Vectors f16 [n, d] in a mapped file, in shards as an index has them."""
    shape = (block_count, dimensions)
    stored = np.lib.format.open_memmap(file, mode="w+", dtype=np.float16, shape=shape)
    for start in range(0, block_count, ROWS_PER_CHUNK):
        stored[start : start + ROWS_PER_CHUNK] = draw(min(ROWS_PER_CHUNK, block_count - start))
    stored.flush()
    vectors = np.load(file, mmap_mode="r")
    return ShardedArray(np.array_split(vectors, max(1, block_count // BLOCKS_PER_SHARD)))


def timed(job: Callable[[], np.ndarray]) -> tuple[np.ndarray, float, float]:
    """What a job gives, and its milliseconds of the processor and of the wall."""
    started = time.thread_time(), time.perf_counter()
    found = job()
    return found, 1e3 * (time.thread_time() - started[0]), 1e3 * (time.perf_counter() - started[1])


def hamming_ranks(vectors: ShardedArray, questions: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """How many blocks are nearer by signs alone than each of `rows` i64 [q, k], i64 [q, k]."""
    codes = np.concatenate([sign_codes(np.asarray(array)) for array in vectors.arrays])  # u8 [n, d / 8]
    words = codes.view(np.uint64)  # [n, d / 64]
    asked = sign_codes(questions.astype(np.float16)).view(np.uint64)  # [q, d / 64]
    ranks = np.empty(rows.shape, dtype=np.int64)  # [q, k]
    for number, question in enumerate(asked):
        distances = np.bitwise_count(words ^ question).sum(axis=1, dtype=np.int64)  # i64 [n]
        ranks[number] = (distances[:, None] < distances[rows[number]]).sum(axis=0)
    return ranks


def measured(kind: str, folder: Path, given: dict[str, int]) -> Iterator[tuple[str, ...]]:
    """The rows of the table for vectors of one kind."""
    rng = np.random.default_rng(given["seed"])
    block_count, dimensions, count = given["blocks"], given["dimensions"], given["questions"]
    draw = drawn(kind, rng, dimensions)
    vectors = write_vectors(folder / f"{kind}.npy", draw, block_count, dimensions)
    about = vectors.take(np.sort(rng.integers(0, block_count, count))).astype(np.float32)  # f32 [q, d]
    questions = unit(KEPT_OF_BLOCK * about + (1 - KEPT_OF_BLOCK) * draw(count))  # f32 [q, d]
    searcher = SignSearcher(vectors)
    _, first_ms, _ = timed(lambda: searcher.top(questions[:1], 10).rows)
    chosen = rng.random(block_count) < ALLOWED_SHARE  # bool [n]
    ways: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "every block": lambda question: exact_top(vectors, question, 10).rows,
        f"signs, best {CANDIDATES} scored": lambda question: searcher.top(question, 10).rows,
        f"the same, {ALLOWED_SHARE:.0%} allowed": lambda question: (
            searcher.top(question, 10, RowSet.of_mask(chosen)).rows
        ),
    }
    results: dict[str, list[tuple[np.ndarray, float, float]]] = {way: [] for way in ways}
    for question in questions[:, None]:  # f32 [1, d] each
        for way, search in ways.items():
            results[way].append(timed(lambda search=search, question=question: search(question)))  # type: ignore[misc]
    best = np.concatenate([rows for rows, *_ in results["every block"]])  # i64 [q, 10]
    exact_ms = float(np.median([ms for _, ms, _ in results["every block"]]))
    among = exact_top(vectors, questions, 10, RowSet.of_mask(chosen)).rows  # i64 [q, 10]
    for way, found in results.items():
        processor, wall = (float(np.median([each[place] for each in found])) for place in (1, 2))
        expected = among if way.endswith("allowed") else best
        shares = [
            np.mean([np.isin(true[:k], rows[0]).mean() for true, (rows, *_) in zip(expected, found, strict=True)])
            for k in (3, 10)
        ]
        speed = f"{processor:.1f}", f"{wall:.1f}", f"{exact_ms / processor:.0f}"
        yield kind, way, *speed, *(f"{share:.3f}" for share in shares)
    ranks = hamming_ranks(vectors, questions, best)  # i64 [q, 10]
    for candidates in HAMMING_CANDIDATES:
        shares = [(ranks[:, :k] < candidates).mean() for k in (3, 10)]
        yield kind, f"Hamming, best {candidates}", "–", "–", "–", *(f"{share:.3f}" for share in shares)
    yield kind, "first question: signs are read", f"{first_ms:.0f}", "–", "–", "–", "–"


def main(arguments: list[str]) -> None:
    """Print the table."""
    given = {"blocks": 1_000_000, "dimensions": 384, "questions": 60, "seed": 0}
    given |= {name: int(value) for name, _, value in (argument.partition("=") for argument in arguments)}
    header = ("vectors", "search", "processor ms", "wall ms", "times as fast", "recall@3", "recall@10")
    with tempfile.TemporaryDirectory() as name:
        rows = [row for kind in ("random", "clustered") for row in measured(kind, Path(name), given)]
    print(f"{given['blocks']:,} blocks, {given['dimensions']} dimensions, {given['questions']} questions")
    print(markdown_table(header, rows))


if __name__ == "__main__":
    main(sys.argv[1:])
