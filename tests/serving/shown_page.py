"""A server whose corpus is hard to show, its page in a real browser, and what tests read of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from npm.api import build
from tests.helpers.browsers import (
    PATIENCE_MS,
    WatchedPages,
)
from tests.helpers.command_line import write_corpus
from tests.helpers.running_server import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

NO_EXTRA = "the extra browser is not installed: pip install '.[browser]'"
expect = pytest.importorskip("playwright.sync_api", reason=NO_EXTRA).expect
expect.set_options(timeout=PATIENCE_MS)
pytest.importorskip("axe_playwright_python.sync_playwright", reason=NO_EXTRA)

KEY = "a-key-of-the-page"
QUESTION = "The capital of Iceland is <mask>."
MARKUP = "<img src=x onerror=\"document.title='run'\"> <script>document.title='run'</script>"
FILLER = "Much is said here of other things that nobody asks about, one sentence after another. " * 60
DOCUMENTS: list[dict[str, Any]] = [
    {
        "id": "iceland",
        "title": "Iceland 😀",
        "text": "😀 𝔘 👩‍🚀 Reykjavík is the capital of Iceland. It is 🜨 small.",
        "lang": "en",
    },
    {"id": "town/1", "title": "Harbours", "text": "The capital of Iceland is Reykjavík, on Faxaflói.", "lang": "en"},
    {"id": "long", "title": "Journeys", "text": f"{FILLER}🜨 Reykjavík, the capital of Iceland. {FILLER}", "lang": "en"},
    {"id": "island", "title": "Ísland", "text": "Höfuðborg Iceland: capital Reykjavík.", "lang": "is"},
    {"id": "markup", "title": f"Tags {MARKUP}", "text": f"The tag of Zork is {MARKUP} Gnusto, a word.", "lang": "en"},
    {"id": "norway", "title": "Norway", "text": "Norway's capital, Oslo, lies at the end of a fjord.", "lang": "en"},
    {"id": "cheese", "title": "Cheese", "text": "Brie is a soft cheese. Gouda is a hard cheese.", "lang": "en"},
    {"id": "river", "title": "Rhine", "text": "The Rhine is a river that flows to the North Sea.", "lang": "en"},
]
TEXTS = {str(document["id"]): str(document["text"]) for document in DOCUMENTS}


@contextmanager
def shown_server(folder: Path, *more: str) -> Iterator[RunningServer]:
    """A server over the documents, with a key; `more` are further settings."""
    build(write_corpus(folder / "corpus.jsonl", DOCUMENTS), folder / "index", **{"corpus.kept_fields": ["lang"]})
    keys, examples = folder / "keys", folder / "examples"
    keys.write_text(f"{KEY}\n", encoding="utf-8")
    examples.write_text(f"{QUESTION}\n# Rivers\nThe <mask> flows to the North Sea.\n", encoding="utf-8")
    # a random encoder: with overlaps merged, or with literal evidence, little would be left to look at
    plain = ("fill.overlaps=keep", "fill.literal_weight=0")
    given = (f"key_file={keys}", f"examples={examples}", "about=Eight short texts", *plain, *more)
    with RunningServer(folder / "index", *given) as running:
        yield running


def link(text: str = QUESTION, **settings: Any) -> str:
    """The address that asks a text."""
    return f"?{urlencode({'text': text, **settings}, doseq=True)}"


def answer(server: RunningServer, **body: Any) -> dict[str, Any]:
    """What the server answers to a program that asks the same."""
    reply = server.ask("POST", "/v1/fill", body, headers={"Authorization": f"Bearer {KEY}"})
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json
    return found


def names_of(answered: dict[str, Any]) -> list[str]:
    return [phrase["phrase"] for phrase in answered["answers"][0]["phrases"]]


def candidates_of(phrases: list[dict[str, Any]]) -> list[tuple[str, list[str], float, list[dict[str, Any]]]]:
    """The plain reference of merging: name, further names, share and places of the candidates of a blank."""
    merged: list[tuple[str, list[str], float, list[dict[str, Any]]]] = []
    for phrase in phrases:
        padded = f" {phrase['phrase'].lower()} "
        for number, (name, also, share, found) in enumerate(merged):
            known = f" {name.lower()} "
            if padded in known or known in padded:
                merged[number] = (
                    name,
                    [*also, phrase["phrase"]],
                    share + phrase["score"],
                    [*found, *phrase["occurrences"]],
                )
                break
        else:
            merged.append((phrase["phrase"], [], phrase["score"], list(phrase["occurrences"])))
    return merged


def percent(share: float) -> str:
    """As the page writes it."""
    if 0.995 < share < 1:
        return ">99\u00a0%"
    return "<1\u00a0%" if share < 0.005 else f"{int(100 * share + 0.5)}\u00a0%"


def chips(page: Page, row: int = 0) -> list[str]:
    return page.locator(".chips").nth(row).locator(".chip b").all_text_contents()


def filters(page: Page) -> list[str]:
    """The chips of filters, without their cross."""
    return [text.removesuffix(" ×") for text in page.locator("#filters button").all_text_contents()]


def used(page: Page) -> dict[str, Any]:
    """The settings of the answer on the page, by its JSON."""
    settings: dict[str, Any] = json.loads(page.locator(".code").last.text_content() or "")["settings"]
    return settings


def asked(pages: WatchedPages) -> int:
    """How many texts were sent to be filled."""
    return sum(request.url.endswith("/v1/fill") for request in pages.requests)
