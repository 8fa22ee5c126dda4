"""An index looked at: contents, making and size from manifests alone, and every byte and vector verified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.arrays import ShardedArray
from index.ivf import ID_BYTES, LISTS_FILE, QUANTIZER_KIND, TRAINED_FILE
from index.settings import SearchTier, tier_reason
from index.sign_codes import EXACT_ROWS
from index.types import SEARCH_KIND
from npm.core.artifact import (
    MANIFEST_NAME,
    check_folder,
    open_array,
    read_as,
    read_manifest,
    refuse_changed,
    verify_folder,
)
from npm.core.errors import ArtifactError, damaged
from npm.corpus.store import BlockStore
from npm.indexing.adaptation import adaptation_facts
from npm.indexing.embed import AXES_KEY, BLOCKS_FILE, VECTOR_SHARD_KIND, VECTORS_KIND, ShardBlocks, recorded_pooler
from npm.indexing.generation import GROUPS, INDEX_KIND, Count, Generation, on_present
from npm.indexing.partitions import check_partitions, partitions_of
from npm.indexing.phrase_index import check_encoder, load_index_encoder
from npm.indexing.rotation import rotation_facts
from npm.models.settings import PoolerKind, Precision

if TYPE_CHECKING:
    from npm.models.encoder import Encoder

LIST_ENTRY_BYTES = 24
"""FAISS keeps size, capacity and offset of each mapped list, 8 bytes each."""
ROW_COUNT_LIMIT = 2**32
LEAST_COSINE = 0.99
"""Between a stored vector and the same token encoded again: storing in 8 bits and computing in bfloat16 leave more."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one generation of an index."""

    disk: dict[str, int]  # by part, all segments together
    hot: dict[str, int]  # by item: what every search reads, in memory or mapped
    token_count: int
    row_count: int

    @property
    def hot_bytes_per_vector(self) -> float:
        """Hot bytes per stored vector."""
        return sum(self.hot.values()) / self.row_count

    @property
    def disk_bytes_per_token(self) -> float:
        """Bytes on disk per token of the corpus."""
        return sum(self.disk.values()) / self.token_count

    def record(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "rows": self.row_count,
            "tokens": self.token_count,
            "disk_bytes": self.disk,
            "hot_bytes": self.hot,
            "hot_bytes_per_vector": self.hot_bytes_per_vector,
            "disk_bytes_per_token": self.disk_bytes_per_token,
        }


@dataclass(frozen=True, slots=True)
class PruningCounts:
    """Tokens of a segment, as the manifest of its vectors records them."""

    tokens: Count
    kept: Count
    kept_by_rule: dict[str, Count]  # tokens that each rule alone would keep


@dataclass(frozen=True, slots=True)
class Inspection:
    """Contents of an index, then how it was built."""

    generation: int
    digest: str  # of the root manifest
    counts: dict[str, int]  # documents, deleted_documents, blocks, tokens, rows
    dimensions: int
    tier: str
    tier_reason: str
    factory: str | None
    searching: dict[str, int | None]  # probed_lists, rerank_factor, candidates_per_side; None: not in this tier
    partitions: list[list[int]]  # rows [first, stop) of each; a single one if it is not partitioned
    block_pooler: str | None  # None: blocks have no vectors
    kept_fields: list[str]
    segments: dict[str, dict[str, Any]]  # counts and sources of each
    encoder: dict[str, Any]  # name, fingerprints, similarity scale, inside: whether it has a copy
    rotation: dict[str, Any] | None  # method, kept share of squared lengths, sample; None: not rotated
    adaptation: dict[str, Any] | None  # retrieval, questions, held-out figures; None: queries are not adapted
    pruning: dict[str, Any]  # rule, and the sums of `PruningCounts`
    settings: dict[str, Any]  # of corpus, blocks, vectors, lexicon, search
    versions: dict[str, str]
    footprint: Footprint

    def record(self) -> dict[str, Any]:
        """JSON values; no path of this machine."""
        record = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "footprint"}
        return {**record, "bytes": self.footprint.record()}


def inspect_index(folder: str | Path) -> Inspection:
    """Contents of the index in `folder`; raises ArtifactError if a manifest is missing or damaged."""
    generation = Generation.read(Path(folder))
    manifest, settings = generation.manifest, generation.manifest.settings
    search = read_manifest(generation.search, kind=SEARCH_KIND).settings
    recorded, is_exact = manifest.searching, manifest.quantizer is None
    kept: Counter[str] = Counter()
    kept_by_rule: Counter[str] = Counter()
    for segment in generation.segments:
        counts = read_manifest(segment.vectors, kind=VECTORS_KIND).settings.typed("pruning_counts", PruningCounts)
        kept.update(tokens=counts.tokens, kept=counts.kept)
        kept_by_rule.update(counts.kept_by_rule)
    pooler = _block_pooler(generation)
    return Inspection(
        generation=manifest.generation,
        digest=manifest.digest,
        counts=dict(settings["counts"]),
        dimensions=search.typed("dimensions", Count),
        tier=str(search["tier"]),
        tier_reason=tier_reason(manifest.search, manifest.counts.rows, str(search["tier"])),
        factory=None if is_exact else search.typed("factory", str),
        searching={
            "probed_lists": None if is_exact else recorded.probed_lists or search.typed("probed_lists", int),
            "rerank_factor": None if is_exact else recorded.rerank_factor or search.typed("rerank_factor", int | None),
            "candidates_per_side": manifest.candidates_per_side,
        },
        partitions=[list(each.rows) for each in partitions_of(generation)],
        block_pooler=None if pooler is None else pooler.value,
        kept_fields=manifest.fields,
        segments={
            f"{number:05d}": {"counts": asdict(segment.counts), "sources": list(map(dict, segment.sources))}
            for number, segment in enumerate(manifest.segments)
        },
        encoder={**settings["encoder"], "inside": manifest.encoder_folder is not None},
        rotation=rotation_facts(generation),
        adaptation=adaptation_facts(generation.folder, manifest),
        pruning={"rule": manifest.vectors.pruning.value, **kept, "kept_by_rule": dict(kept_by_rule)},
        settings={name: settings[name] for name in ("corpus", *GROUPS)},
        versions=read_as(dict[str, str], settings["versions"], file=generation.folder / MANIFEST_NAME, key="versions"),
        footprint=footprint(generation),
    )


def footprint(generation: Generation) -> Footprint:
    """The bytes of `generation`. Raises ArtifactError if a manifest of it is missing or damaged."""
    disk: Counter[str] = Counter(manifest=(generation.folder / MANIFEST_NAME).stat().st_size)
    for name in generation.manifest.parts:
        part = name.partition("-")[0]
        for path, size in _file_sizes(generation.folder / name).items():
            disk["block vectors" if path.name == BLOCKS_FILE else part] += size
    counts = generation.manifest.counts
    return Footprint(dict(disk), hot_bytes(generation), token_count=counts.tokens, row_count=counts.rows)


def hot_bytes(generation: Generation) -> dict[str, int]:
    """Bytes that every search reads: those of the searcher, and the arrays that an opened index keeps in memory."""
    documents, blocks, tokens, rows = astuple(generation.manifest.counts)
    search = read_manifest(generation.search, kind=SEARCH_KIND).settings
    dimensions = search.typed("dimensions", Count)
    if search["tier"] == SearchTier.exact.value:
        found = {"vectors (float32, dense only)": 4 * search.typed("row_count", Count) * dimensions}
    elif generation.quantizer is None:
        raise damaged(generation.folder / MANIFEST_NAME, "inverted lists without a quantizer")
    else:
        quantizer = read_manifest(generation.quantizer, kind=QUANTIZER_KIND)
        lists = sum(size for path, size in _file_sizes(generation.search).items() if path.name == LISTS_FILE)
        copies = len(partitions_of(generation))  # in one process each has all lists, and its own quantizer
        found = {
            "codes": lists - ID_BYTES * rows,
            "row ids": ID_BYTES * rows,
            "centroids, codec": copies * quantizer.file(TRAINED_FILE).bytes,
            "list table": copies * LIST_ENTRY_BYTES * quantizer.settings.typed("list_count", Count),
        }
    words = tokens // 64 + 1  # see npm/indexing/rows.py
    found |= {
        "row bitmap": 8 * words,
        "row counts": (4 if rows < ROW_COUNT_LIMIT else 8) * words,
        "block offsets": 8 * (blocks + 1),
        "block documents": 8 * blocks,
        "block first characters": 4 * blocks,
        "block lengths": 4 * blocks,
    }
    if blocks > EXACT_ROWS and _block_pooler(generation) is not None:
        found["block signs"] = blocks * -(-dimensions // 8)
    if generation.manifest.deleted is not None:
        found["live documents, blocks, rows"] = documents + blocks + rows
    return found


def _file_sizes(folder: Path) -> dict[Path, int]:
    """The bytes of every file of `folder` and of the folders that its manifest names, manifests among them."""
    manifest = read_manifest(folder)
    sizes = {folder / name: record.bytes for name, record in manifest.files.items()}
    sizes[folder / MANIFEST_NAME] = (folder / MANIFEST_NAME).stat().st_size
    for name in manifest.parts:
        sizes |= _file_sizes(folder / name)
    return sizes


def _block_pooler(generation: Generation) -> PoolerKind | None:
    return recorded_pooler(read_manifest(generation.segments[0].vectors, kind=VECTORS_KIND).settings)


@dataclass(frozen=True, slots=True)
class VectorCheck:
    """Distance of stored vectors from those that an encoder now makes of the same batches."""

    row_count: int
    worst_cosine: float  # of a stored and a new vector of one token or block, computed in float64; 1 without rows


def reencode_sample(
    store: BlockStore, encoder: Encoder, folder: Path, *, batch_count: int, rng: np.random.Generator
) -> VectorCheck:
    """Encode `batch_count` random batches again, each as in its shard, and compare with the stored vectors.

    A batch is drawn at random from a shard that is drawn at random, none of them twice: fewer where a shard that is
    drawn several times has fewer. Raises ArtifactError if the vectors are unfinished, damaged, or were made with
    another encoder or corpus.
    """
    manifest = check_folder(folder, kind=VECTORS_KIND)
    ours = {
        "corpus": store.digest,
        "encoder_fingerprint": encoder.fingerprint,
        "dimensions": manifest.settings["dimensions"] and encoder.dimensions,
        AXES_KEY: encoder.axes_digest,
    }
    refuse_changed(ours, {name: manifest.settings.get(name) for name in ours}, where=folder)
    row_count, worst_cosine = 0, 1.0
    names = list(manifest.parts)
    numbers, counts = np.unique(rng.integers(len(names), size=batch_count), return_counts=True)  # i64 [shards] each
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        shard = folder / names[number]
        blocks = ShardBlocks(store, encoder, check_folder(shard, kind=VECTOR_SHARD_KIND).settings)
        for drawn in rng.permutation(len(blocks.batches))[:count].tolist():
            batch = blocks.batches[drawn]
            encoded = blocks.encoded(batch)
            pairs = []
            if manifest.settings["dimensions"]:
                row_count += len(encoded.vectors)
                pairs.append((_stored(shard, "vectors", blocks.rows_of(batch)), encoded.vectors))  # [n, d] each
            if encoded.pooled is not None:
                pairs.append((_stored(shard, "blocks", batch), encoded.pooled))  # [B, d] each
            for old, fresh in ((stored.astype(np.float64), new.astype(np.float64)) for stored, new in pairs):
                norms = np.linalg.norm(old, axis=1) * np.linalg.norm(fresh, axis=1)  # f64 [n]
                cosines = (old * fresh).sum(axis=1) / np.maximum(norms, np.finfo(np.float64).tiny)  # f64 [n]
                worst_cosine = float(cosines.min(initial=worst_cosine))
    return VectorCheck(row_count, worst_cosine)


def _stored(shard: Path, name: str, rows: np.ndarray) -> np.ndarray:
    """The vectors [n, d] of the `rows` i64 [n] in an array of a shard."""
    return ShardedArray.of_vectors([open_array(shard, name)]).take(rows)


def verify_index(folder: Path, progress: Callable[[str, int], None] | None = None) -> None:
    """Read every byte of an index and check it; `progress(file, bytes)` after each piece.

    Raises ArtifactError on the first fault. If a change replaces the generation meanwhile, the new one is checked.
    """

    def verify(generation: Generation) -> None:
        verify_folder(folder, INDEX_KIND, progress)
        check_partitions(generation)

    on_present(folder, verify)


def index_encoder(
    folder: Path, given: Encoder | str | None, *, device: str = "auto", dtype: Precision = Precision.auto
) -> Encoder:
    """The encoder that made the index, for reading, the one given or as `fill` finds it; vectors as those stored.

    Raises ArtifactError if it is another one.
    """
    manifest = Generation.read(folder).manifest
    return load_index_encoder(folder, manifest, given, device=device, dtype=dtype, for_reading=True)


def verify_vectors(folder: Path, encoder: Encoder, *, batches: int, seed: int) -> VectorCheck:
    """Encode up to `batches` random batches of every segment again and compare with what is stored.

    Raises ArtifactError if a vector points elsewhere: its cosine with the new one is below 0.99.
    """

    def verify(generation: Generation) -> VectorCheck:
        rng, found = np.random.default_rng(seed), [VectorCheck(0, 1.0)]
        checked = check_encoder(folder, generation.manifest, encoder)
        for segment in generation.segments:
            store = BlockStore.open(segment.corpus)
            found.append(reencode_sample(store, checked, segment.vectors, batch_count=batches, rng=rng))
            if not found[-1].worst_cosine >= LEAST_COSINE:  # or it is no number
                raise ArtifactError(
                    f"{segment.vectors} differs from what the encoder computes now: the least cosine of "
                    f"{found[-1].row_count} rows is {found[-1].worst_cosine:.4f}, must be at least {LEAST_COSINE}; "
                    "build the index again"
                )
        return VectorCheck(sum(each.row_count for each in found), min(each.worst_cosine for each in found))

    return on_present(folder, verify)
