"""`npmlm serve`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import PositiveInt

from npm.cli.base import EncoderCommand, say
from npm.cli.progress import StageProgress
from npm.cli.registry import verb
from npm.cluster.settings import ServeCluster
from npm.core.errors import SettingError, exclusive, missing
from npm.core.settings import PathText
from npm.serving.settings import ServeSettings

if TYPE_CHECKING:
    from npm.models.encoder import Encoder


class ServeCommand(ServeSettings, EncoderCommand):
    """Answer texts over HTTP and on a web page, until the process is stopped."""

    index: PathText = ""
    """Folder of the index. Required without files."""
    files: list[PathText] = field(default_factory=list)
    """Files and folders to answer from instead of an index: their words are read into the user's cache, and what
    changes is read again every reload_seconds."""

    partitions: PositiveInt | None = None
    """Parts that the vectors are searched in, each by itself; unset: those that the index is stored in."""
    cluster: ServeCluster = field(default_factory=ServeCluster)
    """Location of the partitions: with `cluster=ray` each in its own process, on any machine of the cluster."""


@verb(
    ServeCommand,
    "npmlm serve index=DIR port=8080",
    "index files encoder host port key_file examples log timeout_seconds reload_seconds fill.k device precision",
    required=None,
    presets="cluster",
    groups={
        "fill": "k occurrences min_share min_confidence reader overlaps retrieval bm25_blocks literal_weight where",
        "fill.scoring": "",
    },
)
def run_serve(settings: ServeCommand) -> int:
    """Serve until a signal."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise SettingError(
            f"npmlm serve requires {error.name}: pip install fastapi uvicorn prometheus-client"
        ) from error
    from npm.indexing.inspect import index_encoder
    from npm.indexing.partitions import local_searcher
    from npm.serving.server import serve

    if bool(settings.index) == bool(settings.files):
        raise exclusive("index=DIR", "files") if settings.index else missing("index", "index=DIR or files=FOLDER")
    followed = _FollowedFiles(settings) if settings.files else None
    folder = Path(settings.index) if followed is None else followed.folder

    def load_encoder() -> Encoder:
        if followed is not None:
            return followed.encoder
        return index_encoder(folder, settings.encoder, device=settings.device, dtype=settings.precision)

    with ExitStack() as stack:
        open_searcher = None
        if settings.cluster.engine == "ray":
            from npm.cluster.ray_partitions import serving_on_ray

            timeout_seconds = settings.timeout_seconds
            on_ray = serving_on_ray(settings.cluster, settings.partitions, timeout_seconds=timeout_seconds, notice=say)
            open_searcher = stack.enter_context(on_ray)
        elif settings.partitions is not None:
            open_searcher = local_searcher(settings.partitions)
        refresh = None if followed is None else followed.refresh
        serve(folder, load_encoder, settings, notice=say, open_searcher=open_searcher, refresh=refresh)
    return 0


class _FollowedFiles:
    """Files and their index of words in the user's cache."""

    def __init__(self, settings: ServeCommand) -> None:
        from npm.indexing.sync import files_index

        self._files = settings.files
        self.encoder = settings.load_reading_encoder()
        self._seen = self._state()
        with StageProgress() as progress:
            self.folder = files_index(self._files, self.encoder, progress=progress, notice=progress.say)[0]

    def _state(self) -> list[tuple[str, int, int]]:
        """Path, size and time of each file; addresses and data sets are not followed."""
        from npm.corpus.sources import find_sources

        paths = [Path(source.path) for source in find_sources(self._files)]
        return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths if path.is_file()]

    def refresh(self) -> None:
        """Bring the index up to date if a file was changed, came or went."""
        from npm.indexing.sync import files_index

        state = self._state()
        if state != self._seen:
            files_index(self._files, self.encoder, notice=say)
            self._seen = state
