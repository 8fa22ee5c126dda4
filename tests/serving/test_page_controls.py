"""What one does with the page at `/`, in a real browser: links, keys, filters, errors, small windows, the key."""

from __future__ import annotations

import json
import os
import re
import shlex
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npm.api import build
from tests.helpers.browsers import (
    WatchedPages,
    accessible,
    answered,
    fits,
    said,
    source_of,
)
from tests.helpers.command_line import REPOSITORY
from tests.helpers.running_server import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

from tests.serving.shown_page import KEY, QUESTION, asked, expect, filters, link, used

pytestmark = pytest.mark.slow("browser")


def test_a_link_asks_and_the_back_button_shows_what_was_answered(pages: WatchedPages) -> None:
    page = pages.open(link(k=2, retrieval="dense", where="lang=is"))
    answered(page)
    expect(page.locator("#k")).to_have_value("2")
    assert filters(page) == ["lang=is"]
    assert set(page.locator(".source").all_text_contents()) == {"Ísland"}
    assert (used(page)["retrieval"], used(page)["where"]) == ("dense", ["lang=is"])
    page.locator("#text").fill("The <mask> flows to the North Sea.")
    page.locator("#filters button").click()  # which asks again, without the filter
    expect(page.locator(".source").first).to_have_text("Rhine")
    assert "text=The+%3Cmask%3E+flows" in page.url
    before = asked(pages)
    page.go_back()
    expect(page.locator(".source").first).to_have_text("Ísland")
    expect(page.locator("#text")).to_have_value(QUESTION)
    assert filters(page) == ["lang=is"]
    page.go_forward()
    expect(page.locator(".source").first).to_have_text("Rhine")
    assert filters(page) == []
    assert asked(pages) == before == 2


def test_the_keyboard_is_enough(pages: WatchedPages) -> None:
    page = pages.open()
    said(page, "")
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    answered(page)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.locator(".source:focus").count():
            break
    page.keyboard.press("Enter")
    expect(page.locator("#passage-text mark")).to_be_visible()
    inside = "document.querySelector('#passage').contains(document.activeElement)"
    assert page.evaluate(inside)
    for _ in range(12):  # once around: a dialog keeps the focus, or hands it to the browser's own buttons
        page.keyboard.press("Tab")
        assert page.evaluate(f"{inside} || document.activeElement === document.body")
    page.keyboard.press("Escape")
    expect(page.locator(".source:focus")).to_have_count(1)
    page.keyboard.press("/")
    expect(page.locator("#text")).to_be_focused()
    expect(page.locator("#text")).to_have_value(QUESTION)


def test_an_error_is_shown_at_its_field_and_announced(pages: WatchedPages) -> None:
    page = pages.open(link("<mask> " * 9))
    said(page, re.compile("^Not answered: .*got 9"))
    text = page.locator("#text")
    expect(text).to_have_attribute("aria-invalid", "true")
    expect(text).to_have_attribute("aria-describedby", "problem")
    assert page.locator("#answers").is_hidden()
    accessible(page)
    text.fill("What is the capital of Iceland?")
    text.press("Enter")
    answered(page)
    expect(page.locator(".problem")).to_have_count(0)
    expect(text).not_to_have_attribute("aria-invalid", "true")
    text.fill(QUESTION)
    page.locator("#settings summary").click()
    page.locator("#k").fill("1000")
    page.locator("#settings summary").click()
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("[data-field=k] .problem")).to_have_text("Choose between 1 and 100 answers.")
    expect(page.locator(".problem")).to_have_count(1)
    page.locator("#k").fill("3")
    text.fill("<mask>" * 9)
    text.press("Enter")
    expect(page.locator("[data-field=text] .problem")).to_have_text(re.compile("one to 8 <mask>.* got 9"))
    text.fill(" ")
    text.press("Enter")
    expect(page.locator("[data-field=text] .problem")).to_contain_text("Write a sentence with a blank")


def test_a_refused_link_names_its_field(pages: WatchedPages) -> None:
    page = pages.open()
    for settings, field, message in (
        ({"where": "year>=1990"}, "where", "There is no such field. Available: lang."),
        ({"where": "lang=fo"}, "where", "No document matches lang=fo. Remove a filter or choose another value."),
        ({"documents": "none"}, "documents", "Unknown document ID: none."),
        ({"retrieval": "magic"}, "retrieval", "magic"),
        ({"text": f"{'x' * 10_001} <mask>"}, "text", "The text has 10,008 characters; the limit is 10,000."),
    ):
        page.goto(f"{pages.address}/{link(**{'text': QUESTION, **settings})}")
        expect(page.locator(f"[data-field~={field}] .problem")).to_contain_text(message)


def test_filters_are_chips_and_one_that_was_typed_is_not_ignored(pages: WatchedPages) -> None:
    page = pages.open(link(k=20))
    answered(page)
    json_box = page.locator(".code").last

    def expect_used(name: str, value: object) -> None:
        line = json.dumps({name: value}, indent=2)[1:-1].strip().replace("\n", "\n  ")  # two levels in
        expect(json_box).to_contain_text(line)
        assert used(page)[name] == value

    page.locator("summary", has_text="+ filter").click()
    page.locator("#where-value").fill("is")
    page.get_by_role("button", name="Ask", exact=True).click()  # without Add
    expect_used("where", ["lang=is"])
    assert set(page.locator(".source").all_text_contents()) == {"Ísland"}
    page.locator("#where-operator").select_option("in")
    page.locator("#where-value").fill("is, fo")
    page.locator("#where-value").press("Enter")
    expect_used("where", ["lang=is", "lang in [is, fo]"])
    assert filters(page) == ["lang=is", "lang in [is, fo]"]
    page.locator("#filters button").first.click()
    expect_used("where", ["lang in [is, fo]"])
    page.locator("#filters button").first.click()
    expect_used("where", [])
    page.locator("#where-field").select_option("document ID")
    page.locator("#where-value").fill("norway")
    page.get_by_role("button", name="Add", exact=True).click()
    expect_used("documents", ["norway"])
    page.locator("#filters button").click()
    expect_used("documents", None)
    source_of(page, "Harbours").click()
    page.locator("#passage-only").click()
    expect_used("documents", ["town/1"])
    assert set(page.locator(".source").all_text_contents()) == {"Harbours"}
    assert "documents=town%2F1" in page.url
    expect(page.locator("#text")).to_be_focused()


def test_a_request_is_canceled_by_the_next_one_the_button_and_escape(pages: WatchedPages) -> None:
    page = pages.open()
    said(page, "")
    held: list[Route] = []
    page.route("**/v1/fill", lambda route: held.append(route) if len(held) < 3 else route.continue_())
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(f"{request.failure}"))
    text, cancel = page.locator("#text"), page.get_by_role("button", name="Cancel")
    text.fill("Gouda is a <mask>.")
    text.press("Enter")
    said(page, "Searching 8 documents…")
    expect(page.locator(".skeleton").first).to_be_visible()
    text.press("Enter")
    expect(cancel).to_be_visible()
    cancel.click()
    said(page, "Canceled.")
    expect(cancel).to_be_hidden()
    expect(page.locator(".skeleton")).to_have_count(0)
    text.press("Enter")
    expect(cancel).to_be_visible()
    text.press("Escape")
    said(page, "Canceled.")
    text.fill(QUESTION)
    text.press("Enter")
    answered(page)
    expect(page.locator("h2.filled")).to_contain_text("Iceland")
    assert len(held) == len(failed) == 3
    assert all("ERR_ABORTED" in each for each in failed)


def test_a_busy_server_is_asked_again(pages: WatchedPages) -> None:
    page = pages.open()
    said(page, "")
    refusals: list[Route] = []

    def refuse_once(route: Route) -> None:
        if refusals:
            route.continue_()
            return
        refusals.append(route)
        problem = json.dumps({"code": "busy", "title": "busy", "status": 429, "field": None, "request_id": "1"})
        route.fulfill(status=429, headers={"Retry-After": "1"}, content_type="application/problem+json", body=problem)

    page.route("**/v1/fill", refuse_once)
    page.locator("#text").fill(QUESTION)
    page.locator("#text").press("Enter")
    said(page, "The server is busy. Trying again in 1 s…")
    answered(page)


def test_what_is_typed_while_the_page_still_loads_stays(pages: WatchedPages) -> None:
    page = pages.open()
    held: list[Route] = []
    page.route("**/v1/index", lambda route: held.append(route))
    page.reload()
    said(page, re.compile("^Asking the server"))
    page.locator("#text").fill(QUESTION)
    held[0].continue_()
    said(page, "")
    expect(page.locator("#text")).to_have_value(QUESTION)


def test_the_curl_line_gives_the_json_that_is_shown(pages: WatchedPages) -> None:
    text = "Norway's capital, <mask>, lies at the end of a fjord."
    page = pages.open(link(text, occurrences=1, documents="norway"))
    answered(page)
    page.locator("summary", has_text="How this was answered").click()
    line, shown = page.locator(".code").all_text_contents()
    assert KEY not in line
    command = shlex.split(line.replace("$NPMLM_KEY", KEY))
    assert command[:2] == ["curl", "-s"]
    headers = dict(part.split(": ") for flag, part in pairwise(command) if flag == "-H")
    request = urllib.request.Request(command[2], command[command.index("-d") + 1].encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        given = json.load(response)
    expected = json.loads(shown)
    assert given["answers"] == expected["answers"]
    assert given["settings"] == expected["settings"]
    assert expected["answers"][0]["phrases"][0]["occurrences"][0]["document"] == "norway"


def test_a_key_is_asked_for_only_where_the_server_wants_one(pages: WatchedPages) -> None:
    page = pages.open(link(), with_key=False)
    said(page, re.compile("Not answered: .*key"))
    expect(page.locator("#key")).to_be_focused()
    accessible(page)
    page.keyboard.type("a-wrong-key")
    page.keyboard.press("Enter")
    expect(page.locator("#key-form .problem")).to_contain_text("wrong")
    page.locator("#key").fill("kéy")
    page.keyboard.press("Enter")
    expect(page.locator("#key-form .problem")).to_contain_text("ASCII")
    page.locator("#key").fill(KEY)
    page.keyboard.press("Enter")
    answered(page)
    expect(page.locator("#key-form")).to_be_hidden()
    assert page.evaluate("localStorage.length") == 0
    assert pages.open(link()).locator("#key-form").is_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible_and_narrow_in_light_and_dark(pages: WatchedPages, scheme: str) -> None:
    page = pages.open(link(), color_scheme=scheme, viewport={"width": 320, "height": 640})
    answered(page)
    brightness = sum(map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))))
    assert brightness < 150 if scheme == "dark" else brightness > 600
    for details in page.locator("details > summary").all():
        if details.is_visible():
            details.click()
    fits(page, 320)
    accessible(page)
    page.locator(".source").first.click()
    expect(page.locator("#passage-text mark")).to_be_visible()
    fits(page, 320)
    accessible(page)
    page.keyboard.press("Escape")
    page.goto(f"{page.url.split('?')[0]}{link(compare=1)}")
    answered(page)
    fits(page, 320)


def test_the_question_stays_in_view_on_phones(pages: WatchedPages) -> None:
    page = pages.open(link(), viewport={"width": 390, "height": 500})
    answered(page)
    expect(page.locator("h2.filled")).to_be_in_viewport()
    page.locator("#facts").scroll_into_view_if_needed()
    expect(page.locator("#text")).to_be_in_viewport()
    expect(page.locator("#ask")).to_be_in_viewport()
    page.locator("h2.filled").click()  # takes the focus from the field: one line
    assert page.locator("#fill-form").bounding_box()["height"] < 80  # type: ignore[index]


def test_the_reference_of_the_routes_is_accessible(pages: WatchedPages) -> None:
    page = pages.open("docs")
    expect(page.locator(".opblock").last).to_be_visible()
    expect(page.locator("[role=banner]")).to_have_count(1)
    accessible(page)


def test_the_type_of_a_problem_leads_to_its_description(pages: WatchedPages) -> None:
    page = pages.open("docs#timeout")
    expect(page.locator("tr", has=page.locator("#timeout"))).to_contain_text("504")
    expect(page.locator("#timeout")).to_be_in_viewport()


def test_a_picture_of_the_page_for_the_docs(browser: Browser, tmp_path: Path) -> None:
    """Over the demo corpus; made only when it is asked for, since that takes a minute."""
    if not (target := os.environ.get("NPMLM_SCREENSHOT")):
        pytest.skip("makes a picture where NPMLM_SCREENSHOT names a file, such as docs/page.png")
    build(str(REPOSITORY / "npm" / "assets" / "demo" / "*.jsonl"), tmp_path / "demo")
    with RunningServer(tmp_path / "demo") as running:
        watched = WatchedPages(browser, running.url)
        page = watched.open(link("The Mona Lisa was painted by <mask>.", k=3), viewport={"width": 1120, "height": 800})
        answered(page)
        page.locator("h2.filled").click()  # takes the focus from the field
        page.screenshot(path=target, full_page=True)
        watched.close()
    assert Path(target).stat().st_size < 150_000


def test_a_server_that_is_gone_is_said_to_be(pages: WatchedPages, page_server: RunningServer) -> None:
    """The last test of this file: nothing answers afterwards."""
    page = pages.open(link())
    answered(page)
    assert page_server.stop() == 0
    page.keyboard.press("Enter")
    host = page_server.url.removeprefix("http://")
    said(page, f"Not answered: Can't reach the server at {host}. Is npmlm serve still running?")
    expect(page.locator("#general-problem .problem")).to_be_in_viewport()
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    expect(page.locator("#text")).to_have_value(QUESTION)
