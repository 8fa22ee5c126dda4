"""The partitions of a served index on Ray: an actor for each replica, which Ray restarts where it can.

Every machine of the cluster sees the folder of the index under the same path, and reads its own partitions of it.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from index.arrays import ShardedArray
from index.types import Hits, Scan, Searcher
from npm.cluster.ray_builds import connect
from npm.cluster.settings import ServeCluster
from npm.core.errors import ArtifactError, SettingError, UserError, shown_start
from npm.indexing.generation import Generation
from npm.indexing.partitions import open_partition, served_count
from npm.indexing.phrase_index import OpenSearcher
from npm.serving.partitions import ServedPartitions

MOST_FETCHED_SCORES = 1 << 20
"""Scores of all queries at all allowed rows come in one call up to this many."""
CHECK_TIMEOUT_SECONDS, START_TIMEOUT_SECONDS = 2.0, 300.0
MOST_SHOWN_CHARS = 300
KEPT_SCANS, CALLS_AT_ONCE = 4, 16
Allowed = np.ndarray | tuple[np.ndarray, int] | None
"""Allowed rows on their way: i64 [m], the bits and the length of a mask, or all rows."""


class PartitionActor:
    """The searcher of one partition of one generation, in an actor that answers several calls at once.

    It is opened at the first call, and again at the next one where that failed: an actor whose beginning fails is gone
    for good. The latest scans are kept, since their scores are asked for again; another replica computes them.
    """

    def __init__(self, folder: str, number: int, count: int, digest: str) -> None:
        self._open = partial(open_partition, Path(folder), number, count=count, digest=digest)
        self._opening = threading.Lock()
        self._opened: Searcher | None = None
        self._scans: dict[str, Scan] = {}

    def facts(self) -> tuple[int, int, int]:
        """Rows, dimensions, and queries that one scan may hold."""
        searcher = self._searcher()
        return searcher.row_count, searcher.dimensions, searcher.max_queries_per_scan

    def top(self, scan: str, queries: np.ndarray, allowed: Allowed, k: int) -> Hits:
        """The k best allowed rows of `queries` f32 [q, d], of the scan of this name."""
        opened = self._scans[scan] = self._scan(queries, allowed)
        for old in list(self._scans)[:-KEPT_SCANS]:
            self._scans.pop(old, None)
        return opened.top(k)

    def at(
        self, scan: str, queries: np.ndarray, allowed: Allowed, chosen: Sequence[int], rows: np.ndarray
    ) -> np.ndarray:
        """Scores f32 [c, n] of the `chosen` ones of `queries` f32 [q, d] at `rows` i64 [n], in this scan."""
        opened = self._scans.get(scan) or self._scan(queries, allowed)
        return np.stack([opened.at(query, rows) for query in chosen])  # f32 [c, n]

    def _scan(self, queries: np.ndarray, allowed: Allowed) -> Scan:
        if isinstance(allowed, tuple):
            allowed = np.unpackbits(allowed[0], count=allowed[1]).view(np.bool_)  # bool [rows]
        return self._searcher().scan(queries, allowed)

    def _searcher(self) -> Searcher:
        with self._opening:
            if self._opened is None:
                self._opened = self._open()
            return self._opened


class RayPart:
    """A partition as a searcher: one of its replicas is asked, and another one as soon as that does not answer."""

    def __init__(self, replicas: Sequence[Any], *, timeout_seconds: float, ended: threading.Event) -> None:
        import ray

        self._replicas, self._timeout_seconds = list(replicas), timeout_seconds
        begun, end = self._replicas[0].facts.remote(), monotonic() + START_TIMEOUT_SECONDS
        while not ray.wait([begun], timeout=1.0)[0]:
            if ended.is_set() or monotonic() > end:
                raise ConnectionError(f"no answer within {START_TIMEOUT_SECONDS:.0f} s")
        facts = self.call("facts")
        self.row_count, self.dimensions, self.max_queries_per_scan = facts

    def call(self, method: str, *arguments: Any, timeout_seconds: float | None = None) -> Any:
        """Result of a method of `PartitionActor`. Raises its UserError, or ConnectionError if no replica answers."""
        import ray

        end, failure = monotonic() + (timeout_seconds or self._timeout_seconds), ""
        replicas = list(self._replicas)
        for left, replica in zip(range(len(replicas), 0, -1), replicas, strict=True):
            # Ray would wait for an actor as long as it takes, so every wait has an end, and leaves time for the others
            wanted = getattr(replica, method).remote(*arguments)
            try:
                return ray.get(wanted, timeout=max(0.0, end - monotonic()) / left)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, UserError):
                    raise error.cause from error
                raise
            except ray.exceptions.RayError as error:
                failure = f"{type(error).__name__}: {error}"
                self._replicas = [*(each for each in self._replicas if each is not replica), replica]
        raise ConnectionError(failure)

    def check(self) -> None:
        """Raise ConnectionError unless it answers."""
        self.call("facts", timeout_seconds=CHECK_TIMEOUT_SECONDS)

    def close(self) -> None:
        """End the replicas, which do so too when nobody holds this any more."""
        self._replicas.clear()

    def scan(self, queries: np.ndarray, allowed: np.ndarray | None = None) -> RayScan:
        """A scan of `queries` f32 [q, d]; nothing is asked before its hits or scores are."""
        return RayScan(self, queries, allowed)


class RayScan:
    """One batch of queries against one partition."""

    def __init__(self, part: RayPart, queries: np.ndarray, allowed: np.ndarray | None) -> None:
        self._part, self._queries, self._allowed = part, queries, allowed
        self._allowed_rows = np.zeros(0, dtype=np.int64)  # i64 [m]
        if allowed is not None and allowed.dtype != np.bool_:
            self._allowed_rows = allowed
        self._name = uuid.uuid4().hex
        self._fetched: np.ndarray | None = None  # f32 [q, m]

    def top(self, k: int) -> Hits:
        """The k best allowed rows of every query."""
        allowed: Allowed = self._allowed
        if isinstance(allowed, np.ndarray) and allowed.dtype == np.bool_:
            allowed = np.packbits(allowed), len(allowed)
        hits: Hits = self._part.call("top", self._name, self._queries, allowed, k)
        return hits

    def at(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Scores of one query at `rows` i64 [...]: f32 [...]."""
        rows, allowed = np.asarray(rows, dtype=np.int64), self._allowed_rows
        if 0 < len(allowed) * len(self._queries) <= MOST_FETCHED_SCORES:
            # some blocks' rows, as a rule: start and end are asked for them several times
            places = np.minimum(np.searchsorted(allowed, rows), len(allowed) - 1)  # i64 [...]
            if np.array_equal(allowed[places], rows):
                if self._fetched is None:
                    self._fetched = self._at(range(len(self._queries)), allowed)  # f32 [q, m]
                scores: np.ndarray = self._fetched[query, places]  # f32 [...]
                return scores
        return self._at([query], rows.reshape(-1))[0].reshape(rows.shape)  # f32 [...]

    def _at(self, queries: Sequence[int], rows: np.ndarray) -> np.ndarray:
        # some rows are scanned as in one index, for equal scores; of many, only what is asked is computed again
        scores: np.ndarray = self._part.call(
            "at", self._name, self._queries, self._allowed_rows, list(queries), rows
        )  # f32 [c, n]
        return scores


@contextmanager
def serving_on_ray(
    settings: ServeCluster, partitions: int | None, *, timeout_seconds: float, notice: Callable[[str], None]
) -> Iterator[OpenSearcher]:
    """Function that opens the searcher of a generation on Ray, in `partitions` or in those it is stored in.

    Actors end when this is left; `notice` is told of partitions that are lost meanwhile. Raises SettingError as
    `connect` does; what it gives raises as `open_partition` does.
    """

    def opened(generation: Generation, _: ShardedArray) -> ServedPartitions:
        import ray

        wanted, digest = served_count(generation, partitions), generation.manifest.digest
        cpus, free = wanted * settings.replicas * settings.cpus_per_replica, ray.available_resources().get("CPU", 0.0)
        if free < cpus:  # Ray would wait without an end
            raise SettingError(
                f"the partitions need {cpus:g} free cores, but the cluster has {free:g}: lower "
                "cluster.cpus_per_replica, or add machines"
            )
        actor = ray.remote(PartitionActor).options(
            num_cpus=settings.cpus_per_replica,
            max_restarts=-1,
            max_concurrency=CALLS_AT_ONCE,  # so that a long scan does not keep it from saying that it is there
            scheduling_strategy="SPREAD",
        )
        folder = str(generation.folder.resolve())
        actors = [
            [actor.remote(folder, number, wanted, digest) for _ in range(settings.replicas)] for number in range(wanted)
        ]

        try:
            parts = [RayPart(own, timeout_seconds=timeout_seconds, ended=ended) for own in actors]
        except ConnectionError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = shown_start(lines[-1] if lines else type(error).__name__, MOST_SHOWN_CHARS)
            raise ArtifactError(
                f"the partitions of {generation.folder} do not start ({reason}): every machine needs the index under "
                "the same path and this version of npmlm; see the logs of Ray"
            ) from error
        served[:] = [*(each for each in served if not each.closed), ServedPartitions(parts, notice=notice)]
        return served[-1]

    served, ended = list[ServedPartitions](), threading.Event()
    with connect(settings):
        try:
            yield opened
        finally:
            ended.set()
            for each in served:
                each.close()
