"""Settings of the server."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from pydantic import Field

from npm.core.errors import SettingError
from npm.core.settings import PathText, Settings
from npm.retrieval.settings import FillSettings

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts that this machine alone can reach."""
TOKENS_PER_BATCH = 2048
"""Of what a batch of texts reads: sorted by length and encoded in several parts, it is padded less than in one."""

CLIENT_HEADERS = frozenset(
    {"accept", "authorization", "connection", "cookie", "date", "dnt", "expect", "forwarded", "from", "host", "origin"}
    | {"pragma", "priority", "range", "referer", "te", "upgrade", "user-agent", "via", "x-api-key", "x-request-id"}
)
CLIENT_PREFIXES = ("accept-", "access-control-", "cache-", "content-", "if-", "proxy-", "sec-", "x-forwarded-")
"""Headers that clients and proxies send without any login."""


class ServeSettings(Settings):
    """Address, access and limits of the server. Without slots, as a command extends it."""

    host: str = "127.0.0.1"
    """Address to listen at; the default answers this machine alone, 0.0.0.0 all that reach it."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    """Port to listen at; 0 takes a free one, which is printed."""
    key_file: PathText = ""
    """File with the keys that clients may send, one a line, at least 8 characters each, read again when it changes;
    unset: no key is required."""
    trusted_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]*$")] = ""
    """Header that a reverse proxy on this machine sets after its own login, such as X-Remote-User; a request needs it,
    or a key of key_file. Only on a loopback host, and only if the proxy replaces what clients send; unset: none."""
    cors: list[str] = field(default_factory=list)
    """Origins whose web pages may ask, such as https://example.org; empty: none but the server's own page."""
    examples: PathText = ""
    """File with texts that the page offers, one per line, and headings after #; unset: first sentences of documents."""
    about: str = ""
    """Line about the corpus, for the page."""
    max_body_bytes: Annotated[int, Field(ge=1_000, le=1_000_000_000)] = 1_000_000
    """Longest request body; longer ones are refused with 413."""
    texts_per_request: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Texts of a request at most."""
    queue_texts: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    """Texts that wait at most; a request that would exceed it is refused with 429."""
    batch_texts: Annotated[int, Field(ge=1, le=10_000)] = 16
    """Waiting texts that are encoded together. As in a list of texts, in bfloat16 scores depend on the other texts,
    by about 0.02, and now and then the order of phrases; with 1 an answer never depends on what others ask, at about a
    fifth less throughput."""
    timeout_seconds: Annotated[float, Field(gt=0, le=3_600)] = 10.0
    """Longest time for an answer, from the arrival of the request; 504 after it. A client may ask for less."""
    grace_seconds: Annotated[float, Field(ge=0, le=3_600)] = 10.0
    """Time that accepted requests have to finish once the server is shutting down."""
    reload_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = 5.0
    """Interval of checks for a new generation of the index; null: never."""
    log: PathText = ""
    """File for a line of JSON a request, or - for standard error; unset: none."""
    log_texts: bool = False
    """Log the texts of /v1/fill and /v1/trace too, which may be private."""
    unanswered: PathText = ""
    """File for a line of JSON per question without a likely answer: time, text, closest phrase and document, nothing
    about who asked; unset: none."""
    fill: FillSettings = field(default_factory=lambda: FillSettings(tokens_per_batch=TOKENS_PER_BATCH))
    """Defaults of filling where a request does not say; `documents` and `where` are defaults too, not a lock."""

    def check(self) -> None:
        """Raise SettingError for a queue that could not hold one request, or access that others could use."""
        if self.queue_texts < self.texts_per_request:
            raise SettingError(
                f"queue_texts must be at least texts_per_request={self.texts_per_request}, got {self.queue_texts}"
            )
        name = self.trusted_header.lower()
        if name in CLIENT_HEADERS or name.startswith(CLIENT_PREFIXES):
            raise SettingError(
                f"trusted_header={self.trusted_header} is sent without any login: choose a header that the proxy sets, "
                "such as X-Remote-User"
            )
        if self.trusted_header and self.host not in LOOPBACK:
            raise SettingError(
                f"trusted_header={self.trusted_header} could be sent by everybody who reaches host={self.host}: "
                "listen on 127.0.0.1, behind the proxy that sets it"
            )
        if "*" in self.cors and (self.key_file or self.trusted_header):
            raise SettingError("cors=[*] would let every web page use the keys or the login: name the origins")
