"""Partitions of an index: consecutive vector shards with their own search folder, so that machines share a search.

The search folder of a partitioned index holds one search folder for each partition, 00000, 00001, …, and
its manifest records the vector shards and rows of each. All have the quantizer of the index; documents, blocks, text
and term counts are not divided.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from index.arrays import ShardedArray
from index.exact import ExactSearcher
from index.search import open_search, searches_exactly
from index.types import SEARCH_KIND, Searcher
from npm.core.artifact import MANIFEST_NAME, check_folder, check_part, part_folder, read_manifest
from npm.core.errors import ArtifactError, SettingError, damaged
from npm.indexing.embed import VECTORS_KIND, open_vectors
from npm.indexing.generation import AtLeastOne, Count, Generation

PARTITIONS_KEY = "partitions"
"""Of the manifest of a search folder; absent where it is not partitioned."""


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """Record of a partition in the manifest of a search folder."""

    shards: AtLeastOne
    rows: Count


@dataclass(frozen=True, slots=True)
class Partition:
    """A part of an index that is searched by itself; ranges are [first, stop), in the order of all segments."""

    folder: Path  # its search folder
    shards: tuple[int, int]
    rows: tuple[int, int]


def partitions_of(generation: Generation) -> tuple[Partition, ...]:
    """The partitions in order, which have every vector shard once; that of all rows if the index is not partitioned.

    Raises ArtifactError if a manifest is damaged, or they do not make up the index.
    """
    search = read_manifest(generation.search, kind=SEARCH_KIND)
    shard_count = sum(len(read_manifest(each.vectors, kind=VECTORS_KIND).parts) for each in generation.segments)
    row_count = generation.manifest.counts.rows
    if PARTITIONS_KEY not in search.settings:
        return (Partition(generation.search, (0, shard_count), (0, row_count)),)
    sizes: tuple[PartitionSize, ...] = search.settings.typed(PARTITIONS_KEY, tuple[PartitionSize, ...])
    shards = list(itertools.accumulate((size.shards for size in sizes), initial=0))
    rows = list(itertools.accumulate((size.rows for size in sizes), initial=0))
    names = [f"{number:05d}" for number in range(len(sizes))]
    if (shards[-1], rows[-1], sorted(search.parts)) != (shard_count, row_count, names):
        expected = f"partitions that make up {shard_count} vector shards with {row_count} rows"
        got = f"{len(sizes)} partitions, {len(search.parts)} folders, {shards[-1]} shards with {rows[-1]} rows"
        raise damaged(generation.search / MANIFEST_NAME, f"expected {expected}, got {got}")
    ranges = zip(names, itertools.pairwise(shards), itertools.pairwise(rows), strict=True)
    return tuple(Partition(part_folder(generation.search, name), *pairs) for name, *pairs in ranges)


def check_partitions(generation: Generation) -> None:
    """Raise ArtifactError unless each partition is over the rows of its vector shards, and all make up the index."""
    vectors = open_vectors([segment.vectors for segment in generation.segments]).tokens  # [rows, d]
    for each in partitions_of(generation):
        made_over = read_manifest(each.folder, kind=SEARCH_KIND).settings.typed("row_count", Count)
        first, stop = each.rows
        if (got := {len(vectors.shards(*each.shards)), made_over}) != {stop - first}:
            raise damaged(each.folder / MANIFEST_NAME, f"a partition has {stop - first} rows, got {sorted(got)}")


def shard_cuts(shard_rows: Sequence[int], partitions: int) -> list[int]:
    """The borders [0, …, shards] of partitions of at least one shard, each nearest to an equal share of all rows.

    `shard_rows` are the rows of each shard, of which there are at least `partitions`.

    >>> shard_cuts([5, 5, 5, 5], 2), shard_cuts([1, 1, 9, 1], 3)
    ([0, 2, 4], [0, 2, 3, 4])
    """
    borders = np.cumsum([0, *shard_rows])  # i64 [shards + 1]
    cuts = [0]
    for number in range(1, partitions):
        first, stop = cuts[-1] + 1, len(shard_rows) - (partitions - number) + 1  # each keeps a shard, and leaves some
        distances = np.abs(borders[first:stop] - borders[-1] * number / partitions)  # f64 [borders left to choose]
        cuts.append(first + int(distances.argmin()))
    return [*cuts, len(shard_rows)]


def open_parts(generation: Generation, vectors: ShardedArray) -> Searcher:
    """The searcher over the `vectors` [rows, d] of all segments: all partitions of an index, in this process.

    Raises ArtifactError as `open_search` does.
    """
    check_folder(generation.search, kind=SEARCH_KIND)
    partitions = partitions_of(generation)
    parts = [_opened(generation, each, vectors.shards(*each.shards)) for each in partitions]
    if len(parts) == 1:
        return parts[0]
    from index.search import PartitionedSearcher

    return PartitionedSearcher(parts)


def served_count(generation: Generation, wanted: int | None) -> int:
    """Number of partitions to serve: `wanted`, or None for those stored. Raises SettingError for an impossible number.

    Exact search needs no separate files for a partition, so that any range of rows can be one.
    """
    stored, rows = len(partitions_of(generation)), generation.manifest.counts.rows
    if wanted is None or wanted == stored:
        return stored
    is_exact = searches_exactly(generation.search)
    if is_exact and wanted <= rows:
        return wanted
    allowed = f"at most {rows}, the number of vectors" if is_exact else f"{stored}, as stored"
    raise SettingError(f"partitions must be {allowed}, got {wanted}; `npmlm partition` stores others")


def open_partition(folder: Path, number: int, *, count: int | None = None, digest: str | None = None) -> Searcher:
    """The searcher of partition `number`, from 0, of `count`; rows count from its own first one.

    Of vectors and lists only its own files are read. Raises SettingError if there is no such partition, ArtifactError
    if something of it is missing, damaged, or of another generation than that of `digest`, or of another quantizer.
    """
    generation = Generation.read(folder)
    manifest = generation.manifest
    if digest not in (None, manifest.digest):
        raise ArtifactError(f"{folder} was changed meanwhile: digest {manifest.digest}, expected {digest}")
    vectors = [segment.vectors for segment in generation.segments]
    for name in (*(place.name for place in vectors), manifest.search_folder):
        check_part(folder / name, manifest.parts[name])
    partitions = partitions_of(generation)
    served = served_count(generation, count)
    if not 0 <= number < served:
        raise SettingError(f"{folder}: the partition must be between 0 and {served - 1}, got {number}")
    if served != len(partitions):
        tokens = open_vectors(vectors).tokens  # [rows, d], mapped
        first, stop = (len(tokens) * side // served for side in (number, number + 1))
        return ExactSearcher(tokens.within(first, stop))
    chosen = partitions[number]
    if chosen.folder != generation.search:
        check_part(chosen.folder, read_manifest(generation.search, kind=SEARCH_KIND).parts[chosen.folder.name])
    stored = open_vectors(vectors, shards=chosen.shards).tokens
    return _opened(generation, chosen, stored)


def local_searcher(partitions: int) -> Callable[[Generation, ShardedArray], Searcher]:
    """Function that opens the searcher of a generation in `partitions`, all in this process."""

    def opened(generation: Generation, _: ShardedArray) -> Searcher:
        from index.search import PartitionedSearcher

        count, digest = served_count(generation, partitions), generation.manifest.digest
        return PartitionedSearcher(
            [open_partition(generation.folder, number, count=count, digest=digest) for number in range(count)]
        )

    return opened


def _opened(generation: Generation, partition: Partition, vectors: ShardedArray) -> Searcher:
    searching = generation.manifest.searching
    return open_search(
        partition.folder,
        vectors,
        quantizer=generation.quantizer,
        probed_lists=searching.probed_lists,
        rerank_factor=searching.rerank_factor,
    )
