"""How fast this machine does the work of each stage of a build, measured on little of it.

Shapes: t training rows, n rows coded, d dimensions, K lists of the index to be, k lists of the small quantiser.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.files import CHUNK_BYTES, CountingFile
from npm.retrieval.shard_blocks import ShardBlocks

if TYPE_CHECKING:
    from npm.retrieval.needs import SearchShape

WRITTEN_BYTES = 64 << 20
MOST_LISTS = 4096
"""Lists of the quantiser that is trained for the measurement."""
LEAST_TRAIN_ROWS, CODED_ROWS, MERGED_SHARDS = 8192, 8192, 16
SHORT_TRAINING, LONGER_TRAINING = 1, 3
"""Rounds of k-means of two trainings, whose difference is the time of a round."""


@dataclass(frozen=True, slots=True)
class EncodingSpeed:
    """Some batches of the sample, from token ids to the vectors of its kept tokens."""

    seconds: float
    tokens: int  # without padding

    @property
    def seconds_per_token(self) -> float:
        """Without padding, whose cost is in the time."""
        return self.seconds / self.tokens


@dataclass(frozen=True, slots=True)
class SearchSpeed:
    """Seconds of what makes vectors searchable, for the quantiser that the index is to have."""

    training: float  # all of it
    coding_per_row: float
    merging_per_row: float


def writing_seconds_per_byte(folder: Path) -> float:
    """Of hashing, writing and flushing a file in `folder`, which is removed again."""
    path, piece = folder / "written", np.random.default_rng(0).bytes(CHUNK_BYTES)
    started = time.perf_counter()
    file = CountingFile(path)
    for _ in range(WRITTEN_BYTES // CHUNK_BYTES):
        file.write(piece)
    file.close()
    seconds = time.perf_counter() - started
    path.unlink()
    return seconds / WRITTEN_BYTES


def encoding_speed(
    blocks: ShardBlocks, *, special_count: int, most_seconds: float, progress: Callable[[int, int], None]
) -> EncodingSpeed:
    """Encode batches spread over `blocks`, short and long ones, until the time is over; two at least, if there are.

    The first batch is encoded once more than it counts, to warm up. `special_count` special tokens stand around each
    block and do not count. `progress(batches done, batches)`.
    """
    order = _spread_order(len(blocks.batches))
    blocks.encoded(blocks.batches[order[0]])
    tokens = 0
    started = time.perf_counter()
    for done, number in enumerate(order, start=1):
        batch = blocks.batches[number]
        blocks.encoded(batch)
        tokens += sum(len(sequence) - special_count for sequence in blocks.sequences_of(batch))
        progress(done, len(order))
        if done >= 2 and time.perf_counter() - started > most_seconds:
            break
    return EncodingSpeed(time.perf_counter() - started, tokens)


def search_speed(shape: SearchShape, folder: Path, *, row_count: int, seed: int) -> SearchSpeed:
    """Train two small quantisers in `folder`, code and merge with one of them, and reckon from there.

    A graph over K centroids takes time in proportion to K log K; coding a row, to log K with a graph and to K without,
    and in a round of k-means a row takes about as long; merging, to the rows. Exact search needs none of it.
    """
    if not shape.code_bytes:
        return SearchSpeed(0.0, 0.0, 0.0)
    from index.arrays import ShardedArray
    from index.quantiser import ROW_GRAPH_LISTS, Quantiser, train_quantiser

    resolved = shape.resolved
    lists = min(max(shape.list_count, 1), MOST_LISTS)  # k
    train_rows = min(resolved["train_rows"], row_count)
    rows = max(LEAST_TRAIN_ROWS, 2 * lists)  # t of the small quantiser
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((rows, resolved["dimensions"]), dtype=np.float32).astype(np.float16)  # f16 [t, d]
    small = {**resolved, "factory": re.sub(r"IVF\d+", f"IVF{lists}", resolved["factory"]), "train_rows": rows}
    seconds: dict[int, float] = {}
    for rounds in (SHORT_TRAINING, LONGER_TRAINING):
        started = time.perf_counter()
        settings = {**small, "train_iterations": rounds}
        train_quantiser(folder / f"quantiser-{rounds}", ShardedArray([vectors]), None, settings)
        seconds[rounds] = time.perf_counter() - started
    quantiser = Quantiser.open(folder / f"quantiser-{SHORT_TRAINING}")
    if not quantiser.has_lists:
        adding = _adding_seconds_per_row(quantiser.file, vectors[:CODED_ROWS])
        return SearchSpeed(seconds[SHORT_TRAINING] * train_rows / rows, 0.0, adding)
    a_round = max(0.0, seconds[LONGER_TRAINING] - seconds[SHORT_TRAINING]) / (LONGER_TRAINING - SHORT_TRAINING)
    once = max(0.0, seconds[SHORT_TRAINING] - a_round * SHORT_TRAINING)
    coding = _coding_seconds_per_row(quantiser, vectors[:CODED_ROWS])
    more_lists = shape.list_count / lists
    deeper = math.log2(max(2, shape.list_count)) / math.log2(max(2, lists))
    fixed = max(0.0, a_round - coding * rows)  # what a round takes beside its rows: a checkpoint, perhaps a graph
    if shape.list_count >= ROW_GRAPH_LISTS:
        fixed, coding = fixed * more_lists * deeper, coding * deeper
    else:
        coding *= more_lists
    training = resolved["train_iterations"] * (fixed + coding * train_rows) + once * more_lists * deeper
    merging = _merging_seconds_per_row(quantiser, vectors[:CODED_ROWS], folder)
    return SearchSpeed(training, coding, merging)


def _coding_seconds_per_row(quantiser: Any, vectors: np.ndarray) -> float:
    """Of `vectors` f16 [n, d], once the quantiser has made its own tables."""
    quantiser.encode(vectors[:1])
    started = time.perf_counter()
    quantiser.encode(vectors)
    return (time.perf_counter() - started) / len(vectors)


def _merging_seconds_per_row(quantiser: Any, vectors: np.ndarray, folder: Path) -> float:
    """One code shard of `vectors` f16 [n, d], merged with itself as if it were many."""
    from index.lists import code_shard_settings, write_code_shard, write_list_part

    write_code_shard(folder / "codes", vectors, quantiser, settings=code_shard_settings(quantiser, "measured"))
    first_rows = [number * len(vectors) for number in range(MERGED_SHARDS)]
    started = time.perf_counter()
    shards = [folder / "codes"] * MERGED_SHARDS
    write_list_part(folder / "lists", shards, first_rows, quantiser, lists=(0, quantiser.list_count))
    return (time.perf_counter() - started) / (MERGED_SHARDS * len(vectors))


def _adding_seconds_per_row(file: Path, vectors: np.ndarray) -> float:
    """Of `vectors` f16 [n, d], to the trained index in `file`, which is no inverted file of ours."""
    from index.faiss_library import read_faiss

    index = read_faiss(file, mapped=False)
    started = time.perf_counter()
    index.add(vectors.astype(np.float32))
    return (time.perf_counter() - started) / len(vectors)


def _spread_order(count: int) -> list[int]:
    """All numbers below `count`, such that any beginning of them is spread evenly.

    >>> _spread_order(5)
    [0, 4, 2, 1, 3]
    """
    bits = max(1, (count - 1).bit_length())
    reversed_bits = [int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits)]
    return [number for number in reversed_bits if number < count]
