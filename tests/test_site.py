"""The site of docs/: what is generated is whole, what is written agrees with the code, and nothing outside is asked."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sys
import threading
import tomllib
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import npm
from npm.cli.registry import MODULES, find_verb
from scripts.docs_pages import command_pages, http_page, notebook_page, plain_markdown
from tests.helpers.browsers import WatchedPages, running_browser
from tests.helpers.command_line import REPOSITORY, run_subprocess

DOCS = REPOSITORY / "docs"
API = (DOCS / "python.md").read_text(encoding="utf-8")
OPENAPI: dict[str, Any] = json.loads((DOCS / "openapi.json").read_text(encoding="utf-8"))
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.py"))
FROM_ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\b(?:src|srcset|data)=["']?(?:https?:)?//[^>]*"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preconnect|preload|prefetch|dns-prefetch|icon|manifest))"""
    r"""[^>]*\bhref=["']?(?:https?:)?//[^>]*"""
    r"""|url\(["']?(?:https?:)?//[^)]*|@import\s+["'](?:https?:)?//[^"']*""",
    flags=re.IGNORECASE,
)
"""What a browser fetches by itself from another server, in HTML or CSS."""


def test_the_page_on_python_has_every_public_name_and_no_other() -> None:
    assert set(re.findall(r"^::: npm\.(\w+)$", API, flags=re.MULTILINE)) | {"__version__"} == set(npm.__all__)
    assert "`npm.__version__`" in API


def test_the_members_that_it_chooses_are_there() -> None:
    chosen = re.findall(r"^::: npm\.(\w+)\n    options:\n(?:      .*\n)*?      members: \[(.*)\]$", API, re.MULTILINE)
    assert len(chosen) == 2
    for name, members in chosen:
        for member in members.split(", "):
            assert hasattr(getattr(npm, name), member), f"{name}.{member}"


@pytest.mark.parametrize("verb", MODULES)
def test_the_page_of_a_verb_has_each_of_its_settings_once_with_its_words(verb: str) -> None:
    page = command_pages()[f"commands/{verb}.md"]
    settings = find_verb(verb).settings
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \| (.*) \|$", page, flags=re.MULTILINE)
    assert sorted(name for name, _, _ in rows) == sorted(settings)
    for name, default, said in rows:
        assert said == plain_markdown(settings[name].text) and default
    assert find_verb(verb).example in page
    assert all(f"`{choice}`" in page for names in find_verb(verb).choices.values() for choice in names)


def test_the_list_of_commands_has_every_verb_and_a_page_for_it() -> None:
    pages = command_pages()
    listed = re.findall(r"^\| \[`npmlm (\w+)`\]\((commands/\w+\.md)\) \|", pages["commands.md"], flags=re.MULTILINE)
    assert listed == [(verb, f"commands/{verb}.md") for verb in MODULES]
    assert set(pages) == {"commands.md", *(page for _, page in listed)}


def test_the_page_on_http_has_every_route_code_field_and_object() -> None:
    page = http_page(OPENAPI)
    routes = [f"{method.upper()} {path}" for path, methods in OPENAPI["paths"].items() for method in methods]
    shown = re.findall(r"^## ([A-Z]+ .*)$", page, flags=re.MULTILINE)
    assert [each.replace("&#123;", "{").replace("&#125;", "}") for each in shown] == routes
    assert re.findall(r"^### (\w+)$", page, flags=re.MULTILINE) == list(OPENAPI["components"]["schemas"])
    for methods in OPENAPI["paths"].values():
        assert all(plain_markdown(operation["summary"]) in page for operation in methods.values())
    codes = OPENAPI["components"]["schemas"]["ProblemDetails"]["properties"]["code"]["enum"]
    assert re.findall(r'^\| <code id="(\w+)">', page, flags=re.MULTILINE) == codes
    for schema in OPENAPI["components"]["schemas"].values():
        assert all(f"| `{name}` |" in page for name in schema.get("properties", {}))


@pytest.mark.parametrize("script", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_page_of_a_notebook_has_its_heading_and_the_code_of_every_cell(script: Path) -> None:
    page = notebook_page(script.read_text(encoding="utf-8"))
    assert page.startswith("# ") and "# %%" not in page
    code = "\n".join(re.findall(r"```py\n(.*?)\n```", page, flags=re.DOTALL))
    assert ast.dump(ast.parse(code)) == ast.dump(ast.parse(script.read_text(encoding="utf-8")))


def nav_entries(entry: Any) -> Iterator[str]:
    """The pages of the navigation, from whatever depth."""
    if isinstance(entry, str):
        yield entry
    for below in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from nav_entries(below)


def test_the_navigation_has_every_page_once() -> None:
    config = tomllib.loads((REPOSITORY / "zensical.toml").read_text(encoding="utf-8"))["project"]
    named = list(nav_entries(config["nav"]))
    elsewhere = ("generated", "history")
    paths = [path.relative_to(DOCS) for path in DOCS.rglob("*.md")]
    written = [path.as_posix() for path in paths if path.parts[0] not in elsewhere]
    generated = ["generated/commands.md", "generated/http.md"]
    generated += [f"generated/notebooks/{script.stem}.md" for script in NOTEBOOKS]
    assert sorted(named) == sorted([*written, *generated])
    assert config["theme"]["font"] is False


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built elsewhere than `make site` builds it, from the files of this checkout."""
    pytest.importorskip("zensical", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, folder / "docs", ignore=shutil.ignore_patterns("generated", "__pycache__"))
    shutil.copytree(REPOSITORY / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "zensical.toml", folder)
    for name in ("npm", "index"):
        (folder / name).symlink_to(REPOSITORY / name)
    pages = run_subprocess(sys.executable, folder / "scripts/docs_pages.py", cwd=folder, PYTHONPATH=str(REPOSITORY))
    assert pages.status == 0, pages.err
    built = run_subprocess(sys.executable, "-m", "zensical", "build", "--strict", cwd=folder)
    assert built.status == 0, built.out + built.err
    return folder / "site"


@pytest.mark.slow("site")
def test_the_site_is_built_without_a_warning_and_has_every_page(site: Path) -> None:
    for name in ("", "how-it-works", "results/quality", "studies/npm", "generated/commands/fill", "generated/http"):
        assert (site / name / "index.html").is_file(), name
    assert 'id="npm.PhraseFiller.fill"' in (site / "python" / "index.html").read_text(encoding="utf-8")
    assert not (site / "history").exists()


class LinkedPage(HTMLParser):
    """What a page links to, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if name in ("href", "src") and value]
        self.places |= {value for name, value in attrs if name in ("id", "name") and value}


@pytest.mark.slow("site")
def test_every_link_and_picture_of_the_site_leads_to_a_page_or_a_place_in_one(site: Path) -> None:
    pages = {path: LinkedPage(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            start = site if parts.path.startswith("/") else path.parent
            target = Path(os.path.normpath(start / unquote(parts.path).lstrip("/"))) if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            place = unquote(parts.fragment)
            if not target.is_file() or (place and target in pages and place not in pages[target].places):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert sum(len(page.links) for page in pages.values()) > 1000
    assert not dead


@pytest.mark.slow("site")
def test_a_browser_fetches_nothing_from_another_server_for_any_page(site: Path) -> None:
    read = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert len(read) > 40
    for path in read:
        assert not FROM_ELSEWHERE.findall(path.read_text(encoding="utf-8")), path.relative_to(site)


@pytest.mark.slow("site")
def test_a_browser_opens_pages_without_a_request_that_leaves_the_server(site: Path) -> None:
    handler = partial(QuietHandler, directory=str(site))
    with running_browser() as browser, ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        pages = WatchedPages(browser, f"http://127.0.0.1:{server.server_port}")
        for name in (
            "",
            "python/",
            "generated/commands/fill/",
            "generated/notebooks/first_answers/",
            "results/quality/",
        ):
            opened = pages.open(name)
            assert opened.locator("article h1").first.is_visible()
        pages.close()
        server.shutdown()
    assert len(pages.requests) > 10


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files, and writes no line for each."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""
