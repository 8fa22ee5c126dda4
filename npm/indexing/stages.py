"""The stages that make an index out of documents; each may be split among jobs, and resumes where it was killed.

pack: documents → blocks; encode: blocks → vectors and term counts; quantize: a sample → quantizer; code: vectors →
codes; merge: codes → inverted lists. What a stage writes depends on the corpus and the settings, not on how many jobs
ran. Every part is named by what it depends on.

A quantizer is trained once, from a sample that omits some documents, so that questions about these measure search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from npm.core.files import check_room, stored_bytes
from npm.core.settings import WHOLE, Shard, as_json
from npm.core.types import Progress, silent
from npm.corpus.sources import input_record
from npm.corpus.store import BlockStore
from npm.indexing.bm25 import as_record, finish_lexicon, write_lexicon_shard
from npm.indexing.embed import (
    VECTOR_SHARD_KIND,
    VECTORS_KIND,
    embed_shard,
    finish_vectors,
    kept_tokens,
    open_vectors,
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
    Segment,
    part,
    recorded_corpus,
)
from npm.indexing.partitions import PARTITIONS_KEY, shard_cuts
from npm.indexing.settings import LexiconSettings, VectorSettings
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
class SegmentSettings:
    """Settings that the vectors and the term counts of a segment are made with."""

    encoder: Encoder
    vectors: VectorSettings
    lexicon: LexiconSettings
    block_pooler: PoolerKind | None  # None: no block vectors

    def recorded(self, store: BlockStore) -> dict[str, Any]:
        """All that the vectors of `store` depend on."""
        return recorded_vectors(store, self.encoder, self.vectors, block_pooler=self.block_pooler)

    def segment(self, folder: Path, corpus: Path, store: BlockStore) -> Segment:
        """The segment of the blocks `store`, which are the part `corpus`, of the index `folder`."""
        return segment_of(folder, corpus, store, self.recorded(store), self.lexicon)


def segment_of(
    folder: Path, corpus: Path, store: BlockStore, recorded: Mapping[str, Any], lexicon: LexiconSettings
) -> Segment:
    """The segment of the blocks `store`, whose vectors are made with the settings `recorded`."""
    has_text = store.start_chars is not None
    counted = part(folder, LEXICON, as_record(lexicon, store)) if has_text else None
    return Segment(corpus, part(folder, VECTORS, recorded), counted)


def corpus_part(
    folder: Path,
    sources: Sequence[Source],
    corpus: CorpusSettings,
    blocks: BlockSettings,
    tokenizer_fingerprint: str,
    recorded: Sequence[Mapping[str, Any]] = (),
) -> tuple[Path, dict[str, Any]]:
    """The part that holds the blocks of `sources`, and what it is made from; `recorded` as in `input_record`."""
    request = {
        "sources": input_record(sources, recorded),
        "corpus": recorded_corpus(corpus),
        "blocks": as_json(asdict(blocks)),
        "tokenizer_fingerprint": tokenizer_fingerprint,
    }
    return part(folder, CORPUS, request), request


def encode_segments(
    segments: Sequence[tuple[Segment, BlockStore]],
    settings: SegmentSettings,
    *,
    shard: Shard = WHOLE,
    progress: Progress = silent,
) -> None:
    """Write this shard's vector shards and term counts of `segments`, each with the store that holds its blocks.

    Raises ArtifactError if a shard is damaged, StorageError if the disk has no space for them.
    """
    shards = [
        (segment, store, recorded, number, blocks)
        for segment, store in segments
        for recorded in [settings.recorded(store)]
        for number, blocks in enumerate(vector_shards(store, settings.vectors.tokens_per_shard))
    ]
    mine = shard.of(shards)
    vector_bytes = row_bytes(settings.encoder.dimensions, np.dtype(settings.vectors.dtype.value))
    done = total = needed_bytes = 0
    for segment, store, _, number, blocks in mine:
        first, stop = (int(store.block_offsets[block]) for block in blocks)
        total += stop - first
        if not (shard_folder(segment.vectors, number) / MANIFEST_NAME).is_file():
            kept = int(kept_tokens(store.flags.slice(first, stop), settings.vectors.pruning).sum())
            of_blocks = 0 if settings.block_pooler is None else np.diff(blocks).item()
            needed_bytes += (kept * settings.vectors.tokens + of_blocks) * vector_bytes + (stop - first) // 8
    # Before the first is encoded: by the tokens that pruning keeps at most.
    check_room(segments[0][0].vectors, needed_bytes, what="vectors")
    for segment, store, recorded, number, _ in mine:

        def report(_: str, tokens: float, __: float | None, before: int = done) -> None:
            progress("vectors", before + int(tokens), total)

        written = embed_shard(store, settings.encoder, segment.vectors, number, recorded=recorded, progress=report)
        return_freed_memory()
        done += written.settings["token_count"]
    count_segment_words(segments, settings.lexicon, shard=shard, progress=progress)


def count_segment_words(
    segments: Sequence[tuple[Segment, BlockStore]],
    settings: LexiconSettings,
    *,
    shard: Shard = WHOLE,
    progress: Progress = silent,
) -> None:
    """Write this shard of the term counts of `segments`; nothing where blocks have no text."""
    shards = [
        (segment.lexicon, store, number)
        for segment, store in segments
        if segment.lexicon is not None
        for number in range(len(store.shard_blocks) - 1)
    ]
    mine = shard.of(shards)
    for count, (lexicon, store, number) in enumerate(mine, start=1):
        write_lexicon_shard(lexicon / f"{number:05d}", store, number, settings)
        progress("lexicon", count, len(mine))


def finish_segment(
    segment: Segment, store: BlockStore, recorded: Mapping[str, Any], lexicon: LexiconSettings
) -> Counts:
    """Write the manifests of the segment's vectors and term counts once all shards are there; returns its counts.

    The vectors were made with the settings `recorded`. Raises ArtifactError, naming the missing shards, if there are
    any, CorpusError if no token has a vector.
    """
    manifest = finish_vectors(segment.vectors, store, recorded=recorded)
    if segment.lexicon is not None:
        finish_lexicon(segment.lexicon, store, lexicon)
    kept: int = manifest.settings.typed("pruning_counts.kept", int)
    if kept == 0:
        raise CorpusError(
            f"vectors.pruning={recorded['pruning']} keeps none of the {store.token_count} tokens of the corpus; "
            "use another rule, such as word_boundaries, or other documents"
        )
    return Counts(store.document_count, store.block_count, store.token_count, kept)


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
    """Mask of the document indices i64 [n] (-1: no document) that the quantizer's training skipped, bool [n]."""
    return (documents >= 0) & (documents % HELD_OUT_EVERY == HELD_OUT_EVERY - 1)  # bool [n]


def with_codes(folder: Path, segment: Segment, quantizer: Quantizer) -> Segment:
    """`segment`, whose vectors are finished, with its codes by `quantizer`."""
    digest = read_manifest(segment.vectors, kind=VECTORS_KIND).digest
    return replace(segment, codes=part(folder, CODES, code_shard_settings(quantizer, digest)))


def code_segments(
    segments: Sequence[Segment], quantizer: Quantizer, *, shard: Shard = WHOLE, progress: Progress = silent
) -> None:
    """Write this shard's code shards of segments whose vectors are finished."""
    shards = shard.of(
        [
            (segment.vectors / name, segment.codes / name)
            for segment in segments
            if segment.codes is not None
            for name in sorted(read_manifest(segment.vectors, kind=VECTORS_KIND).parts)
        ]
    )
    counts = [len(open_array(vectors, "vectors")) for vectors, _ in shards]
    left = sum(count for (_, place), count in zip(shards, counts, strict=True) if not (place / MANIFEST_NAME).is_file())
    check_room(segments[0].vectors.parent, left * (quantizer.code_bytes + 4), what="codes")
    done = 0
    for (folder, place), count in zip(shards, counts, strict=True):
        digest = read_manifest(folder, kind=VECTOR_SHARD_KIND).digest
        recorded = code_shard_settings(quantizer, digest)
        check_folder(folder, kind=VECTOR_SHARD_KIND, hash_all=True)  # all of it is read
        stored = ShardedArray.of_vectors([open_array(folder, "vectors")])  # [n, d]
        write_code_shard(place, stored, quantizer, settings=recorded)
        return_freed_memory()
        done += count
        progress("codes", done, sum(counts))


def finish_codes(segment: Segment, quantizer: Quantizer) -> None:
    """Write the manifest of a segment's code shards. Raises ArtifactError if one is missing."""
    assert segment.codes is not None, "a segment without codes"
    vectors = read_manifest(segment.vectors, kind=VECTORS_KIND)
    finish_shards(
        segment.codes,
        len(vectors.parts),
        kinds=(CODES_KIND, CODE_SHARD_KIND),
        settings=lambda: code_shard_settings(quantizer, vectors.digest),
        stage="code",
    )


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
