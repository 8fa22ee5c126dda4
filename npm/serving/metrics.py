"""What the server counts and times, in the text format of Prometheus. Labels never hold a text or an id."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

METRICS_MEDIA_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper ends of the bins of times."""
TEXTS = (1, 2, 4, 8, 16, 32, 64)


class ServerMetrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "npmlm_requests", "Requests by route and status.", ["route", "status"], registry=registry
        )
        self._rejected = Counter("npmlm_rejected", "Texts or requests not answered.", ["reason"], registry=registry)
        self._reloads = Counter(
            "npmlm_reloads", "New generations of the index taken up.", ["result"], registry=registry
        )
        self.request_seconds = self._histogram("npmlm_request_seconds", "From arrival to the end of the answer.")
        self.queue_seconds = self._histogram("npmlm_queue_seconds", "Wait of a text for the computing thread.")
        self.encode_seconds = self._histogram("npmlm_encode_seconds", "Encoding of the texts of a batch.")
        self.search_seconds = self._histogram(
            "npmlm_search_seconds", "Search and scoring for the texts of a batch, with reading of blocks."
        )
        self.batch_texts = Histogram("npmlm_batch_texts", "Texts computed together.", buckets=TEXTS, registry=registry)
        self.queue_texts = Gauge("npmlm_queue_texts", "Texts that wait.", registry=registry)
        self.partitions_lost = Gauge(
            "npmlm_partitions_lost", "Partitions of the index that do not answer.", registry=registry
        )
        self._index = {
            name: Gauge(f"npmlm_index_{name}", f"The index that answers: {name}.", registry=registry)
            for name in ("documents", "rows", "generation")
        }

    def _histogram(self, name: str, what: str) -> Histogram:
        return Histogram(name, what, buckets=SECONDS, registry=self._registry)

    def requested(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(route, str(status)).inc()
        self.request_seconds.observe(seconds)

    def rejected(self, reason: str) -> None:
        """Count a request that was not let in."""
        self._rejected.labels(reason).inc()

    def abandoned(self, count: int) -> None:
        """Count texts that were dropped before they were computed."""
        self._rejected.labels("abandoned").inc(count)

    def reloaded(self, result: str) -> None:
        """Count an attempt to take up a new generation: `taken` or `failed`."""
        self._reloads.labels(result).inc()

    def index_is(self, *, documents: int, rows: int, generation: int) -> None:
        """Say what answers now."""
        for name, value in {"documents": documents, "rows": rows, "generation": generation}.items():
            self._index[name].set(value)

    def text(self) -> bytes:
        """All of them."""
        return generate_latest(self._registry)
