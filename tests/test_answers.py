"""How answers show themselves: as HTML in a notebook, and as flat records."""

from __future__ import annotations

import re
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path

from npm.core.types import Answer, Filling, JointAnswer, MaskPhrases, Occurrence, Phrase
from npm.retrieval.filler import PhraseFiller
from tests.helpers.command_line import QUESTION

MARKUP = "😀 <b>1 & 2</b> is 𝔸<script>alert('x')</script>."
"""The phrase `𝔸<script>` stands at the code points 18 to 27; in UTF-16 units it would be 19 to 29."""
PLACE = Occurrence('id"<i>', "A & B", 118, 127, MARKUP, 100, 100 + len(MARKUP), 18, 27)


class Shown(HTMLParser):
    """What a browser shows of HTML: the tags, all text, and the text of marked parts and of cells."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.marked: list[str] = []
        self.cells: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")
        if tag == "mark":
            self.marked.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self._open):
            self.cells[-1] += data
        if "mark" in self._open:
            self.marked[-1] += data


def test_markup_in_a_corpus_is_shown_as_text_and_the_phrase_marked_by_code_points() -> None:
    answer = Answer("<mask> & <u>", (Phrase("𝔸<script>", 0.25, 1, (PLACE,)),), notes=("1 < 2",))
    shown = Shown(answer._repr_html_())
    assert set(shown.tags) == {"div", "p", "table", "tr", "th", "td", "b", "mark", "small"}
    assert shown.marked == ["𝔸<script>"]
    assert shown.cells == [
        *("phrase", "score", "context", "document"),
        *("𝔸<script>", "0.250", MARKUP, 'A & B (id"<i>)'),
    ]
    assert "<p>&lt;mask&gt; &amp; &lt;u&gt;</p>" in answer._repr_html_()
    assert "<small>1 &lt; 2</small>" in answer._repr_html_()


def test_an_answer_without_phrases_or_places_is_shown_too() -> None:
    assert "no phrase" in Answer("<mask>", ())._repr_html_()
    assert Shown(Answer("<mask>", (Phrase("Oslo", 0.5, 3, ()),))._repr_html_()).cells[4:] == ["Oslo", "0.500", "", ""]


def test_an_answer_to_several_masks_is_shown_by_filling_and_by_mask() -> None:
    masks = (MaskPhrases((Phrase("a<b", 0.5, 1, (PLACE,)),)), MaskPhrases(()))
    joint = JointAnswer("<mask> <mask>", (), masks=masks, fillings=(Filling(("a<b", "c"), 0.125),))
    shown = Shown(joint._repr_html_())
    assert shown.cells[:6] == ["mask 1", "mask 2", "score", "a<b", "c", "0.125"]
    assert shown.marked == ["𝔸<script>"]
    assert re.findall(r"<p>(mask \d|no phrase)</p>", joint._repr_html_()) == ["mask 1", "mask 2", "no phrase"]
    assert [(record["mask"], record["phrase"]) for record in joint.to_records()] == [(1, "a<b")]


def test_records_are_flat_one_an_occurrence_with_the_same_keys_in_all() -> None:
    other = Occurrence("d", "", 0, 1, "x", 0, 1, 0, 1)
    phrases = (Phrase("x", 0.5, 7, (other, PLACE)), Phrase("y", 0.25, 1, ()))
    records = Answer("It is <mask>.", phrases).to_records()
    keys = ["text", "mask", "rank", "phrase", "score", "occurrence_count", "place"]
    assert all(list(record) == keys + [item.name for item in fields(Occurrence)] for record in records)
    assert [tuple(record.values())[1:8] for record in records] == [
        (1, 1, "x", 0.5, 7, 1, "d"),
        (1, 1, "x", 0.5, 7, 2, 'id"<i>'),
        (1, 2, "y", 0.25, 1, None, None),
    ]
    assert records[1]["start_char"] == 118 and records[2]["context"] is None
    assert Answer("<mask>", ()).to_records() == []


def test_records_of_a_real_answer_have_every_place_that_it_holds(built_index: Path) -> None:
    with PhraseFiller.open(built_index) as filler:
        answer = filler.fill(QUESTION, occurrences=2)
    places = [place for phrase in answer.phrases for place in phrase.occurrences]
    records = answer.to_records()
    assert [record["context"] for record in records] == [place.context for place in places]
    assert len([record for record in records if record["place"] == 1]) == len(answer.phrases)
    assert len(Shown(answer._repr_html_()).marked) == len(answer.phrases)
