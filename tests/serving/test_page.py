"""The page at `/`, in a real browser, against a real server over a corpus with all that is hard to show."""

from __future__ import annotations

import json
import os
import re
import shlex
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from npm.api import build
from tests.helpers.browsers import (
    PATIENCE_MS,
    WatchedPages,
    accessible,
    answered,
    fits,
    place_of,
    places,
    running_browser,
    said,
)
from tests.helpers.command_line import REPOSITORY, write_corpus
from tests.helpers.running_server import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as found:
        yield found


@pytest.fixture(scope="module")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for all tests here, started only where there is a browser; the last test stops it."""
    folder = tmp_path_factory.mktemp("page")
    build(write_corpus(folder / "corpus.jsonl", DOCUMENTS), folder / "index", **{"corpus.kept_fields": ["lang"]})
    keys, examples = folder / "keys", folder / "examples"
    keys.write_text(f"{KEY}\n", encoding="utf-8")
    examples.write_text(f"{QUESTION}\nThe <mask> flows to the North Sea.\n", encoding="utf-8")
    # a random encoder: with overlaps merged, or with literal evidence, little would be left to look at
    plain = ("fill.overlaps=keep", "fill.literal_weight=0")
    with RunningServer(folder / "index", f"key_file={keys}", f"examples={examples}", *plain) as running:
        yield running


@pytest.fixture
def pages(browser: Browser, server: RunningServer) -> Iterator[WatchedPages]:
    watched = WatchedPages(browser, server.url, key=KEY)
    yield watched
    watched.close()


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


def test_an_answer_without_enough_evidence_leaves_the_sentence_blank_and_folds_its_phrases(
    pages: WatchedPages, server: RunningServer
) -> None:
    page = pages.open(link("What is the capital of Iceland?", min_share=1))
    expect(page.locator("h2.filled")).to_have_text(QUESTION)
    expect(page.locator("[role=status]")).to_have_text("No clear answer in the corpus")
    expect(page.locator(".phrases")).to_be_hidden()
    page.locator("#answers details summary").first.click()
    expect(page.locator(".phrases > li").first).to_be_visible()
    assert page.locator("#min_share").input_value() == "1"


def test_a_text_is_asked_and_its_phrases_stand_in_their_sentences(pages: WatchedPages, server: RunningServer) -> None:
    page = pages.open()
    expect(page.locator("#text")).to_be_focused()
    page.locator("#text").fill("The capital of Iceland is .")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    page.locator("#insert-mask").click()
    expect(page.locator("#text")).to_have_value(QUESTION)
    page.keyboard.press("Enter")
    answered(page)
    expect(page.locator("#text")).to_be_focused()
    best = answer(server, text=QUESTION)["answers"][0]["phrases"][0]
    assert best["phrase"] == "Reykjavík"
    assert best["occurrence_count"] >= 3
    first = page.locator(".phrases > li").first
    expect(first.locator("h3")).to_have_text("Reykjavík")
    expect(page.locator("h2.filled")).to_have_text(QUESTION.replace("<mask>", "Reykjavík"))
    strength = "strong" if best["score"] >= 0.8 else "mixed" if best["score"] >= 0.4 else "weak"
    number = f"{best['score']:.3f} of the evidence ({strength})"
    expect(first.locator(".share")).to_have_text(f"{number}, {best['occurrence_count']} places")
    assert first.locator("meter").evaluate("each => each.value") == pytest.approx(best["score"], abs=1e-6)
    expect(first.locator("details summary")).to_have_text(f"{len(best['occurrences']) - 1} further places")
    titles = [title for title in first.locator(".source").all_text_contents()]
    assert titles == [place["title"] for place in best["occurrences"]]
    assert page.locator("[role=status]").count() == 1
    expect(page.locator(".facts li").first).to_have_text("k 5")
    assert "generation 0" in page.locator(".facts li").all_text_contents()
    page.locator("#examples button").last.click()
    expect(page.locator("h2.filled")).to_contain_text("flows to the North Sea.")
    assert page.title() == "The <mask> flows to the North Sea. – npmlm"


def test_places_are_marked_at_their_code_points_behind_emoji(pages: WatchedPages, server: RunningServer) -> None:
    page = pages.open(link(occurrences=10, k=20))
    answered(page)
    phrases = answer(server, text=QUESTION, occurrences=10, k=20)["answers"][0]["phrases"]
    found = [place for phrase in phrases for place in phrase["occurrences"]]
    parts = []
    for place in found:
        text, start = TEXTS[place["document"]], place["context_start_char"]
        end = start + len(place["context"])
        cuts = pairwise((start, place["start_char"], place["end_char"], end))
        parts.append(tuple(text[first:stop] for first, stop in cuts))
    assert places(page) == parts
    assert ("😀 𝔘 👩‍🚀 ", "Reykjavík", " is the capital of Iceland.") in parts
    for summary in page.locator(".phrases summary").all():
        summary.click()
    place_of(page, "Reykjavík", "Iceland 😀").click()
    expect(page.locator("#passage h2")).to_have_text("Iceland 😀")
    expect(page.locator("#passage-text mark")).to_have_text("Reykjavík")
    expect(page.locator("#passage-text")).to_have_text(TEXTS["iceland"])


def test_the_passage_is_scrolled_to_the_place_and_steps_to_the_others(pages: WatchedPages) -> None:
    page = pages.open(link(retrieval="dense", k=20, occurrences=10))
    answered(page)
    source = place_of(page, "Reykjavík", "Journeys")
    page.locator("summary", has_text="further places").first.click()
    source.focus()
    page.keyboard.press("Enter")
    mark = page.locator("#passage-text mark")
    expect(mark).to_be_in_viewport()
    expect(page.locator("#passage-text")).to_have_text(re.compile("^…"))
    page.get_by_role("button", name="More of the document").click()
    expect(page.locator("#passage-text")).to_have_text(re.compile(f"^{re.escape(FILLER[:40])}"))
    expect(mark).to_be_in_viewport()
    expect(page.get_by_role("button", name="More of the document")).to_be_hidden()
    position = page.locator("#passage-place").inner_text()
    number, count = map(int, re.findall(r"\d+", position))
    assert count >= 4
    page.get_by_role("button", name="Next place").click()
    expect(page.locator("#passage-place")).to_have_text(f"Place {number % count + 1} of {count}")
    expect(page.locator("#passage h2")).not_to_have_text("Journeys")
    page.get_by_role("button", name="Previous place").click()
    expect(page.locator("#passage h2")).to_have_text("Journeys")
    expect(page.locator("#passage-facts")).to_contain_text("lang")
    page.keyboard.press("Escape")
    expect(page.locator("#passage")).to_be_hidden()
    expect(source).to_be_focused()


def test_markup_in_the_corpus_and_in_the_text_is_shown_as_it_is(pages: WatchedPages) -> None:
    text = f"The tag of Zork is {MARKUP} <mask>, a word."
    page = pages.open(link(text, retrieval="bm25", k=20))
    answered(page)
    expect(page.locator("#text")).to_have_value(text)
    assert any(MARKUP in before + mark + after for before, mark, after in places(page))
    page.get_by_role("button", name="Tags").first.click()
    expect(page.locator("#passage h2")).to_have_text(f"Tags {MARKUP}")
    expect(page.locator("#passage-text")).to_have_text(TEXTS["markup"])
    assert page.locator("img, main script, dialog script").count() == 0
    assert page.title() == f"{text} – npmlm"


def test_a_link_asks_and_the_back_button_asks_what_was_asked_before(pages: WatchedPages) -> None:
    page = pages.open(link(k=2, retrieval="dense", where="lang=is"))
    answered(page)
    expect(page.locator("#k")).to_have_value("2")
    expect(page.locator("#where")).to_have_value("lang=is")
    assert set(page.locator(".source").all_text_contents()) == {"Ísland"}
    assert {"retrieval dense", "where lang=is"} <= set(page.locator(".facts li").all_text_contents())
    page.locator("#where").fill("")
    page.locator("#text").fill("The <mask> flows to the North Sea.")
    page.keyboard.press("Enter")
    expect(page.locator(".source").first).to_have_text("Rhine")
    assert "text=The+%3Cmask%3E+flows" in page.url
    page.go_back()
    expect(page.locator("h2.filled")).to_contain_text("The capital of Iceland")
    expect(page.locator("#text")).to_have_value(QUESTION)
    expect(page.locator("#where")).to_have_value("lang=is")
    page.go_forward()
    expect(page.locator("h2.filled")).to_contain_text("North Sea")
    expect(page.locator("#where")).to_have_value("")


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


def test_an_error_stands_beside_its_field_and_is_announced(pages: WatchedPages) -> None:
    page = pages.open(link("no mask"))
    said(page, re.compile("Not answered: .*<mask>"))
    expect(page.locator("[data-field=text] .problem")).to_contain_text("<mask>")
    text = page.locator("#text")
    expect(text).to_have_attribute("aria-invalid", "true")
    expect(text).to_have_attribute("aria-describedby", "problem")
    assert page.locator("#answers").is_hidden()
    accessible(page)
    text.fill(QUESTION)
    page.locator("#settings summary").click()
    page.locator("#k").fill("1000")
    page.locator("#settings summary").click()
    page.get_by_role("button", name="Fill", exact=True).click()
    expect(page.locator("[data-field=k] .problem")).to_contain_text("1000")
    expect(page.locator(".problem")).to_have_count(1)
    expect(text).not_to_have_attribute("aria-invalid", "true")
    page.locator("#k").fill("3")
    page.locator("#where").fill("year>=1990")
    page.locator("#text").press("Enter")
    expect(page.locator("[data-field=where] .problem")).to_contain_text("year")
    page.goto(f"{page.url.split('?')[0]}{link(retrieval='magic')}")
    expect(page.locator("[data-field=retrieval] .problem")).to_contain_text("magic")


def test_filters_are_put_together_and_a_document_is_asked_alone(pages: WatchedPages) -> None:
    page = pages.open(link(k=20))
    answered(page)
    page.locator("#settings summary").click()
    page.locator("#where-value").fill("is")
    page.locator("#where-value").press("Enter")
    expect(page.locator("#where")).to_have_value("lang=is")
    page.locator("#where-operator").select_option("in")
    page.locator("#where-value").fill("is, fo")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator("#where")).to_have_value("lang=is\nlang in [is, fo]")
    page.get_by_role("button", name="Fill", exact=True).click()
    expect(page.locator(".facts")).to_contain_text("lang in [is, fo]")
    assert set(page.locator(".source").all_text_contents()) == {"Ísland"}
    page.locator("#where").fill("")
    page.locator("#text").press("Enter")
    expect(page.locator(".facts")).not_to_contain_text("where")
    page.get_by_role("button", name="Harbours").first.click()
    page.get_by_role("button", name="Ask this document alone").click()
    expect(page.locator(".facts")).to_contain_text("documents town/1")
    assert set(page.locator(".source").all_text_contents()) == {"Harbours"}
    assert "documents=town%2F1" in page.url
    expect(page.locator("#text")).to_be_focused()


def test_ways_of_retrieval_stand_side_by_side_with_ranks(pages: WatchedPages, server: RunningServer) -> None:
    ways = ("hybrid", "bm25", "dense")
    for k in range(2, 11):  # the encoder is random: the first list in which one phrase moves and another is lost
        names = {way: names_of(answer(server, text=QUESTION, k=k, retrieval=way)) for way in ways}
        ranks = {way: {name.lower(): rank for rank, name in enumerate(names[way])} for way in ways}
        both = [name for name in ranks["hybrid"] if ranks["dense"].get(name) not in (None, ranks["hybrid"][name])]
        lost = [name for name in ranks["hybrid"] if name not in ranks["dense"]]
        if both and lost:
            break
    page = pages.open(link(k=k, compare=1), viewport={"width": 1300, "height": 800})
    answered(page)
    for way in ways:
        column = page.locator(".column", has=page.get_by_role("heading", name=way, exact=True))
        assert column.locator("h4").all_text_contents() == names[way]
    here, there = ranks["hybrid"][both[0]], ranks["dense"][both[0]]
    button = page.locator(f"#phrase-0-{here} .jump", has_text="in dense")
    sign, meaning = ("▲", "higher") if here < there else ("▼", "lower")
    expect(button).to_have_text(f"{there + 1} in dense, {sign} {abs(here - there)} {meaning} here")
    button.click()
    expect(page.locator(f"#phrase-2-{there}")).to_be_focused()
    expect(page.locator(f"#phrase-0-{ranks['hybrid'][lost[0]]} .ranks")).to_contain_text("not in dense")
    accessible(page)


def test_several_masks_are_filled_together_and_each_by_itself(pages: WatchedPages, server: RunningServer) -> None:
    text = "The capital of <mask> is <mask>."
    page = pages.open(link(text, k=3))
    said(page, re.compile(r"\d fillings? in \d+ ms"))
    found = answer(server, text=text, k=3)["answers"][0]
    assert [each["phrases"] for each in found["fillings"]]
    lists = page.locator("#answers > .phrases")
    together = [" · ".join(filling["phrases"]) for filling in found["fillings"]]
    assert lists.first.locator("h4").all_text_contents() == together
    for number, mask in enumerate(found["masks"], start=1):
        expect(page.get_by_role("heading", name=f"Mask {number} by itself")).to_be_visible()
        shown = lists.nth(number).locator("h4").all_text_contents()
        assert shown == [phrase["phrase"] for phrase in mask["phrases"]]
    assert page.locator("h2.filled mark").all_text_contents() == found["fillings"][0]["phrases"]
    accessible(page)


def test_a_second_press_gives_up_the_first(pages: WatchedPages) -> None:
    page = pages.open()
    said(page, "")
    held: list[Route] = []
    page.route("**/v1/fill", lambda route: held.append(route) if not held else route.continue_())
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(f"{request.post_data} {request.failure}"))
    page.locator("#text").fill("Gouda is a <mask>.")
    page.keyboard.press("Enter")
    said(page, "Asking …")
    page.locator("#text").fill(QUESTION)
    page.keyboard.press("Enter")
    answered(page)
    expect(page.locator("h2.filled")).to_contain_text("Iceland")
    assert len(held) == 1
    assert len(failed) == 1
    assert "Gouda" in failed[0]
    assert "ERR_ABORTED" in failed[0]


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
    page.locator("summary", has_text="JSON and curl").click()
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
    said(page, re.compile("Not answered: missing key"))
    expect(page.locator("#key")).to_be_focused()
    accessible(page)
    page.keyboard.type("a-wrong-key")
    page.keyboard.press("Enter")
    said(page, re.compile("Not answered: wrong key"))
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


def test_a_picture_of_the_page_for_the_docs(browser: Browser, tmp_path: Path) -> None:
    """Over the demo corpus; made only when it is asked for, since that takes a minute."""
    if not (target := os.environ.get("NPMLM_SCREENSHOT")):
        pytest.skip("makes a picture where NPMLM_SCREENSHOT names a file, such as docs/page.png")
    build(str(REPOSITORY / "npm" / "assets" / "demo" / "*.jsonl"), tmp_path / "demo")
    with RunningServer(tmp_path / "demo") as running:
        watched = WatchedPages(browser, running.url)
        page = watched.open(link("The Mona Lisa was painted by <mask>.", k=3), viewport={"width": 880, "height": 800})
        answered(page)
        page.locator("h2.filled").click()  # takes the focus from the field
        page.screenshot(path=target, full_page=True)
        watched.close()
    assert Path(target).stat().st_size < 150_000


def test_a_server_that_is_gone_is_said_to_be(pages: WatchedPages, server: RunningServer) -> None:
    """The last test of this file: nothing answers afterwards."""
    page = pages.open(link())
    answered(page)
    assert server.stop() == 0
    page.keyboard.press("Enter")
    said(page, re.compile("Not answered: .* does not answer"))
    expect(page.locator(".problem")).to_contain_text("see whether npmlm serve still runs")
    expect(page.locator("#text")).to_have_value(QUESTION)
