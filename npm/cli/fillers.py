"""Answers without index=: from files of the user, or from the demo corpus, whose indexes are in the user's cache."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from npm.cli.base import EncoderCommand, FilesCommand, say
from npm.cli.progress import StageProgress
from npm.core.display import counted
from npm.core.types import Progress, silent
from npm.corpus.settings import CorpusSettings
from npm.corpus.sources import find_sources, input_record
from npm.indexing.settings import IndexBuildSettings
from npm.indexing.sync import cache_errors, cached_index, files_index
from npm.models.encoder import Encoder
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FillSettings


def files_filler(files: list[str], encoder: Encoder, settings: FillSettings) -> PhraseFiller:
    """A filler over files, whose index of words is in the user's cache and follows them."""
    with ExitStack() as stack:
        progress, notice = _shown(stack, "reading the files; the next time only what has changed")
        folder, synced = files_index(files, encoder, progress=progress, notice=notice)
    manifest = synced.manifest
    count = manifest.counts.documents - manifest.deleted_documents
    say(f"note: {counted(count, 'document')} of {', '.join(files)}, indexed in {folder}")
    with cache_errors(folder):
        return PhraseFiller.open(folder, encoder, settings=settings)


def chosen_filler(command: FilesCommand, settings: FillSettings) -> PhraseFiller:
    """A filler over the index, or the files, of a command."""
    command.check_source()
    if command.files:
        return files_filler(command.files, command.load_reading_encoder(), settings)
    return command.open_filler(settings)


def demo_filler(encoder: Encoder, settings: FillSettings) -> PhraseFiller:
    """A filler over the demo corpus, whose index is built when it is first needed."""
    files = sorted((Path(__file__).parents[1] / "assets" / "demo").glob("*.jsonl"))
    building = IndexBuildSettings(corpus=CorpusSettings(files=[str(file) for file in files]))
    key = {"sources": input_record(find_sources(building.corpus.files))}
    with ExitStack() as stack:
        progress, notice = _shown(stack, "building the index of the demo corpus, once; it takes about a minute")
        folder, _ = cached_index("demo", building, encoder, key, follows=False, progress=progress, notice=notice)
    with cache_errors(folder):
        filler = PhraseFiller.open(folder, encoder, settings=settings)
    say(
        f"note: without index= answers come from the demo corpus of {filler.index.store.document_count} documents, "
        f"kept in {folder}; ask your own with files=docs/"
    )
    return filler


def _shown(stack: ExitStack, work: str) -> tuple[Progress, Callable[[str], None]]:
    """Progress on a terminal, announced when there is some, and where notices go."""
    if not sys.stderr.isatty():
        return silent, say
    bars: list[StageProgress] = []

    def progress(stage: str, done: float, total: float | None, **options: str) -> None:
        if not bars:
            say(work)
            bars.append(stack.enter_context(StageProgress()))
        bars[0](stage, done, total, **options)

    return progress, lambda message: bars[0].say(message) if bars else say(message)


class FollowedFiles:
    """Files of a server, whose index of words follows them."""

    def __init__(self, files: list[str], settings: EncoderCommand) -> None:
        self._files = files
        self.encoder = settings.load_reading_encoder()
        self._seen = self._state()
        with StageProgress() as progress:
            self.folder = files_index(self._files, self.encoder, progress=progress, notice=progress.say)[0]

    def _state(self) -> list[tuple[str, int, int]]:
        """Path, size and time of each file; addresses and data sets are not followed."""
        paths = [Path(source.path) for source in find_sources(self._files)]
        return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths if path.is_file()]

    def refresh(self) -> None:
        """Bring the index up to date if a file was changed, came or went."""
        state = self._state()
        if state != self._seen:
            files_index(self._files, self.encoder, notice=say)
            self._seen = state
