"""An index that follows its files: what changed since the last time is added, replaced or deleted.

Files are compared by name, size and SHA-256 with those that the segments of the index were made from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from npm.core.artifact import MANIFEST_NAME, refuse_changed
from npm.core.errors import CorpusError, named
from npm.core.types import Progress, silent
from npm.corpus.documents import read_corpus
from npm.corpus.settings import CorpusSettings, DocumentSplit
from npm.corpus.sources import PART_NAMES, Source, file_of_part, find_sources, input_record
from npm.corpus.store import BlockStore
from npm.indexing.build import build_index, no_notice
from npm.indexing.changes import WORTH_A_COMPACT, add_documents, delete_documents, live_documents
from npm.indexing.compact import compact_index
from npm.indexing.generation import Generation, IndexManifest, recorded_corpus
from npm.indexing.settings import AddSettings, CompactSettings, DeleteSettings, IndexBuildSettings
from npm.models.encoder import Encoder

MOST_SEGMENTS = 16
"""Segments above which the index is compacted."""


@dataclass(frozen=True, slots=True)
class SyncResult:
    """Result of a sync."""

    manifest: IndexManifest
    was_current: bool
    """No file had changed."""
    files: int
    """Files that were read, since they are new or changed."""
    added_documents: int
    deleted_documents: int
    """With those that were replaced."""


def sync_index(
    folder: str | Path,
    settings: IndexBuildSettings,
    encoder: Encoder,
    *,
    progress: Progress = silent,
    notice: Callable[[str], None] = no_notice,
) -> SyncResult:
    """Build the index in `folder` if there is none; else make its documents those of `settings.corpus.files`.

    Files without a change are not read, but for their hash; where rows of a table may be gone, all tables are. With
    `corpus.skip_bad`, a file that cannot be read any more keeps its documents. Other settings than those of the corpus
    count for a new index only. Raises as `build_index`, `add_documents` and `delete_documents` do; ArtifactError for
    other settings of the corpus than the index was built with.
    """
    folder, corpus = Path(folder), settings.corpus
    sources = find_sources(corpus.files)
    if not (folder / MANIFEST_NAME).is_file():
        manifest = build_index(folder, settings, encoder, progress=progress, notice=notice).manifest
        assert manifest is not None, "all stages were run"
        return SyncResult(manifest, False, len(sources), manifest.counts.documents, 0)
    generation = Generation.read(folder)
    refuse_changed(recorded_corpus(corpus), generation.manifest.settings["corpus"], where=folder)
    known, moved = _recorded_sources(generation), _moved(generation, sources, corpus)
    changed = [
        source
        for source, record in zip(sources, input_record(sources), strict=True)
        if known.get(source.name) != record or source in moved
    ]
    added = deleted = 0
    if changed:
        chosen = AddSettings(corpus=replace(corpus, files=[source.path for source in changed]), replace=True)
        try:
            result = add_documents(folder, chosen, encoder, sources=changed, progress=progress)
        except CorpusError as error:
            if not corpus.skip_bad:
                raise
            notice(f"{named([source.path for source in changed])}: {error}; documents read before stay")
        else:
            added, deleted = result.added_documents, result.deleted_documents
            if result.skipped:
                notice(result.skipped)
    is_gone = bool(moved) or not {*known} <= {source.name for source in sources}
    has_new_rows = not all(_is_whole(source, corpus) for source in changed)
    stale = list(_stale_ids(Generation.read(folder), sources, corpus)) if is_gone or has_new_rows else []
    if stale:
        deleted += delete_documents(folder, DeleteSettings(ids=stale)).deleted_documents
    manifest = Generation.read(folder).manifest
    share = manifest.deleted_documents / max(1, manifest.counts.documents)
    if added + deleted and (share >= WORTH_A_COMPACT or len(manifest.segments) > MOST_SEGMENTS):
        manifest = compact_index(folder, CompactSettings(), progress=progress).manifest
    return SyncResult(manifest, not added + deleted, len(changed), added, deleted)


def _recorded_sources(generation: Generation) -> dict[str, dict[str, Any]]:
    """The record of each file by name; that of the last segment where a file was replaced."""
    return {str(record["name"]): record for segment in generation.manifest.segments for record in segment.sources}


def _is_whole(source: Source, corpus: CorpusSettings) -> bool:
    """Return True if the ids of the source's documents are its path or that of its parts."""
    if source.format == "txt":
        return corpus.split in (DocumentSplit.file, DocumentSplit.heading)
    return source.format in PART_NAMES


def _moved(generation: Generation, sources: Sequence[Source], corpus: CorpusSettings) -> list[Source]:
    """The sources whose documents have the path of a file of the same name that is no source any more."""
    paths = {source.identifier for source in sources}
    files = {file_of_part(identifier) or identifier for identifier in _live_ids(generation)}
    left = {Path(file).name for file in files - paths}
    return [
        source
        for source in sources
        if _is_whole(source, corpus) and source.identifier not in files and Path(source.identifier).name in left
    ]


def _live_ids(generation: Generation) -> list[str]:
    """The ids of all documents that are not deleted."""
    store = BlockStore.open(*(segment.corpus for segment in generation.segments))
    return store.document_ids(np.flatnonzero(live_documents(generation, store)))


def _stale_ids(generation: Generation, sources: Sequence[Source], corpus: CorpusSettings) -> Iterator[str]:
    """The ids of live documents that no source has any more."""
    paths = {source.identifier for source in sources if _is_whole(source, corpus)}
    tables = [source for source in sources if not _is_whole(source, corpus)]
    rows = {document.id for document in read_corpus(corpus, sources=tables)} if tables else set()
    for identifier in _live_ids(generation):
        if identifier not in rows and (file_of_part(identifier) or identifier) not in paths:
            yield identifier
