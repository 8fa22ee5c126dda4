"""How sure an answer is, on the page at `/` in a real browser: with the shipped reader, which has a confidence."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.helpers.browsers import WatchedPages, accessible, answered, said, sources
from tests.helpers.running_server import RunningServer
from tests.serving.shown_page import answer, expect, link, names_of, percent

pytestmark = pytest.mark.slow("browser")
READER = "reader-mini"
SURE = "Which river flows to the North Sea?"
LIKELY = "What is the capital of Iceland?"
WITHHELD = "Who painted the Mona Lisa?"
QUESTIONS = [
    *(SURE, LIKELY, WITHHELD),
    *("What is Brie?", "Where does Oslo lie?", "What is the capital of Norway?", "capital Iceland"),
    *("The Rhine flows to the <mask>.", "Why is Gouda hard?", "How tall is the Eiffel Tower?"),
]


def test_a_sure_answer_is_the_heading(pages: WatchedPages, page_server: RunningServer) -> None:
    found = answer(page_server, text=SURE)["answers"][0]
    assert found["confidence"] >= 0.8
    page = pages.open(link(SURE))
    answered(page)
    expect(page.locator("h2.filled mark")).to_have_text("Rhine")
    expect(page.locator(".trust > p")).to_have_text(
        f"Sure – right in about {percent(found['confidence'])} of such cases."
    )
    assert page.locator(".chip:visible").count() == 0  # one candidate is likely, the others are folded
    said(page, re.compile("^Rhine"))
    accessible(page)


def test_a_likely_answer_is_shown_in_its_sentence_alone(pages: WatchedPages, page_server: RunningServer) -> None:
    found = answer(page_server, text=LIKELY)["answers"][0]
    assert 0.5 <= found["confidence"] < 0.8
    page = pages.open(link(LIKELY))
    answered(page)
    expect(page.locator("h2.filled")).to_have_text("Likely. Read the sentence:")
    expect(page.locator(".trust")).to_have_text(f"Right in about {percent(found['confidence'])} of such cases.")
    assert sources(page, "ol.sources > li")[0][2] == ["Reykjavík"]
    said(page, re.compile("^Likely. Read the sentence: Reykjavík"))
    page.get_by_text("All candidates").click()
    assert page.locator(".chip .number").all_text_contents() == [""] * page.locator(".chip").count()
    accessible(page)


def test_an_answer_is_withheld_where_it_is_hardly_right(pages: WatchedPages) -> None:
    page = pages.open(link(WITHHELD))
    answered(page)
    expect(page.locator("h2.filled")).to_have_text("No clear answer. Closest passages:")
    expect(page.locator("h2.filled mark")).to_have_count(0)
    said(page, re.compile("^No clear answer"))


def test_every_question_of_a_list_gets_a_sentence_and_the_word_of_its_confidence(
    pages: WatchedPages, page_server: RunningServer
) -> None:
    page = pages.open()
    kinds: Counter[str] = Counter()
    for question in QUESTIONS:
        page.locator("#text").fill(question)
        page.keyboard.press("Enter")
        answered(page)
        reply = answer(page_server, text=question)
        found, best = reply["answers"][0], names_of(reply)[0]
        heading = page.locator("h2.filled").inner_text()
        if found["status"] == "low_evidence":
            kind = "withheld"
            assert heading.startswith("No clear answer")
        elif found["confidence"] >= 0.8:
            kind = "sure"
            assert best in heading
        else:
            kind = "likely" if found["confidence"] >= 0.5 else "unsure"
            assert heading.lower().startswith(kind)
        kinds[kind] += 1
        assert any(best in " ".join(marks) for *_, marks in sources(page)), question
    assert kinds["sure"] and kinds["likely"] and kinds["withheld"], kinds


def test_close_candidates_are_named_and_none_is_the_answer(pages: WatchedPages, page_server: RunningServer) -> None:
    text = "<mask> and <mask> are cheese."
    page = pages.open(link(text, k=20, min_share=0.0001))
    answered(page)
    fillings = answer(page_server, text=text, k=20)["answers"][0]["fillings"]
    shares = [float(share.strip("<>\u00a0%")) for share in page.locator(".chip .number").all_text_contents()[:2]]
    assert fillings[0]["score"] < 1.5 * fillings[1]["score"]
    first, second = page.locator(".chip b").all_text_contents()[:2]
    line = f"Two candidates are close: {first} {shares[0]:.0f}\u00a0%, {second} {shares[1]:.0f}\u00a0%."
    expect(page.locator("h2.filled")).to_have_text(line)
    expect(page.locator("h2.filled mark")).to_have_count(0)
