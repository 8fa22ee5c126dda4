"""Rewrite all segments of an index as one, without the deleted documents; then remove what no one needs any more.

Blocks stay cut as they are, and their vectors are copied, so no encoder is needed and nothing is encoded again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.arrays import ShardedArray
from index.ivf import SEARCH_KIND
from index.settings import resolved_settings
from npm.core.artifact import finished_folder, read_manifest, verify_folder, write_folder
from npm.core.files import FolderWriter, check_room
from npm.core.locks import folder_lock
from npm.core.settings import settings_from
from npm.core.types import Block, Progress, silent
from npm.corpus.blocks import concatenated_ranges
from npm.corpus.shards import STORE_KIND
from npm.corpus.store import BlockStore, write_block_store
from npm.indexing.block_vectors import block_bytes
from npm.indexing.changes import (
    COMPACT,
    ChangeResult,
    begin_change,
    commit,
    live_documents,
    new_folders,
    recover_change,
    remove_unnamed,
    search_lists,
)
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
    INDEX_KIND,
    AtLeastOne,
    Generation,
    Searching,
    Segment,
    SegmentRecord,
)
from npm.indexing.rows import pack_kept
from npm.indexing.settings import CompactSettings, LexiconSettings, PruningRule
from npm.indexing.stages import count_segment_words, finish_segment, train_segment_quantiser

if TYPE_CHECKING:
    from npm.corpus.store import Packed


ROWS_AT_ONCE = 1 << 14


def packed_documents(store: BlockStore, chosen: np.ndarray) -> Iterator[Packed]:
    """The documents `chosen` bool [documents] of `store` in order, each with its blocks, for `write_block_store`.

    One document is in memory at a time. Blocks without a document come one by one, in their place. A chosen document
    without blocks comes before the next that has some, or at the end of its shard.
    """
    if chosen.shape != (store.document_count,):
        raise ValueError(f"expected bool [{store.document_count}], got {chosen.dtype} {list(chosen.shape)}")
    for shard in range(len(store.shard_blocks) - 1):
        first, stop = store.shard_blocks[shard : shard + 2].tolist()
        next_document, last_document = store.shard_documents[shard : shard + 2].tolist()
        for document, own in groupby(_blocks(store, first, stop), key=itemgetter(0)):
            if document < 0:
                yield from ((None, [block]) for _, block in own)
                continue
            yield from ((store.document(n), []) for n in range(next_document, document) if chosen[n])
            if chosen[document]:
                yield store.document(document), [block for _, block in own]
            next_document = document + 1
        yield from ((store.document(n), []) for n in range(next_document, last_document) if chosen[n])


def _blocks(store: BlockStore, first: int, stop: int) -> Iterator[tuple[int, Block]]:
    """The blocks [first, stop) of a store, each with the number of its document, or -1."""
    documents = store.block_documents[first:stop].tolist()
    for document, bounds in zip(documents, pairwise(store.block_offsets[first : stop + 1].tolist()), strict=True):
        yield (
            document,
            Block(
                token_ids=store.token_ids.slice(*bounds).astype(np.int32),  # [T of the block]
                flags=store.flags.slice(*bounds),
                start_chars=None if store.start_chars is None else store.start_chars.slice(*bounds),
                end_chars=None if store.end_chars is None else store.end_chars.slice(*bounds),
            ),
        )


def compact_index(folder: str | Path, settings: CompactSettings, *, progress: Progress = silent) -> ChangeResult:
    """Rewrite the index in `folder` as one segment without deleted documents, or go on where this was stopped.

    The folders of the old generation are removed at the end; readers that have opened it go on. An index of one segment
    without deleted documents stays as it is, unless another quantiser is called for. Raises ArtifactError if `folder`
    holds no finished index, a damaged one or another unfinished change, StorageError if the disk has no room.
    """
    folder = Path(folder)
    with folder_lock(folder):
        generation, unfinished, finished = recover_change(folder)
        verify_folder(folder, INDEX_KIND, hash_all=False)  # before anything is rewritten
        request = {
            "retrain": settings.retrain,
            "segments": [segment.name for segment in generation.segments],
            "deleted": generation.manifest.deleted,
        }
        was_done = finished is not None and (finished.verb, finished.request["retrain"]) == (COMPACT, settings.retrain)
        is_clean = len(generation.segments) == 1 and generation.manifest.deleted is None
        retrains = settings.retrain and generation.quantiser is not None
        if unfinished is None and (
            was_done
            or (is_clean and not retrains and _search_for(generation, generation.segments)["tier"] == _tier(generation))
        ):
            remove_unnamed(folder, [generation.manifest])
            return ChangeResult(generation.manifest, was_finished=True)
        return _Compaction(
            generation, begin_change(generation, unfinished, COMPACT, request), settings.retrain, progress
        ).run()


@dataclass(frozen=True, slots=True)
class _Compaction:
    """One compact under way."""

    generation: Generation
    segment: Segment
    retrain: bool
    progress: Progress

    def run(self) -> ChangeResult:
        """Blocks, vectors and term counts of the live documents → codes → lists, then the commit."""
        before = self.generation
        old_store = BlockStore.open(*(segment.corpus for segment in before.segments))
        live = live_documents(before, old_store)  # bool [documents]
        store = self._store(old_store, live)
        copied = np.flatnonzero(old_store.blocks_of_documents(live, without_document=True))  # i64 [blocks copied]
        assert len(copied) == store.block_count, f"{len(copied)} blocks to copy, {store.block_count} written"
        recorded = self._recorded(store)
        self._copy_vectors(old_store, store, copied, recorded)
        lexicon = settings_from(LexiconSettings, before.manifest.settings["lexicon"])
        count_segment_words([(self.segment, store)], lexicon, progress=self.progress)
        counts = finish_segment(self.segment, store, recorded, lexicon)
        quantiser, has_other_tier = self._quantiser(store)
        search = search_lists(before, [self.segment], quantiser, self.progress)
        sources = [source for segment in before.manifest.segments.values() for source in segment.sources]
        wanted = replace(
            before.manifest,
            segments={self.segment.name: SegmentRecord(sources, counts, compacted=True)},
            quantiser=None if quantiser is None else before.name_of(quantiser),
            search_folder=before.name_of(search),
        )
        if has_other_tier:  # what was chosen for one tier says nothing of another
            built = before.manifest.search_settings
            wanted = replace(wanted, searching=Searching(built.probed_lists, built.rerank_factor))
        manifest = commit(before, wanted, deleted=np.zeros(0, dtype=np.int64), keeps_before=False)
        deleted_count = before.manifest.deleted_documents
        return ChangeResult(manifest, was_finished=False, deleted_documents=deleted_count)

    def _store(self, old_store: BlockStore, live: np.ndarray) -> BlockStore:
        """The blocks of the documents `live` bool [documents]."""
        if BlockStore.is_finished(self.segment.corpus):
            return BlockStore.open(self.segment.corpus)
        # A fault that is copied would get a hash of its own, and be taken for good data from then on.
        for segment in self.generation.segments:
            verify_folder(segment.corpus, STORE_KIND)
        made_with = read_manifest(self.generation.segments[0].corpus, kind=STORE_KIND).settings
        return write_block_store(
            self.segment.corpus,
            packed_documents(old_store, live),
            settings={"compacted_from": _digests(self.generation, STORE_KIND)},
            tokenizer_fingerprint=old_store.tokenizer_fingerprint,
            vocabulary_size=made_with.typed("vocabulary_size", AtLeastOne),
            tokens_per_shard=made_with.typed("tokens_per_shard", AtLeastOne),
            special_tokens_in_blocks=old_store.special_tokens_in_blocks,
            progress=self.progress,
        )

    def _recorded(self, store: BlockStore) -> dict[str, Any]:
        """What the vectors depend on: what those copied do, but for the corpus and the batches they were encoded in."""
        made = [read_manifest(segment.vectors, kind=VECTORS_KIND).settings for segment in self.generation.segments]
        for name, hint in {"pruning": PruningRule, "tokens_per_shard": AtLeastOne}.items():
            made[0].typed(name, hint)
        recorded = {name: value for name, value in made[0].items() if name != "pruning_counts"}
        return {
            **recorded,
            "corpus": store.digest,
            "compute_dtype": "+".join(sorted({each.typed("compute_dtype", str) for each in made})),
            "batches_as_stored": False,
            "compacted_from": _digests(self.generation, VECTORS_KIND),
        }

    def _quantiser(self, store: BlockStore) -> tuple[Path | None, bool]:
        """The folder of the quantiser, None in the exact tier, and whether the tier is another than before."""
        before = self.generation
        has_other_tier = _search_for(before, [self.segment])["tier"] != _tier(before)
        if not has_other_tier and not self.retrain:
            return before.quantiser, False
        place, *_ = new_folders(before)
        search = before.manifest.search_settings
        trained = train_segment_quantiser(place, [self.segment], store, search, progress=self.progress)
        return trained, has_other_tier

    def _copy_vectors(
        self, old_store: BlockStore, store: BlockStore, copied: np.ndarray, recorded: Mapping[str, Any]
    ) -> None:
        """Write the vector shards of `store`, whose blocks are the blocks `copied` i64 [blocks] of `old_store`."""
        left: list[tuple[tuple[int, int], Path, dict[str, Any]]] = []
        shards = vector_shards(store, recorded["tokens_per_shard"])
        for number, blocks in enumerate(shards):
            place, wanted = shard_folder(self.segment.vectors, number), shard_settings(store, blocks, recorded)
            if finished_folder(place, kind=VECTOR_SHARD_KIND, settings=wanted) is None:
                left.append((blocks, place, wanted))
        if not left:
            return
        old_folders = [old.vectors for old in self.generation.segments]
        old = open_vectors(old_folders, hash_all=True)
        row_count, dimensions = old.tokens.shape
        vector_bytes = row_count * dimensions * old.tokens.dtype.itemsize
        if old.blocks is not None:
            vector_bytes += old.blocks.block_count * block_bytes(dimensions)
        check_room(self.segment.vectors, round(len(left) / len(shards) * vector_bytes), what="vectors")
        for (first, stop), place, wanted in left:
            chosen = copied[first:stop]  # i64 [blocks of the shard]
            ranges = (old_store.block_offsets[chosen], old_store.block_offsets[chosen + 1])
            _copy_shard(place, wanted, old, concatenated_ranges(*ranges), chosen)
            self.progress("vectors", int(store.block_offsets[stop]), store.token_count)


def _copy_shard(
    place: Path, settings: Mapping[str, Any], old: OpenedVectors, positions: np.ndarray, blocks: np.ndarray
) -> None:
    """Write the vector shard of the tokens that stood at `positions` i64 [T], in `blocks` i64 [B]."""
    row_numbers, has_row = old.rows.rows_at(positions)  # i64 [T], bool [T]
    copied = row_numbers[has_row]  # i64 [n]
    with write_folder(place, kind=VECTOR_SHARD_KIND, settings=settings) as writer:
        writer.write_array("kept", pack_kept(has_row))  # u8 [ceil(T / 8)]
        _copy_rows(writer, "vectors", old.tokens, copied)
        if old.blocks is not None:
            _copy_rows(writer, "blocks", old.blocks.vectors, blocks)


def _copy_rows(writer: FolderWriter, name: str, vectors: ShardedArray, rows: np.ndarray) -> None:
    """Write the array `name` of the `rows` i64 [n] of `vectors`."""
    stream = writer.stream_array(name, vectors.dtype, vectors.shape[1:])
    for start in range(0, len(rows), ROWS_AT_ONCE):
        stream.append(vectors.take(rows[start : start + ROWS_AT_ONCE]))


def _digests(generation: Generation, kind: str) -> list[str]:
    """The digests of the corpus or the vectors of each segment."""
    folders = [segment.corpus if kind == STORE_KIND else segment.vectors for segment in generation.segments]
    return [read_manifest(folder, kind=kind).digest for folder in folders]


def _search_for(generation: Generation, segments: tuple[Segment, ...] | list[Segment]) -> dict[str, Any]:
    """How an index built over `segments` with the settings of this one would be searched."""
    vectors = open_vectors([segment.vectors for segment in segments]).tokens  # [rows, d]
    return resolved_settings(generation.manifest.search_settings, *vectors.shape)


def _tier(generation: Generation) -> str:
    """The tier that the index has now."""
    return str(read_manifest(generation.search, kind=SEARCH_KIND).settings["tier"])
