"""`npmlm inspect`: what an index holds, made by what, and how big its parts are; from manifests and sizes alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from index.lists import SEARCH_KIND
from index.store import read_manifest
from npm.retrieval.embed import VECTORS_KIND
from npm.retrieval.footprint import Footprint, footprint
from npm.retrieval.segments import ENCODER_FOLDER, Generation, candidates_per_side

MADE_BY_SETTINGS = ("corpus", "blocks", "vectors", "lexicon", "search")


@dataclass(frozen=True, slots=True)
class InspectedSegment:
    """What one build or one add brought."""

    name: str
    counts: dict[str, int]  # documents, blocks, tokens, rows
    sources: tuple[dict[str, Any], ...]  # name, bytes and SHA-256 of each corpus file


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
    """All that the manifests of an index tell."""

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
            "searching": self.searching,
            "bytes": self.footprint.record(),
        }


def inspect_index(folder: str | Path) -> Inspection:
    """What the manifests of the index in `folder` tell; raises ArtefactError if one is missing or damaged.

    Files are not read: `npmlm verify` does that.
    """
    generation = Generation.read(Path(folder))
    settings = generation.settings
    search = read_manifest(generation.search, kind=SEARCH_KIND).settings
    segments = tuple(
        InspectedSegment(name, dict(segment["counts"]), tuple(segment["sources"]))
        for name, segment in sorted(settings["segments"].items())
    )
    return Inspection(
        generation=generation.number,
        digest=generation.manifest.digest,
        counts=dict(settings["counts"]),
        segments=segments,
        kept_fields=tuple(settings["corpus"]["kept_fields"]),
        encoder=dict(settings["encoder"]),
        encoder_inside=ENCODER_FOLDER in generation.manifest.parts,
        versions=dict(settings["versions"]),
        made_with={name: settings[name] for name in MADE_BY_SETTINGS},
        pruning=_pruning(generation),
        tier=str(search["tier"]),
        factory=search.get("factory"),
        dimensions=int(search["dimensions"]),
        searching=_searching(generation, search),
        footprint=footprint(generation),
    )


def _pruning(generation: Generation) -> Pruning:
    """The rule of all segments, and what it leaves of them together."""
    settings = generation.settings["vectors"]
    token_count = kept = 0
    kept_by_rule: Counter[str] = Counter()
    for segment in generation.segments:
        counts = read_manifest(segment.vectors, kind=VECTORS_KIND).settings["pruning_counts"]
        token_count += counts["tokens"]
        kept += counts["kept"]
        kept_by_rule.update(counts["kept_by_rule"])
    return Pruning(settings["pruning"], settings["max_token_share"], token_count, dict(kept_by_rule), kept)


def _searching(generation: Generation, search: Mapping[str, Any]) -> dict[str, int | None]:
    """How the index is searched unless said otherwise: as it records, else as its search folder was made."""
    recorded = generation.settings["searching"]
    exact = generation.quantiser is None
    return {
        "probed_lists": None if exact else recorded["probed_lists"] or search["probed_lists"],
        "rerank_factor": None if exact else recorded["rerank_factor"] or search["rerank_factor"],
        "candidates_per_side": candidates_per_side(generation.settings),
    }
