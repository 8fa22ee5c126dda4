"""The verbs that build, change, check and copy an index, with their settings.

What a verb needs is imported when it runs, so that its help is there at once.
"""

from __future__ import annotations

import math
import shlex
import sys
from dataclasses import field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import NonNegativeInt, PositiveInt

from npm.cli.base import TEXT_SETTINGS, EncoderCommand, IndexCommand, OutputCommand, say, write_report
from npm.cli.progress import StageProgress
from npm.cli.registry import verb
from npm.cluster.settings import BuildCluster
from npm.core.artifact import MANIFEST_NAME
from npm.core.display import Table, counted, report_text
from npm.core.errors import SettingError, exclusive, named
from npm.core.files import shown_bytes
from npm.core.settings import Shard
from npm.core.types import MASK_TEXT
from npm.indexing.settings import (
    AddSettings,
    CompactSettings,
    DeleteSettings,
    EstimateSettings,
    IndexBuildSettings,
    Stage,
)

if TYPE_CHECKING:
    from npm.indexing.changes import ChangeResult
    from npm.indexing.estimate import Estimate
    from npm.indexing.inspect import Footprint, Inspection

DIGEST_CHARS = 12
"""Of a SHA-256 shown in a table; the JSON form has all of it."""


class BuildCommand(IndexBuildSettings, IndexCommand):
    """Build a phrase index over a corpus; a build that was stopped resumes with the same command."""

    stage: Stage | None = None
    """Only this stage, as one of several jobs; unset: all of them, one after the other."""
    shard: str = "1/1"
    """Shard of the stage, as i/n: this job's number, from 1, and the number of jobs."""
    partitions: PositiveInt = 1
    """Cut the finished index into as many parts, as npmlm partition does; not with stage."""
    cluster: BuildCluster = field(default_factory=BuildCluster)
    """Runner of the jobs of a build that this command divides."""
    jobs: PositiveInt | None = None
    """With cluster=ray, the jobs that each stage is divided among; unset: four for each that runs at once."""

    def check(self) -> None:
        """Raise SettingError for jobs without a cluster, and for a single stage with one."""
        super().check()
        is_divided = self.cluster.engine != "none"
        if self.jobs is not None and not is_divided:
            raise SettingError("jobs requires cluster=ray")
        if is_divided and self.stage is not None:
            raise exclusive("cluster", "stage")
        if self.stage is not None and self.partitions > 1:
            raise SettingError("partitions requires a build of all stages: run npmlm partition after the last one")
        if self.stage is None and Shard.parse(self.shard).count > 1:
            raise SettingError(f"shard={self.shard} requires stage=pack, encode, quantize, code or merge")


@verb(
    BuildCommand,
    'npmlm build "corpus.files=[docs/*.jsonl]" index=DIR',
    "index corpus.files encoder device precision blocks.max_block_tokens vectors.pruning memory "
    "dimensions rotation copy_encoder segments jobs",
    presets="cluster vectors",
    resumes=True,
)
def run_build(settings: BuildCommand) -> int:
    """Build, in this process or by jobs."""
    shard = Shard.parse(settings.shard)
    with StageProgress() as progress:
        reports: dict[str, Any] = {"progress": progress, "notice": progress.say}
        if settings.cluster.engine == "ray":
            from npm.cluster.ray_builds import build_on_ray

            built = build_on_ray(settings.index, settings, settings.cluster, settings.jobs, **reports)
        else:
            from npm.indexing.build import build_index

            built = build_index(settings.index, settings, stage=settings.stage, shard=shard, **reports)
    if built.was_finished:
        say(f"{settings.index} is finished already, with the same settings: nothing to do")
    elif built.manifest is None:
        say(f"stage {settings.stage.value if settings.stage else ''}, shard {shard.number} of {shard.count}: done")
    else:
        say(f'the index is in {settings.index}: npmlm fill {shlex.quote(f"index={settings.index}")} "… {MASK_TEXT} …"')
    return run_partition(settings) if settings.partitions > 1 else 0


class VerifyCommand(EncoderCommand):
    """Read and check every byte of an index, and encode a sample of it again."""

    reencoded_batches: NonNegativeInt = 2
    """Random batches of each segment, at most, that are encoded again and compared with the stored vectors; 0: none."""
    seed: NonNegativeInt = 0
    """Seed of the sample."""


@verb(VerifyCommand, "npmlm verify index=DIR", "index encoder device precision reencoded_batches seed")
def run_verify(settings: VerifyCommand) -> int:
    """Verify, and report on stdout."""
    from npm.api import verify

    with StageProgress() as progress:
        found = verify(
            settings.index,
            settings.encoder or None,
            reencoded_batches=settings.reencoded_batches,
            seed=settings.seed,
            device=settings.device,
            precision=settings.precision,
            progress=progress,
        )
    sys.stdout.write(f"{settings.index} is intact: {found.bytes:,} bytes checked\n")
    for note in found.notes:
        say(f"note: {note}")
    if found.vectors:
        sys.stdout.write(f"{found.vectors:,} vectors encoded again, the least cosine {found.least_cosine:.5f}\n")
    return 0


class AddCommand(AddSettings, EncoderCommand):
    """Add documents to an index; an addition that was stopped resumes with the same command."""


@verb(
    AddCommand,
    'npmlm add index=DIR "corpus.files=[new.jsonl]"',
    "index corpus.files corpus.id_field corpus.text_field replace encoder device precision",
    resumes=True,
    groups={"corpus": f"{TEXT_SETTINGS} id_field title_field"},
)
def run_add(settings: AddCommand) -> int:
    """Add as a new segment."""
    from npm.indexing.changes import add_documents
    from npm.indexing.inspect import index_encoder

    encoder = index_encoder(Path(settings.index), settings.encoder, device=settings.device, dtype=settings.precision)
    with StageProgress() as progress:
        changed = add_documents(settings.index, settings, encoder, progress=progress)
    return _report_change(settings.index, changed)


class SyncCommand(IndexBuildSettings, IndexCommand):
    """Make an index follow its files: add, replace and delete what has changed since the last time."""


@verb(
    SyncCommand,
    'npmlm sync "corpus.files=[docs/]" index=DIR',
    "index corpus.files encoder device precision",
    presets="vectors",
    resumes=True,
)
def run_sync(settings: SyncCommand) -> int:
    """Build the index, or follow the files."""
    from npm.indexing.inspect import index_encoder
    from npm.indexing.sync import sync_index
    from npm.models.encoder import Encoder

    options: dict[str, Any] = {"device": settings.device, "dtype": settings.precision}
    if (Path(settings.index) / MANIFEST_NAME).is_file():
        encoder = index_encoder(Path(settings.index), settings.encoder, **options)
    else:
        encoder = Encoder.load(settings.encoder, for_reading=not settings.copy_encoder, **options)
    with StageProgress() as progress:
        synced = sync_index(settings.index, settings, encoder, progress=progress, notice=progress.say)
    changes = f"{counted(synced.files, 'file')} read, {counted(synced.added_documents, 'document')} added"
    changes += f", {synced.deleted_documents:,} deleted" if synced.deleted_documents else ""
    state = "nothing has changed" if synced.was_current else changes
    say(f"{settings.index} is generation {synced.manifest.generation}: {state}")
    return 0


class DeleteCommand(DeleteSettings, IndexCommand):
    """Delete documents of an index; they no longer answer, and compact takes their space back."""


@verb(DeleteCommand, 'npmlm delete index=DIR "ids=[17,some page]"', "index ids ids_file")
def run_delete(settings: DeleteCommand) -> int:
    """Delete by id."""
    from npm.indexing.changes import delete_documents

    return _report_change(settings.index, delete_documents(settings.index, settings))


class CompactCommand(CompactSettings, IndexCommand):
    """Rewrite an index without its deleted documents, as one segment, in the tier that suits its size now."""


@verb(CompactCommand, "npmlm compact index=DIR", "index retrain", resumes=True)
def run_compact(settings: CompactCommand) -> int:
    """Merge all segments."""
    from npm.indexing.compact import compact_index

    with StageProgress() as progress:
        changed = compact_index(settings.index, settings, progress=progress)
    return _report_change(settings.index, changed)


class PartitionCommand(IndexCommand):
    """Cut the vectors of an index into partitions, for machines that share a search, or merge them again."""

    partitions: PositiveInt = 1
    """Parts of consecutive vector shards, each searched by itself, such as on its own machine; 1: one search over
    all vectors, as a build leaves it."""


@verb(PartitionCommand, "npmlm partition index=DIR partitions=4", "index partitions", resumes=True)
def run_partition(settings: PartitionCommand | BuildCommand) -> int:
    """Partition, after a build too."""
    from npm.indexing.changes import partition_index

    with StageProgress() as progress:
        changed = partition_index(settings.index, settings.partitions, progress=progress)
    parts = f"{settings.partitions} partition{'s' if settings.partitions > 1 else ''}"
    if changed.was_finished:
        say(f"{settings.index} has {parts} already: nothing to do")
    else:
        say(f"{settings.index} is generation {changed.manifest.generation} now, in {parts}")
    return 0


class InspectCommand(OutputCommand, IndexCommand):
    """Show the contents of an index, how it was built, and the size of each part."""


@verb(InspectCommand, "npmlm inspect index=DIR", "index output")
def run_inspect(settings: InspectCommand) -> int:
    """Read the manifests."""
    from npm.indexing.inspect import inspect_index

    inspection = inspect_index(Path(settings.index))
    write_report(settings.output, inspection.record(), inspection_text(inspection))
    return 0


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


class EstimateCommand(OutputCommand, EstimateSettings):
    """Estimate disk, memory and encoding time of a build from a sample of the corpus."""


@verb(
    EstimateCommand,
    'npmlm estimate "corpus.files=[docs/*.jsonl]"',
    "corpus.files encoder device precision vectors.pruning memory search.tier dimensions rotation sample_documents "
    "output tokens",
    required=None,
    groups={
        "corpus": f"{TEXT_SETTINGS} join_lines",
        "blocks": "max_block_tokens title_tokens",
        "vectors": "pruning",
        "lexicon": "",
        "search": "tier list_count",
    },
)
def run_estimate(settings: EstimateCommand) -> int:
    """Encode a sample."""
    from npm.indexing.estimate import estimate_build
    from npm.models.encoder import Encoder

    with StageProgress() as progress:
        encoder = Encoder.load(settings.encoder, device=settings.device, dtype=settings.precision, for_reading=True)
        estimate = estimate_build(settings, encoder, progress=progress)
    write_report(settings.output, estimate.record(), estimate_text(estimate))
    return 0


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


def _report_change(index: str, changed: ChangeResult) -> int:
    """Report what a change did, and what may be worth doing next."""
    if changed.was_finished:
        say(f"{index} is so already: nothing to do")
        return 0
    manifest = changed.manifest
    live, added = manifest.counts.documents - manifest.deleted_documents, changed.added_documents
    say(
        f"{index} is generation {manifest.generation} now: {counted(added, 'document')} added, "
        f"{changed.deleted_documents:,} deleted, {live:,} answer"
    )
    if changed.skipped:
        say(changed.skipped)
    if changed.advice:
        say(f"note: {changed.advice}")
    return 0
