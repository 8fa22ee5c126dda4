"""Indexes in the user's cache, for files that are asked without building an index first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from npm.core.artifact import FORMAT_VERSION, MANIFEST_NAME, folder_lock
from npm.core.errors import ArtifactError, StorageError
from npm.core.files import digest_of, user_folder
from npm.core.types import Progress, silent
from npm.corpus.addresses import is_address
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.corpus.sources import HUB_PREFIX
from npm.indexing.build import no_notice
from npm.indexing.generation import as_record
from npm.indexing.settings import IndexBuildSettings, VectorSettings
from npm.indexing.sync import SyncResult, sync_index
from npm.models.encoder import Encoder

DIGEST_CHARS = 16


def files_index(
    files: Sequence[str],
    encoder: Encoder,
    *,
    progress: Progress = silent,
    notice: Callable[[str], None] = no_notice,
) -> tuple[Path, SyncResult]:
    """The index of words over `files` in the user's cache, made or brought up to date, and what that changed.

    Each list of files and each encoder has its own. Raises as `cached_index` does.
    """
    whole = [
        name if name.startswith(HUB_PREFIX) or is_address(name) else str(Path(name).absolute())
        for name in map(str, files)
    ]
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
    digest = digest_of({"format": [FORMAT_VERSION, "parts"], "made": made, **key})
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
        raise StorageError(f"{error}; {advice}") from error
    except ArtifactError as error:
        raise ArtifactError(f"{error}; remove {folder}, so that it is built again, or give index=DIR") from error
