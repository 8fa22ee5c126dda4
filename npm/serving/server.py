"""The process that serves: a socket, an opened index, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from math import ceil
from pathlib import Path
from types import FrameType
from typing import BinaryIO

import uvicorn
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from npm.core.errors import SettingError, StorageError
from npm.indexing.phrase_index import OpenSearcher
from npm.models.encoder import Encoder
from npm.models.memory import share_one_heap
from npm.serving.app import make_app
from npm.serving.batcher import Batcher
from npm.serving.metrics import ServerMetrics
from npm.serving.middleware import ClientKeys, RequestMiddleware
from npm.serving.opened import OpenedIndex
from npm.serving.reload import IndexReloader
from npm.serving.service import Service
from npm.serving.settings import LOOPBACK, ServeSettings

MAX_CONNECTIONS = 1024
"""Connections open at once; fewer where the process may not open four times as many files."""
HEADER_SECONDS = 10
"""Longest wait for the first request of a connection."""
KEEP_ALIVE_SECONDS = 75
"""An idle connection is kept for longer than proxies keep theirs, which would send a request into a closing one."""


class Connection(H11Protocol):
    """uvicorn's connection, closed unless complete headers arrive in time; the oldest idle one yields to a new one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Start the timer that uvicorn starts after a response only."""
        super().connection_made(transport)
        self.since = self.loop.time()
        self.timeout_keep_alive_task = self.loop.call_later(HEADER_SECONDS, self.timeout_keep_alive_handler)
        if len(self.connections) >= (self.limit_concurrency or MAX_CONNECTIONS):
            connections = (each for each in self.connections if isinstance(each, Connection))
            idle = (each for each in connections if each.cycle is None or each.cycle.response_complete)
            oldest = min(idle, key=lambda each: each.since)
            self.connections.discard(oldest)
            oldest.transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse `data`; the timer is stopped by complete headers, and not by every byte as uvicorn does."""
        self.conn.receive_data(data)
        self.handle_events()


class Server(uvicorn.Server):
    """uvicorn's server, which says when it is ready and ends by itself after SIGTERM or SIGINT."""

    def __init__(self, config: uvicorn.Config, service: Service, address: str) -> None:
        super().__init__(config)
        self._service, self._address = service, address
        self.interrupted = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, and say so."""
        await super().startup(sockets=sockets)
        if self.started:
            self._service.notice(f"serving on {self._address}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take nothing new, and finish what was accepted; a second interruption ends at once."""
        self._service.ready = False
        self.interrupted = self.interrupted or sig == signal.SIGINT
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle the signals that end the server, here alone: uvicorn would raise them again afterwards."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(
    folder: Path,
    load_encoder: Callable[[], Encoder],
    settings: ServeSettings,
    *,
    notice: Callable[[str], None],
    open_searcher: OpenSearcher | None = None,
    refresh: Callable[[], None] | None = None,
) -> None:
    """Serve the index in `folder` until SIGTERM or SIGINT, and finish what was accepted.

    `load_encoder`, which gives the encoder of the index, is called when keys, log and address have been found right;
    `open_searcher` as in `PhraseIndex.open`, `refresh` as in `IndexReloader`. `notice` gets the line
    `serving on http://HOST:PORT`, and what happens to the index. Raises SettingError, StorageError, ArtifactError, and
    KeyboardInterrupt after SIGINT.
    """
    keys = ClientKeys(settings.key_file, notice) if settings.key_file else None
    with contextlib.ExitStack() as stack:
        log, unanswered = (
            stack.enter_context(opened_log(file, setting)) if file else None
            for setting, file in (("log", settings.log), ("unanswered", settings.unanswered))
        )
        listener = stack.enter_context(bound_socket(settings))
        share_one_heap()  # before there is a second thread
        metrics, encoder = ServerMetrics(), load_encoder()
        open_index = partial(OpenedIndex.open, folder, encoder, settings, open_searcher=open_searcher)
        reloader = IndexReloader(open_index, settings, metrics=metrics, notice=notice, refresh=refresh)
        batcher = Batcher(most_waiting=settings.queue_texts, batch_texts=settings.batch_texts, metrics=metrics)
        service = Service(settings, reloader, metrics, batcher, notice, unanswered)
        if settings.host not in LOOPBACK and keys is None:
            notice(f"warning: whoever reaches {settings.host} may read the corpus: there is no key_file=")
        app: ASGIApp = RequestMiddleware(make_app(service), settings, keys, metrics, log, notice)
        if settings.cors:  # around all else, so that a page of these origins can read a refusal too
            app = CORSMiddleware(
                app,
                allow_origins=settings.cors,
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type", "X-API-Key", "X-Request-ID"],
                expose_headers=["ETag", "Retry-After", "X-Request-ID"],
            )
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, files // 4)
        config = uvicorn.Config(
            app,
            http=Connection,
            limit_concurrency=most,
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=most,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=ceil(settings.grace_seconds),
        )
        host, port = settings.host, listener.getsockname()[1]
        server = Server(config, service, f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
        listen(listener, settings)
        server.run(sockets=[listener])
    if server.interrupted:
        raise KeyboardInterrupt


def listen(listener: socket.socket, settings: ServeSettings) -> None:
    """Accept connections, which uvicorn then answers. Raises SettingError if another process does so by now."""
    try:
        listener.listen()
    except OSError as error:
        raise _unusable_address(settings, error) from error


def _unusable_address(settings: ServeSettings, error: Exception) -> SettingError:
    reason = getattr(error, "strerror", None) or error
    return SettingError(f"cannot bind to host={settings.host} port={settings.port}: {reason}; port=0 takes a free port")


def bound_socket(settings: ServeSettings) -> socket.socket:
    """A socket bound to host and port, before anything that takes time is loaded. Raises SettingError."""
    with contextlib.ExitStack() as stack:
        try:
            family, kind, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
            listener = stack.enter_context(socket.socket(family, kind))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)  # not yet listening: until the index is open, connections are refused
        except (OSError, UnicodeError) as error:  # of a name without letters between two dots
            raise _unusable_address(settings, error) from error
        stack.pop_all()
    return listener


def opened_log(place: str, setting: str = "log") -> BinaryIO:
    """File of a `setting`, to add lines to; - is standard error. Raises StorageError if it cannot be opened."""
    if place == "-":
        return open(2, "ab", buffering=0, closefd=False)
    try:
        return Path(place).open("ab", buffering=0)
    except OSError as error:
        raise StorageError(f"{setting}: cannot write {place}: {error.strerror or error}") from error
