"""Exact look-up by hand, against a plain search of every document, across blocks, and after deletions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import npm
from npm.core.errors import QueryError
from npm.core.types import Document
from npm.indexing.changes import delete_documents
from npm.indexing.phrase_index import PhraseIndex, select
from npm.indexing.settings import DeleteSettings
from npm.models.encoder import Encoder
from npm.tracing.find import SoughtPhrase, find_phrase
from tests.helpers.live_indexes import built, record

ALIKE = {"’": "'", "‘": "'", "“": '"', "”": '"', "–": "-", "—": "-"}
TEXTS = (
    "Noah’s Ark held 1,500 pairs;\nthe ark of Noah had 500 rooms, and 3.500 windows of 500-year oak.",
    "The Bank of America was founded in San Francisco. The bank of  america's founder was Amadeo Giannini – "
    "a man of San\tFrancisco, who said “the bank is the bank of America” in the year 1904 and later.",
)


@pytest.fixture(scope="module")
def folder(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of blocks of 24 tokens, so that texts go over several; d0 is deleted."""
    records = [record(number, language=("en", "is")[number % 2]) for number in range(12)]
    records += [record(12 + number, text=text) for number, text in enumerate(TEXTS)]
    made = built(tmp_path_factory.mktemp("find") / "index", records, encoder)
    delete_documents(made, DeleteSettings(ids=["d0"]))
    return made


def folded(text: str) -> str:
    return " ".join("".join(ALIKE.get(char, char) for char in text.lower()).split())


def plain_places(document: Document, phrase: str) -> Iterator[tuple[str, int, int]]:
    """Every stretch of the text that reads as the phrase and is no part of longer words or numbers."""
    text, wanted, last = f"  {document.text}  ", folded(phrase), -1

    def is_word(char: str) -> bool:
        return char.isalnum() or char == "_"

    for start in range(2, len(text) - 2):
        for stop in range(start + len(wanted), min(start + len(wanted) + 3, len(text) - 1)):
            if start < last or folded(text[start:stop]) != wanted or text[start:stop].strip() != text[start:stop]:
                continue
            in_word = (is_word(text[start - 1]) and is_word(text[start])) or (
                is_word(text[stop - 1]) and is_word(text[stop])
            )
            before = text[start].isdigit() and text[start - 1] in ".," and text[start - 2].isdigit()
            after = text[stop - 1].isdigit() and text[stop] in ".," and text[stop + 1].isdigit()
            if not (in_word or before or after):
                yield document.id, start - 2, stop - 2
                last = stop


def documents_of(index: PhraseIndex) -> list[Document]:
    live = index.live_documents
    return [
        index.store.document(number) for number in range(index.store.document_count) if live is None or live[number]
    ]


def test_runs_of_words_are_found_where_a_plain_search_finds_them(folder: Path, rng: np.random.Generator) -> None:
    index, asked, across = PhraseIndex.open(folder), 0, 0
    documents = documents_of(index)
    for _ in range(60):
        text = documents[int(rng.integers(len(documents)))].text
        words = text.split()
        start = int(rng.integers(len(words)))
        phrase = " ".join(words[start : start + int(rng.integers(1, 7))]).strip(".,;“”–")
        phrase = phrase.upper() if rng.random() < 0.3 else phrase
        try:
            found = find_phrase(index, phrase, show=1000)
        except QueryError:  # function words alone
            continue
        expected = [place for document in documents for place in plain_places(document, phrase)]
        places = [(each.document, each.start_char, each.end_char) for each in found.occurrences]
        assert places == expected and expected, phrase
        assert (found.count, found.documents) == (len(expected), len({place[0] for place in expected}))
        for each in found.occurrences:
            assert folded(each.parts[1]) == folded(phrase)
        asked, across = asked + 1, across + (not len(index.lexicon.blocks_with(phrase)))  # type: ignore[arg-type]
    assert asked > 30 and across, "some phrases go over two blocks"


@pytest.mark.parametrize(
    ("phrase", "count"),
    [
        ("noah's ark", 1), ("ark", 2), ("500", 2), ("3.500", 1), ("1,500 pairs", 1), ("500-year oak", 1),
        ("bank of america", 5), ("San  Francisco", 4), ("Amadeo Giannini - a man", 1), ('"the bank is', 1),
        ("Fran", 0), ("rooms and", 0), ("Francisco Bank", 0),
    ],
)  # fmt: skip
def test_phrases_are_counted_by_hand(folder: Path, phrase: str, count: int) -> None:
    assert npm.find(phrase, folder, where="lang=en", documents=["d12", "d13", "d10", "d2"]).count == count


def test_case_places_and_documents_can_be_limited(folder: Path) -> None:
    assert npm.find("BANK OF AMERICA", folder).count > 2
    assert npm.find("BANK OF AMERICA", folder, match_case=True).count == 0
    shown = npm.find("Bank of America", folder, show=1)
    assert len(shown.occurrences) == 1 and shown.complete
    every = find_phrase(PhraseIndex.open(folder), "Bank of America", most_documents=1)
    assert every.documents == 1 and not every.complete and every.count < shown.count
    assert npm.find("Bank of America", folder, documents=[]).count == 0


def test_a_deleted_document_is_not_read(encoder: Encoder, tmp_path: Path) -> None:
    made = built(tmp_path / "index", [record(0), record(8)], encoder)
    both = npm.find("capital of Iceland", made)
    delete_documents(made, DeleteSettings(ids=["d8"]))
    assert (both.count, both.documents) == (2, 2) and npm.find("capital of Iceland", made).documents == 1


@pytest.mark.parametrize(
    ("phrase", "text", "place"),
    [
        ("José Peña", "by Jose\u0301 Pen\u0303a.", "Jose\u0301 Pen\u0303a"),
        ("final reflection", "The ﬁnal reﬂection", "ﬁnal reﬂection"),
        ("Johann Andrews", "Jo\xadhann An\xaddrews led", "Jo\xadhann An\xaddrews"),
        ("helpless", "are help\u200bless\ufeff—God", "help\u200bless\ufeff"),
        ("izmir", "in İzmir", "İzmir"),
        ("AB-1234", "ＡＢ－１２３４", "ＡＢ－１２３４"),
        ("25 m3", "holds 25 m³ of", "25 m³"),
        ("CO2", "is CO\u2001\u20012\u2001 here", "CO\u2001\u20012"),
        ("Rate: 737 EUR", "Depot·Rate\nPorto\u037e737 EUR\n".replace("·", "\u0387"), "737 EUR"),
        ("Rate", "Depot·Rate\nPorto\u037e737 EUR\n".replace("·", "\u0387"), "Rate"),
    ],
)
def test_a_phrase_is_found_as_it_is_read_and_its_place_is_that_of_the_stored_text(
    phrase: str, text: str, place: str
) -> None:
    assert [text[start:stop] for start, stop in SoughtPhrase(phrase).places(text)] == [place]


@pytest.mark.parametrize(
    ("phrase", "text"), [("106", "10⁶ cells"), ("21", "2½ cups"), ("cafe", "café"), ("Ann", "Anna")]
)
def test_what_looks_similar_is_another_phrase(phrase: str, text: str) -> None:
    assert not list(SoughtPhrase(phrase).places(text))


def test_hidden_characters_of_markdown_are_passed_over() -> None:
    text = "the \u2001\u2001bold\u2001\u2001, and  so on"
    assert list(SoughtPhrase("the bold, and so").places(text)) == [(0, 21)]


@pytest.mark.parametrize("phrase", ["", "  ", "of the", "?!", 3])
def test_what_cannot_be_looked_up_is_refused(folder: Path, phrase: str) -> None:
    with pytest.raises(QueryError):
        npm.find(phrase, folder)


def test_unknown_documents_are_refused(folder: Path) -> None:
    index = PhraseIndex.open(folder)
    with pytest.raises(QueryError, match="no such document"):
        find_phrase(index, "Paris", allowed=select(index, ["nowhere"], []))
