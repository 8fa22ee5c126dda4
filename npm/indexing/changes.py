"""Add documents to a finished index, and delete some: each makes a new generation beside the one that readers have.

What is added becomes a segment of its own, made with the settings and the quantiser of the index. Deleted documents
stay on disk, and are passed over by readers of the new generation, until the index is compacted.

A change writes new folders beside the old ones. `change/` says which one is under way, so that after a kill only the
same command goes on with what it left; the root manifest is replaced last, and then `change/` goes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from index.ivf import SEARCH_KIND, Quantiser
from index.settings import chosen_tier
from npm.core.artifact import MANIFEST_NAME, check_folder, read_manifest, verify_folder, write_folder
from npm.core.errors import ArtifactError, CorpusError, SettingError, missing, named
from npm.core.files import digest_of
from npm.core.locks import folder_lock
from npm.core.records import read_as
from npm.core.settings import settings_from
from npm.core.types import Progress, silent
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.documents import CorpusSettings, SkippedRecords, read_corpus
from npm.corpus.readers import read_lines
from npm.corpus.sources import find_sources
from npm.corpus.store import BlockStore, build_block_store
from npm.indexing.block_vectors import recorded_pooler
from npm.indexing.embed import VECTORS_KIND
from npm.indexing.generation import (
    DELETED_FOLDER,
    DELETED_KIND,
    INDEX_KIND,
    QUANTISER_FOLDER,
    SEARCH_FOLDER,
    SEGMENTS_FOLDER,
    Generation,
    IndexManifest,
    Segment,
    SegmentName,
    SegmentRecord,
    input_record,
    recorded_corpus,
    write_generation,
)
from npm.indexing.layout import refuse_links, remove_place, remove_places
from npm.indexing.partitions import partitions_are_whole, partitions_of
from npm.indexing.phrase_index import check_encoder
from npm.indexing.settings import AddSettings, DeleteSettings, LexiconSettings, VectorSettings
from npm.indexing.stages import (
    SegmentSettings,
    code_segments,
    encode_segments,
    finish_codes,
    finish_search,
    finish_segment,
)

if TYPE_CHECKING:
    from npm.models.encoder import Encoder


CHANGE_FOLDER, CHANGE_KIND = "change", "change"
ADD, COMPACT, PARTITION = "add", "compact", "partition"
IDS_AT_ONCE = 1 << 16
WORTH_A_COMPACT = 0.25
"""From this share of deleted documents on, a compact is advised."""


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """What a change left behind."""

    manifest: IndexManifest  # of the present generation
    was_finished: bool  # there was nothing to do
    added_documents: int = 0
    deleted_documents: int = 0  # with those that were replaced
    advice: str | None = None  # what may be worth doing next
    skipped: str = ""  # what corpus.skip_bad passed over, in short


@dataclass(frozen=True, slots=True)
class ChangeNote:
    """Which change is under way: its verb, what was asked for, and the segment that it writes."""

    verb: Annotated[str, Field(pattern=f"^({ADD}|{COMPACT}|{PARTITION})$")]
    segment: SegmentName
    request: dict[str, Any]


def read_note(folder: Path) -> ChangeNote | None:
    """The change that lies in the index `folder`; None if there is none. Raises ArtifactError if it is damaged."""
    place = folder / CHANGE_FOLDER
    if not (place / MANIFEST_NAME).is_file():
        return None
    note: ChangeNote = read_as(ChangeNote, check_folder(place, kind=CHANGE_KIND).settings, file=place / MANIFEST_NAME)
    return note


def recover_change(folder: Path) -> tuple[Generation, ChangeNote | None, ChangeNote | None]:
    """The present generation, the unfinished change, and one that was finished but for its note, which is removed.

    Raises ArtifactError if there is no finished index, or anything in it is damaged or a link: every change begins so.
    """
    refuse_links(folder)
    generation, note = Generation.read(folder), read_note(folder)
    if note is not None and note.verb == PARTITION and note.request["partitions"] == len(partitions_of(generation)):
        remove_place(folder / CHANGE_FOLDER)  # of a call that was stopped after its commit
        return generation, None, None
    if note is None or note.segment not in generation.manifest.segments:
        return generation, note, None
    remove_place(folder / CHANGE_FOLDER)
    return generation, None, note


def begin_change(
    generation: Generation, unfinished: ChangeNote | None, verb: str, request: Mapping[str, Any]
) -> Segment:
    """Note down a change, and return the segment that it writes: that of `unfinished`, if it is the same change.

    Raises ArtifactError if `unfinished` is another one.
    """
    folder = generation.folder
    if unfinished is not None:
        if (unfinished.verb, unfinished.request) != (verb, dict(request)):
            raise other_change(folder, unfinished)
        return Segment(folder, unfinished.segment)
    segment = Segment(folder, f"{1 + max(int(segment.name) for segment in generation.segments):05d}")
    # What an abandoned change left under the names of this one.
    for leftover in (folder / CHANGE_FOLDER, segment.folder, *new_folders(generation)):
        remove_place(leftover)
    with write_folder(
        folder / CHANGE_FOLDER,
        kind=CHANGE_KIND,
        settings={"verb": verb, "segment": segment.name, "request": dict(request)},
    ):
        pass  # its manifest says it all
    return segment


def other_change(folder: Path, unfinished: ChangeNote) -> ArtifactError:
    """The refusal of a change while another one is unfinished."""
    sources = ", ".join(source["name"] for source in unfinished.request.get("sources", [])[:3])
    count = unfinished.request.get("partitions")
    what = unfinished.verb + (f" of {sources}" if sources else "") + (f" partitions={count}" if count else "")
    return ArtifactError(
        f"{folder} contains an unfinished npmlm {what}: run it again, or remove {folder / CHANGE_FOLDER} to abandon it"
    )


def new_folders(generation: Generation) -> tuple[Path, Path, Path, Path]:
    """The quantiser, its unfinished training, the search folder and the deleted documents of the next generation."""
    folder, number = generation.folder, generation.manifest.generation + 1
    quantiser = f"{QUANTISER_FOLDER}.{number}"
    return (
        folder / quantiser,
        folder / f".{quantiser}.partial",
        folder / SEARCH_FOLDER / f"{number:05d}",
        folder / DELETED_FOLDER / f"{number:05d}",
    )


def advice(folder: Path) -> str | None:
    """What the index in `folder` calls for after a change: a compact, or nothing."""
    generation, index = Generation.read(folder), shlex.quote(f"index={folder}")
    manifest, rows = generation.manifest, generation.manifest.counts.rows
    if manifest.deleted_documents >= WORTH_A_COMPACT * manifest.counts.documents:
        reason = f"{manifest.deleted_documents} of {manifest.counts.documents} documents are deleted, but take room"
        return f"{reason}: npmlm compact {index} rewrites the index without them"
    tier = chosen_tier(manifest.search_settings, rows).value
    made_for = read_manifest(generation.search, kind=SEARCH_KIND).settings["tier"]
    if tier != made_for:
        reason = f"the index is searched as {made_for}, but with its {rows} rows {tier} serves better"
        return f"{reason}: npmlm compact {index} changes to it"
    return None


def live_documents(generation: Generation, store: BlockStore) -> np.ndarray:
    """Which documents of all segments are not deleted, bool [documents]."""
    live = np.ones(store.document_count, dtype=bool)  # [documents]
    live[generation.deleted_documents()] = False
    return live


def search_lists(
    generation: Generation, segments: Sequence[Segment], quantiser: Path | None, progress: Progress
) -> Path:
    """Code the last of `segments`, and write the search folder of the next generation over all of them."""
    opened = None if quantiser is None else Quantiser.open(quantiser)
    if opened is not None:
        code_segments(segments[-1:], opened, progress=progress)
        finish_codes(segments[-1], opened)
    _, _, search, _ = new_folders(generation)
    finish_search(search, segments, opened, partitions=len(partitions_of(generation)), progress=progress)
    return search


def commit(
    before: Generation,
    wanted: IndexManifest,
    *,
    deleted: np.ndarray | None = None,
    keeps_before: bool = True,
) -> IndexManifest:
    """Make the manifest `wanted` that of the generation after `before`, and remove folders that no one needs any more.

    `wanted` is that of `before` with what the change replaces. `deleted` i64 [n] are the ascending numbers of deleted
    documents, None as before. `keeps_before` leaves the folders of `before` for readers that are just opening it.
    """
    folder, name = before.folder, before.manifest.deleted
    deleted = before.deleted_documents() if deleted is None else deleted
    if len(deleted) == 0:
        name = None
    elif not np.array_equal(deleted, before.deleted_documents()):
        *_, place = new_folders(before)
        remove_place(place)  # a killed change's, which may have been about fewer documents
        with write_folder(place, kind=DELETED_KIND, settings={"documents": len(deleted)}) as writer:
            writer.write_array("deleted", deleted.astype(np.int64))
        name = before.name_of(place)
    number = before.manifest.generation + 1
    wanted = replace(wanted, generation=number, deleted=name, deleted_documents=len(deleted))
    manifest = write_generation(folder, wanted, replaces=before.manifest.digest)
    # The change is made from here on. What follows only tidies up: after a kill the next change does it.
    remove_unnamed(folder, [manifest, *([before.manifest] if keeps_before else [])])
    if (note := read_note(folder)) is not None and note.segment in manifest.segments:
        remove_place(folder / CHANGE_FOLDER)
    return manifest


def remove_unnamed(folder: Path, manifests: Iterable[IndexManifest]) -> None:
    """Remove what killed changes left, and folders that none of the root `manifests` names; not an unfinished change.

    Readers that have opened them go on: their files stay until they are closed.
    """
    kept = {"/".join(part.split("/")[:2]) for manifest in manifests for part in manifest.parts}
    if (note := read_note(folder)) is not None:
        kept |= {CHANGE_FOLDER, f"{SEGMENTS_FOLDER}/{note.segment}"}
    remove_places(folder, kept=kept)


def add_documents(
    folder: str | Path, settings: AddSettings, encoder: Encoder, *, progress: Progress = silent
) -> ChangeResult:
    """Add documents to the index in `folder`, or go on where the same call was stopped.

    Blocks, vectors, term counts and codes are made as those of the index. Raises CorpusError for input that cannot be
    read and, before anything is encoded, for ids that exist unless `settings.replace`; ArtifactError if `folder` holds
    no finished index, one made by another encoder, or another unfinished change; StorageError if the disk has no room.
    """
    folder = Path(folder)
    with folder_lock(folder):
        generation, unfinished, _ = recover_change(folder)
        verify_folder(folder, INDEX_KIND, hash_all=False)  # before anything is encoded
        encoder = check_encoder(folder, generation.manifest, encoder)
        if not generation.segments[0].lexicon.is_dir():
            raise ArtifactError(f"{folder} contains token ids without text: build an index from documents to add some")
        kept, given = generation.manifest.kept_fields, settings.corpus.kept_fields
        if given and sorted(given) != sorted(kept):
            raise SettingError(
                f"corpus.kept_fields must be [{','.join(kept)}] as in the index, got [{','.join(given)}]"
            )
        corpus = replace(settings.corpus, kept_fields=kept)
        sources = input_record(find_sources(corpus.files))
        request = {"sources": sources, "corpus": recorded_corpus(corpus), "replace": settings.replace}
        if unfinished is None and _is_last(generation, request):
            return ChangeResult(generation.manifest, was_finished=True)
        addition = _Addition(generation, begin_change(generation, unfinished, ADD, request), request, progress)
        try:
            return addition.run(corpus, encoder)
        except CorpusError:
            remove_place(folder / CHANGE_FOLDER)  # first, so that no later command goes on with a part of the segment
            remove_place(addition.segment.folder)
            raise


def delete_documents(folder: str | Path, settings: DeleteSettings) -> ChangeResult:
    """Delete the documents with the ids given from the index in `folder`.

    Those that are deleted already count as done, so that the same call can be repeated after a kill. Raises
    SettingError, and changes nothing, if one of them is unknown or nothing would be left; ArtifactError if `folder`
    holds no finished index, or a compact that is unfinished.
    """
    folder = Path(folder)
    ids = _ids(settings)
    with folder_lock(folder):
        generation, unfinished, _ = recover_change(folder)
        if unfinished is not None and unfinished.verb == COMPACT:
            raise other_change(folder, unfinished)
        store = BlockStore.open(*(segment.corpus for segment in generation.segments))
        live = live_documents(generation, store)  # bool [documents]
        numbers = store.find_documents(ids, among=live)  # i64 [ids]
        is_unknown = store.find_documents(ids) < 0  # bool [ids]
        request = digest_of(sorted(ids))
        if is_unknown.any() and generation.manifest.deletion != request:
            names = named([repr(ids[place]) for place in np.flatnonzero(is_unknown).tolist()])
            raise SettingError(f"ids: {names} not in the index; nothing was deleted")
        numbers = numbers[numbers >= 0]  # i64 [found]
        if not len(numbers):
            return ChangeResult(generation.manifest, was_finished=True)
        live[numbers] = False
        if not store.blocks_of_documents(live).any():
            raise SettingError(f"ids: no document would be left; remove the folder {folder} instead")
        wanted = replace(generation.manifest, deletion=request)
        manifest = commit(generation, wanted, deleted=np.flatnonzero(~live))
    return ChangeResult(manifest, was_finished=False, deleted_documents=len(numbers), advice=advice(folder))


def partition_index(folder: str | Path, partitions: int, *, progress: Progress = silent) -> ChangeResult:
    """Cut the vectors of the index in `folder` into `partitions`, or go on where the same call was stopped.

    Each gets as equal a share of the rows as the borders of vector shards allow; one is an index that is not
    partitioned. Raises SettingError for none or more than there are shards, ArtifactError if `folder` holds no finished
    index or another unfinished change.
    """
    folder = Path(folder)
    with folder_lock(folder):
        generation, unfinished, _ = recover_change(folder)
        present, request = partitions_of(generation), {"partitions": partitions}
        shard_count = present[-1].shards[1]
        if not 1 <= partitions <= shard_count:
            raise SettingError(
                f"partitions must be between 1 and {shard_count}, the number of vector shards, got {partitions}; "
                "an index built with smaller vectors.tokens_per_shard has more"
            )
        if len(present) == partitions and unfinished is None and partitions_are_whole(generation):
            return ChangeResult(generation.manifest, was_finished=True)
        begin_change(generation, unfinished, PARTITION, request)
        _, _, search, _ = new_folders(generation)
        quantiser = None if generation.quantiser is None else Quantiser.open(generation.quantiser)
        finish_search(search, generation.segments, quantiser, partitions=partitions, progress=progress)
        manifest = commit(generation, replace(generation.manifest, search_folder=generation.name_of(search)))
        remove_place(folder / CHANGE_FOLDER)
    return ChangeResult(manifest, was_finished=False)


@dataclass(frozen=True, slots=True)
class _Addition:
    """One add under way."""

    generation: Generation
    segment: Segment
    request: dict[str, Any]
    progress: Progress

    def run(self, corpus: CorpusSettings, encoder: Encoder) -> ChangeResult:
        """Documents → blocks → vectors → codes → lists, then the commit."""
        before, settings = self.generation, self.generation.manifest.settings
        blocks = settings_from(BlockSettings, settings["blocks"])
        packer = BlockPacker(encoder.tokenizer, blocks)
        skipped = SkippedRecords.beside(before.folder)
        store = build_block_store(
            self.segment.corpus,
            read_corpus(corpus, skipped=skipped),
            packer,
            settings={"sources": self.request["sources"], "corpus": self.request["corpus"]},
            progress=self.progress,
        )
        deleted, replaced_count = self._deleted(store)
        first = read_manifest(before.segments[0].vectors, kind=VECTORS_KIND).settings
        made_with = SegmentSettings(
            encoder,
            settings_from(VectorSettings, settings["vectors"]),
            settings_from(LexiconSettings, settings["lexicon"]),
            recorded_pooler(first),  # what the encoder says of its pooler is no part of its fingerprint
        )
        encode_segments([(self.segment, store)], made_with, progress=self.progress)
        counts = finish_segment(self.segment, store, made_with.recorded(store), made_with.lexicon)
        search = search_lists(before, [*before.segments, self.segment], before.quantiser, self.progress)
        added = SegmentRecord(self.request["sources"], counts, self.request["corpus"])
        segments = {**before.manifest.segments, self.segment.name: added}
        wanted = replace(before.manifest, segments=segments, search_folder=before.name_of(search))
        manifest = commit(before, wanted, deleted=deleted)
        return ChangeResult(
            manifest,
            was_finished=False,
            added_documents=store.document_count,
            deleted_documents=replaced_count,
            advice=advice(before.folder),
            skipped=skipped.summary,
        )

    def _deleted(self, added: BlockStore) -> tuple[np.ndarray, int]:
        """Numbers i64 [n] of the documents that the new generation passes over, and how many it replaces.

        Raises CorpusError for ids that exist, unless they are to be replaced.
        """
        store = BlockStore.open(*(segment.corpus for segment in self.generation.segments))
        live = live_documents(self.generation, store)  # bool [documents]
        found = [np.zeros(0, dtype=np.int64)]
        for start in range(0, added.document_count, IDS_AT_ONCE):
            ids = added.document_ids(range(start, min(start + IDS_AT_ONCE, added.document_count)))
            found.append(store.find_documents(ids, among=live))  # i64 [ids]
        numbers = np.concatenate(found)  # i64 [documents added]
        existing = np.unique(numbers[numbers >= 0])  # i64 [m]
        if len(existing) and not self.request["replace"]:
            names = named(list(map(repr, store.document_ids(existing))))
            raise CorpusError(
                f"ids that the index already has: {names}; set replace=true to replace their documents, "
                "or remove them from the corpus"
            )
        live[existing] = False
        return np.flatnonzero(~live), len(existing)


def _is_last(generation: Generation, request: Mapping[str, Any]) -> bool:
    """Whether the last segment is what `request` asks for, and none of its documents was deleted since."""
    manifest = generation.manifest
    last = manifest.segments[max(manifest.segments)]
    if last.compacted:  # it names the sources of all that went into it, and may lack what was deleted before
        return False
    if (last.sources, last.corpus or manifest.settings["corpus"]) != (request["sources"], request["corpus"]):
        return False
    documents_before = manifest.counts.documents - last.counts.documents
    return not (generation.deleted_documents() >= documents_before).any()


def _ids(settings: DeleteSettings) -> list[str]:
    """The ids to delete, each once. Raises SettingError if there are none, CorpusError for an unreadable file."""
    ids = list(settings.ids)
    if settings.ids_file:
        ids += [line for _, line in read_lines(Path(settings.ids_file)) if line and not line.isspace()]
    if not ids:
        raise missing("ids or ids_file", "ids=[ID]")
    return list(dict.fromkeys(ids))
