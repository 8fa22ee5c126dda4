"""What a build will take: memory, disk and time of each stage, from a sample of the corpus that goes through them all.

Time is measured on the sample and grows with tokens or rows; bytes on the disk come from the shapes of arrays, memory
from what a stage holds at once. Nothing here depends on another machine than this one.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from index.files import shown_bytes
from npm.corpus.blocks import BlockPacker
from npm.corpus.store import TOKENS_PER_SHARD, build_block_store
from npm.errors import CorpusError, check_range
from npm.memory import PeakMemory, private_bytes
from npm.retrieval.build_settings import IndexBuildSettings
from npm.retrieval.corpus_sample import sample_corpus
from npm.retrieval.embed import recorded_vectors
from npm.retrieval.lexicon_shards import LexiconSettings, count_words
from npm.retrieval.needs import block_texts, corpus_counts, disk_needs, packed_in_batches, search_shape
from npm.retrieval.pruning import frequent_token_ids
from npm.retrieval.shard_blocks import ShardBlocks
from npm.retrieval.stage_memory import MeasuredMemory, stage_memory
from npm.retrieval.stage_speeds import SearchSpeed, encoding_speed, search_speed, writing_seconds_per_byte

if TYPE_CHECKING:
    from npm.corpus.store import BlockStore
    from npm.models.encoder import Encoder
    from npm.retrieval.needs import CorpusCounts, DiskNeeds, SearchShape

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
