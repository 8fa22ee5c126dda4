"""`npmlm serve`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import PositiveInt

from npm.cli.base import EncoderCommand, say
from npm.cli.registry import verb
from npm.cluster.settings import ServeCluster
from npm.core.errors import SettingError
from npm.serving.settings import ServeSettings

if TYPE_CHECKING:
    from npm.models.encoder import Encoder


class ServeCommand(ServeSettings, EncoderCommand):
    """Answer texts over HTTP and on a web page, until the process is stopped."""

    partitions: PositiveInt | None = None
    """Parts that the vectors are searched in, each by itself; unset: those that the index is stored in."""
    cluster: ServeCluster = field(default_factory=ServeCluster)
    """Location of the partitions: with `cluster=ray` each in its own process, on any machine of the cluster."""


@verb(
    ServeCommand,
    "npmlm serve index=DIR port=8080",
    "index encoder host port key_file examples log timeout_seconds reload_seconds partitions fill.k device precision",
    presets="cluster",
    groups={
        "fill": "k occurrences min_share min_confidence overlaps retrieval literal_weight where",
        "fill.scoring": "",
        "cluster": "address replicas cpus_per_replica",
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
    from npm.indexing.partitions import local_searcher
    from npm.indexing.verify import index_encoder
    from npm.serving.server import serve

    folder = Path(settings.index)

    def load_encoder() -> Encoder:
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
        serve(folder, load_encoder, settings, notice=say, open_searcher=open_searcher)
    return 0
