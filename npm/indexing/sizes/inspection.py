"""What an index holds, made by what, and how big its parts are; and whether its bytes and vectors are still right.

`inspect_index` reads manifests and file sizes alone, so that it takes no time at any size; `verify_index` reads all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.ivf import ID_BYTES, LISTS_FILE, QUANTISER_KIND, SEARCH_KIND, TRAINED_FILE
from index.settings import SearchTier
from index.sign_codes import EXACT_ROWS
from npm.core.artifact import MANIFEST_NAME, read_as, read_manifest, verify_folder
from npm.core.errors import ArtifactError, damaged
from npm.corpus.store import BlockStore
from npm.indexing.block_vectors import BLOCKS_FILE, recorded_pooler
from npm.indexing.embed import VECTORS_KIND, VectorCheck, reencode_sample
from npm.indexing.generation import ENCODER_FOLDER, INDEX_KIND, SEGMENTS_FOLDER, Count, Generation
from npm.indexing.partitions import check_partitions, partitions_of
from npm.indexing.phrase_index import check_encoder, load_index_encoder
from npm.indexing.rotation import rotation_facts
from npm.indexing.rows import ROWS_PER_SAMPLE
from npm.models.settings import PoolerKind, Precision

if TYPE_CHECKING:
    from npm.models.encoder import Encoder


LIST_ENTRY_BYTES = 24
"""FAISS keeps size, capacity and offset of each list that it maps, 8 bytes each."""
HOT_FILES = (LISTS_FILE, TRAINED_FILE)
"""Files of which every search reads, so that they must be in memory, mapped or not."""
ROW_COUNT_LIMIT = 2**32


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one generation of an index."""

    disk: dict[str, int]  # by part, all segments together
    hot: dict[str, int]  # by item
    cold: int  # on disk, and not in a hot file
    token_count: int
    row_count: int

    @property
    def hot_bytes_per_vector(self) -> float:
        """Hot bytes for each stored vector."""
        return sum(self.hot.values()) / self.row_count

    @property
    def cold_bytes_per_token(self) -> float:
        """Bytes left on disk for each token of the corpus, vectors and texts among them."""
        return self.cold / self.token_count

    @property
    def disk_bytes_per_token(self) -> float:
        """All bytes on disk for each token of the corpus."""
        return sum(self.disk.values()) / self.token_count

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "rows": self.row_count,
            "tokens": self.token_count,
            "disk_bytes": self.disk,
            "hot_bytes": self.hot,
            "cold_bytes": self.cold,
            "hot_bytes_per_vector": self.hot_bytes_per_vector,
            "cold_bytes_per_token": self.cold_bytes_per_token,
            "disk_bytes_per_token": self.disk_bytes_per_token,
        }


def footprint(generation: Generation) -> Footprint:
    """The bytes of `generation`. Raises ArtifactError if a manifest of it is missing or damaged."""
    disk: dict[str, int] = {"manifest": _manifest_bytes(generation.folder)}
    cold = disk["manifest"]
    for name in generation.manifest.parts:
        part = Path(name).name if name.startswith(f"{SEGMENTS_FOLDER}/") else Path(name).parts[0]
        sizes = file_sizes(generation.folder / name)
        of_blocks = sum(size for path, size in sizes.items() if path.name == BLOCKS_FILE)
        if of_blocks:
            disk["block vectors"] = disk.get("block vectors", 0) + of_blocks
        disk[part] = disk.get(part, 0) + sum(sizes.values()) - of_blocks
        cold += sum(size for path, size in sizes.items() if path.name not in HOT_FILES)
    return Footprint(
        disk=disk,
        hot={**_search_bytes(generation), **table_bytes(generation)},
        cold=cold,
        token_count=generation.manifest.counts.tokens,
        row_count=generation.manifest.counts.rows,
    )


def file_sizes(folder: Path) -> dict[Path, int]:
    """The bytes of every file of `folder` and of the folders that its manifest names, manifests among them."""
    manifest = read_manifest(folder)
    sizes = {folder / name: record.bytes for name, record in manifest.files.items()}
    sizes[folder / MANIFEST_NAME] = _manifest_bytes(folder)
    for name in manifest.parts:
        sizes |= file_sizes(folder / name)
    return sizes


def table_bytes(generation: Generation) -> dict[str, int]:
    """Bytes of the arrays that an opened index holds in memory beside its searcher, whatever the tier."""
    documents, blocks, tokens, rows = astuple(generation.manifest.counts)
    words = tokens // 64 + 1  # see npm/indexing/rows.py
    count_bytes = 4 if rows < ROW_COUNT_LIMIT else 8
    found = {
        "row bitmap": 8 * words,
        "row counts": count_bytes * words + 8 * (-(-rows // ROWS_PER_SAMPLE) + 1),
        "block offsets": 8 * (blocks + 1),
        "block documents": 8 * blocks,
        "block lengths": 4 * blocks if any(segment.lexicon.is_dir() for segment in generation.segments) else 0,
    }
    if blocks > EXACT_ROWS and block_pooler(generation) is not None:
        dimensions = read_manifest(generation.search, kind=SEARCH_KIND).settings.typed("dimensions", Count)
        found["block signs"] = blocks * -(-dimensions // 8)
    if generation.manifest.deleted is not None:
        found["live documents, blocks, rows"] = documents + blocks + rows
    return found


def block_pooler(generation: Generation) -> PoolerKind | None:
    """What made the vectors of blocks, in all segments; None: they have none."""
    return recorded_pooler(read_manifest(generation.segments[0].vectors, kind=VECTORS_KIND).settings)


def _search_bytes(generation: Generation) -> dict[str, int]:
    """Bytes that the searcher needs."""
    search = read_manifest(generation.search, kind=SEARCH_KIND)
    rows, dimensions = (search.settings.typed(name, Count) for name in ("row_count", "dimensions"))
    if search.settings["tier"] == SearchTier.exact.value:
        return {"vectors (float32)": 4 * rows * dimensions}
    sizes = file_sizes(generation.search)
    if generation.quantiser is None:
        raise damaged(generation.folder / MANIFEST_NAME, "inverted lists without a quantizer")
    quantiser = read_manifest(generation.quantiser, kind=QUANTISER_KIND)
    lists = sum(size for path, size in sizes.items() if path.name == LISTS_FILE)
    partitions = partitions_of(generation)  # each has all lists, and in this process a quantiser of its own
    list_count = quantiser.settings.typed("list_count", Count)
    return {
        "codes": lists - ID_BYTES * rows,
        "row ids": ID_BYTES * rows,
        "centroids, graph, codec": len(partitions) * quantiser.file(TRAINED_FILE).bytes,
        "list table": len(partitions) * LIST_ENTRY_BYTES * list_count,
    }


def _manifest_bytes(folder: Path) -> int:
    return (folder / MANIFEST_NAME).stat().st_size


MADE_BY_SETTINGS = ("corpus", "blocks", "vectors", "lexicon", "search")


@dataclass(frozen=True, slots=True)
class InspectedSegment:
    """What one build or one add brought."""

    name: str
    counts: dict[str, int]  # documents, blocks, tokens, rows
    sources: tuple[dict[str, Any], ...]  # name, bytes and SHA-256 of each corpus file


@dataclass(frozen=True, slots=True)
class PruningCounts:
    """Tokens of a segment, as the manifest of its vectors has them."""

    tokens: Count
    kept: Count
    kept_by_rule: dict[str, Count]


@dataclass(frozen=True, slots=True)
class Pruning:
    """Which tokens have a vector, and how many that leaves; over all segments."""

    rule: str
    max_token_share: float | None  # a token id that makes up more of the corpus has no vector; None: no such rule
    token_count: int
    kept_by_rule: dict[str, int]  # tokens that each rule alone would keep
    kept: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """All that the manifests of an index say."""

    generation: int
    digest: str  # of the root manifest
    counts: dict[str, int]  # documents, deleted_documents, blocks, tokens, rows
    segments: tuple[InspectedSegment, ...]
    kept_fields: tuple[str, ...]
    encoder: dict[str, Any]  # name, fingerprints, similarity scale
    encoder_inside: bool
    versions: dict[str, str]
    made_with: dict[str, Any]  # settings of corpus, blocks, vectors, lexicon, search
    pruning: Pruning
    tier: str
    factory: str | None
    dimensions: int
    rotation: dict[str, Any] | None  # method, share of squared lengths kept, sample; None: vectors are not rotated
    partitions: tuple[tuple[int, int], ...]  # rows [first, stop) of each; one of them all if it is not partitioned
    block_pooler: str | None  # what made the vectors of blocks; None: they have none
    searching: dict[str, int | None]  # probed_lists, rerank_factor, candidates_per_side in use; None: not in this tier
    footprint: Footprint

    def record(self) -> dict[str, Any]:
        """As JSON values; no path of this machine."""
        return {
            "generation": self.generation,
            "digest": self.digest,
            "counts": self.counts,
            "segments": {each.name: {"counts": each.counts, "sources": list(each.sources)} for each in self.segments},
            "kept_fields": list(self.kept_fields),
            "encoder": {**self.encoder, "inside": self.encoder_inside},
            "versions": self.versions,
            "settings": self.made_with,
            "pruning": {
                "rule": self.pruning.rule,
                "max_token_share": self.pruning.max_token_share,
                "tokens": self.pruning.token_count,
                "kept_by_rule": self.pruning.kept_by_rule,
                "kept": self.pruning.kept,
            },
            "tier": self.tier,
            "factory": self.factory,
            "dimensions": self.dimensions,
            "rotation": self.rotation,
            "partitions": [list(rows) for rows in self.partitions],
            "block_pooler": self.block_pooler,
            "searching": self.searching,
            "bytes": self.footprint.record(),
        }


def inspect_index(folder: str | Path) -> Inspection:
    """What the manifests of the index in `folder` say; raises ArtifactError if one is missing or damaged.

    Files are not read: `npmlm verify` does that.
    """
    generation = Generation.read(Path(folder))
    manifest, settings = generation.manifest, generation.manifest.settings
    search = read_manifest(generation.search, kind=SEARCH_KIND).settings
    recorded, is_exact = manifest.searching, manifest.quantiser is None
    segments = tuple(
        InspectedSegment(name, asdict(segment.counts), tuple(map(dict, segment.sources)))
        for name, segment in manifest.segments.items()
    )
    return Inspection(
        generation=manifest.generation,
        digest=manifest.digest,
        counts=dict(settings["counts"]),
        segments=segments,
        kept_fields=tuple(manifest.kept_fields),
        encoder=dict(settings["encoder"]),
        encoder_inside=ENCODER_FOLDER in manifest.parts,
        versions=read_as(dict[str, str], settings["versions"], file=generation.folder / MANIFEST_NAME, key="versions"),
        made_with={name: settings[name] for name in MADE_BY_SETTINGS},
        pruning=_pruning(generation),
        tier=str(search["tier"]),
        factory=None if is_exact else search.typed("factory", str),
        dimensions=search.typed("dimensions", Count),
        rotation=rotation_facts(generation.folder, manifest),
        partitions=tuple(each.rows for each in partitions_of(generation)),
        block_pooler=None if (pooler := block_pooler(generation)) is None else pooler.value,
        searching={
            "probed_lists": None if is_exact else recorded.probed_lists or search.typed("probed_lists", int),
            "rerank_factor": None if is_exact else recorded.rerank_factor or search.typed("rerank_factor", int | None),
            "candidates_per_side": manifest.candidates_per_side,
        },
        footprint=footprint(generation),
    )


def _pruning(generation: Generation) -> Pruning:
    """The rule of all segments, and what it leaves of them together."""
    settings = generation.manifest.settings["vectors"]
    token_count = kept = 0
    kept_by_rule: Counter[str] = Counter()
    for segment in generation.segments:
        counts = read_manifest(segment.vectors, kind=VECTORS_KIND).settings.typed("pruning_counts", PruningCounts)
        token_count += counts.tokens
        kept += counts.kept
        kept_by_rule.update(counts.kept_by_rule)
    rule, share = settings.typed("pruning", str), settings.typed("max_token_share", float | None)
    return Pruning(rule, share, token_count, dict(kept_by_rule), kept)


LEAST_COSINE = 0.99
"""Between a stored vector and the same token encoded again: storing in float16 and computing in bfloat16 leave more."""


def verify_index(folder: Path, progress: Callable[[str, int], None] | None = None) -> None:
    """Read every byte of an index and check it; `progress(file, bytes)` after each piece.

    Raises ArtifactError on the first fault. If a change replaces the generation meanwhile, the new one is checked.
    """
    while True:
        before = Generation.read(folder).manifest.digest
        try:
            verify_folder(folder, INDEX_KIND, progress)
            check_partitions(Generation.read(folder))
            return
        except (ArtifactError, FileNotFoundError):
            if Generation.read(folder).manifest.digest == before:
                raise


def index_encoder(folder: Path, name: str, *, device: str = "auto", dtype: Precision = Precision.auto) -> Encoder:
    """The encoder that made the index, for reading, by `name` or as `fill` finds it; vectors as long as those stored.

    Raises ArtifactError if it is another one.
    """
    manifest = Generation.read(folder).manifest
    return check_encoder(
        folder,
        manifest,
        load_index_encoder(folder, manifest, name or None, device=device, dtype=dtype, for_reading=True),
    )


def verify_vectors(folder: Path, encoder: Encoder, *, batches: int, seed: int) -> VectorCheck:
    """Encode up to `batches` random batches of every segment again and compare with what is stored.

    Raises ArtifactError if a vector points elsewhere: its cosine with the new one is below 0.99.
    """
    rng = np.random.default_rng(seed)
    row_count, worst_cosine = 0, 1.0
    generation = Generation.read(folder)
    encoder = check_encoder(folder, generation.manifest, encoder)
    for segment in generation.segments:
        store = BlockStore.open(segment.corpus)
        found = reencode_sample(store, encoder, segment.vectors, batch_count=batches, rng=rng)
        row_count += found.row_count
        worst_cosine = min(worst_cosine, found.worst_cosine)
        if found.worst_cosine < LEAST_COSINE:
            raise ArtifactError(
                f"{segment.vectors} differs from what the encoder computes now: the least cosine of {found.row_count} "
                f"rows is {found.worst_cosine:.4f}, must be at least {LEAST_COSINE}; build the index again"
            )
    return VectorCheck(row_count, worst_cosine)
