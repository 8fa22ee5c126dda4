"""Counts and times of the server in the text format of Prometheus. Labels never hold a text or an id."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper ends of the bins of times."""


class ServerMetrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        counter = partial(Counter, registry=registry)
        seconds = partial(Histogram, buckets=SECONDS, registry=registry)
        gauge = partial(Gauge, registry=registry)
        self.requests = counter("npmlm_requests", "Requests by route and status.", ["route", "status"])
        self._rejected = counter("npmlm_rejected", "Texts or requests not answered.", ["reason"])
        self.reloads = counter("npmlm_reloads", "New generations of the index: taken, or failed.", ["result"])
        self.request_seconds = seconds("npmlm_request_seconds", "From arrival to the end of the answer.")
        self.queue_seconds = seconds("npmlm_queue_seconds", "Wait of a text for the computing thread.")
        self.encode_seconds = seconds("npmlm_encode_seconds", "Encoding of the texts of a batch.")
        self.search_seconds = seconds("npmlm_search_seconds", "Search and scoring of a batch, with reading of blocks.")
        bins = (1, 2, 4, 8, 16, 32, 64)
        self.batch_texts = Histogram("npmlm_batch_texts", "Texts computed together.", buckets=bins, registry=registry)
        self.queue_texts = gauge("npmlm_queue_texts", "Texts that wait.")
        self.partitions_lost = gauge("npmlm_partitions_lost", "Partitions of the index that do not answer.")
        names = ("documents", "rows", "generation")
        self._index = {name: gauge(f"npmlm_index_{name}", f"The index that answers: {name}.") for name in names}

    def rejected(self, reason: str, count: int = 1) -> None:
        """Count requests, or texts, that are not answered."""
        self._rejected.labels(reason).inc(count)

    def index_is(self, *, documents: int, rows: int, generation: int) -> None:
        """Record which index answers now."""
        for name, value in {"documents": documents, "rows": rows, "generation": generation}.items():
            self._index[name].set(value)

    def text(self) -> bytes:
        """All of them."""
        return generate_latest(self._registry)
