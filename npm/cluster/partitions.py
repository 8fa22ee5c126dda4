"""The partitions that an index is served in: those it is stored in, or in the exact tier any number of them."""

from __future__ import annotations

from pathlib import Path

from index.arrays import ShardedArray
from index.exact import ExactSearcher
from index.partitioned import PartitionedSearcher
from index.search import searches_exactly
from index.types import Searcher
from npm.errors import ArtefactError, SettingError
from npm.indexing.embed import open_vectors
from npm.indexing.generation import Generation
from npm.indexing.partitions import open_partition, partitions_of
from npm.indexing.phrase_index import OpenSearcher


def served_count(generation: Generation, wanted: int | None) -> int:
    """How many partitions are served if `wanted` are, None: those stored. Raises SettingError if it cannot be so many.

    Exact search needs no files of its own for a partition, so that any range of rows can be one.
    """
    stored, rows = len(partitions_of(generation)), generation.manifest.counts.rows
    if wanted is None or wanted == stored:
        return stored
    if searches_exactly(generation.search) and wanted <= rows:
        return wanted
    raise SettingError(
        f"the index is not stored in {wanted} partitions",
        expected=f"partitions={stored}" if wanted <= rows else f"at most one partition for each of the {rows} vectors",
        got=f"partitions={wanted}",
        where="partitions",
        fix=f"leave partitions= out; npmlm partition index={generation.folder} partitions=… stores others",
    )


def open_part(folder: Path, number: int, *, count: int, digest: str) -> Searcher:
    """Partition `number`, from 0, of `count` of the generation with this `digest`; only its own vectors are read.

    Raises ArtefactError if the folder holds another generation by now, or the partition is damaged.
    """
    generation = Generation.read(folder)
    if (got := generation.manifest.digest) != digest:
        raise ArtefactError(
            "the index was changed meanwhile",
            expected=f"the generation with digest {digest}",
            got=f"digest {got}",
            where=str(folder),
            fix="nothing: the new generation is opened by itself",
        )
    if count == len(partitions_of(generation)):
        return open_partition(folder, number).searcher
    vectors = open_vectors([segment.vectors for segment in generation.segments]).tokens  # [rows, d], mapped
    first, stop = (len(vectors) * side // count for side in (number, number + 1))
    return ExactSearcher(vectors.slice(first, stop))


def local_searcher(partitions: int) -> OpenSearcher:
    """What opens the searcher of a generation in `partitions`, all in this process."""

    def opened(generation: Generation, _: ShardedArray) -> Searcher:
        count, digest = served_count(generation, partitions), generation.manifest.digest
        return PartitionedSearcher(
            [open_part(generation.folder, number, count=count, digest=digest) for number in range(count)]
        )

    return opened
