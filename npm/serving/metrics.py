"""Counts and times of the server in the text format of Prometheus. Labels never hold a text or an id."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

if TYPE_CHECKING:
    from npm.serving.replies import IndexFacts


class ServerMetrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self.requests = counter("npmlm_requests", "Requests by route and status.", ["route", "status"])
        self._rejected = counter("npmlm_rejected", "Texts or requests not answered.", ["reason"])
        self.reloads = counter("npmlm_reloads", "New generations of the index: taken, or failed.", ["result"])
        self.request_seconds = histogram("npmlm_request_seconds", "From arrival to the end of the answer.")
        self.queue_seconds = histogram("npmlm_queue_seconds", "Wait of a text for the computing thread.")
        bins = (1, 2, 4, 8, 16, 32, 64)
        self.batch_texts = histogram("npmlm_batch_texts", "Texts computed together.", buckets=bins)
        self.queue_texts = gauge("npmlm_queue_texts", "Texts that wait.")
        self.partitions_lost = gauge("npmlm_partitions_lost", "Partitions of the index that do not answer.")
        names = ("documents", "rows", "generation")
        self._index = {name: gauge(f"npmlm_index_{name}", f"The index that answers: {name}.") for name in names}

    def rejected(self, reason: str, count: int = 1) -> None:
        """Count requests, or texts, that are not answered."""
        self._rejected.labels(reason).inc(count)

    def index_is(self, facts: IndexFacts) -> None:
        """Record which index answers now."""
        for name, value in self._index.items():
            value.set(getattr(facts, name))

    def text(self) -> bytes:
        """All of them."""
        return generate_latest(self._registry)
