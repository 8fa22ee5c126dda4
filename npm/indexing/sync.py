"""An index that follows its files, in its folder or in the user's cache: what changed is added, replaced or deleted.

Files are compared by name, size and SHA-256 with those that the segments of the index were made from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from npm.core.artifact import FORMAT_VERSIONS, MANIFEST_NAME, folder_lock, refuse_changed
from npm.core.errors import ArtifactError, CorpusError, StorageError, named
from npm.core.files import digest_of, user_folder
from npm.core.types import Progress, silent
from npm.corpus.blocks import BlockSettings
from npm.corpus.documents import read_corpus
from npm.corpus.settings import CorpusSettings, DocumentSplit
from npm.corpus.sources import (
    HUB_PREFIX,
    PART_NAMES,
    Source,
    file_of_id,
    file_of_part,
    find_sources,
    input_record,
    is_address,
)
from npm.corpus.store import BlockStore
from npm.indexing.build import build_index, no_notice
from npm.indexing.changes import WORTH_A_COMPACT, add_documents, delete_documents, live_documents
from npm.indexing.compact import compact_index
from npm.indexing.generation import INDEX_KIND, Generation, IndexManifest, as_record, recorded_corpus
from npm.indexing.settings import AddSettings, CompactSettings, DeleteSettings, IndexBuildSettings, VectorSettings
from npm.models.encoder import Encoder

DIGEST_CHARS = 16
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
    # of a file that was replaced, the record of the last segment
    recorded = [record for segment in generation.manifest.segments for record in segment.sources]
    known, moved = {str(record["name"]): record for record in recorded}, _moved(generation, sources)
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
    has_new_rows = not all(_is_whole(source, corpus) for source in changed)
    gone = {*known} - {source.name for source in sources}
    stale = list(_stale_ids(Generation.read(folder), sources, corpus, gone)) if gone or moved or has_new_rows else []
    if stale:
        deleted += delete_documents(folder, DeleteSettings(ids=stale)).deleted_documents
    manifest = Generation.read(folder).manifest
    share = manifest.deleted_documents / max(1, manifest.counts.documents)
    if added + deleted and (share >= WORTH_A_COMPACT or len(manifest.segments) > MOST_SEGMENTS):
        manifest = compact_index(folder, CompactSettings(), progress=progress).manifest
    return SyncResult(manifest, not added + deleted, len(changed), added, deleted)


def _is_whole(source: Source, corpus: CorpusSettings) -> bool:
    """Return True if the ids of the source's documents are its path or that of its parts."""
    if source.format == "txt":
        return corpus.split in (DocumentSplit.file, DocumentSplit.heading)
    return source.format in PART_NAMES


def _moved(generation: Generation, sources: Sequence[Source]) -> list[Source]:
    """The sources whose documents have the path of a file of the same name that is no source any more.

    Rows once had ids with the name of the file alone: they are read again in the same way.
    """
    files = {file_of_id(identifier) for identifier in _live_ids(generation)}
    left = {Path(file).name for file in files - {source.identifier for source in sources}}
    return [source for source in sources if source.identifier not in files and Path(source.identifier).name in left]


def _live_ids(generation: Generation) -> list[str]:
    """The ids of all documents that are not deleted."""
    store = BlockStore.open(*(segment.corpus for segment in generation.segments))
    return store.document_ids(np.flatnonzero(live_documents(generation, store)))


def _stale_ids(
    generation: Generation, sources: Sequence[Source], corpus: CorpusSettings, gone: Collection[str]
) -> Iterator[str]:
    """The ids of live documents that no source has any more.

    While a source is unreadable, only ids of removed files (`gone`, by name), since its rows may have any id.
    """
    paths = {source.identifier for source in sources if _is_whole(source, corpus)}
    rows: set[str] = set()
    unread = False
    for source in sources:
        if not _is_whole(source, corpus):
            try:
                rows.update(document.id for document in read_corpus(corpus, sources=[source]))
            except CorpusError:
                if not corpus.skip_bad:
                    raise
                unread = True
    for identifier in _live_ids(generation):
        file = f"/{file_of_id(identifier)}"
        may_stay = unread and not any(file.endswith(f"/{name}") for name in gone)
        if not may_stay and identifier not in rows and (file_of_part(identifier) or identifier) not in paths:
            yield identifier


def files_index(
    files: Sequence[str],
    encoder: Encoder,
    *,
    progress: Progress = silent,
    notice: Callable[[str], None] = no_notice,
) -> tuple[Path, SyncResult]:
    """The index of words over `files` in the user's cache, made or brought up to date, and what that changed.

    Each list of files, in any order, and each encoder has its own. Raises as `cached_index` does.
    """
    whole = sorted(
        name if name.startswith(HUB_PREFIX) or is_address(name) else str(Path(name).absolute())
        for name in map(str, files)
    )
    settings = IndexBuildSettings(
        corpus=CorpusSettings(files=whole, skip_bad=True), vectors=VectorSettings(tokens=False, blocks=False)
    )
    folder, synced = cached_index("files", settings, encoder, {"files": whole}, progress=progress, notice=notice)
    assert synced is not None, "it follows its files"
    return folder, synced


def cached_index(
    name: str,
    settings: IndexBuildSettings,
    encoder: Encoder,
    key: Mapping[str, Any],
    *,
    follows: bool = True,
    progress: Progress = silent,
    notice: Callable[[str], None] = no_notice,
) -> tuple[Path, SyncResult | None]:
    """The index `name` with these `settings` in the user's cache, and what was changed to have it.

    It `follows` its files, or is left as it is once it is built: then the result is None. What `key` holds, encoders,
    and versions that build otherwise have separate folders. Nothing is written beside the files. Raises StorageError
    where the cache cannot be written, ArtifactError where the index in it is damaged, and as `sync_index` does.
    """
    longest = min(BlockSettings().max_block_tokens, encoder.max_input_tokens)
    settings = replace(settings, blocks=replace(settings.blocks, max_block_tokens=longest))
    made = as_record(replace(settings, blocks=settings.blocks.resolved(encoder.title_tokens)), encoder)
    del made["versions"]  # of libraries: what they build may be used with others
    digest = digest_of({"format": FORMAT_VERSIONS[INDEX_KIND], "made": made, **key})
    folder = user_folder("XDG_CACHE_HOME", ".cache") / f"{name}-{digest[:DIGEST_CHARS]}"
    if not follows and (folder / MANIFEST_NAME).is_file():
        return folder, None
    lock = folder.with_name(f"{folder.name}-first")
    with (
        cache_errors(folder),
        folder_lock(lock, wait=True, on_wait=lambda: notice("waits for another process that builds it")),
    ):
        return folder, sync_index(folder, settings, encoder, progress=progress, notice=notice)


@contextmanager
def cache_errors(folder: Path) -> Iterator[None]:
    """Say in errors of the index in `folder`, of the user's cache, what to do about them."""
    try:
        yield
    except OSError as error:
        advice = "give index=DIR, or set XDG_CACHE_HOME to a folder that can be written"
        raise StorageError(f"cannot write {folder}: {error.strerror or error}; {advice}") from error
    except ArtifactError as error:
        raise ArtifactError(f"{error}; remove {folder}, so that it is built again, or give index=DIR") from error
