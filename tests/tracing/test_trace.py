"""Which documents a tracer looks in, what it asks the model, and exact borders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from npm.core.types import Answer
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FillSettings
from npm.tracing.evidence import CorpusEvidence
from npm.tracing.find import find_phrase
from npm.tracing.settings import TraceSettings
from npm.tracing.trace import LONG_QUOTATION_WORDS, OTHER_SCORE, TracedSpan, Tracer
from tests.helpers.live_indexes import built, record

TEXTS = {
    "en": ["The red river rises in Oslo. It is long.", "Rome has a red river."],
    "is": ["Oslo lies at a fjord.", "The red Ridge is in Oslo. So is the Cliff."],
}
NAMES = (
    "The Ridge rose. A Ridge fell. The old Ridge and a ridge. One Cliff, the Cliff, a Cliff, that Cliff and a cliff."
)


@pytest.fixture(scope="module")
def folder(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [(text, language) for language, own in TEXTS.items() for text in own]
    records = [record(number, text=text, language=language) for number, (text, language) in enumerate(texts)]
    return built(tmp_path_factory.mktemp("trace") / "index", records, encoder)


def places_of(spans: Sequence[TracedSpan]) -> set[str]:
    return {place.document for span in spans for place in span.places.values() if place is not None}


def test_a_trace_keeps_to_the_filter_of_its_filler_unless_it_has_one(folder: Path, encoder: Encoder) -> None:
    english, icelandic = (
        PhraseFiller.open(folder, encoder, settings=FillSettings(where=[f"lang={language}"])) for language in TEXTS
    )
    everywhere = PhraseFiller.open(folder, encoder)
    text = "The river rises in Oslo. It is in Rome."
    for filler, where, allowed in (
        (everywhere, [], {"d0", "d1", "d2", "d3"}),
        (english, [], {"d0", "d1"}),
        (icelandic, [], {"d2", "d3"}),
        (english, ["lang=is"], {"d2", "d3"}),
        (icelandic, ["lang=en"], {"d0", "d1"}),
        (everywhere, ["lang=is"], {"d2", "d3"}),
    ):
        traced = Tracer(filler, TraceSettings(where=where)).trace(text)
        assert [span.text for span in traced.spans] == ["Oslo", "Rome"]
        assert places_of(traced.spans) and places_of(traced.spans) <= allowed
        rome = traced.spans[1].place
        assert (rome is not None) == ("d1" in allowed)


def test_a_trace_keeps_to_the_documents_of_its_filler_unless_it_has_some(folder: Path, encoder: Encoder) -> None:
    filler = PhraseFiller.open(folder, encoder, settings=FillSettings(documents=["d2"]))
    for own, allowed in ((None, {"d2"}), (["d0"], {"d0"}), ([], set())):
        traced = Tracer(filler, TraceSettings(documents=own)).trace("It rises in Oslo.")
        assert places_of(traced.spans) == allowed


class Listening:
    """A filler that notes what it is asked."""

    def __init__(self, filler: PhraseFiller) -> None:
        self._filler, self.index, self.settings = filler, filler.index, filler.settings
        self.encoder = filler.encoder
        self.asked: list[str] = []

    def fill(self, texts: list[str], *given: Any, **options: Any) -> list[Answer]:
        self.asked += texts
        return self._filler.fill(texts, *given, **options)


class Answering(Listening):
    """A filler that answers every text with one phrase, from where the best one stands."""

    phrase, score = "", 0.9

    def fill(self, texts: list[str], *given: Any, **options: Any) -> list[Answer]:
        found = super().fill(texts, *given, **options)
        return [
            replace(each, phrases=(replace(each.phrases[0], phrase=self.phrase, score=self.score),)) for each in found
        ]


def test_only_a_phrase_like_the_span_stands_in_another_place(folder: Path, encoder: Encoder) -> None:
    answering = Answering(PhraseFiller.open(folder, encoder))
    for text, like, unlike in (("It rises in Zyzzyva.", "Oslo", "red river"), ("It rose in 1999.", "1605", "Oslo")):
        verdicts = []
        for answering.phrase in (like, unlike):
            (span,) = Tracer(answering).trace(text).spans  # type: ignore[arg-type]
            verdicts.append((span.verdict, span.other))
        assert verdicts == [("other", like), ("not_found", None)]
    answering.phrase = "Oslo"
    for answering.score, verdict in ((OTHER_SCORE, "other"), (OTHER_SCORE - 0.01, "not_found")):
        (span,) = Tracer(answering).trace("It rises in Zyzzyva.").spans  # type: ignore[arg-type]
        assert span.verdict == verdict


def test_a_quotation_of_many_words_is_looked_up_and_not_asked_for(folder: Path, encoder: Encoder) -> None:
    words = ["red", "river", "rises", "in", "Oslo", "today"]
    for count in (LONG_QUOTATION_WORDS - 1, LONG_QUOTATION_WORDS):
        listening = Listening(PhraseFiller.open(folder, encoder))
        quotation = " ".join(words[:count])
        (span,) = Tracer(listening).trace(f"It is said that “{quotation}” there.").spans  # type: ignore[arg-type]
        assert (span.kind, span.text) == ("quotation", quotation)
        assert len(listening.asked) == (count < LONG_QUOTATION_WORDS)
        assert span.place is not None and span.place.document == "d0"


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_count_is_complete_where_no_document_was_left_out(most: int, folder: Path) -> None:
    found = find_phrase(PhraseIndex.open(folder), "red river", most_documents=most)
    assert (found.documents, found.complete) == ((1, False) if most == 1 else (2, True))


def test_a_word_of_at_most_three_capitals_to_a_small_one_begins_no_name(encoder: Encoder, tmp_path: Path) -> None:
    index = PhraseIndex.open(built(tmp_path / "index", [record(0, text=NAMES)], encoder))
    evidence = CorpusEvidence(index, index.lexicon, None)
    assert (evidence.begins_name("Ridge"), evidence.begins_name("Cliff")) == (False, True)
