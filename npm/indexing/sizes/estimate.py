"""What a build will take: memory, disk and time of each stage, from a sample of the corpus that goes through them all.

Seconds and private memory are measured while the sample passes a stage. Seconds grow with tokens or rows, memory with
what a stage holds whole: a shard, the quantiser's training sample, its lists. Bytes on the disk are those of
`disk_needs`. Nothing here depends on another machine than this one; `benchmarks/bench_build.py` compares the estimate
with whole builds.

Shapes: t training rows, d dimensions, K lists of the index to be, k lists of the small quantiser.
"""

from __future__ import annotations

import math
import re
import sys
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from index.ivf import CODEC_TRAIN_ROWS
from npm.core.errors import CorpusError
from npm.core.files import NewFile, sha256_of_file, shown_bytes, sync
from npm.core.memory import PeakMemory, private_bytes, return_freed_memory
from npm.core.types import Progress, silent
from npm.corpus.blocks import Block, BlockPacker
from npm.corpus.store import TOKENS_PER_SHARD, build_block_store
from npm.indexing.embed import ShardBlocks, frequent_token_ids, recorded_vectors
from npm.indexing.lexicon import count_words
from npm.indexing.rotation import refuse_few_vectors, rotation_tokens
from npm.indexing.settings import EstimateSettings, LexiconSettings, Rotation
from npm.indexing.sizes.disk_needs import (
    CorpusCounts,
    CorpusSample,
    SearchShape,
    block_texts,
    corpus_counts,
    disk_needs,
    graph_bytes,
    packed_in_batches,
    partition_needs,
    sample_corpus,
    search_shape,
)
from npm.indexing.sizes.simulation import ClusterEstimate, StageCosts, shown_seconds, simulate

if TYPE_CHECKING:
    from npm.corpus.store import BlockStore
    from npm.models.encoder import Encoder

WRITTEN_BYTES, PIECE_BYTES = 64 << 20, 16 << 20
MOST_LISTS = 4096
"""Lists of the quantiser that is trained for the measurement."""
LEAST_TRAIN_ROWS, CODED_ROWS, MERGED_SHARDS = 8192, 1 << 14, 16
SHORT_TRAINING, LONGER_TRAINING = 1, 3
"""Rounds of k-means of two trainings, whose difference is the time of a round."""
IDENTIFIER_BYTES = 48
"""Of the table of ids that come twice, for each document, while it grows."""
BLOCK_BYTES = 32
"""A block of an opened store: where it begins, its document, and its length while shards are laid out."""


@dataclass(frozen=True, slots=True)
class StageNeeds:
    """What one stage takes; it may use the memory of those before it again."""

    stage: str  # as the progress of a build calls it
    memory_bytes: float  # private, at the peak, with the encoder loaded
    disk_bytes: float  # what it leaves behind
    seconds: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a build will take on this machine."""

    stages: tuple[StageNeeds, ...]
    documents: float
    tokens: float
    rows: float
    tier: str  # with the FAISS factory string, where there is one
    sampled_documents: int
    unknown_sources: list[str]  # data sets of unknown size: of these only the sample counts
    partitions: int = 1
    partition: tuple[float, float] = (0.0, 0.0)  # bytes of files that each reads, and of memory that it fills with them
    cluster: ClusterEstimate = field(default_factory=ClusterEstimate)  # the same with several jobs and machines

    @property
    def memory_bytes(self) -> float:
        """Private memory at the highest peak of all stages."""
        return max(stage.memory_bytes for stage in self.stages)

    @property
    def disk_bytes(self) -> float:
        """The finished index."""
        return sum(stage.disk_bytes for stage in self.stages)

    @property
    def seconds(self) -> float:
        """One job, stage after stage."""
        return sum(stage.seconds for stage in self.stages)

    def record(self) -> dict[str, Any]:
        """The same as JSON values."""
        stages = {
            needs.stage: {name: round(getattr(needs, name), 3) for name in ("memory_bytes", "disk_bytes", "seconds")}
            for needs in self.stages
        }
        names = ("documents", "tokens", "rows", "disk_bytes", "partitions")
        totals = {name: round(getattr(self, name)) for name in names}
        totals |= dict(zip(("partition_disk_bytes", "partition_memory_bytes"), map(round, self.partition), strict=True))
        peaks = {"memory_bytes": round(self.memory_bytes), "seconds": round(self.seconds, 3)}
        others = {"tier": self.tier, "sampled_documents": self.sampled_documents, "unknown": self.unknown_sources}
        return {"stages": stages, **totals, **peaks, **others, "cluster": self.cluster.record()}


class Measured(PeakMemory):
    """Seconds, and growth of private memory, of what runs while it is entered."""

    def __enter__(self) -> Measured:
        return_freed_memory()  # else what runs takes memory again that the process still holds, and nothing grows
        super().__enter__()
        self._started = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._started
        super().__exit__(*error)


@dataclass(frozen=True, slots=True)
class SearchCosts:
    """What it takes to make vectors searchable, with the quantiser that the index is to have."""

    training_seconds: float = 0.0  # all of it
    coding_seconds: float = 0.0  # of a row
    merging_seconds: float = 0.0  # of a row
    chunk_bytes: float = 0.0  # while vectors are coded, chunk after chunk, as each round of k-means does too


def _refuse_too_few(counts: CorpusCounts, settings: EstimateSettings, dimensions: int) -> None:
    """Raise CorpusError if there are too few vectors for a build."""
    if counts.rows == 0:
        raise CorpusError(
            f"vectors.pruning={settings.vectors.pruning.value} keeps none of the {counts.sampled_tokens} tokens of the "
            "sample; use another rule, such as word_boundaries, or a larger sample_documents"
        )
    if settings.rotation is not Rotation.none:
        refuse_few_vectors(round(counts.rows), dimensions)


def estimate_build(settings: EstimateSettings, encoder: Encoder, *, progress: Progress = silent) -> Estimate:
    """What `build` with these settings will take. Writes only to a temporary folder; takes seconds.

    Raises CorpusError as reading the corpus does, if no token of the sample has a vector, and if there are too few
    vectors for a rotation; EncoderError if the encoder does not fit the blocks, SettingError if its vectors are too
    short; UserError for an unknown FAISS factory.
    """
    encoder = encoder.cut_to(settings.dimensions)
    settings = replace(settings, blocks=settings.blocks.resolved(encoder.title_tokens))
    process_bytes = private_bytes()
    packer = BlockPacker(encoder.tokenizer, settings.blocks)
    sample = sample_corpus(settings.corpus, documents=settings.sample_documents, seconds=settings.sample_seconds)
    with Measured() as packing:
        packed = packed_in_batches(packer, sample)
    counts = _counts(sample, packed, settings)
    progress("sample", counts.sampled_tokens, counts.sampled_tokens)
    _refuse_too_few(counts, settings, encoder.dimensions)
    shape = search_shape(settings.search, round(counts.rows), encoder.dimensions)
    count_seconds, count_bytes = _counting(block_texts(sample, packed), settings.lexicon)
    with TemporaryDirectory() as name:
        store = build_block_store(Path(name) / "corpus", sample.documents, packer, settings={})
        encode_seconds, encode_bytes = _encoding(store, encoder, settings, progress)
        search = _search_costs(shape, Path(name), row_count=round(counts.rows), seed=settings.search.seed)
        progress("search", 1, 1)
        kept = max(0, private_bytes() - process_bytes)  # after it has encoded and trained a little
        write_seconds = _writing_seconds_per_byte(Path(name))
    disk = disk_needs(counts, shape, settings, encoder, vocabulary_size=packer.vocabulary_size)
    beyond = _memory_beyond_sample(counts, shape, settings, search, dimensions=encoder.dimensions)
    counted = count_bytes * min(counts.tokens, TOKENS_PER_SHARD) / counts.sampled_tokens
    growth = {"blocks": packing.growth, "vectors": encode_bytes, "lexicon": kept + counted}
    memory = {stage: process_bytes + growth.get(stage, kept) + beyond[stage] for stage in disk}
    seconds = {
        "blocks": counts.tokens * packing.seconds / counts.sampled_tokens,
        "vectors": (counts.tokens + rotation_tokens(settings.rotation, counts.tokens)) * encode_seconds,
        "lexicon": counts.tokens * count_seconds / counts.sampled_tokens,
        "quantiser": search.training_seconds,
        "codes": counts.rows * search.coding_seconds,
        "lists": counts.rows * search.merging_seconds,
    }
    stages = tuple(
        StageNeeds(stage, memory[stage], disk[stage], seconds[stage] + disk[stage] * write_seconds) for stage in disk
    )
    return Estimate(
        stages=stages,
        documents=counts.documents,
        tokens=counts.tokens,
        rows=counts.rows,
        tier=shape.tier,
        sampled_documents=len(sample.documents),
        unknown_sources=sample.unknown_sources,
        partitions=settings.partitions,
        partition=partition_needs(counts, shape, settings, encoder),
        cluster=simulate(_costs_of_many(stages, counts, shape, settings), settings),
    )


def _counts(sample: CorpusSample, packed: list[list[Block]], settings: EstimateSettings) -> CorpusCounts:
    """The counts of the corpus, or of one like it of `settings.tokens`."""
    counts = corpus_counts(sample, packed, settings.vectors, settings.lexicon)
    if settings.tokens is None or not counts.tokens:
        return counts
    factor = settings.tokens / counts.tokens
    like = replace(sample, weights=sample.weights * factor, document_count=sample.document_count * factor)
    return corpus_counts(like, packed, settings.vectors, settings.lexicon)


def _costs_of_many(
    stages: Sequence[StageNeeds], counts: CorpusCounts, shape: SearchShape, settings: EstimateSettings
) -> tuple[StageCosts, ...]:
    """What `simulate` takes: what each stage reads, and in how many shards it is finished.

    The corpus is read twice, for its SHA-256 and for its text; every job that codes or merges reads the quantiser.
    """
    disk = {needs.stage: needs.disk_bytes for needs in stages}
    train_share = min(1.0, shape.resolved.get("train_rows", 0) / counts.rows)
    corpus_shards, vector_shards = (
        counts.tokens / tokens for tokens in (TOKENS_PER_SHARD, settings.vectors.tokens_per_shard)
    )
    read_bytes_and_shards = {
        "blocks": (2 * counts.document_bytes, corpus_shards),
        "vectors": (disk["blocks"], vector_shards),
        "lexicon": (disk["blocks"], corpus_shards),
        "quantiser": (disk["vectors"] * train_share, shape.resolved.get("train_iterations", 1)),
        "codes": (disk["vectors"], vector_shards),
        "lists": (disk["codes"], 1),
    }
    return tuple(
        StageCosts(
            each.stage,
            each.seconds,
            shards=shards,
            read_bytes=read_bytes,
            read_bytes_by_job=disk["quantiser"] if each.stage in ("codes", "lists") else 0,
            written_bytes=each.disk_bytes,
            most_jobs={"blocks": settings.segments, "quantiser": 1, "lists": 1}.get(each.stage, math.inf),
        )
        for each, (read_bytes, shards) in zip(stages, read_bytes_and_shards.values(), strict=True)
    )


def _memory_beyond_sample(
    counts: CorpusCounts, shape: SearchShape, settings: EstimateSettings, search: SearchCosts, *, dimensions: int
) -> dict[str, float]:
    """What each stage holds that the sample was too small for, in bytes."""
    float_bytes = 4 * dimensions
    row_bytes = dimensions * np.dtype(settings.vectors.dtype.value).itemsize
    shard_tokens = min(counts.tokens, settings.vectors.tokens_per_shard)
    shard_rows = counts.rows * shard_tokens / counts.tokens
    opened = counts.blocks * BLOCK_BYTES
    with_rows = opened + counts.tokens / 4  # `RowMap`: two bits a token
    beyond = {
        "blocks": counts.documents * IDENTIFIER_BYTES,
        # `ShardBlocks`: token id, flag and whether it is kept, of a token; its place and vector, of a row
        "vectors": opened + shard_tokens * 6 + shard_rows * (8 + row_bytes),
        "lexicon": opened,
        **dict.fromkeys(("quantiser", "codes", "lists"), with_rows),
    }
    if not shape.code_bytes:
        return beyond
    train_rows = min(shape.resolved["train_rows"], counts.rows)
    # FAISS takes floats of the entire training sample; a transform makes others of them.
    sample_bytes = train_rows * (8 + (2 * float_bytes if shape.transform_bytes else float_bytes))
    lists = shape.centroid_bytes + graph_bytes(shape.list_count)
    # Rounds of k-means: centroids, their means, and sums in 8 bytes a number. Then the codec: rows without centroids.
    rounds = 5 * lists + search.chunk_bytes
    codec = 2 * lists + min(train_rows, CODEC_TRAIN_ROWS) * 2 * float_bytes
    beyond["quantiser"] += sample_bytes + max(rounds, codec)
    # List, order and code of each row of a shard; the quantiser's own lists, and those that assign rows to them.
    beyond["codes"] += shard_rows * (16 + shape.code_bytes) + 2 * lists + search.chunk_bytes
    shards = math.ceil(counts.tokens / settings.vectors.tokens_per_shard)
    beyond["lists"] += 2 * shards * 8 * (shape.list_count + 1)
    return beyond


def _counting(texts: list[tuple[str, str]], settings: LexiconSettings) -> tuple[float, float]:
    """Seconds and bytes at the peak of counting the words of the sample's blocks."""
    started = time.perf_counter()
    count_words(texts, settings)
    seconds = time.perf_counter() - started
    tracemalloc.start()  # slow, so that it is done apart; exact, where pages are too coarse for a sample
    try:
        count_words(texts, settings)
        return seconds, float(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def _encoding(
    store: BlockStore, encoder: Encoder, settings: EstimateSettings, progress: Progress
) -> tuple[float, float]:
    """Seconds a token, and bytes that a batch adds to the process.

    Encodes batches spread over the store, short and long ones, until the time is over; two at least, if there are.
    Padding and special tokens do not count as tokens, but their cost is in the time.
    """
    frequent = frequent_token_ids(store, settings.vectors.max_token_share)
    pooler = settings.vectors.block_pooler(encoder)
    recorded = recorded_vectors(store, encoder, settings.vectors, frequent_token_ids=frequent, block_pooler=pooler)
    blocks = ShardBlocks(store, encoder, {**recorded, "first_block": 0, "block_count": store.block_count})
    special_count = len(encoder.prefix_ids) + len(encoder.suffix_ids)
    order = _spread_order(len(blocks.batches))
    tokens = 0
    with Measured() as memory:
        blocks.encoded(blocks.batches[order[0]])  # to warm up
        started = time.perf_counter()
        for done, number in enumerate(order, start=1):
            batch = blocks.batches[number]
            blocks.encoded(batch)
            tokens += sum(len(sequence) - special_count for sequence in blocks.sequences_of(batch))
            progress("encoder", done, len(order))
            if done >= 2 and time.perf_counter() - started > settings.sample_seconds:
                break
        seconds = time.perf_counter() - started
    return seconds / tokens, float(memory.growth)


def _search_costs(shape: SearchShape, folder: Path, *, row_count: int, seed: int) -> SearchCosts:
    """Train two small quantisers in `folder`, code and merge with one of them, and scale what they took.

    A graph over K centroids takes time in proportion to K log K; coding a row, to log K with a graph and to K without,
    and in a round of k-means a row takes about as long; merging, to the rows. Exact search needs none of it.
    """
    if not shape.code_bytes:
        return SearchCosts()
    from index.arrays import ShardedArray
    from index.ivf import (
        ROW_GRAPH_LISTS,
        Quantiser,
        code_shard_settings,
        train_quantiser,
        write_code_shard,
        write_search_folder,
    )

    resolved = shape.resolved
    lists = min(shape.list_count, MOST_LISTS)  # k
    rows = max(LEAST_TRAIN_ROWS, 2 * lists)  # t of the small quantiser
    train_rows = min(resolved["train_rows"], row_count)
    rng = np.random.default_rng(seed)
    drawn = rng.standard_normal((max(rows, CODED_ROWS), resolved["dimensions"]), dtype=np.float32)  # f32 [t or more, d]
    vectors = drawn.astype(np.float16)  # f16 [t or more, d]
    factory = re.sub(r"IVF\d+", f"IVF{lists}", resolved["factory"])
    small = {**resolved, "factory": factory, "list_count": lists, "train_rows": rows}
    seconds: dict[int, float] = {}
    for rounds in (SHORT_TRAINING, LONGER_TRAINING):
        with Measured() as training:
            made = small | {"train_iterations": rounds}
            train_quantiser(folder / f"quantiser-{rounds}", ShardedArray([vectors[:rows]]), None, made)
        seconds[rounds] = training.seconds
    quantiser = Quantiser.open(folder / f"quantiser-{SHORT_TRAINING}")
    vectors = vectors[:CODED_ROWS]  # f16 [n, d]
    quantiser.encode(vectors[:1].astype(np.float32))  # makes its tables
    with Measured() as coding:
        quantiser.encode(vectors.astype(np.float32))
    a_row = coding.seconds / len(vectors)
    a_round = max(0.0, seconds[LONGER_TRAINING] - seconds[SHORT_TRAINING]) / (LONGER_TRAINING - SHORT_TRAINING)
    once = max(0.0, seconds[SHORT_TRAINING] - a_round * SHORT_TRAINING)
    more_lists = shape.list_count / lists
    deeper = math.log2(max(2, shape.list_count)) / math.log2(max(2, lists))
    a_row *= deeper if shape.list_count >= ROW_GRAPH_LISTS else more_lists
    a_round *= more_lists * train_rows / rows  # a round compares all rows with all centroids
    training_seconds = resolved["train_iterations"] * a_round + once * more_lists
    # One code shard, merged with itself as if it were many.
    write_code_shard(folder / "codes", vectors, quantiser, settings=code_shard_settings(quantiser, "measured"))
    merged = ShardedArray([vectors] * MERGED_SHARDS)
    started = time.perf_counter()
    write_search_folder(
        folder / "lists", small, merged, quantiser=quantiser, code_folders=[folder / "codes"] * MERGED_SHARDS
    )
    return SearchCosts(training_seconds, a_row, (time.perf_counter() - started) / len(merged), coding.growth)


def _writing_seconds_per_byte(folder: Path) -> float:
    """Of hashing, writing and flushing a file in `folder`, which is removed again."""
    path, piece = folder / "written", np.random.default_rng(0).bytes(PIECE_BYTES)
    started = time.perf_counter()
    with NewFile(path) as file:
        for _ in range(WRITTEN_BYTES // PIECE_BYTES):
            file.write(piece)
    sync(path)
    sha256_of_file(path)
    seconds = time.perf_counter() - started
    path.unlink()
    return seconds / WRITTEN_BYTES


def _spread_order(count: int) -> list[int]:
    """All numbers below `count`, such that any beginning of them is spread evenly.

    >>> _spread_order(5)
    [0, 4, 2, 1, 3]
    """
    bits = max(1, (count - 1).bit_length())
    reversed_bits = [int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits)]
    return [number for number in reversed_bits if number < count]


def table_rows(estimate: Estimate) -> list[tuple[str, ...]]:
    """The estimate as plain strings: a heading, a row a stage, and the whole."""
    whole = max(estimate.seconds, sys.float_info.min)
    figures = [(needs.stage, needs.memory_bytes, needs.disk_bytes, needs.seconds) for needs in estimate.stages]
    figures.append(("all", estimate.memory_bytes, estimate.disk_bytes, estimate.seconds))
    rows: list[tuple[str, ...]] = [("stage", "private memory", "disk", "time", "share of time")]
    for name, memory_bytes, disk_bytes, seconds in figures:
        shown = (shown_bytes(memory_bytes), shown_bytes(disk_bytes), shown_seconds(seconds))
        rows.append((name, *shown, f"{seconds / whole:.0%}"))
    return rows


def summary(estimate: Estimate) -> list[str]:
    """What the table does not say, a sentence a line."""
    lines = [
        f"about {estimate.documents:,.0f} documents, {estimate.tokens:,.0f} tokens, {estimate.rows:,.0f} stored "
        f"vectors, from {estimate.sampled_documents:,} documents; tier {estimate.tier}"
    ]
    lines += estimate.cluster.notes
    if estimate.partitions > 1:
        rows, (files, held) = estimate.rows / estimate.partitions, map(shown_bytes, estimate.partition)
        lines.append(
            f"each of {estimate.partitions} partitions searches {rows:,.0f} vectors, reads {files} of files and holds "
            f"{held} of them in memory, beside what its process takes (0.2 GiB: docs/results/serving.md); the router "
            "keeps blocks, text and term counts"
        )
    if estimate.unknown_sources:
        names = ", ".join(estimate.unknown_sources)
        lines.append(
            f"the size of these is not known, so only their sample counts: {names}; give corpus.max_documents="
        )
    return lines
