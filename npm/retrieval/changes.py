"""Add documents to a finished index, and delete some: each makes a new generation beside the one that readers have.

What is added becomes a segment of its own, made with the settings and the quantiser of the index. Deleted documents
stay on disk, and are passed over by whoever opens the new generation, until the index is compacted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.files import digest_of
from index.locking import folder_lock
from index.store import read_manifest
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.sources import read_lines
from npm.corpus.store import BlockStore, build_block_store
from npm.errors import ArtefactError, CorpusError, SettingError
from npm.retrieval.embed import VECTORS_KIND, VectorSettings
from npm.retrieval.lexicon_shards import LexiconSettings
from npm.retrieval.phrase_index import fitted_encoder
from npm.retrieval.recording import input_record, recorded_corpus
from npm.retrieval.segments import Generation, Segment
from npm.retrieval.stages import IndexProgress, SegmentSettings, encode_segment, finish_encoding, silent
from npm.retrieval.swaps import (
    Changed,
    abandon_change,
    advice,
    begin_change,
    live_documents,
    other_change,
    search_lists,
    settled,
    swap,
)
from npm.settings import settings_from

if TYPE_CHECKING:
    from npm.models.encoder import Encoder

ADD, COMPACT = "add", "compact"
IDS_AT_ONCE = 1 << 16
NAMED_AT_MOST = 5


@dataclass(kw_only=True, slots=True)
class AddSettings:
    """Documents that come to an index."""

    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    """The new documents; fields are kept as the index keeps them."""
    replace: bool = False
    """Whether a document takes the place of one with the same id; otherwise an id that exists is refused."""


@dataclass(kw_only=True, slots=True)
class DeleteSettings:
    """Documents that leave an index."""

    ids: list[str] = field(default_factory=list)
    """Ids of the documents."""
    ids_file: str = ""
    """File with one id a line, besides `ids`."""


def add_documents(
    folder: str | Path, settings: AddSettings, encoder: Encoder, *, progress: IndexProgress = silent
) -> Changed:
    """Add documents to the index in `folder`, or go on where the same call was stopped.

    Blocks, vectors, term counts and codes are made as those of the index. Raises CorpusError for input that cannot be
    read and, before anything is encoded, for ids that exist unless `settings.replace`; ArtefactError if `folder` holds
    no finished index, one made by another encoder, or another unfinished change; StorageError if the disk refuses.
    """
    folder = Path(folder)
    with folder_lock(folder):
        generation, unfinished, _ = settled(folder)
        encoder = fitted_encoder(folder, generation.settings, encoder)
        _check_has_text(generation)
        corpus = _kept_as_in(generation, settings.corpus)
        request = {"sources": input_record(corpus), "corpus": recorded_corpus(corpus), "replace": settings.replace}
        if unfinished is None and _is_last(generation, request):
            return Changed(generation.manifest, was_finished=True)
        addition = _Addition(generation, begin_change(generation, unfinished, ADD, request), request, progress)
        try:
            return addition.run(corpus, encoder)
        except CorpusError:
            abandon_change(addition.segment)
            raise


def delete_documents(folder: str | Path, settings: DeleteSettings) -> Changed:
    """Delete the documents with the ids given from the index in `folder`.

    The same call again, as after a kill, has nothing to do. Raises SettingError, and changes nothing, if one of them
    is unknown or was deleted by another call, or nothing would be left;
    ArtefactError if `folder` holds no finished index, or a compact that is unfinished.
    """
    folder = Path(folder)
    ids = _ids(settings)
    with folder_lock(folder):
        generation, unfinished, _ = settled(folder)
        if unfinished is not None and unfinished.verb == COMPACT:
            raise other_change(folder, unfinished)
        store = BlockStore.open(*(segment.corpus for segment in generation.segments))
        live = live_documents(generation, store)  # bool [documents]
        numbers = store.find_documents(ids, among=live)  # i64 [ids]
        request = digest_of(sorted(ids))
        if (numbers < 0).all() and generation.deletion_request() == request:
            return Changed(generation.manifest, was_finished=True)
        if (numbers < 0).any():
            raise _no_such_documents(store, ids, numbers)
        live[numbers] = False
        if not store.blocks_of_documents(live).any():
            raise SettingError(
                "no document would be left",
                expected="an index that keeps at least one document with text",
                got=f"{len(ids)} documents to delete, all that there are",
                where="ids",
                fix="remove the folder of the index instead, or build another one",
            )
        manifest = swap(
            generation,
            segments=generation.settings["segments"],
            quantiser=generation.quantiser,
            search=generation.search,
            deleted=np.flatnonzero(~live),
            request=request,
        )
    return Changed(manifest, was_finished=False, deleted_documents=len(ids), advice=advice(folder))


@dataclass(frozen=True, slots=True)
class _Addition:
    """One add under way."""

    generation: Generation
    segment: Segment
    request: dict[str, Any]
    progress: IndexProgress

    def run(self, corpus: CorpusSettings, encoder: Encoder) -> Changed:
        """Documents → blocks → vectors → codes → lists, then the swap."""
        before, settings = self.generation, self.generation.settings
        packer = BlockPacker(encoder.tokenizer, settings_from(BlockSettings, settings["blocks"]))
        store = build_block_store(
            self.segment.corpus,
            read_corpus(corpus),
            packer,
            settings={"sources": self.request["sources"], "corpus": self.request["corpus"]},
            progress=lambda _, tokens: self.progress("blocks", tokens, None),
        )
        deleted, replaced_count = self._deleted(store)
        made_with = SegmentSettings(
            encoder,
            settings_from(VectorSettings, settings["vectors"]),
            settings_from(LexiconSettings, settings["lexicon"]),
            read_manifest(before.segments[0].vectors, kind=VECTORS_KIND).settings["frequent_token_ids"],
        )
        encode_segment(self.segment, store, made_with, progress=self.progress)
        counts = finish_encoding(self.segment, store, made_with)
        search = search_lists(before, [*before.segments, self.segment], before.quantiser, self.progress)
        about = {"sources": self.request["sources"], "corpus": self.request["corpus"], "counts": counts}
        segments = {**settings["segments"], self.segment.name: about}
        manifest = swap(before, segments=segments, quantiser=before.quantiser, search=search, deleted=deleted)
        return Changed(
            manifest,
            was_finished=False,
            added_documents=store.document_count,
            deleted_documents=replaced_count,
            advice=advice(before.folder),
        )

    def _deleted(self, added: BlockStore) -> tuple[np.ndarray, int]:
        """Numbers i64 [n] of the documents that the new generation passes over, and how many it replaces.

        Raises CorpusError for ids that exist, unless they are to be replaced.
        """
        store = BlockStore.open(*(segment.corpus for segment in self.generation.segments))
        live = live_documents(self.generation, store)  # bool [documents]
        existing = _with_ids_of(store, live, added)  # i64 [m]
        if len(existing) and not self.request["replace"]:
            raise CorpusError(
                f"{len(existing)} of the documents to add {'has' if len(existing) == 1 else 'have'} an id that exists",
                expected="ids that no document of the index has",
                got=_named(store.document_ids(existing[:NAMED_AT_MOST]), len(existing)),
                where=str(self.generation.folder),
                fix="give replace=true to put them in the place of those in the index, or take them out of the corpus",
            )
        live[existing] = False
        return np.flatnonzero(~live), len(existing)


def _with_ids_of(store: BlockStore, live: np.ndarray, added: BlockStore) -> np.ndarray:
    """Numbers i64 [n], ascending, of the documents `live` bool [documents] whose id one of `added` has too."""
    found = [np.zeros(0, dtype=np.int64)]
    for start in range(0, added.document_count, IDS_AT_ONCE):
        ids = added.document_ids(range(start, min(start + IDS_AT_ONCE, added.document_count)))
        found.append(store.find_documents(ids, among=live))  # i64 [ids]
    numbers = np.concatenate(found)  # i64 [documents added]
    return np.unique(numbers[numbers >= 0])


def _check_has_text(generation: Generation) -> None:
    if not generation.segments[0].lexicon.is_dir():
        raise ArtefactError(
            "the index holds token ids without text",
            expected="an index built from documents",
            got="one built over a block store without characters",
            where=str(generation.folder),
            fix="build an index from the documents themselves",
        )


def _kept_as_in(generation: Generation, corpus: CorpusSettings) -> CorpusSettings:
    """`corpus` with the fields that the index keeps; raises SettingError if others are asked for."""
    kept = list(generation.settings["corpus"]["kept_fields"])
    if corpus.kept_fields and sorted(corpus.kept_fields) != sorted(kept):
        raise SettingError(
            "an index keeps the same fields of all its documents",
            expected=f"corpus.kept_fields=[{','.join(kept)}], or leave it out",
            got=f"[{','.join(corpus.kept_fields)}]",
            where="corpus.kept_fields",
            fix="leave it out, or build an index that keeps these fields",
        )
    return replace(corpus, kept_fields=kept)


def _is_last(generation: Generation, request: Mapping[str, Any]) -> bool:
    """Whether the last segment is what `request` asks for, and none of its documents was deleted since."""
    segments = generation.settings["segments"]
    about = segments[max(segments)]
    if about.get("compacted"):  # it names the sources of all that went into it, and may lack what was deleted before
        return False
    made_from = (about["sources"], about.get("corpus", generation.settings["corpus"]))
    if made_from != (request["sources"], request["corpus"]):
        return False
    documents_before = generation.settings["counts"]["documents"] - about["counts"]["documents"]
    return not (generation.deleted_documents() >= documents_before).any()


def _ids(settings: DeleteSettings) -> list[str]:
    """The ids to delete, each once. Raises SettingError if there is none, CorpusError for a file that is not UTF-8."""
    ids = list(settings.ids)
    if settings.ids_file:
        path = Path(settings.ids_file)
        try:
            ids += [line for _, line in read_lines(path) if line and not line.isspace()]
        except OSError as error:
            raise SettingError(
                "the file of ids cannot be read",
                expected="a UTF-8 file with one id a line",
                got=error.strerror or str(error),
                where=str(path),
                fix="check ids_file=FILE",
            ) from error
    if not ids:
        raise SettingError(
            "no document is named",
            expected="ids=[…] or ids_file=FILE",
            got="no id",
            where="ids",
            fix="give the ids of the documents to delete; answers name them as `document`",
        )
    return list(dict.fromkeys(ids))


def _no_such_documents(store: BlockStore, ids: Sequence[str], numbers: np.ndarray) -> SettingError:
    """The refusal of `ids` whose `numbers` i64 [ids] among live documents are not all known."""
    refused = [ids[place] for place in np.flatnonzero(numbers < 0).tolist()]
    once = store.find_documents(refused) >= 0  # bool [refused]
    parts = []
    for what, chosen in (("unknown", ~once), ("deleted already", once)):
        if chosen.any():
            named = [refused[place] for place in np.flatnonzero(chosen)[:NAMED_AT_MOST].tolist()]
            parts.append(f"{what}: {_named(named, int(chosen.sum()))}")
    return SettingError(
        f"{len(refused)} of {len(ids)} ids {'is' if len(refused) == 1 else 'are'} not in the index",
        expected="ids of documents in the index",
        got="; ".join(parts),
        where="ids",
        fix="check the ids; nothing was deleted",
    )


def _named(ids: Sequence[str], count: int) -> str:
    more = f" and {count - NAMED_AT_MOST} more" if count > NAMED_AT_MOST else ""
    return ", ".join(map(repr, ids[:NAMED_AT_MOST])) + more
