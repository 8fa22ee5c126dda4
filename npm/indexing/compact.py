"""Rewrite all segments of an index as one, without the deleted documents; then remove what no one needs any more.

Blocks stay cut as they are, and their vectors are copied, so no encoder is needed and nothing is encoded again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from index.arrays import ShardedArray
from index.settings import resolved_settings
from index.types import SEARCH_KIND
from npm.core.artifact import read_manifest, verify_folder, write_folder
from npm.core.files import FolderWriter
from npm.core.types import Block, Progress, silent
from npm.corpus.blocks import concatenated_ranges
from npm.corpus.shards import STORE_KIND
from npm.corpus.store import BlockStore, write_block_store
from npm.indexing.changes import ChangeResult, changed, commit, live_documents, searched
from npm.indexing.embed import (
    VECTOR_SHARD_KIND,
    VECTORS_KIND,
    OpenedVectors,
    open_vectors,
    shard_folder,
    shard_settings,
    vector_shards,
)
from npm.indexing.generation import (
    CORPUS,
    PARTS,
    AtLeastOne,
    Generation,
    Searching,
    Segment,
    SegmentRecord,
    part,
    remove_unlisted,
)
from npm.indexing.rows import pack_kept
from npm.indexing.settings import CompactSettings, PruningRule
from npm.indexing.stages import SegmentParts, lexicon_part, make_segments, train_segment_quantizer, vectors_part

if TYPE_CHECKING:
    from npm.corpus.store import Packed


ROWS_AT_ONCE = 1 << 14


def packed_documents(store: BlockStore, chosen: np.ndarray) -> Iterator[Packed]:
    """The documents `chosen` bool [documents] of `store` in order, each with its blocks, for `write_block_store`.

    One document is in memory at a time.
    """
    if chosen.shape != (store.document_count,):
        raise ValueError(f"expected bool [{store.document_count}], got {chosen.dtype} {list(chosen.shape)}")
    for number in np.flatnonzero(chosen).tolist():
        blocks = np.searchsorted(store.block_documents, [number, number + 1])  # i64 [2]
        yield store.document(number), [_block(store, block) for block in range(*blocks.tolist())]


def _block(store: BlockStore, number: int) -> Block:
    """Block `number` of a store."""
    bounds = store.block_offsets[number : number + 2].tolist()
    token_ids = store.token_ids.slice(*bounds).astype(np.int32)  # [T]
    return Block(token_ids, store.flags.slice(*bounds), *store.block_places(number))


def compact_index(folder: str | Path, settings: CompactSettings, *, progress: Progress = silent) -> ChangeResult:
    """Rewrite the index in `folder` as one segment without deleted documents, or resume where this was stopped.

    The parts of the old generation are removed at the end; open readers of it continue. An index of one segment
    without deleted documents stays as it is, unless another quantizer is called for. Raises ArtifactError if `folder`
    holds no finished index or a damaged one, StorageError if the disk is full.
    """
    folder = Path(folder)
    with changed(folder) as before:
        manifest = before.manifest
        segment, record = before.segments[0], manifest.segments[0]
        if len(manifest.segments) > 1 or manifest.deleted is not None:
            segment, record = _rewritten(before, progress)
        quantizer, tier = before.quantizer, read_manifest(before.search, kind=SEARCH_KIND).settings["tier"]
        vectors = open_vectors([segment.vectors]).tokens  # [rows, d]
        has_other_tier = resolved_settings(manifest.search, *vectors.shape)["tier"] != tier
        if has_other_tier or settings.retrain:
            store = BlockStore.open(segment.corpus)
            quantizer = train_segment_quantizer(folder, [segment], store, manifest.search, progress=progress)
        if (record, quantizer) == (manifest.segments[0], before.quantizer):
            remove_unlisted(folder, manifest.parts)
            return ChangeResult(manifest, was_finished=True)
        segment, search = searched(before, [replace(segment, codes=None)], quantizer, progress)
        wanted = replace(
            manifest,
            segments=(SegmentRecord.of(segment, record.sources, record.counts),),
            quantizer=None if quantizer is None else quantizer.name,
            search_folder=search,
        )
        if has_other_tier:  # settings chosen for one tier do not fit another
            built = manifest.search
            wanted = replace(wanted, searching=Searching(built.probed_lists, built.rerank_factor))
        none = np.zeros(0, dtype=np.int64)
        committed = commit(before, wanted, deleted=none, collects=PARTS)
        return ChangeResult(committed, was_finished=False, deleted_documents=manifest.deleted_documents)


def _rewritten(before: Generation, progress: Progress) -> tuple[Segment, SegmentRecord]:
    """The live documents of all segments as one segment: blocks, vectors and term counts."""
    folder, old_store = before.folder, BlockStore.open(*(segment.corpus for segment in before.segments))
    live = live_documents(before, old_store)  # bool [documents]
    corpus, store = _store(before, old_store, live, progress)
    copied = np.flatnonzero(old_store.blocks_of_documents(live))  # i64 [blocks copied]
    assert len(copied) == store.block_count, f"{len(copied)} blocks to copy, {store.block_count} written"
    made = [read_manifest(segment.vectors, kind=VECTORS_KIND).settings for segment in before.segments]
    for name, hint in {"pruning": PruningRule, "tokens_per_shard": AtLeastOne}.items():
        made[0].typed(name, hint)
    # The vectors depend on what those copied do, except the corpus and the batches they were encoded in.
    recorded = {name: value for name, value in made[0].items() if name != "pruning_counts"} | {
        "corpus": store.digest,
        "compute_dtype": "+".join(sorted({each.typed("compute_dtype", str) for each in made})),
        "batches_as_stored": False,
        "compacted_from": [read_manifest(segment.vectors, kind=VECTORS_KIND).digest for segment in before.segments],
    }
    shards = vector_shards(store, recorded["tokens_per_shard"])

    @cache
    def opened() -> OpenedVectors:  # and completely hashed, if a shard is left to be copied
        return open_vectors([each.vectors for each in before.segments], hash_all=True)

    def copy(place: Path, number: int, _: Progress) -> None:
        chosen, old = copied[slice(*shards[number])], opened()  # i64 [blocks of the shard]
        positions = concatenated_ranges(old_store.block_offsets[chosen], old_store.block_offsets[chosen + 1])
        rows, has_row = old.rows.rows_at(positions)  # i64 [T], bool [T]
        settings = shard_settings(store, shards[number], recorded)
        with write_folder(shard_folder(place, number), kind=VECTOR_SHARD_KIND, settings=settings) as writer:
            writer.write_array("kept", pack_kept(has_row))  # u8 [ceil(T / 8)]
            _copy_rows(writer, "vectors", old.tokens, rows[has_row])
            if old.blocks is not None:
                _copy_rows(writer, "blocks", old.blocks.vectors, chosen)

    vectors = vectors_part(folder, store, recorded, recorded["dimensions"], copy)
    parts = SegmentParts(corpus, store, vectors, lexicon_part(folder, store, before.manifest.lexicon))
    make_segments([parts], progress=progress)
    segment, counts = parts.finish()
    sources = [source for each in before.manifest.segments for source in each.sources]
    return segment, SegmentRecord.of(segment, sources, counts)


def _store(before: Generation, old_store: BlockStore, live: np.ndarray, progress: Progress) -> tuple[Path, BlockStore]:
    """The part with the blocks of the documents `live` bool [documents], and these."""
    made_from = [read_manifest(segment.corpus, kind=STORE_KIND) for segment in before.segments]
    request = {"compacted_from": [each.digest for each in made_from], "deleted": before.manifest.deleted}
    place = part(before.folder, CORPUS, request)
    if BlockStore.is_finished(place):
        return place, BlockStore.open(place)
    # A fault that is copied would get a new hash, and be taken for good data from then on.
    for segment in before.segments:
        verify_folder(segment.corpus, STORE_KIND)
    return place, write_block_store(
        place,
        packed_documents(old_store, live),
        settings=request,
        tokenizer_fingerprint=old_store.tokenizer_fingerprint,
        vocabulary_size=made_from[0].settings.typed("vocabulary_size", AtLeastOne),
        tokens_per_shard=made_from[0].settings.typed("tokens_per_shard", AtLeastOne),
        special_tokens_in_blocks=old_store.special_tokens_in_blocks,
        progress=progress,
    )


def _copy_rows(writer: FolderWriter, name: str, vectors: ShardedArray, rows: np.ndarray) -> None:
    """Write the array `name` of the `rows` i64 [n] of `vectors`, as they are stored."""
    stored = ShardedArray(vectors.arrays)  # [·, ·]
    stream = writer.stream_array(name, stored.dtype, stored.shape[1:])
    for start in range(0, len(rows), ROWS_AT_ONCE):
        stream.append(stored.take(rows[start : start + ROWS_AT_ONCE]))
