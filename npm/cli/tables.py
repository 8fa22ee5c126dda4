"""Tables of `npmlm inspect` and `estimate`, as text for a terminal."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING

from npm.core.display import Table, report_text
from npm.core.errors import named
from npm.core.files import shown_bytes

if TYPE_CHECKING:
    from npm.indexing.estimate import Estimate
    from npm.indexing.inspect import Footprint, Inspection


DIGEST_CHARS = 12
"""Of a SHA-256 shown in a table; the JSON form has all of it."""


def inspection_text(inspection: Inspection) -> str:
    """The report of `npmlm inspect`: contents, how the index was built, and bytes."""
    counts, encoder, partitions = inspection.counts, inspection.encoder, inspection.partitions
    contents = [
        ("generation", f"{inspection.generation}, digest {inspection.digest[:DIGEST_CHARS]}…"),
        ("documents", f"{counts['documents']:,}, {counts['deleted_documents']:,} of them deleted"),
        ("blocks", f"{counts['blocks']:,}"),
        ("tokens", f"{counts['tokens']:,}"),
        ("stored vectors", f"{counts['rows']:,} of {inspection.dimensions} dimensions"),
        ("block vectors", f"pooler {inspection.block_pooler}" if inspection.block_pooler else "none"),
        ("kept fields", ", ".join(inspection.kept_fields) or "none"),
        ("search", ", ".join(filter(None, [inspection.tier, inspection.factory, inspection.tier_reason]))),
        ("searched with", ", ".join(f"{name}={value}" for name, value in inspection.searching.items() if value)),
        ("partitions", named([f"{stop - first:,}" for first, stop in partitions]) if len(partitions) > 1 else "none"),
    ]
    inside = ", a copy inside" if encoder["inside"] else ""
    built = [("encoder", f"{encoder['name']}, fingerprint {encoder['fingerprint'][:DIGEST_CHARS]}…{inside}")]
    if (rotation := inspection.rotation) is not None:
        made = f"{rotation['method']} of {rotation['sample_rows']:,} vectors"
        built.append(("rotation", f"{made}; keeps {rotation['kept_share']:.1%} of their squares"))
    if (adapted := inspection.adaptation) is not None:
        before, after = (adapted[when]["first"] for when in ("before", "after"))
        gain = f"first phrase right for {after} instead of {before} of {adapted['held_out']} held-out ones"
        built.append(("adapted", f"retrieval={adapted['retrieval']}, {adapted['learned']:,} questions; {gain}"))
    for part, settings in inspection.settings.items():
        chosen = (f"{name}={value}" for name, value in sorted(settings.items()) if value not in (None, []))
        built.append((part, ", ".join(chosen)))
    built.append(("versions", ", ".join(f"{name} {number}" for name, number in sorted(inspection.versions.items()))))
    pruning = inspection.pruning
    kept = [
        (f"{name} (chosen)" if name == pruning["rule"] else name, f"{count:,}", f"{count / pruning['tokens']:.1%}")
        for name, count in pruning["kept_by_rule"].items()
    ]
    segments = [
        (
            name,
            *(f"{count:,}" for count in each["counts"].values()),
            named([str(file["name"]) for file in each["sources"]]),
        )
        for name, each in inspection.segments.items()
    ]
    columns = ("", "documents", "blocks", "tokens", "vectors", "sources")
    tables = [
        Table("contents", ("", "in all segments"), contents, ()),
        Table("segments", columns, segments, range(1, 5)),
        Table("how it was built", ("", "settings"), built, ()),
        Table("tokens with a vector, by rule", ("vectors.pruning", "tokens", "share"), kept),
        *_bytes_tables(inspection.footprint),
    ]
    return report_text(tables)


def estimate_text(estimate: Estimate) -> str:
    """The report of `npmlm estimate`: a table of bytes on disk, then sentences."""
    parts = [*estimate.disk.items(), ("all", estimate.disk_bytes)]
    rows = [(part, shown_bytes(size), f"{size / estimate.tokens:.1f}") for part, size in parts]
    duration = timedelta(seconds=math.ceil(estimate.encoding_seconds))
    build, search = shown_bytes(estimate.build_bytes), shown_bytes(estimate.search_bytes)
    lines = [
        f"about {estimate.documents:,.0f} documents, {estimate.tokens:,.0f} tokens, {estimate.rows:,.0f} vectors",
        f"from a sample of {estimate.sampled_documents:,} documents; tier {estimate.tier}, {estimate.tier_reason}",
        f"encoding, most of a build, takes about {duration} (h:mm:ss) on this machine",
        f"a build needs {build} of memory, a search reads {search}",
    ]
    if (count := estimate.partitions) > 1:
        files, held = (shown_bytes(size) for size in (estimate.partition_disk_bytes, estimate.partition_memory_bytes))
        lines.append(
            f"each of {count} partitions searches {estimate.rows / count:,.0f} vectors, reads {files} of files and "
            f"keeps {held} in memory, besides its process (0.2 GiB: docs/results/scale.md)"
        )
    if estimate.unknown_sources:
        names = ", ".join(estimate.unknown_sources)
        lines.append(f"only the sample of {names} counts, since their size is unknown; set corpus.max_documents")
    table = Table("what a build needs on disk", ("part", "size", "bytes a token"), rows)
    return report_text([table]) + "\n".join(["", *lines, ""])


def _bytes_tables(footprint: Footprint) -> list[Table]:
    tokens, rows = footprint.token_count, footprint.row_count
    disk = [(name, shown_bytes(size), f"{size / tokens:.2f}") for name, size in sorted(footprint.disk.items())]
    disk.append(("all", shown_bytes(sum(footprint.disk.values())), f"{footprint.disk_bytes_per_token:.2f}"))
    hot = [(name, shown_bytes(size), f"{size / rows:.2f}") for name, size in footprint.hot.items()]
    hot.append(("all", shown_bytes(sum(footprint.hot.values())), f"{footprint.hot_bytes_per_vector:.2f}"))
    return [
        Table("on disk", ("part", "size", "bytes a token"), disk),
        Table("hot, in memory or mapped", ("item", "size", "bytes a vector"), hot),
    ]
