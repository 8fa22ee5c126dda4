"""Private memory of each stage of a build, from what it holds at once.

Each formula follows the arrays of the code it names; `benchmarks/bench_build.py` holds it against measurement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from index.kmeans import ROWS_PER_CHUNK as TRAINED_AT_ONCE
from index.lists import BATCH_BYTES, ID_BYTES
from index.lists import ROWS_PER_CHUNK as CODED_AT_ONCE
from index.quantiser import CODEC_TRAIN_ROWS, ROW_GRAPH_LISTS
from npm.corpus.documents import FIRST_SLOTS
from npm.retrieval.needs import CorpusCounts, SearchShape, graph_bytes

if TYPE_CHECKING:
    from npm.retrieval.embed import VectorSettings

BLOCK_BYTES = 32
"""A block of an opened store: where it begins, its document, and its length while shards are laid out."""
MERGED_ROW_BYTES = 56
"""`index.lists._write_lists`: list, row and their copies; codes, three times over, come on top."""


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """Bytes measured on the sample."""

    process: float  # with the encoder loaded
    packing: float  # what packing added to it
    encoding: float  # what a batch in the encoder added
    lexicon: float  # what counting the words of one corpus shard takes
    kept: float  # what the process did not give back after it had encoded and trained a little


def stage_memory(
    counts: CorpusCounts, shape: SearchShape, vectors: VectorSettings, *, dimensions: int, measured: MeasuredMemory
) -> dict[str, float]:
    """Bytes at the peak of each stage, with the encoder loaded."""
    row_bytes = dimensions * np.dtype(vectors.dtype.value).itemsize
    shard_tokens = min(counts.tokens, vectors.tokens_per_shard)
    shard_rows = counts.rows * shard_tokens / counts.tokens
    opened = measured.process + counts.blocks * BLOCK_BYTES
    afterwards = opened + measured.kept
    with_rows = afterwards + counts.tokens / 4  # `RowMap`: two bits a token
    search = _search_memory(counts, shape, vectors, dimensions=dimensions, shard_rows=shard_rows)
    return {
        "blocks": measured.process + measured.packing + _identifier_bytes(counts.documents),
        # `ShardBlocks`: token id, flag and whether it is kept, of a token; its place and vector, of a row
        "vectors": opened + measured.encoding + shard_tokens * 6 + shard_rows * (8 + row_bytes),
        "lexicon": afterwards + measured.lexicon,
        "quantiser": with_rows + search["quantiser"],
        "codes": with_rows + search["codes"],
        "lists": with_rows + search["lists"],
    }


def _search_memory(
    counts: CorpusCounts, shape: SearchShape, vectors: VectorSettings, *, dimensions: int, shard_rows: float
) -> dict[str, float]:
    """What the last three stages hold beside the process and the numbers of the rows."""
    if not shape.code_bytes:
        return dict.fromkeys(("quantiser", "codes", "lists"), 0.0)
    code_bytes, list_count = shape.code_bytes, shape.list_count
    float_bytes = 4 * dimensions
    train_rows = min(shape.resolved["train_rows"], counts.rows)
    sample = train_rows * (dimensions * np.dtype(vectors.dtype.value).itemsize + 8)
    if not list_count:  # FAISS trains and holds it all
        whole = counts.rows * (code_bytes + (graph_bytes(1) if shape.has_graph else 0))
        return {"quantiser": sample + train_rows * float_bytes, "codes": 0.0, "lists": whole}
    if shape.transform_bytes:  # `_transformed`: the sample as floats, before and after
        sample = train_rows * (2 * float_bytes + 8)
    centroids = shape.centroid_bytes
    # `row_assigner`: the centroids again, with a graph over them where there are many
    graph = graph_bytes(list_count) if shape.has_graph or list_count >= ROW_GRAPH_LISTS else 0.0
    # `train_centroids`: centroids and their means, sums in 8 bytes a number; `_train_codec`: rows less their centroids
    rounds = 5 * centroids + graph + TRAINED_AT_ONCE * 2 * float_bytes
    codec = min(train_rows, CODEC_TRAIN_ROWS) * 2 * float_bytes + 2 * (centroids + graph)
    shards = math.ceil(counts.tokens / vectors.tokens_per_shard)
    merged_rows = min(counts.rows, BATCH_BYTES / (code_bytes + ID_BYTES))
    return {
        "quantiser": sample + max(rounds, codec),
        # `write_code_shard`: list, order and code of a row; chunks as floats; the quantiser's own centroids and graph
        "codes": shard_rows * (16 + code_bytes) + CODED_AT_ONCE * 2 * float_bytes + 2 * (centroids + graph),
        "lists": merged_rows * (MERGED_ROW_BYTES + 3 * code_bytes) + shards * 8 * (list_count + 1),
    }


def _identifier_bytes(documents: float) -> float:
    """`SeenIdentifiers`: slots of 16 bytes, at most two thirds of them full, and half as many while they double."""
    slots = max(FIRST_SLOTS, 2 ** math.ceil(math.log2(max(1.0, 1.5 * documents))))
    return 1.5 * 16 * slots
