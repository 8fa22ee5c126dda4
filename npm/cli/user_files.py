"""What `npmlm fill` keeps in its user's own folders: what was typed at the prompt, and the index of the demo corpus."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from npm.cli.commands import FillCommand
from npm.cli.progress import StageProgress, say
from npm.core.artifact import FORMAT_VERSION, MANIFEST_NAME
from npm.core.errors import ArtifactError, StorageError
from npm.core.files import digest_of
from npm.core.locks import folder_lock
from npm.corpus.blocks import BlockSettings
from npm.corpus.documents import CorpusSettings
from npm.corpus.sources import find_sources
from npm.indexing.build import build_index
from npm.indexing.generation import as_record, input_record
from npm.indexing.settings import IndexBuildSettings
from npm.models.encoder import Encoder
from npm.retrieval.fill import PhraseFiller

CACHE, STATE = ("XDG_CACHE_HOME", ".cache"), ("XDG_STATE_HOME", ".local/state")
"""The variable that names a folder of the user, and where in the home folder it is without."""
MOST_HISTORY_LINES, MOST_HISTORY_BYTES, MOST_LINE_CHARS = 1000, 1 << 20, 4096
DIGEST_CHARS = 16


def user_folder(variable: str, usual: str) -> Path:
    """The folder `npmlm` in the one that the environment's `variable` names, else in `usual` of the home folder.

    As the XDG Base Directory Specification has it, a path that is not absolute does not count. Raises StorageError if
    there is no home folder either.
    """
    if (named := Path(os.environ.get(variable, ""))).is_absolute():
        return named / "npmlm"
    try:
        home = Path.home() if os.environ.get("HOME", "unset") else Path()  # an empty one would be taken for /
    except RuntimeError:
        home = Path()
    if not home.is_absolute():
        raise StorageError(f"no home folder: set {variable} to the absolute path of a folder that can be written")
    return home / usual / "npmlm"


class History:
    """The lines typed at the prompt, in a file that nobody but its user may read.

    Each is appended as soon as it was typed, so that prompts side by side keep the lines of all. A file that cannot be
    read or written is noted once; the prompt goes on without.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        with self._refusals():
            self.path = user_folder(*STATE) / "history"
        self._last = ""

    def lines(self) -> list[str]:
        """The last lines, oldest first; a file that has grown far beyond them is cut."""
        found: list[str] = []
        with self._refusals():
            if self.path is not None:
                found = self._read(self.path)
        self._last = found[-1] if found else ""
        return found

    def add(self, line: str) -> None:
        """Keep a line, unless it is blank, very long, or the same as the one before."""
        if not line.strip() or len(line) > MOST_LINE_CHARS or line == self._last:
            return
        self._last = line
        with self._refusals():
            if self.path is not None:
                with self._opened(self.path) as descriptor:
                    os.write(descriptor, _encoded([line]))

    def _read(self, path: Path) -> list[str]:
        with self._opened(path) as descriptor:
            size = os.fstat(descriptor).st_size
            is_cut = size > MOST_HISTORY_BYTES
            data = os.pread(descriptor, MOST_HISTORY_BYTES, size - MOST_HISTORY_BYTES if is_cut else 0)
            lines = data.decode("utf-8", "replace").split("\n")[1 if is_cut else 0 : -1]
            kept = [line for line in lines if line.isprintable()][-MOST_HISTORY_LINES:]
            if is_cut or len(lines) > 2 * MOST_HISTORY_LINES:
                os.ftruncate(descriptor, 0)
                os.write(descriptor, _encoded(kept))
        return kept

    @contextmanager
    def _opened(self, path: Path) -> Iterator[int]:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # a pipe under this name would be waited for
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise OSError(errno.EINVAL, "it is no regular file")
            if stat.S_IMODE(mode) & 0o077:
                os.fchmod(descriptor, 0o600)
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Give up after the first error, with one note."""
        try:
            yield
        except (OSError, StorageError) as error:
            reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            where = f" in {self.path}" if self.path is not None else ""
            say(f"note: what is typed is not kept{where}: {reason}; history=false leaves this note out")
            self.path = None


def _encoded(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def demo_filler(settings: FillCommand) -> PhraseFiller:
    """A filler over the demo corpus, whose index lies in the user's cache and is built when it is first asked for.

    Other encoders and corpora, and versions that build otherwise, have folders of their own. Raises StorageError where
    the cache cannot be written, ArtifactError where the index in it is damaged.
    """
    encoder = Encoder.load(settings.encoder, device=settings.device, dtype=settings.precision, for_reading=True)
    files = sorted((Path(__file__).parents[1] / "assets" / "demo").glob("*.jsonl"))
    longest = min(BlockSettings().max_block_tokens, encoder.max_input_tokens)
    building = IndexBuildSettings(
        corpus=CorpusSettings(files=[str(file) for file in files]), blocks=BlockSettings(max_block_tokens=longest)
    )
    resolved = replace(building, blocks=building.blocks.resolved(encoder.title_tokens))
    made = as_record(resolved, encoder, IndexBuildSettings)
    del made["versions"]  # of libraries: what they build may be used with others
    digest = digest_of(
        {"format": FORMAT_VERSION, "made": made, "sources": input_record(find_sources(building.corpus.files))}
    )
    folder = user_folder(*CACHE) / f"demo-{digest[:DIGEST_CHARS]}"
    try:
        if not (folder / MANIFEST_NAME).is_file():
            _build_demo(folder, building, encoder)
        filler = PhraseFiller.open(folder, encoder, settings=settings)
    except OSError as error:
        advice = "give index=DIR, or set XDG_CACHE_HOME to a folder that can be written"
        raise StorageError(f"{error}; {advice}") from error
    except ArtifactError as error:
        raise ArtifactError(f"{error}; remove {folder}, so that it is built again, or give index=DIR") from error
    say(
        f"note: without index= answers come from the demo corpus of {filler.index.store.document_count} documents, "
        f'kept in {folder}; build your own with npmlm build "corpus.files=[docs/*.jsonl]" index=DIR'
    )
    return filler


def _build_demo(folder: Path, settings: IndexBuildSettings, encoder: Encoder) -> None:
    """Build the index, or wait for the process that is building it."""
    with folder_lock(
        folder.with_name(f"{folder.name}-first"),
        wait=True,
        on_wait=lambda: say("waits for another process that builds it"),
    ):
        if sys.stderr.isatty():
            say("building the index of the demo corpus, once; it takes about a minute")
            with StageProgress() as progress:
                build_index(folder, settings, encoder, progress=progress, notice=progress.say)
        else:
            build_index(folder, settings, encoder)
