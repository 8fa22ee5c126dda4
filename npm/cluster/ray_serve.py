"""The partitions of a served index on Ray: a deployment each, with replicas that Ray restarts, asked through handles.

Every machine of the cluster sees the folder of the index under the same path, and reads its own partitions of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import RowSet, ShardedArray
from index.types import Hits
from npm.cluster.partitions import open_part, served_count
from npm.cluster.ray_engine import connect
from npm.cluster.settings import ServeCluster
from npm.errors import ArtefactError, SettingError, UserError
from npm.indexing.generation import Generation
from npm.indexing.phrase_index import OpenSearcher
from npm.retrieval.queries import shown_start
from npm.serving.partitions import ServedPartitions

MOST_FETCHED_SCORES = 1 << 20
"""Scores of all queries at all allowed rows come in one call up to this many."""
CHECK_TIMEOUT_SECONDS = 2.0
MOST_CALLS = 64
"""That a replica works on at once, checks among them."""
MOST_SHOWN_CHARS = 300
Packed = np.ndarray | tuple[np.ndarray, int] | None
"""Allowed rows on their way: i64 [m], the bits and the length of a set, or all rows."""


class Partition:
    """What runs in a replica: the searcher of one partition of one generation."""

    def __init__(self, folder: str, number: int, count: int, digest: str) -> None:
        self._searcher = open_part(Path(folder), number, count=count, digest=digest)

    def facts(self) -> tuple[int, int, int]:
        """Rows, dimensions, and queries that one scan may hold."""
        searcher = self._searcher
        return searcher.row_count, searcher.dimensions, searcher.max_queries_per_scan

    # In threads, so that a long scan does not keep the replica from saying that it is there.

    async def top(self, queries: np.ndarray, allowed: Packed, k: int) -> Hits:
        """The k best allowed rows of `queries` f32 [q, d]."""
        rows = RowSet(*allowed) if isinstance(allowed, tuple) else allowed
        return await asyncio.to_thread(lambda: self._searcher.scan(queries, rows).top(k))

    async def at(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Scores f32 [q, n] of all of `queries` f32 [q, d] at `rows` i64 [n]."""
        scan = self._searcher.scan(queries, np.zeros(0, dtype=np.int64))
        return await asyncio.to_thread(
            lambda: np.stack([scan.at(query, rows) for query in range(len(queries))])  # f32 [q, n]
        )


class RayPart:
    """A partition behind its handle, as a searcher. Calls end after `timeout_seconds`, with ConnectionError."""

    def __init__(self, handle: Any, *, timeout_seconds: float) -> None:
        self._handle, self._timeout_seconds = handle, timeout_seconds
        self.row_count, self.dimensions, self.max_queries_per_scan = self.call("facts")

    def call(self, method: str, *arguments: Any, timeout_seconds: float | None = None) -> Any:
        """What a method of `Partition` returns. Raises its UserError, or ConnectionError if nothing answers."""
        # A handle waits for a replica as long as it takes, so that every wait has an end of its own.
        wanted = getattr(self._handle, method).remote(*arguments)
        try:
            return wanted.result(timeout_s=timeout_seconds or self._timeout_seconds)
        except Exception as error:
            if isinstance(cause := getattr(error, "cause", error), UserError):
                raise cause from error
            with suppress(Exception):
                wanted.cancel()
            raise ConnectionError(f"{type(error).__name__}: {error}") from error

    def check(self) -> None:
        """Raise ConnectionError unless it answers."""
        self.call("facts", timeout_seconds=CHECK_TIMEOUT_SECONDS)

    def scan(self, queries: np.ndarray, allowed: np.ndarray | RowSet | None = None) -> RayScan:
        """A scan of `queries` f32 [q, d]; nothing is asked before its hits or scores are."""
        return RayScan(self, queries, allowed)


class RayScan:
    """One batch of queries against one partition."""

    def __init__(self, part: RayPart, queries: np.ndarray, allowed: np.ndarray | RowSet | None) -> None:
        self._part, self._queries, self._allowed = part, queries, allowed
        self._fetched: np.ndarray | None = None  # f32 [q, m]

    def top(self, k: int) -> Hits:
        """The k best allowed rows of every query."""
        allowed = self._allowed
        packed = (allowed.bits, allowed.row_count) if isinstance(allowed, RowSet) else allowed
        hits: Hits = self._part.call("top", self._queries, packed, k)
        return hits

    def at(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Scores of one query at `rows` i64 [...]: f32 [...]."""
        rows, allowed = np.asarray(rows, dtype=np.int64), self._allowed
        if isinstance(allowed, np.ndarray) and 0 < len(allowed) * len(self._queries) <= MOST_FETCHED_SCORES:
            # some blocks' rows, as a rule: start and end are asked for them several times
            places = np.minimum(np.searchsorted(allowed, rows), len(allowed) - 1)  # i64 [...]
            if np.array_equal(allowed[places], rows):
                if self._fetched is None:
                    self._fetched = self._part.call("at", self._queries, allowed)  # f32 [q, m]
                scores: np.ndarray = self._fetched[query, places]  # f32 [...]
                return scores
        flat: np.ndarray = self._part.call("at", self._queries[query][None], rows.reshape(-1))[0]  # f32 [n]
        return flat.reshape(rows.shape)  # f32 [...]


@contextmanager
def serving_on_ray(
    settings: ServeCluster, partitions: int | None, *, timeout_seconds: float, notice: Callable[[str], None]
) -> Iterator[OpenSearcher]:
    """What opens the searcher of a generation on Ray, in `partitions` or in those it is stored in.

    Deployments end when this is left; `notice` is told of partitions that are lost meanwhile. Raises SettingError as
    `connect` does; what it gives raises as `open_part` does.
    """
    with connect(settings):
        from ray import serve

        serve.start(proxy_location="Disabled", logging_config={"enable_access_log": False, "log_level": "ERROR"})
        logging.getLogger("ray.serve").setLevel(logging.ERROR)  # what happens to partitions is said once, by `notice`
        openings, names = count(), set[str]()

        def remove(own: list[str]) -> None:
            for name in names.intersection(own):
                names.remove(name)
                with suppress(Exception):  # a cluster that is gone has no deployments either
                    serve.delete(name, _blocking=False)

        def opened(generation: Generation, _: ShardedArray) -> ServedPartitions:
            wanted, digest = served_count(generation, partitions), generation.manifest.digest
            _check_room(wanted * settings.replicas * settings.cpus_per_replica)
            # several servers may share a cluster, and a server opens a new generation beside the old one
            prefix = f"npmlm-{os.uname().nodename}-{os.getpid()}-{next(openings)}"
            own = [f"{prefix}-{number}" for number in range(wanted)]
            deployment = serve.deployment(
                num_replicas=settings.replicas,
                ray_actor_options={"num_cpus": settings.cpus_per_replica},
                max_ongoing_requests=MOST_CALLS,
                max_constructor_retry_count=2,
                health_check_period_s=1,
                health_check_timeout_s=5,
                graceful_shutdown_timeout_s=timeout_seconds,
            )(Partition)
            folder = str(generation.folder.resolve())
            targets = [
                serve.RunTarget(deployment.bind(folder, number, wanted, digest), name=name, route_prefix=None)
                for number, name in enumerate(own)
            ]
            names.update(own)
            try:
                handles = serve.run_many(targets)
                parts = [RayPart(handle, timeout_seconds=timeout_seconds) for handle in handles]
            except BaseException as error:
                remove(own)
                if isinstance(error, RuntimeError | ConnectionError):
                    raise _not_started(generation.folder, error) from error
                raise
            return ServedPartitions(parts, notice=notice, closed=lambda: remove(own))

        try:
            yield opened
        finally:
            remove(list(names))


def _check_room(cpus: float) -> None:
    """Raise SettingError if the cluster has fewer processor cores, for which Ray would wait without an end."""
    import ray

    if (there := ray.cluster_resources().get("CPU", 0.0)) < cpus:
        raise SettingError(
            "the partitions have no room in the cluster",
            expected=f"{cpus:g} processor cores, cpus_per_replica for each replica of each partition",
            got=f"{there:g}",
            where="cluster.cpus_per_replica",
            fix="lower cluster.cpus_per_replica, such as to 0.5, or add machines",
        )


def _not_started(folder: Path, error: Exception) -> ArtefactError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ArtefactError(
        "the partitions do not start",
        expected="that every machine of the cluster opens the index under the same path, with this version of npmlm",
        got=shown_start(lines[-1] if lines else type(error).__name__, MOST_SHOWN_CHARS),
        where=str(folder),
        fix="put the index where all machines see it; the logs of Ray say more",
    )
