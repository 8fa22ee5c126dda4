"""What a build will take: memory, disk and time of each stage, from a sample of the corpus that goes through them all.

Time is measured on the sample and grows with tokens or rows; bytes on the disk come from the shapes of arrays, memory
from what a stage holds at once. Nothing here depends on another machine than this one.

Each formula follows the arrays of the code it names; `benchmarks/bench_build.py` holds it against measurement.

Shapes: t training rows, n rows coded, d dimensions, K lists of the index to be, k lists of the small quantiser.
"""

from __future__ import annotations

import math
import re
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from index.files import CHUNK_BYTES, CountingFile, shown_bytes
from index.kmeans import ROWS_PER_CHUNK as TRAINED_AT_ONCE
from index.lists import BATCH_BYTES, ID_BYTES
from index.lists import ROWS_PER_CHUNK as CODED_AT_ONCE
from index.quantiser import CODEC_TRAIN_ROWS, ROW_GRAPH_LISTS
from npm.corpus.blocks import BlockPacker
from npm.corpus.documents import FIRST_SLOTS
from npm.corpus.store import TOKENS_PER_SHARD, build_block_store
from npm.errors import CorpusError, check_range
from npm.indexing.disk_needs import (
    CorpusCounts,
    SearchShape,
    block_texts,
    corpus_counts,
    disk_needs,
    graph_bytes,
    packed_in_batches,
    sample_corpus,
    search_shape,
)
from npm.indexing.embed import ShardBlocks, frequent_token_ids, recorded_vectors
from npm.indexing.lexicon import LexiconSettings, count_words
from npm.indexing.settings import IndexBuildSettings
from npm.memory import PeakMemory, private_bytes

if TYPE_CHECKING:
    from npm.corpus.store import BlockStore
    from npm.indexing.disk_needs import DiskNeeds
    from npm.indexing.embed import VectorSettings
    from npm.models.encoder import Encoder


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


EstimateProgress = Callable[[str, int, int | None], None]
"""Called with what is measured, how much of it is done, and the total if known."""


@dataclass(kw_only=True, slots=True)
class EstimateSettings(IndexBuildSettings):
    """What a build would take, with the settings of the build."""

    sample_documents: int = 200
    """Documents that are read, cut and encoded, from up to 16 files spread over the corpus."""
    sample_seconds: float = 5.0
    """Seconds of encoding, of which the speed is measured."""

    def __post_init__(self) -> None:
        IndexBuildSettings.__post_init__(self)
        check_range(self.sample_documents >= 1, "sample_documents", expected="at least 1", got=self.sample_documents)
        check_range(self.sample_seconds > 0, "sample_seconds", expected="more than 0", got=self.sample_seconds)


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

    @property
    def memory_bytes(self) -> float:
        """Private memory at the peak of the hungriest stage."""
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
        totals = {name: round(getattr(self, name)) for name in ("documents", "tokens", "rows", "disk_bytes")}
        peaks = {"memory_bytes": round(self.memory_bytes), "seconds": round(self.seconds, 3)}
        names = {"tier": self.tier, "sampled_documents": self.sampled_documents, "unknown": self.unknown_sources}
        return {"stages": stages, **totals, **peaks, **names}


@dataclass(frozen=True, slots=True)
class _Measured:
    """What the sample took on this machine."""

    pack_seconds_per_token: float
    count_seconds_per_token: float
    encode_seconds_per_token: float
    write_seconds_per_byte: float
    search: SearchSpeed
    memory: MeasuredMemory


def estimate_build(settings: EstimateSettings, encoder: Encoder, *, progress: EstimateProgress) -> Estimate:
    """What `build` with these settings will take. Writes only to a temporary folder; takes seconds.

    Raises CorpusError as reading the corpus does, and if no token of the sample has a vector; EncoderError if the
    encoder does not fit the blocks, SettingError if its vectors are too short; UserError for an unknown FAISS factory.
    """
    encoder = encoder.cut_to(settings.dimensions)
    process_bytes = private_bytes()
    packer = BlockPacker(encoder.tokenizer, settings.blocks)
    sample = sample_corpus(settings.corpus, documents=settings.sample_documents, seconds=settings.sample_seconds)
    with PeakMemory() as packing:
        started = time.perf_counter()
        packed = packed_in_batches(packer, sample)
        pack_seconds = time.perf_counter() - started
    sample_tokens = sum(len(block.token_ids) for blocks in packed for block in blocks)
    progress("sample", sample_tokens, sample_tokens)
    counts = corpus_counts(sample, packed, settings.vectors, settings.lexicon)
    if counts.rows == 0:
        raise _no_rows(settings, sample_tokens)
    shape = search_shape(settings.search, round(counts.rows), encoder.dimensions)
    count_seconds, count_bytes = _counting(block_texts(sample, packed), settings.lexicon)
    with TemporaryDirectory() as name:
        folder = Path(name)
        store = build_block_store(folder / "corpus", sample.documents, packer, settings={})
        encode_seconds, encode_bytes = _encoding(store, encoder, settings, progress)
        search = search_speed(shape, folder, row_count=round(counts.rows), seed=settings.search.seed)
        progress("search", 1, 1)
        kept_bytes = max(0, private_bytes() - process_bytes)
        write_seconds = writing_seconds_per_byte(folder)
    measured = _Measured(
        pack_seconds_per_token=pack_seconds / sample_tokens,
        count_seconds_per_token=count_seconds / sample_tokens,
        encode_seconds_per_token=encode_seconds,
        write_seconds_per_byte=write_seconds,
        search=search,
        memory=MeasuredMemory(
            process=process_bytes,
            packing=packing.growth,
            encoding=encode_bytes,
            lexicon=count_bytes / sample_tokens * min(counts.tokens, TOKENS_PER_SHARD),
            kept=kept_bytes,
        ),
    )
    disk = disk_needs(
        counts,
        shape,
        settings.vectors,
        encoder=encoder,
        vocabulary_size=packer.vocabulary_size,
        copy_encoder=settings.copy_encoder,
    )
    return Estimate(
        stages=_stages(counts, shape, disk, measured, settings, dimensions=encoder.dimensions),
        documents=counts.documents,
        tokens=counts.tokens,
        rows=counts.rows,
        tier=shape.tier,
        sampled_documents=len(sample.documents),
        unknown_sources=sample.unknown_sources,
    )


def table_rows(estimate: Estimate) -> list[tuple[str, ...]]:
    """The estimate as plain strings: a heading, a row a stage, and the whole."""
    rows: list[tuple[str, ...]] = [("stage", "private memory", "disk", "time", "share of time")]
    whole = max(estimate.seconds, sys.float_info.min)
    for needs in estimate.stages:
        share = f"{needs.seconds / whole:.0%}"
        rows.append((needs.stage, *_shown(needs.memory_bytes, needs.disk_bytes, needs.seconds), share))
    rows.append(("all", *_shown(estimate.memory_bytes, estimate.disk_bytes, estimate.seconds), "100%"))
    return rows


def summary(estimate: Estimate) -> list[str]:
    """What the table does not say, a sentence a line."""
    lines = [
        f"about {estimate.documents:,.0f} documents, {estimate.tokens:,.0f} tokens, {estimate.rows:,.0f} stored "
        f"vectors, from {estimate.sampled_documents:,} documents; tier {estimate.tier}"
    ]
    if estimate.unknown_sources:
        names = ", ".join(estimate.unknown_sources)
        lines.append(
            f"nobody knows how large these are, so only their sample counts: {names}; give corpus.max_documents="
        )
    return lines


def _stages(
    counts: CorpusCounts,
    shape: SearchShape,
    disk: DiskNeeds,
    measured: _Measured,
    settings: EstimateSettings,
    *,
    dimensions: int,
) -> tuple[StageNeeds, ...]:
    """Speeds times counts, and the time of writing what each stage leaves."""
    left = {
        "blocks": disk.corpus,
        "vectors": disk.vectors,
        "lexicon": disk.lexicon,
        "quantiser": disk.quantiser,
        "codes": disk.codes,
        "lists": disk.search + disk.encoder,
    }
    working = {
        "blocks": counts.tokens * measured.pack_seconds_per_token,
        "vectors": counts.tokens * measured.encode_seconds_per_token,
        "lexicon": counts.tokens * measured.count_seconds_per_token,
        "quantiser": measured.search.training,
        "codes": counts.rows * measured.search.coding_per_row,
        "lists": counts.rows * measured.search.merging_per_row,
    }
    memory = stage_memory(counts, shape, settings.vectors, dimensions=dimensions, measured=measured.memory)
    return tuple(
        StageNeeds(stage, memory[stage], left[stage], working[stage] + left[stage] * measured.write_seconds_per_byte)
        for stage in left
    )


def _counting(texts: list[tuple[str, str]], settings: LexiconSettings) -> tuple[float, float]:
    """Seconds and bytes at the peak of counting the words of the sample's blocks."""
    started = time.perf_counter()
    count_words(texts, settings)
    seconds = time.perf_counter() - started
    tracemalloc.start()  # slow, so that it is done apart; numpy tells it of its arrays too
    try:
        count_words(texts, settings)
        return seconds, float(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def _encoding(
    store: BlockStore, encoder: Encoder, settings: EstimateSettings, progress: EstimateProgress
) -> tuple[float, float]:
    """Seconds a token, and bytes that a batch adds to the process."""
    frequent = frequent_token_ids(store, settings.vectors.max_token_share)
    recorded = recorded_vectors(store, encoder, settings.vectors, frequent_token_ids=frequent)
    blocks = ShardBlocks(store, encoder, {**recorded, "first_block": 0, "block_count": store.block_count})
    with PeakMemory() as memory:
        speed = encoding_speed(
            blocks,
            special_count=len(encoder.prefix_ids) + len(encoder.suffix_ids),
            most_seconds=settings.sample_seconds,
            progress=lambda done, total: progress("encoder", done, total),
        )
    return speed.seconds_per_token, float(memory.growth)


def _shown(memory_bytes: float, disk_bytes: float, seconds: float) -> tuple[str, str, str]:
    return shown_bytes(memory_bytes), shown_bytes(disk_bytes), shown_seconds(seconds)


def shown_seconds(seconds: float) -> str:
    """A time for people.

    >>> shown_seconds(0.25), shown_seconds(75), shown_seconds(3 * 3600 + 20 * 60)
    ('0.2 s', '1 min 15 s', '3 h 20 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes} min {left} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _no_rows(settings: EstimateSettings, sample_tokens: int) -> CorpusError:
    return CorpusError(
        "no token of the sample has a vector",
        expected="words that the pruning rule keeps",
        got=f"{sample_tokens} tokens, none kept by vectors.pruning={settings.vectors.pruning.value}",
        where="corpus.files",
        fix="choose another rule, such as vectors.pruning=word_boundaries, or a larger sample_documents=",
    )
