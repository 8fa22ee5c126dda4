from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers.browsers import WatchedPages, running_browser
from tests.helpers.running_server import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

KEY = "a-key-of-the-tests"


@pytest.fixture(scope="package")
def server(built_index: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for all tests that leave it as it is: little room in the queue, little time, a log."""
    log = tmp_path_factory.mktemp("log") / "requests.jsonl"
    limits = ("queue_texts=8", "texts_per_request=8", "timeout_seconds=20", "max_body_bytes=200000")
    settings = (f"log={log}", *limits, "batch_texts=2")
    with RunningServer(built_index, *settings) as running:
        running.url  # noqa: B018 - waits until it answers
        yield running


@pytest.fixture(scope="package")
def log(server: RunningServer) -> Path:
    return Path(next(part for part in server.process.args if str(part).startswith("log=")).removeprefix("log="))


@pytest.fixture(scope="package")
def index_copy(built_index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index that may be changed."""
    return Path(shutil.copytree(built_index, tmp_path_factory.mktemp("copy") / "index"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for the tests of one file: while it runs, its event loop keeps `asyncio.run` from all others."""
    with running_browser() as found:
        yield found


@pytest.fixture(scope="module")
def page_server(
    browser: Browser, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """One server for the tests of a file of the page, started only where there is a browser.

    It says shares, without a reader, unless the file has a READER.
    """
    from tests.serving.shown_page import shown_server

    reader = getattr(request.module, "READER", "none")
    with shown_server(tmp_path_factory.mktemp("page"), f"fill.reader={reader}") as running:
        yield running


@pytest.fixture
def pages(browser: Browser, page_server: RunningServer) -> Iterator[WatchedPages]:
    from tests.serving.shown_page import KEY

    watched = WatchedPages(browser, page_server.url, key=KEY)
    yield watched
    watched.close()
