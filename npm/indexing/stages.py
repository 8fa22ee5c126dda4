"""The parts of an index, made by one loop whether it is built, added to or compacted.

A stage of a build makes some of them: pack: documents → blocks; encode: blocks → vectors and term counts; quantize: a
sample → quantizer; code: vectors → codes; merge: codes → inverted lists. A part is named by what it depends on, and
its bytes are the same however many jobs made its shards, and however often they were killed.

A quantizer is trained once, from a sample that omits some documents, so that questions about these measure search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.arrays import ShardedArray, row_bytes
from index.ivf import (
    CODE_SHARD_KIND,
    ID_BYTES,
    QUANTIZER_KIND,
    Quantizer,
    code_shard_settings,
    drawn_rows,
    train_quantizer,
    write_code_shard,
    write_search_folder,
)
from index.settings import SearchSettings, SearchTier, resolved_settings
from index.types import SEARCH_KIND
from npm.core.artifact import (
    MANIFEST_NAME,
    Manifest,
    check_folder,
    finish_shards,
    folder_lock,
    open_array,
    read_manifest,
    write_manifest,
)
from npm.core.errors import ArtifactError, CorpusError
from npm.core.files import check_room, digest_of, stored_bytes
from npm.core.settings import WHOLE, Shard, as_json
from npm.core.types import Progress, silent
from npm.corpus.sources import input_record
from npm.corpus.store import BlockStore
from npm.indexing.bm25 import LEXICON_KIND, LEXICON_SHARD_KIND, as_record, write_lexicon_shard
from npm.indexing.embed import (
    POOLER_KEY,
    VECTOR_SHARD_KIND,
    VECTORS_KIND,
    embed_shard,
    kept_tokens,
    open_vectors,
    pruning_counts,
    recorded_vectors,
    shard_folder,
    vector_shards,
)
from npm.indexing.generation import (
    CODES,
    CORPUS,
    LEXICON,
    QUANTIZER,
    SEARCH,
    VECTORS,
    Counts,
    IndexManifest,
    Segment,
    part,
    recorded_corpus,
)
from npm.indexing.partitions import PARTITIONS_KEY, shard_cuts
from npm.indexing.settings import IndexBuildSettings, LexiconSettings, PruningRule
from npm.models.memory import return_freed_memory

if TYPE_CHECKING:
    from npm.corpus.blocks import BlockSettings
    from npm.corpus.settings import CorpusSettings
    from npm.corpus.sources import Source
    from npm.models.encoder import Encoder
    from npm.models.settings import PoolerKind


CODES_KIND = "codes"
HELD_OUT_EVERY = 50
"""One of this many documents is omitted from the quantizer's sample, so that questions about it measure search."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an index that is made in shards, by any jobs in any order; its manifest comes last."""

    folder: Path  # named by what it depends on
    name: str  # of its content, for people
    stage: str  # that makes it
    kinds: tuple[str, str]  # of the part and of a shard
    settings: Callable[[], Mapping[str, Any]]
    shard_count: int
    work: Callable[[int], int]  # of a shard, in the unit of progress
    needed_bytes: Callable[[int], float]  # of a shard on the disk
    make: Callable[[int, Progress], object]  # writes a shard under a temporary name, and renames it

    def has(self, number: int) -> bool:
        """Return True if this shard is there."""
        return (shard_folder(self.folder, number) / MANIFEST_NAME).is_file()

    def finish(self) -> Manifest:
        """Write the manifest once all shards are there; raises as `finish_shards`."""
        return finish_shards(self.folder, self.shard_count, kinds=self.kinds, settings=self.settings, stage=self.stage)


def make_parts(parts: Sequence[Part], *, shard: Shard = WHOLE, progress: Progress = silent) -> None:
    """Make this share of all shards of `parts`, which have one name, but for those that are there.

    Raises StorageError if the disk has no space for them, ArtifactError if another process is writing one.
    """
    mine = shard.of([(each, number) for each in parts for number in range(each.shard_count)])
    left = [(each, number) for each, number in mine if not each.has(number)]
    if left:
        check_room(parts[0].folder, sum(each.needed_bytes(number) for each, number in left), what=parts[0].name)
    done, total = 0, sum(each.work(number) for each, number in mine)
    for each, number in mine:
        if not each.has(number):

            def report(_: str, now: float, __: float | None, before: int = done, name: str = each.name) -> None:
                progress(name, before + int(now), total)

            each.make(number, report)
            return_freed_memory()
        done += each.work(number)
        progress(each.name, done, total)


@dataclass(frozen=True, slots=True)
class SegmentParts:
    """The parts that are made of the blocks of a segment."""

    corpus: Path
    store: BlockStore
    vectors: Part
    lexicon: Part

    def finish(self) -> tuple[Segment, Counts]:
        """The segment, once all shards are there, and its size.

        Raises ArtifactError, naming the missing shards, if there are any, CorpusError if no token has a vector.
        """
        made = self.vectors.finish().settings
        self.lexicon.finish()
        kept: int = made.typed("pruning_counts.kept", int)
        if kept == 0:
            raise CorpusError(
                f"vectors.pruning={made['pruning']} keeps none of the {self.store.token_count} tokens of the corpus; "
                "use another rule, such as word_boundaries, or other documents"
            )
        store = self.store
        counts = Counts(store.document_count, store.block_count, store.token_count, kept)
        return Segment(self.corpus, self.vectors.folder, self.lexicon.folder), counts


def make_segments(segments: Sequence[SegmentParts], *, shard: Shard = WHOLE, progress: Progress = silent) -> None:
    """Make this share of the vectors and of the term counts of `segments`; raises as `make_parts`."""
    make_parts([segment.vectors for segment in segments], shard=shard, progress=progress)
    make_parts([segment.lexicon for segment in segments], shard=shard, progress=progress)


def encoded_parts(
    folder: Path,
    corpus: Path,
    store: BlockStore,
    encoder: Encoder,
    settings: IndexBuildSettings | IndexManifest,
    pooler: PoolerKind | None,
) -> SegmentParts:
    """The parts of a segment whose blocks `encoder` encodes, with vectors of blocks where there is a `pooler`."""
    recorded = recorded_vectors(store, encoder, settings.vectors, block_pooler=pooler)

    def make(place: Path, number: int, progress: Progress) -> object:
        return embed_shard(store, encoder, place, number, recorded=recorded, progress=progress)

    vectors = vectors_part(folder, store, recorded, encoder.dimensions, make)
    return SegmentParts(corpus, store, vectors, lexicon_part(folder, store, settings.lexicon))


def vectors_part(
    folder: Path,
    store: BlockStore,
    recorded: Mapping[str, Any],
    dimensions: int,
    make: Callable[[Path, int, Progress], object],
) -> Part:
    """The vectors, of `dimensions`, of the blocks `store` in the index `folder`, which depend on what is `recorded`.

    `make(place, number, progress)` makes a shard of the part `place`.
    """
    place, rule = part(folder, VECTORS, recorded), PruningRule(recorded["pruning"])
    ranges = vector_shards(store, recorded["tokens_per_shard"])
    tokens = np.diff(store.block_offsets[[0, *(stop for _, stop in ranges)]])  # i64 [shards]
    vector_bytes = row_bytes(dimensions, np.dtype(recorded["dtype"]))

    def needed_bytes(number: int) -> int:
        first, stop = ranges[number]
        count = stop - first if POOLER_KEY in recorded else 0
        if recorded["dimensions"]:
            flags = store.flags.slice(*store.block_offsets[[first, stop]].tolist())  # u8 [T]
            count += int(kept_tokens(flags, rule).sum())
        return count * vector_bytes + int(tokens[number]) // 8

    return Part(
        place,
        "vectors",
        "encode",
        kinds=(VECTORS_KIND, VECTOR_SHARD_KIND),
        settings=lambda: {**recorded, "pruning_counts": pruning_counts(store, rule)},
        shard_count=len(ranges),
        work=lambda number: int(tokens[number]),
        needed_bytes=needed_bytes,
        make=partial(make, place),
    )


def lexicon_part(folder: Path, store: BlockStore, settings: LexiconSettings) -> Part:
    """The term counts of the blocks `store` in the index `folder`."""
    recorded = as_record(settings, store)
    place = part(folder, LEXICON, recorded)
    return Part(
        place,
        "lexicon",
        "encode",
        kinds=(LEXICON_KIND, LEXICON_SHARD_KIND),
        settings=lambda: recorded,
        shard_count=len(store.shard_blocks) - 1,
        work=lambda _: 1,
        needed_bytes=lambda _: 0,
        make=lambda number, _: write_lexicon_shard(shard_folder(place, number), store, number, settings),
    )


def codes_part(folder: Path, segment: Segment, quantizer: Quantizer) -> Part:
    """The codes by `quantizer` of a segment of the index `folder` whose vectors are finished."""
    made = read_manifest(segment.vectors, kind=VECTORS_KIND)
    recorded = code_shard_settings(quantizer, made.digest)
    place = part(folder, CODES, recorded)
    coded = [shard_folder(segment.vectors, number) for number in range(len(made.parts))]

    def row_count(number: int) -> int:
        return len(open_array(coded[number], "vectors"))

    def make(number: int, _: Progress) -> None:
        shard = check_folder(coded[number], kind=VECTOR_SHARD_KIND, hash_all=True)  # all of it is read
        stored = ShardedArray.of_vectors([open_array(coded[number], "vectors")])  # [n, d]
        settings = code_shard_settings(quantizer, shard.digest)
        write_code_shard(shard_folder(place, number), stored, quantizer, settings=settings)

    return Part(
        place,
        "codes",
        "code",
        kinds=(CODES_KIND, CODE_SHARD_KIND),
        settings=lambda: recorded,
        shard_count=len(coded),
        work=row_count,
        needed_bytes=lambda number: row_count(number) * (quantizer.code_bytes + 4),
        make=make,
    )


def corpus_part(
    folder: Path,
    sources: Sequence[Source],
    corpus: CorpusSettings,
    blocks: BlockSettings,
    tokenizer_fingerprint: str,
    recorded: Sequence[Mapping[str, Any]] = (),
    *,
    is_change: bool = False,
) -> tuple[Path, dict[str, Any]]:
    """The part that holds the blocks of `sources`, and what it is made from; `recorded` as in `input_record`.

    A change of an index tells files of one name and content by their paths, which are in the ids of their documents.
    """
    request = {
        "sources": input_record(sources, recorded),
        "corpus": recorded_corpus(corpus),
        "blocks": as_json(asdict(blocks)),
        "tokenizer_fingerprint": tokenizer_fingerprint,
    }
    if is_change:
        request["paths"] = digest_of([source.identifier for source in sources])
    return part(folder, CORPUS, request), request


def train_segment_quantizer(
    folder: Path,
    segments: Sequence[Segment],
    store: BlockStore,
    settings: SearchSettings,
    *,
    progress: Progress = silent,
) -> Path | None:
    """The quantizer of the index `folder` over the vectors of `segments`, trained once; None in the exact tier.

    `store` is that of all segments.
    """
    vectors, rows, _ = open_vectors([segment.vectors for segment in segments])
    resolved = resolved_settings(settings, *vectors.shape)
    if resolved["tier"] == SearchTier.exact.value:
        return None
    recorded = {
        **resolved,
        "held_out_every": HELD_OUT_EVERY,
        "vectors": [read_manifest(segment.vectors, kind=VECTORS_KIND).digest for segment in segments],
    }
    place = part(folder, QUANTIZER, recorded)
    with folder_lock(place, wait=True):
        if (place / MANIFEST_NAME).is_file():
            return place
        # Rows of held-out documents leave the sample, as questions from the corpus are about unseen ones.
        drawn = drawn_rows(len(vectors), resolved["train_rows"], seed=resolved["seed"])  # i64 [n]
        documents = store.block_documents[store.block_of(rows.positions(drawn))]  # i64 [n]
        trainable = drawn[~is_held_out(documents)]
        train_quantizer(place, vectors, trainable if len(trainable) else drawn, recorded, progress=progress)
    return_freed_memory()
    return place


def is_held_out(documents: np.ndarray) -> np.ndarray:
    """Mask of the document indices i64 [n] that the quantizer's training skipped, bool [n]."""
    return np.asarray(documents % HELD_OUT_EVERY == HELD_OUT_EVERY - 1)  # bool [n]


def finish_search(
    folder: Path,
    segments: Sequence[Segment],
    quantizer: Quantizer | None,
    *,
    partitions: int = 1,
    progress: Progress = silent,
) -> Path:
    """Write the search folder of the index `folder` over all rows of `segments`, or keep a finished one; returns it.

    No quantizer: exact. With several `partitions` it holds a search folder for each, or one per vector shard where
    there are fewer of these.
    """
    vectors = open_vectors([segment.vectors for segment in segments]).tokens  # [rows, d]
    code_folders: list[Path] = []
    resolved = {"tier": SearchTier.exact.value, "dimensions": vectors.shape[1]}
    made_from = [read_manifest(segment.vectors, kind=VECTORS_KIND).digest for segment in segments]
    if quantizer is not None:
        made_with = read_manifest(quantizer.file.parent, kind=QUANTIZER_KIND).settings
        resolved = {name: each for name, each in made_with.items() if name not in ("vectors", "held_out_every")}
        made_from = []
        for segment in segments:
            if segment.codes is None:
                raise ArtifactError(f"{segment.vectors} has no codes: build the index again")
            made = check_folder(segment.codes, kind=CODES_KIND)  # that its shards are those that were coded for it
            made_from.append(made.digest)
            code_folders += [segment.codes / name for name in sorted(made.parts)]
    shard_rows = [len(shard) for shard in vectors.arrays]
    count = min(partitions, len(shard_rows))
    place = part(folder, SEARCH, {**resolved, "made_from": made_from, "partitions": count})
    if quantizer is not None:
        check_room(place, len(vectors) * (quantizer.code_bytes + ID_BYTES) - stored_bytes(place), what="lists")

    def written(place: Path, first: int, stop: int) -> Manifest:
        return write_search_folder(
            place,
            resolved,
            vectors.shards(first, stop),
            quantizer=quantizer,
            code_folders=code_folders[first:stop],
            progress=progress,
        )

    if count == 1:
        written(place, 0, len(shard_rows))
        return place
    ranges = list(pairwise(shard_cuts(shard_rows, count)))
    parts = {f"{number:05d}": written(place / f"{number:05d}", *own) for number, own in enumerate(ranges)}
    sizes = [{"shards": stop - first, "rows": sum(shard_rows[first:stop])} for first, stop in ranges]
    recorded = {**parts["00000"].settings, "row_count": len(vectors), PARTITIONS_KEY: sizes}
    write_manifest(
        place, kind=SEARCH_KIND, settings=recorded, parts={name: each.digest for name, each in parts.items()}
    )
    return place
