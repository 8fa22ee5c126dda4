"""Answers on the page at `/`, in a real browser, over a corpus with all that is hard to show."""

from __future__ import annotations

import re

import pytest

from tests.helpers.browsers import (
    WatchedPages,
    accessible,
    answered,
    said,
    source_of,
    sources,
)
from tests.helpers.running_server import RunningServer
from tests.serving.shown_page import (
    FILLER,
    KEY,
    MARKUP,
    QUESTION,
    TEXTS,
    answer,
    candidates_of,
    chips,
    expect,
    link,
    names_of,
    percent,
)

pytestmark = pytest.mark.slow("browser")


def test_an_answer_without_enough_evidence_is_not_put_into_the_sentence(pages: WatchedPages) -> None:
    page = pages.open(link("What is the capital of Iceland?", min_share=1))
    expect(page.locator("h2.filled")).to_have_text("No clear answer. Closest passages:")
    said(page, re.compile("^No clear answer"))
    expect(page.locator(".chip").first).to_be_visible()
    expect(page.locator(".sources mark").first).to_have_text("Reykjavík")
    assert page.locator("#min_share").input_value() == "1"
    page.goto(f"{page.url.split('?')[0]}{link('The capital of Zanzibar is <mask>.', min_share=0.001)}")
    expect(page.locator(".trust")).to_have_text("Not in the corpus: Zanzibar.")
    expect(page.locator("#answers .band")).to_have_count(0)  # said once
    chip = page.locator(".chip").last
    chip.click()
    said(page, re.compile(f"{re.escape(chip.locator('b').inner_text())} – answered in"))


def test_weak_evidence_is_said_and_withholds_no_answer_that_programs_get(
    pages: WatchedPages, page_server: RunningServer
) -> None:
    text = "What is a soft cheese?"
    (best,) = answer(page_server, text=text, k=1)["answers"][0]["phrases"]
    assert best["score"] < 0.4
    page = pages.open(link(text, k=1))
    answered(page)
    expect(page.locator("h2.filled mark")).to_have_text(best["phrase"])
    expect(page.locator(".trust > p")).to_have_text(f"Weak evidence – {percent(best['score'])} of it points here.")


def test_a_text_is_asked_and_answered_with_its_candidates(pages: WatchedPages, page_server: RunningServer) -> None:
    page = pages.open()
    expect(page.locator("aside")).to_contain_text("Eight short texts")
    expect(page.locator("#text")).to_be_focused()
    page.locator("#text").fill("The capital of Iceland is .")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    page.locator("#insert-mask").click()
    expect(page.locator("#text")).to_have_value(QUESTION)
    page.keyboard.press("Enter")
    answered(page)
    expect(page.locator("#text")).to_be_focused()
    merged = candidates_of(answer(page_server, text=QUESTION)["answers"][0]["phrases"])
    (name, _, share, places), (_, _, second, _) = merged[:2]
    assert name == "Reykjavík"
    assert share >= max(0.4, 1.5 * second)
    said(page, re.compile("^Reykjavík"))
    expect(page.locator("h2.filled mark")).to_have_text("Reykjavík")
    expect(page.locator("h2.filled")).to_have_text(QUESTION.replace("<mask>", "Reykjavík1"))
    word = "Strong" if share >= 0.8 else "Mixed"
    expect(page.locator(".trust > p")).to_have_text(f"{word} evidence – {percent(share)} of it points here.")
    assert chips(page) == [name for name, *_ in merged]
    assert page.locator(".chip .number").all_text_contents() == [percent(share) for _, _, share, _ in merged]
    also = [f"also found as {', '.join(also)}" for _, also, *_ in merged if also]
    assert page.locator(".chip small").all_text_contents() == also
    titles = list(dict.fromkeys(place["title"] for place in places))  # each text has one sentence with the phrase
    assert [title for title, *_ in sources(page, "ol.sources > li")] == titles
    page.locator("#examples summary").click()
    page.locator("#examples button").last.click()
    expect(page.locator("#answers .filled")).not_to_contain_text("Iceland")
    answered(page)
    expect(page.locator("#text")).to_be_focused()
    assert page.title() == "The <mask> flows to the North Sea. – npmlm"


def test_each_sentence_is_shown_once_and_a_chip_changes_heading_and_sources(
    pages: WatchedPages, page_server: RunningServer
) -> None:
    page = pages.open(link(occurrences=10, k=20, min_share=0.01))
    answered(page)
    merged = candidates_of(answer(page_server, text=QUESTION, occurrences=10, k=20)["answers"][0]["phrases"])
    places = [(name, place) for name, _, _, found in merged for place in found]
    for summary in page.locator("#answers summary").all():
        summary.click()
    shown = sources(page)
    assert len(set(shown_texts := [text for _, text, _ in shown])) == len(shown)
    assert set(shown_texts) <= {place["context"] for _, place in places}
    assert all(any(place["context"] in text for text in shown_texts) for _, place in places)
    assert ("Iceland 😀", "😀 𝔘 👩‍🚀 Reykjavík is the capital of Iceland.", ["Reykjavík"]) in shown
    number = next(number for number, (_, _, _, found) in enumerate(merged) if number and found)
    name, _, share, found = merged[number]
    assert share < 0.01  # too small for the sentence
    chip = page.locator(".chip").nth(number)
    expect(chip).to_have_attribute("aria-pressed", "false")
    chip.click()
    expect(chip).to_have_attribute("aria-pressed", "true")
    expect(page.locator("h2.filled")).to_have_text("Another candidate has more evidence.")
    said(page, re.compile(f"{re.escape(name)} – answered in"))
    first = sources(page, "ol.sources > li")[0]
    assert first[0] == found[0]["title"]
    start = found[0]["start_char"] - found[0]["context_start_char"]
    assert found[0]["context"][start : start + found[0]["end_char"] - found[0]["start_char"]] in first[2]
    page.locator(".chip").first.click()
    source_of(page, "Iceland 😀").click()
    expect(page.locator("#passage h2")).to_have_text("Iceland 😀")
    expect(page.locator("#passage-text")).to_have_text(TEXTS["iceland"])


def test_an_answer_and_a_citation_are_copied(pages: WatchedPages, page_server: RunningServer) -> None:
    page = pages.open(link(), permissions=["clipboard-read", "clipboard-write"])
    answered(page)
    page.get_by_role("button", name="Copy answer").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == QUESTION.replace("<mask>", "Reykjavík")
    found = answer(page_server, text=QUESTION)
    place = found["answers"][0]["phrases"][0]["occurrences"][0]
    page.get_by_role("button", name="Copy citation").first.click()
    expect(page.get_by_role("button", name="Copied")).to_have_count(2)
    characters = f"characters {place['start_char']}–{place['end_char']}, index {found['index']['digest'][:12]}"
    expected = f"“{place['context']}” {place['title']} [{place['document']}], {characters}"
    assert page.evaluate("navigator.clipboard.readText()") == expected


def test_the_passage_is_scrolled_to_the_place_and_steps_to_the_others(pages: WatchedPages) -> None:
    page = pages.open(link(retrieval="dense", k=20, occurrences=10))
    answered(page)
    source = source_of(page, "Journeys")
    source.focus()
    page.keyboard.press("Enter")
    mark = page.locator("#passage-text mark")
    expect(mark).to_be_in_viewport()
    expect(page.locator("#passage-text")).to_have_text(re.compile("^…"))
    page.get_by_role("button", name="Show more").click()
    expect(page.locator("#passage-text")).to_have_text(re.compile(f"^{re.escape(FILLER[:40])}"))
    expect(mark).to_be_in_viewport()
    expect(page.get_by_role("button", name="Show more")).to_be_hidden()
    position = page.locator("#passage-place").inner_text()
    number, count = map(int, re.findall(r"\d+", position))
    assert count >= 4
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#passage-place")).to_have_text(f"Source {number % count + 1} of {count}")
    expect(page.locator("#passage h2")).not_to_have_text("Journeys")
    page.get_by_role("button", name="Previous").click()
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
    assert any(MARKUP in text for _, text, _ in sources(page))
    page.get_by_role("button", name="Tags").first.click()
    expect(page.locator("#passage h2")).to_have_text(f"Tags {MARKUP}")
    expect(page.locator("#passage-text")).to_have_text(TEXTS["markup"])
    assert page.locator("img, main script, dialog script").count() == 0
    assert page.title() == f"{text} – npmlm"


def test_search_methods_are_compared_in_one_table(pages: WatchedPages, page_server: RunningServer) -> None:
    ways = {"hybrid": "Hybrid", "bm25": "Keywords", "dense": "Whole corpus"}
    names = {way: names_of(answer(page_server, text=QUESTION, k=10, retrieval=way)) for way in ways}
    page = pages.open(link(k=10, compare=1))
    answered(page)
    assert page.locator(".ranks thead th").all_text_contents() == ["Phrase", *ways.values()]
    every = {name.lower(): name for found in reversed(names.values()) for name in reversed(found)}
    rows = page.locator(".ranks tbody tr")
    expect(rows).to_have_count(len(every))
    for row in rows.all():
        phrase = row.locator("th").evaluate("head => head.firstChild.textContent")
        cells = row.locator("td").all_text_contents()
        lower = {way: [name.lower() for name in found] for way, found in names.items()}
        expected = [
            f"#{found.index(phrase.lower()) + 1}" if phrase.lower() in found else "–" for found in lower.values()
        ]
        assert cells == expected
    assert rows.first.locator("td", has_text="#1").count()
    accessible(page)
    rows.first.locator(".source").click()
    expect(page.locator("#passage-text mark")).to_be_visible()


def test_several_blanks_are_filled_together_and_each_by_itself(pages: WatchedPages, page_server: RunningServer) -> None:
    text = "The capital of <mask> is <mask>."
    page = pages.open(link(text, k=3, min_share=0.0001))
    answered(page)
    found = answer(page_server, text=text, k=3)["answers"][0]
    best = found["fillings"][0]["phrases"]
    assert page.locator("h2.filled mark").all_text_contents() == best
    assert chips(page)[0] == " · ".join(best)
    assert len(set(chips(page))) == len(chips(page)) <= len(found["fillings"])
    for number, mask in enumerate(found["masks"], start=1):
        expect(page.get_by_role("heading", name=f"Blank {number}")).to_be_visible()
        names = [name for name, *_ in candidates_of(mask["phrases"])]
        assert chips(page, number)[: len(names)] == names
    second = page.locator(".chips").nth(2).locator(".chip[aria-pressed=false]").first
    name = second.locator("b").inner_text()
    second.click()
    listed = f"{best[0]} · {name}" in chips(page)
    expect(page.locator("h2.filled mark")).to_have_count(2 if listed else 0)
    for chip in page.locator(".chips").nth(1).locator(".chip").all():
        chip.click()
        combination = page.locator(".chips").first.locator("[aria-pressed=true]").count()
        assert combination or page.locator("h2.filled").inner_text() == "This combination is not among the best."
    page.locator(".chips").nth(1).locator(".chip").first.click()
    expect(page.locator("#answers h3", has_text="was found")).to_contain_text(f"“{name}”")
    accessible(page)


def test_a_text_is_traced(pages: WatchedPages, page_server: RunningServer) -> None:
    text = "😀 Reykjavík is the capital of Iceland. Brie lies in Zanzibar."
    page = pages.open()
    page.get_by_role("link", name="Check a text").click()
    expect(page.locator("#insert-mask")).to_be_hidden()
    page.locator("#text").fill(text)
    page.keyboard.press("Enter")
    answered(page)
    reply = page_server.ask("POST", "/v1/trace", {"text": text}, headers={"Authorization": f"Bearer {KEY}"})
    spans = reply.json["spans"]
    assert spans
    assert page.locator(".traced mark").all_text_contents() == [span["text"] for span in spans]
    items = page.locator("ol.sources > li")
    reported = [span for span in spans if span["verdict"] in ("other", "not_found")]
    assert 0 < len(reported) < len(spans)
    expect(items).to_have_count(len(reported))
    assert page.locator(".traced sup").all_text_contents() == [f"{number + 1}" for number in range(len(reported))]
    page.get_by_role("button", name=f"Show all {len(spans)} phrases").click()
    expect(items).to_have_count(len(spans))
    words = {"found": "Found", "supported": "Supported", "other": "Other phrase found"}
    for item, span in zip(items.all(), spans, strict=True):
        absent = "Occurs elsewhere" if span["place"] else "Not found"
        expect(item.locator("b")).to_have_text(words.get(span["verdict"], absent))
        place = span["other_place"] if span["verdict"] == "other" else span["place"]
        assert item.locator("blockquote").all_text_contents() == ([place["context"]] if place else [])
    accessible(page)
    page.reload()
    answered(page)
    expect(page.locator("#text")).to_have_value(text)
    page.get_by_role("link", name="Ask").click()
    expect(page.locator("#insert-mask")).to_be_visible()
    expect(page.locator("#text")).to_have_value(text)
