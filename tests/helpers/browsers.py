"""Pages in a real Chromium, watched: no request may leave the server, no error may happen, no policy be violated."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request

HOW_TO = "apt-get install --no-install-recommends chromium, or name one with NPMLM_BROWSER"
PATIENCE_MS = 90_000
"""How long something may take to appear on a machine that runs other tests too."""
REFUSED = "Failed to load resource"
"""What Chromium writes for an answer of 4xx or 5xx, which the page shows itself."""


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Chromium without a window: the one that NPMLM_BROWSER names, else that of the system; skips without one."""
    from playwright.sync_api import sync_playwright

    program = os.environ.get("NPMLM_BROWSER") or shutil.which("chromium")
    if program is None:
        pytest.skip(f"there is no browser: {HOW_TO}")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass  # without slots: playwright puts an attribute of its own into the owner of a handler
class WatchedPages:
    """Opens pages of one server, and holds what went wrong on them."""

    browser: Browser
    address: str
    key: str = ""
    contexts: list[Any] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def open(self, query: str = "", *, with_key: bool = True, **context: Any) -> Page:
        """A page in a browser profile of its own, at `/` and `query`; `context` are playwright's options of it."""
        made = self.browser.new_context(**{"viewport": {"width": 1000, "height": 800}, **context})
        made.set_default_timeout(PATIENCE_MS)
        self.contexts.append(made)
        if with_key and self.key:
            made.add_init_script(f"sessionStorage.setItem('npmlm.key', {self.key!r})")
        page: Page = made.new_page()
        page.on("request", self._requested)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("console", self._told)
        page.goto(f"{self.address}/{query}")
        return page

    def close(self) -> None:
        """Close the pages, and assert that nothing went wrong on them."""
        for context in self.contexts:
            context.close()
        assert not self.faults

    def _requested(self, request: Request) -> None:
        self.requests.append(request)
        if not request.url.startswith(f"{self.address}/"):
            self.faults.append(f"a request leaves the server: {request.url}")

    def _told(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and REFUSED not in message.text:
            self.faults.append(f"console: {message.text}")


def said(page: Page, line: str | re.Pattern[str]) -> None:
    """Wait until the status line of the page at `/` says this."""
    from playwright.sync_api import expect

    expect(page.locator("#status")).to_have_text(line, timeout=PATIENCE_MS)


def answered(page: Page) -> None:
    """Wait until a question is answered."""
    said(page, re.compile(r"in [\d.]+ s$"))


def sources(page: Page, part: str = ".sources > li") -> list[tuple[str, str, list[str]]]:
    """Title, sentence and yellow phrases of the sources on the page."""
    script = """all => all.map(each => [
        each.querySelector(".source").textContent,
        each.querySelector("blockquote").textContent,
        [...each.querySelectorAll("mark:not(.other)")].map(mark => mark.textContent),
    ])"""
    return [(title, text, marks) for title, text, marks in page.locator(part).evaluate_all(script)]


def source_of(page: Page, title: str) -> Locator:
    """The button that opens the passage of a source."""
    return page.locator(".sources .source", has_text=title).first


def accessible(page: Page) -> None:
    """Assert that axe finds nothing."""
    from axe_playwright_python.sync_playwright import Axe

    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()


def fits(page: Page, width: int) -> None:
    """Assert that nothing has to be scrolled sideways."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    too_wide = "each => each.checkVisibility() && each.scrollWidth > each.clientWidth + 1"
    wider = f"all => all.filter({too_wide}).map(each => each.outerHTML)"
    found = page.locator("main, form, .field, li, dialog[open], #passage-text").evaluate_all(wider)
    assert found == [], found
