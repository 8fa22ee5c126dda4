"""Contents of an index, how it was built, and the size of its parts, from manifests alone: no array is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

from index.ivf import ID_BYTES, LISTS_FILE, QUANTIZER_KIND, SEARCH_KIND, TRAINED_FILE
from index.settings import SearchTier, tier_reason
from index.sign_codes import EXACT_ROWS
from npm.core.artifact import MANIFEST_NAME, read_manifest
from npm.core.errors import damaged
from npm.core.records import read_as
from npm.indexing.adaptation import adaptation_facts
from npm.indexing.block_vectors import BLOCKS_FILE, recorded_pooler
from npm.indexing.embed import VECTORS_KIND
from npm.indexing.generation import GROUPS, Count, Generation
from npm.indexing.partitions import partitions_of
from npm.indexing.rotation import rotation_facts
from npm.models.settings import PoolerKind

LIST_ENTRY_BYTES = 24
"""FAISS keeps size, capacity and offset of each mapped list, 8 bytes each."""
ROW_COUNT_LIMIT = 2**32


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
            "centroids, graph, codec": copies * quantizer.file(TRAINED_FILE).bytes,
            "list table": copies * LIST_ENTRY_BYTES * quantizer.settings.typed("list_count", Count),
        }
    words = tokens // 64 + 1  # see npm/indexing/rows.py
    found |= {
        "row bitmap": 8 * words,
        "row counts": (4 if rows < ROW_COUNT_LIMIT else 8) * words,
        "block offsets": 8 * (blocks + 1),
        "block documents": 8 * blocks,
        "block lengths": 4 * blocks if any(segment.lexicon for segment in generation.segments) else 0,
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
