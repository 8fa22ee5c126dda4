"""Add documents to a finished index, and delete some: each makes a new generation next to the one that readers have.

Added documents become a separate segment, made with the settings and the quantizer of the index. Deleted documents
stay on disk, and are skipped by readers of the new generation, until the index is compacted.

The root manifest is replaced last. What a killed change left is unlisted: the same change finds it again, and another
one removes it, but a delete, which removes earlier lists of deleted documents only.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from index.ivf import Quantizer
from index.settings import resolved_settings
from index.types import SEARCH_KIND
from npm.core.artifact import folder_lock, read_manifest, verify_folder, written_once
from npm.core.errors import CorpusError, SettingError, missing, named
from npm.core.files import FolderWriter, digest_of, sha256_of_bytes
from npm.core.types import Progress, silent
from npm.corpus.blocks import BlockPacker
from npm.corpus.documents import SkippedRecords, read_corpus
from npm.corpus.readers import read_lines
from npm.corpus.sources import PART_NAMES, Source, file_of_part, find_sources, unread_files
from npm.corpus.store import BlockStore, build_block_store
from npm.indexing.embed import VECTORS_KIND, recorded_pooler
from npm.indexing.generation import (
    DELETED,
    DELETED_KIND,
    INDEX_KIND,
    PARTS,
    Generation,
    IndexManifest,
    Segment,
    SegmentRecord,
    part,
    remove_unlisted,
    write_generation,
)
from npm.indexing.partitions import partitions_of
from npm.indexing.phrase_index import check_encoder
from npm.indexing.settings import AddSettings, DeleteSettings
from npm.indexing.stages import codes_part, corpus_part, encoded_parts, finish_search, make_parts, make_segments

if TYPE_CHECKING:
    from npm.models.encoder import Encoder


IDS_AT_ONCE = 1 << 16
WORTH_A_COMPACT = 0.25
"""From this share of deleted documents on, a compact is advised."""


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """Result of a change."""

    manifest: IndexManifest  # of the present generation
    was_finished: bool  # there was nothing to do
    added_documents: int = 0
    deleted_documents: int = 0  # with those that were replaced
    advice: str | None = None  # what may be worth doing next
    skipped: str = ""  # summary of what corpus.skip_bad skipped, and of files of unknown kinds


@contextmanager
def changed(folder: Path) -> Iterator[Generation]:
    """The present generation of the index in `folder`, of which no file is missing, and its lock for a change.

    Raises ArtifactError if there is no finished index, files are missing, or another process is writing it.
    """
    Generation.read(folder)  # before a lock makes the folder above it
    with folder_lock(folder):
        generation = Generation.read(folder)
        verify_folder(folder, INDEX_KIND, hash_all=False)
        yield generation


def advice(folder: Path, manifest: IndexManifest) -> str | None:
    """Advice to compact the index in `folder` after a change to the generation of `manifest`, or None."""
    index, rows = shlex.quote(f"index={folder}"), manifest.counts.rows
    if manifest.deleted_documents >= WORTH_A_COMPACT * manifest.counts.documents:
        reason = f"{manifest.deleted_documents} of {manifest.counts.documents} documents are deleted, but take room"
        return f"{reason}: npmlm compact {index} rewrites the index without them"
    searched_as = read_manifest(folder / manifest.search_folder, kind=SEARCH_KIND).settings
    made_for = searched_as["tier"]
    tier = resolved_settings(manifest.search, rows, searched_as.typed("dimensions", int))["tier"]
    if tier != made_for:
        reason = f"the index is searched as {made_for}, but with its {rows} rows {tier} serves better"
        return f"{reason}: npmlm compact {index} changes to it"
    return None


def live_documents(generation: Generation, store: BlockStore) -> np.ndarray:
    """Mask of the documents of all segments that are not deleted, bool [documents]."""
    live = np.ones(store.document_count, dtype=bool)  # [documents]
    live[generation.deleted_documents()] = False
    return live


def searched(
    generation: Generation, segments: Sequence[Segment], quantizer: Path | None, progress: Progress
) -> tuple[Segment, str]:
    """Code the last of `segments`, and write the search folder over all of them: that segment, and the part's name."""
    opened, last = None if quantizer is None else Quantizer.open(quantizer), segments[-1]
    if opened is not None:
        codes = codes_part(generation.folder, last, opened)
        make_parts([codes], progress=progress)
        codes.finish()
        last = replace(last, codes=codes.folder)
    count, every = len(partitions_of(generation)), [*segments[:-1], last]
    return last, finish_search(generation.folder, every, opened, partitions=count, progress=progress).name


def commit(
    before: Generation,
    wanted: IndexManifest,
    *,
    deleted: np.ndarray | None = None,
    collects: Collection[str] = (DELETED,),
) -> IndexManifest:
    """Make the manifest `wanted` that of the generation after `before`, and remove unlisted parts of these kinds.

    `wanted` is that of `before` with what the change replaces. `deleted` i64 [n] are the ascending numbers of deleted
    documents, None as before.
    """
    folder, name, count = before.folder, wanted.deleted, wanted.deleted_documents
    if deleted is not None:
        name, count = None, len(deleted)
        numbers = deleted.astype(np.int64)  # i64 [n]
        request = {"documents": count, "sha256": sha256_of_bytes(numbers.tobytes())}
        if count:
            place = part(folder, DELETED, request)

            def write(writer: FolderWriter) -> None:
                writer.write_array("deleted", numbers)

            written_once(place, kind=DELETED_KIND, settings=request, write=write)
            name = place.name
    wanted = replace(wanted, generation=before.manifest.generation + 1, deleted=name, deleted_documents=count)
    manifest = write_generation(folder, wanted, replaces=before.manifest.digest)
    # The change is made from here on. What follows only tidies up: after a kill the same call or the next change does.
    remove_unlisted(folder, manifest.parts, kinds=collects)
    return manifest


def add_documents(
    folder: str | Path,
    settings: AddSettings,
    encoder: Encoder,
    *,
    sources: Sequence[Source] | None = None,
    progress: Progress = silent,
) -> ChangeResult:
    """Add documents to the index in `folder`, or resume where the same call was stopped.

    `sources` are those of `settings.corpus.files` where their names are known, such as among more files.
    Blocks, vectors, term counts and codes are made as those of the index. Raises CorpusError for input that cannot be
    read and, before anything is encoded, for ids that exist unless `settings.replace`; ArtifactError if `folder` holds
    no finished index, or one made by another encoder; StorageError if the disk is full.
    """
    folder = Path(folder)
    with changed(folder) as before:
        manifest = before.manifest
        encoder = check_encoder(folder, manifest, encoder)
        kept, given = manifest.kept_fields, settings.corpus.kept_fields
        if given and sorted(given) != sorted(kept):
            raise SettingError(
                f"corpus.kept_fields must be [{','.join(kept)}] as in the index, got [{','.join(given)}]"
            )
        corpus = replace(settings.corpus, kept_fields=kept)
        sources = find_sources(corpus.files) if sources is None else sources
        tokenizer = encoder.tokenizer_fingerprint
        place, request = corpus_part(folder, sources, corpus, manifest.blocks, tokenizer, is_change=True)
        last = manifest.segments[-1]
        documents_before = manifest.counts.documents - last.counts.documents
        if last.corpus == place.name and not (before.deleted_documents() >= documents_before).any():
            remove_unlisted(folder, manifest.parts)
            return ChangeResult(manifest, was_finished=True)
        skipped = SkippedRecords.beside(folder)
        try:
            documents = read_corpus(corpus, sources=sources, skipped=skipped)
            packer = BlockPacker(encoder.tokenizer, manifest.blocks)
            store = build_block_store(place, documents, packer, settings=request, progress=progress)
            deleted, replaced_count = _deleted(before, store, sources, replaces=settings.replace)
            first = read_manifest(before.segments[0].vectors, kind=VECTORS_KIND).settings
            pooler = recorded_pooler(first)  # the fingerprint of an encoder does not contain its pooler
            parts = encoded_parts(folder, place, store, encoder, manifest, pooler)
            make_segments([parts], progress=progress)
            segment, counts = parts.finish()
        except CorpusError:
            remove_unlisted(folder, manifest.parts)
            raise
        segment, search = searched(before, [*before.segments, segment], before.quantizer, progress)
        added = SegmentRecord.of(segment, request["sources"], counts)
        wanted = replace(manifest, segments=(*manifest.segments, added), search_folder=search)
        committed = commit(before, wanted, deleted=deleted, collects=PARTS)
        advised = advice(folder, committed)
        unread = "; ".join(filter(None, (skipped.summary, unread_files(corpus.files))))
        return ChangeResult(committed, False, store.document_count, replaced_count, advised, unread)


def _deleted(
    before: Generation, added: BlockStore, sources: Sequence[Source], *, replaces: bool
) -> tuple[np.ndarray, int]:
    """Numbers i64 [n] of the documents that the new generation skips, and how many it replaces.

    A file of `sources` with a document in `added` may exist as one document or in parts; one that it `replaces` may
    also be a table, whose rows have any ids. Raises CorpusError for ids that exist, unless it `replaces` them.
    """
    store = BlockStore.open(*(segment.corpus for segment in before.segments))
    live = live_documents(before, store)  # bool [documents]
    found = [np.zeros(0, dtype=np.int64)]
    paths = {source.identifier for source in sources if source.format in PART_NAMES}
    files: set[str] = set()  # without those that skip_bad skipped
    for start in range(0, added.document_count, IDS_AT_ONCE):
        ids = added.document_ids(range(start, min(start + IDS_AT_ONCE, added.document_count)))
        found.append(store.find_documents(ids, among=live))  # i64 [ids]
        files |= paths & {file_of_part(identifier) or identifier for identifier in ids}
    if replaces:
        files |= {*added.find_parts({source.identifier for source in sources if source.format == "table"}).values()}
    found.append(store.find_documents([*files], among=live))  # i64 [files]
    found.append(np.array([*store.find_parts(files, among=live)], dtype=np.int64))  # i64 [parts]
    numbers = np.concatenate(found)  # i64 [documents added + files + parts]
    existing = np.unique(numbers[numbers >= 0])  # i64 [m]
    if len(existing) and not replaces:
        names = named(list(map(repr, store.document_ids(existing))))
        raise CorpusError(
            f"ids that the index already has: {names}; set replace=true to replace their documents, "
            "or remove them from the corpus"
        )
    live[existing] = False
    return np.flatnonzero(~live), len(existing)


def delete_documents(folder: str | Path, settings: DeleteSettings) -> ChangeResult:
    """Delete the documents with the ids given from the index in `folder`; the id of a file deletes all its parts.

    Those that are deleted already count as done, so that the same call can be repeated after a kill. Raises
    SettingError, and changes nothing, if there are no ids, one is unknown or nothing would be left; CorpusError for an
    unreadable file of ids; ArtifactError if `folder` holds no finished index.
    """
    folder = Path(folder)
    ids = list(settings.ids)
    if settings.ids_file:
        ids += [line for _, line in read_lines(Path(settings.ids_file)) if line and not line.isspace()]
    if not ids:
        raise missing("ids or ids_file", "ids=[ID]")
    ids = list(dict.fromkeys(ids))
    with changed(folder) as generation:
        store = BlockStore.open(*(segment.corpus for segment in generation.segments))
        live = live_documents(generation, store)  # bool [documents]
        numbers = store.find_documents(ids, among=live)  # i64 [ids]
        parts = store.find_parts(set(ids))
        files = {*parts.values()}
        is_file = np.array([identifier in files for identifier in ids])  # bool [ids]
        is_unknown = (store.find_documents(ids) < 0) & ~is_file  # bool [ids]
        request = digest_of(sorted(ids))
        if is_unknown.any() and generation.manifest.deletion != request:
            names = named([repr(ids[place]) for place in np.flatnonzero(is_unknown).tolist()])
            raise SettingError(f"ids: {names} not in the index; nothing was deleted")
        live_parts = np.array([number for number in parts if live[number]], dtype=np.int64)  # i64 [parts]
        numbers = np.union1d(numbers[numbers >= 0], live_parts)  # i64 [found]
        if not len(numbers):
            remove_unlisted(folder, generation.manifest.parts, kinds=(DELETED,))
            return ChangeResult(generation.manifest, was_finished=True)
        live[numbers] = False
        if not store.blocks_of_documents(live).any():
            raise SettingError(f"ids: no document would be left; remove the folder {folder} instead")
        wanted = replace(generation.manifest, deletion=request)
        committed = commit(generation, wanted, deleted=np.flatnonzero(~live))
        return ChangeResult(committed, False, deleted_documents=len(numbers), advice=advice(folder, committed))


def partition_index(folder: str | Path, partitions: int, *, progress: Progress = silent) -> ChangeResult:
    """Cut the vectors of the index in `folder` into `partitions`, or resume where the same call was stopped.

    Each gets as equal a share of the rows as the borders of vector shards allow; one is an index that is not
    partitioned. Raises SettingError for none or more than there are shards, ArtifactError if `folder` holds no finished
    index.
    """
    folder = Path(folder)
    with changed(folder) as generation:
        present = partitions_of(generation)
        shard_count = present[-1].shards[1]
        if not 1 <= partitions <= shard_count:
            raise SettingError(
                f"partitions must be between 1 and {shard_count}, the number of vector shards, got {partitions}; "
                "an index built with smaller vectors.tokens_per_shard has more"
            )
        if len(present) == partitions:
            remove_unlisted(folder, generation.manifest.parts)
            return ChangeResult(generation.manifest, was_finished=True)
        quantizer = None if generation.quantizer is None else Quantizer.open(generation.quantizer)
        search = finish_search(folder, generation.segments, quantizer, partitions=partitions, progress=progress)
        wanted = replace(generation.manifest, search_folder=search.name)
        return ChangeResult(commit(generation, wanted, collects=PARTS), was_finished=False)
