"""The verbs that answer other programs: `serve` over HTTP, `mcp` as tools of agents."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import PositiveInt

from npm.cli.base import FilesCommand, say
from npm.cli.registry import verb
from npm.cluster.settings import ServeCluster
from npm.core.errors import SettingError
from npm.core.settings import PathText
from npm.retrieval.settings import FillSettings
from npm.serving.settings import ServeSettings

if TYPE_CHECKING:
    from npm.models.encoder import Encoder


class ServeCommand(ServeSettings, FilesCommand):
    """Answer texts over HTTP and on a web page, until the process is stopped."""

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
    from npm.cli.fillers import FollowedFiles
    from npm.indexing.inspect import index_encoder
    from npm.indexing.partitions import local_searcher
    from npm.serving.server import bound_socket, serve

    settings.check_source()
    if settings.files:
        bound_socket(settings).close()  # an address in use is reported before files are read for minutes
    followed = FollowedFiles(settings.files, settings) if settings.files else None
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


class McpCommand(FillSettings, FilesCommand):
    """Answer agents over the Model Context Protocol, on standard input and output, until the client closes them."""


@verb(
    McpCommand,
    "npmlm mcp index=DIR",
    "index files encoder occurrences retrieval documents where min_confidence device precision",
    required=None,
    groups={
        "": "index files encoder device precision occurrences retrieval documents where min_confidence",
        "scoring": "",
    },
)
def run_mcp(settings: McpCommand) -> int:
    """Serve one client."""
    try:
        import mcp.server.mcpserver  # noqa: F401
    except ImportError as error:
        raise SettingError("npmlm mcp requires the package mcp: pip install 'mcp>=2.3'") from error
    from npm.agents import agent_server
    from npm.cli.fillers import chosen_filler
    from npm.indexing.phrase_index import select

    filler = chosen_filler(settings, settings)
    select(filler.index, settings.documents, settings.where)  # a mistake is reported now, not to each call
    agent_server(filler).run("stdio")
    return 0
